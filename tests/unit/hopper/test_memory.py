"""What forms take, which of them fit, and which come first: by counts, beside what was compiled and measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.errors import Unsupported
from neptune.forms import Source
from neptune.hopper.choice.memory import Counts, forms, wrong_with
from neptune.hopper.choice.predict import Predictor, fastest
from neptune.hopper.derive import derived
from neptune.hopper.hardware import SHARED_LIMIT
from neptune.hopper.ir import Levers
from neptune.hopper.roles.kernel import roles
from neptune.runtime.hopper import accepted
from neptune.tile.parser import parse_tiles
from neptune.tune.model.machine import DEFAULT
from neptune.tune.rank import model_of
from tests.examples.walks import tiles_of, walked

COMPILED = {
    64: (Levers(3, 3), 128, 115032),
    128: (Levers(2, 2), 128, 196944),
    256: (Levers(2, 2, own_out=False), 64, 196928),
}
"""By depth: the form, its keys, and the bytes of shared memory of `bench/baselines/flash_attention_gluon.py`."""


def of_attention(depth: int) -> tuple[Counts, list[Levers]]:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=depth, heads=2)
    w = walked(tiles)
    return Counts(w), forms(w, tiles)


@pytest.mark.parametrize("depth", COMPILED)
def test_the_form_by_hand_comes_first(depth: int) -> None:
    form, keys, used = COMPILED[depth]
    counts, found = of_attention(depth)
    best = found[0]
    assert (best.consumers, best.stages, best.own_out, best.tiles["BLOCK_N"]) == (
        form.consumers, form.stages, form.own_out, keys,
    )  # fmt: skip
    assert best.pin == (depth == 64) and best.persistent == "table"
    # Queries of the next group come ahead where there is room, which the form by hand has not.
    assert best.ahead == (depth < 256)
    by_hand = replace(best, ahead=False, stages=2)
    assert used <= counts.needs(by_hand).shared <= used + 512
    assert all(wrong_with(counts.needs(x), x) is None for x in found)


@pytest.mark.parametrize(("depth", "length", "first"), [(64, 1024, (2, 3, 128)), (64, 8192, (3, 3, 128)),
                                                        (128, 8192, (2, 2, 128)), (256, 8192, (2, 2, 64))])  # fmt: skip
def test_by_time_the_measured_best_comes_first(depth: int, length: int, first: tuple[int, int, int]) -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=depth)
    sizes = {"batch": 16384 // length, "heads": 2048 // depth, "s_q": length, "s_kv": length}
    found = forms(walked(tiles), tiles)
    order = fastest(found, Predictor(model_of(tiles), sizes, DEFAULT), {})
    assert (order[0].consumers, order[0].stages, order[0].tiles["BLOCK_N"]) == first
    assert sorted(map(str, order)) == sorted(map(str, found))


def test_few_rows_of_a_product_want_small_tiles() -> None:
    _, tiles = tiles_of("matmul", "matmul")
    sizes = {"m": 128, "n": 4096, "k": 4096}
    order = fastest(forms(walked(tiles), tiles), Predictor(model_of(tiles), sizes, DEFAULT, late=False), {})
    assert order[0].tiles["BLOCK_N"] < 256


def test_tile_sizes_that_are_settled_are_kept() -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=64)
    assert {x.tiles["BLOCK_N"] for x in forms(walked(tiles), tiles, {"BLOCK_N": 32, "BLOCK_M": 128})} == {32}


def test_a_function_of_every_score_leaves_three_consumers_out() -> None:
    _, tiles = tiles_of("prefill_softcap", "flash_attention", depth=64)
    found = forms(walked(tiles), tiles)
    assert (found[0].consumers, found[0].tiles["BLOCK_N"]) == (2, 128)


def test_products_take_wide_tiles() -> None:
    _, tiles = tiles_of("matmul", "matmul")
    best = forms(walked(tiles), tiles)[0]
    assert (best.consumers, best.stages, best.persistent) == (2, 3, "stride")
    assert (best.tiles["BLOCK_N"], best.tiles["BLOCK_K"]) == (256, 64)


def test_forms_try_wider_tiles_than_the_template() -> None:
    """A consumer has fewer rows than a program: a loss over products takes 256 columns, attention 128 at most."""
    _, tiles = tiles_of("linear_cross_entropy", "flash_decoding", depth=4096)
    assert max(next(t.candidates for t in tiles.tunables if t.name == "BLOCK_N")) == 128
    assert (
        forms(walked(tiles, kernel=next(k for k, x in enumerate(tiles.kernels) if "split" in x.name)), tiles)[0].tiles[
            "BLOCK_N"
        ]
        == 256
    )
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=128)
    assert max(x.tiles["BLOCK_N"] for x in forms(walked(tiles), tiles)) == 128


def test_a_residual_leaves_room_for_wide_tiles() -> None:
    """By pointers one of 256 columns spilled 3648 bytes of a thread; as a box none, and the result leaves over it."""
    _, tiles = tiles_of("matmul", "matmul", residual=True)
    w = walked(tiles)
    assert w.staged[-1] == ("residual", True) and w.read == ("residual",)
    best = forms(w, tiles)[0]
    assert (best.tiles["BLOCK_N"], best.stages, best.own_out) == (256, 3, False)
    (plain,) = {Counts(walked(t)).needs(best).registers for _, t in [tiles_of("matmul", "matmul")]}
    assert Counts(w).needs(best).registers == plain + 64 * 256 / 2 / 128


def test_a_tile_that_is_read_by_pointers_takes_registers() -> None:
    """Of a residual that is no box, as it is masked by more than its ends, each pair of elements has an address."""
    _, tiles = tiles_of("matmul", "matmul", residual=True)
    text = str(tiles)
    at = text.index("residual<i1 j1> = masked(")
    odd = text[at:].replace("0.0)", "1.0)", 1)
    w = walked(parse_tiles(text[:at] + odd, tiles))
    assert w.read == () and forms(w, tiles)[0].tiles["BLOCK_N"] == 128


def test_a_form_is_found_where_the_first_tiles_are_too_large() -> None:
    _, tiles = tiles_of("differential_attention", "flash_attention")
    assert derived(Source(tiles)).levers["BLOCK_N"] == 32


def test_forms_differ_and_are_derived_as_counted() -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=128, heads=2)
    found = forms(walked(tiles), tiles)
    assert len({(x.consumers, x.stages, x.own_out, x.ahead, *x.tiles.values()) for x in found}) == len(found)
    one = next(x for x in found if x.own_out and not x.ahead)
    for levers in (found[0], one, next(x for x in found if not x.own_out)):
        made = roles(walked(tiles, levers), tiles, levers)
        assert [o.over is None for o in made.outs] == [levers.own_out]
        assert [r.stages for r in made.rings] == [1 + levers.ahead, levers.stages, levers.stages]


@pytest.mark.parametrize(
    ("levers", "what", "legal"),
    [
        (Levers(2, 4, tiles={"BLOCK_N": 128}), "bytes of shared memory", "consumers 2, stages 2, BLOCK_N 128"),
        (Levers(3, 2, own_out=False, tiles={"BLOCK_N": 128}), "registers", "consumers 3, stages 2, BLOCK_N 64"),
    ],
)
def test_what_does_not_fit_says_what_does(levers: Levers, what: str, legal: str) -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=128, heads=2)
    with pytest.raises(Unsupported, match=what) as caught:
        roles(walked(tiles), tiles, levers)
    assert legal in caught.value.legal and len(caught.value.legal) <= 4


def test_shared_memory_is_as_large_as_a_launch_allows() -> None:
    """What runs a kernel knows no table of machines, and has the number for itself."""
    assert accepted.SHARED == SHARED_LIMIT
