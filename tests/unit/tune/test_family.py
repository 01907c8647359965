"""The choices that are kept for all sizes, and the tree that tells them apart."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from neptune.base.choice import Choice
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.ops.attention import operator, prefill_causal
from neptune.ops.linear import matmul
from neptune.ops.norm import rms_norm
from neptune.ops.softmax import softmax
from neptune.runtime.family import Cut, pick
from neptune.tune import choose as choosing
from neptune.tune.choose import candidates
from neptune.tune.family import MOST, Wishes, _kept, choose
from neptune.tune.measured import Sample
from neptune.tune.model.machine import DEFAULT
from neptune.tune.rows import Rows
from neptune.tune.tree import _between, compared, cut

PROGRAMS = {
    "attention": prefill_causal,
    "decode": lambda: operator("decode_gqa"),
    "matmul": matmul,
    "softmax": softmax,
}


@cache
def family(name):
    return next(candidates(PROGRAMS[name]())).family


@pytest.mark.parametrize("name", PROGRAMS)
def test_little_is_lost_against_the_best_candidate_of_every_point(name):
    found = family(name)
    assert 1 < len(found.choices) <= MOST and found.lost[0] < 0.03 and found.lost[1] < 0.6
    taken = np.array([found.us(k) for k in range(len(found.points))])
    assert np.isfinite(taken).all()
    # The tree takes little more than the best of what is kept.
    assert np.log(taken / found.times.min(axis=0)).mean() < 0.01
    # One choice for all sizes would lose much more.
    alone = np.log(found.times / found.times.min(axis=0)).mean(axis=1).min()
    assert alone > 5 * np.log1p(found.lost[0])


@pytest.mark.parametrize("program", [softmax(), rms_norm()], ids=["softmax", "rms_norm"])
def test_sizes_between_points_take_nothing_that_is_spilled_there(program):
    """A row of 32768 is no one tile of four warps, though one of 16384 is: no power of two lies between two points."""
    found, draw = next(candidates(program)).family, random.Random(0)
    at = [{n: int(2 ** draw.uniform(3, 17)) for n in found.points[0]} for _ in range(100)]
    at += [{"rows": m, "cols": n} for m in (512, 2048, 3072) for n in (24576, 32768, 49152, 65536)]
    tiles = {c.template: choosing.lowered(c.template, program).tiles for c in found.choices}
    times = np.stack([Rows(tiles[c.template], at, DEFAULT, {}).predicted([c.params], at)[0] for c in found.choices])
    taken = np.array([times[pick(found.tree, sizes), k] for k, sizes in enumerate(at)])
    assert (taken / times.min(axis=0)).max() < 2.0


def test_few_queries_and_many_keys_are_split():
    found = family("attention")
    sizes = {"batch": 1, "heads": 8, "s_q": 1, "s_kv": 131072}
    assert found.choices[pick(found.tree, sizes)].template == "flash_decoding"
    full = {"batch": 4, "heads": 16, "s_q": 4096, "s_kv": 4096}
    assert found.choices[pick(found.tree, full)].template == "flash_attention"


def test_products_of_few_rows_have_short_tiles():
    found = family("matmul")
    few = found.choices[pick(found.tree, {"m": 1, "n": 4096, "k": 4096})].params
    many = found.choices[pick(found.tree, {"m": 4096, "n": 4096, "k": 4096})].params
    assert few["BLOCK_M"] < many["BLOCK_M"]


@pytest.mark.parametrize("given", [{"num_warps": 8}, {"BLOCK_M": 32, "num_stages": 2}])
def test_values_that_are_given_stay(given):
    for choice in next(candidates(matmul(), None, Wishes(params=given))).family.choices:
        assert choice.params.items() >= given.items()


def test_only_templates_that_take_the_values_are_chosen():
    found = [c.template for c in candidates(matmul(), None, Wishes(params={"NUM_SPLITS": 4}))]
    assert set(found) == {"matmul_split", "flash_decoding"}


def test_sizes_that_are_all_known_have_one_choice():
    x, p = placeholder((64, 4096), name="x"), reduce_axis((0, 4096), "p")
    constant = build(compute((64,), lambda i: sum(x[i, p], axis=p), "y"), name="rows")
    for program, typical in ((matmul(), {"m": 16, "n": 6144, "k": 4096}), (constant, {})):
        found = next(candidates(program, None, Wishes(typical))).family
        assert len(found.choices) == 1 and found.tree == 0 and found.lost == (0.0, 0.0)


def test_without_predictions_templates_come_by_their_structure(monkeypatch):
    monkeypatch.setattr(choosing, "choose", lambda *args: None)
    found = list(candidates(softmax()))
    assert all(c.family is None for c in found) and {c.template for c in found} >= {"softmax_row", "softmax_online"}
    kernels = [len(c.tiles.kernels) for c in found]
    assert kernels[0] == 1


def test_a_program_of_size_zero_has_a_choice():
    n = var("n")
    x = placeholder((n,), name="x")
    program = build(compute((n,), lambda i: x[i] * 2.0, "y"), name="double")
    for typical in ({}, {"n": 0}):
        made = next(candidates(program, None, Wishes(typical)))
        assert made.template == "stagewise" and made.family is not None


# --- what was measured -----------------------------------------------------------------------------

HERE = {"m": 700, "n": 3000, "k": 5000}
SLOW = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 2}
MODELS = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}


def sample(slow=1.0, other=2.0, weight=1.0, **more):
    times = {Choice("matmul", {**SLOW, **more}): slow, Choice("matmul", MODELS): other}
    return Sample(HERE, times, weight)


def taken(found, **sizes):
    return found.choices[pick(found.tree, {**HERE, **sizes})].params


def test_what_was_measured_is_taken_at_its_sizes_and_at_those_alike():
    found = next(candidates(matmul(), None, Wishes(samples=(sample(),)))).family
    assert taken(found) == SLOW and taken(found, m=701) == SLOW
    without = family("matmul")
    assert taken(without) != SLOW and taken(found, m=4096, n=64) == taken(without, m=4096, n=64)
    # Where all sizes are known, too.
    (only,) = next(candidates(matmul(), None, Wishes(HERE, samples=(sample(),)))).family.choices
    assert only.params == SLOW


def test_a_prior_that_says_little_against_the_model_decides_nothing():
    for weak in (sample(slow=2.0, other=2.01, weight=0.5), Sample({"m": 1}, sample().us, 1.0)):
        found = next(candidates(matmul(), None, Wishes(samples=(weak,)))).family
        assert taken(found) != SLOW


@pytest.mark.parametrize("more", [{"BLOCK_M": 7}, {"BLOCK_Q": 8}, {"num_warps": 5}])
def test_a_record_of_values_that_there_are_not_is_passed_over(more):
    found = next(candidates(matmul(), None, Wishes(samples=(sample(**more),)))).family
    of_matmul = [c.params.keys() for c in (*family("matmul").choices, *found.choices) if c.template == "matmul"]
    assert all(keys == of_matmul[0] for keys in of_matmul)
    assert taken(found) == MODELS


def test_records_of_other_values_than_are_given_say_nothing():
    wishes = Wishes(params={"num_warps": 4}, samples=(sample(),))
    assert all(c.params["num_warps"] == 4 for c in next(candidates(matmul(), None, wishes)).family.choices)


def test_measured_sizes_beyond_the_bounds_are_no_points():
    found = next(candidates(matmul(), None, Wishes(bounds={"m": 64}, samples=(sample(),)))).family
    assert all(p["m"] <= 64 for p in found.points)


def test_without_samples_the_family_is_the_models():
    assert next(candidates(matmul(), None, Wishes(samples=()))).family.tree == family("matmul").tree


def test_nothing_runs_anywhere():
    assert choose({}, ({"m": 1},), DEFAULT, Wishes()) is None


# --- the tree --------------------------------------------------------------------------------------


def test_a_cut_lies_between_the_points_it_tells_apart():
    points = [{"m": m, "n": n} for m in (1, 16, 256, 4096) for n in (1, 64)]
    logs = np.array([[0.0 if p["m"] <= 16 else 1.0 for p in points], [0.5 for _ in points]])
    tree = cut(logs, compared(points), 5)
    assert tree == Cut(("m",), 64, 0, 1)
    assert all(pick(tree, p) == (p["m"] > 16) for p in points)


def test_what_saves_nothing_is_not_kept_and_not_cut():
    logs = np.array([[1.0, 1.0, 1.0, 1.0], [1.0001, 0.9999, 1.0, 1.0]])
    assert len(_kept(logs)) == 1
    assert cut(logs, compared([{"m": 1}, {"m": 2}, {"m": 3}, {"m": 4}]), 5) in (0, 1)


@pytest.mark.parametrize(("low", "high"), [(1, 2), (3, 4), (0, 5), (16, 17), (1000, 1001), (1024, 65536), (5, 10**12)])
def test_between_two_numbers(low, high):
    assert low <= _between(low, high) < high
