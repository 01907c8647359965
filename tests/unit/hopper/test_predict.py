"""The predicted time of an asynchronous form, beside what was measured of the hand-written one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench import hopper_cost
from bench.cost import MACHINE
from neptune.forms import Wanted
from neptune.hopper.choice.predict import Predictor
from neptune.hopper.choice.wanted import ordered
from neptune.hopper.ir import Levers
from neptune.tune.rank import ranked
from tests.examples.walks import tiles_of, walked

TILES = {"BLOCK_N": 128}


def predictor(depth: int, length: int, causal: bool, near: bool = True) -> Predictor:
    at = hopper_cost.sizes(depth, length)
    return Predictor(hopper_cost.model(depth, causal), at, MACHINE, near=near)


def test_the_hand_written_form_is_predicted() -> None:
    off = np.abs(hopper_cost.errors(hopper_cost.by_hand()))
    assert len(off) == 36
    assert np.median(off) <= 0.03 and np.quantile(off, 0.95) <= 0.1 and off.max() <= 0.14


def test_levers_are_in_the_measured_order() -> None:
    right, every = hopper_cost.pairs()
    assert right == every >= 50


def test_most_kernels_on_tiles_are_told_from_it() -> None:
    right, every = hopper_cost.against_triton()
    assert right >= 0.85 * every and every >= 70


def test_generated_products_are_predicted() -> None:
    off = np.abs(hopper_cost.errors(hopper_cost.of_products()))
    assert len(off) >= 2 and off.max() <= 0.1


def test_a_product_in_flight_waits_for_nothing() -> None:
    asked = hopper_cost.predictor(hopper_cost.of_products()[0])
    levers = hopper_cost.of_products()[0].levers
    ours = asked.of(levers)
    assert ours.us < 0.9 * replace(asked, carried=False).of(levers).us
    # The port has time for a tile beside the products, as long as it is wide enough.
    assert ours.us < asked.of(replace(levers, tiles={"BLOCK_N": 64, "BLOCK_K": 64})).us


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (4096, 4096, 4096), (2048, 4096, 14336), (512, 4096, 4096)])
def test_products_are_not_left_out(sizes: tuple[int, int, int]) -> None:
    """By prediction none of them is far behind the Triton form, as those that were measured are not."""
    _, tiles = tiles_of("matmul", "matmul")
    at = dict(zip("mnk", sizes, strict=True))
    best = ranked(tiles, at, MACHINE)[0].params
    assert ordered(walked(tiles), tiles, Wanted(sizes=at, machine=MACHINE, on_tiles=best, ahead=True))


def test_stages_do_not_make_the_port_wider() -> None:
    """Of narrow tiles each column is little work, for which all rows come again."""
    asked = hopper_cost.predictor(hopper_cost.of_products()[0])
    us = [asked.of(Levers(2, n, "stride", tiles={"BLOCK_N": 16, "BLOCK_K": 64})).us for n in (4, 5, 6)]
    rows, columns = 128 * 4096 * 2, 16 * 4096 * 2
    cycles = 32 * 256 / 132 * (rows + columns) / MACHINE.port
    assert all(t >= cycles / (MACHINE.clock * 1e3) for t in us)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "consumers"), [(512, 2), (1024, 2), (8192, 3), (16384, 3)])
def test_short_rows_of_depth_64_want_two_consumers(length: int, consumers: int, causal: bool) -> None:
    asked = predictor(64, length, causal)
    us = {n: asked.of(Levers(n, 5 - n, "table", tiles=TILES)).us for n in (2, 3)}
    assert min(us, key=lambda n: us[n]) == consumers


def test_a_table_that_scatters_heads_reads_keys_again() -> None:
    levers = Levers(2, 2, "table", tiles=TILES)
    short, long = (
        [predictor(128, n, causal=True, near=near).of(levers).us for near in (True, False)] for n in (1024, 16384)
    )
    assert short[1] > 1.15 * short[0]
    assert long[1] < 1.02 * long[0]
    full = [predictor(128, 1024, causal=False, near=near).of(levers).us for near in (True, False)]
    assert full[0] == full[1]


def test_in_reverse_causal_rows_end_together_and_others_do_not_care() -> None:
    def us(how: str, causal: bool, length: int) -> float:
        return predictor(128, length, causal).of(Levers(2, 2, how, tiles=TILES)).us

    for length in (1024, 4096, 16384):
        assert us("table", True, length) < 1.1 * us("reverse", True, length)
        assert us("reverse", True, length) < us("once", True, length)
        assert us("reverse", False, length) == us("once", False, length)


def test_a_last_group_with_few_rows_takes_less() -> None:
    whole = predictor(64, 192 * 8, causal=False)
    fewer = replace(whole, sizes={**whole.sizes, "s_q": 192 * 7 + 64})
    levers = Levers(3, 2, "stride", tiles=TILES)
    assert fewer.of(levers).groups == whole.of(levers).groups
    assert fewer.of(levers).us < whole.of(levers).us


def test_fewer_stages_than_copies_need_cost_time() -> None:
    asked = predictor(64, 8192, causal=False)
    times = [asked.of(Levers(2, n, "stride", tiles=TILES)).us for n in (2, 3, 4)]
    assert times == sorted(times, reverse=True) and times[0] > times[1]


def test_what_is_computed_late_runs_under_a_product() -> None:
    asked = predictor(128, 8192, causal=False)
    levers = Levers(2, 2, "stride", tiles=TILES)
    assert replace(asked, late=False).of(levers).us > asked.of(levers).us


def test_groups_that_do_not_fill_a_wave_cost_a_whole_one() -> None:
    """Eight groups a head: 264 are two waves of 132 programs."""
    levers = Levers(2, 2, "stride", tiles=TILES)
    sizes = {"batch": 1, "s_q": 1024, "s_kv": 16384}
    times = [
        Predictor(hopper_cost.model(128, False), {**sizes, "heads": heads}, MACHINE).of(levers).us
        for heads in (32, 33, 34)
    ]
    assert times[1] < 1.01 * times[0] and times[2] > 1.4 * times[1]
