"""What chains of reductions look like to a template: their axis, rows, prologues and epilogues, by dataflow alone."""

from __future__ import annotations

import pytest

from bench.chain_attention import ATTENTION
from bench.chain_programs import ROW_CHAINS
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ops.norm import rms_norm
from neptune.schedule.roles import Chain, chain

PROGRAMS = {c.name: c.build for c in (*ROW_CHAINS, *ATTENTION)}
M, N = var("m"), var("n")


def parts(name: str) -> Chain:
    return chain(Schedule(PROGRAMS[name](16)), "test")


@pytest.mark.parametrize(
    "name, first, rows, fused, reductions",
    [
        ("softmax", "m", "i", "j", ("m", "l")),
        ("rms_norm_linear", "ss", "i", "j", ("ss", "y")),
        ("cosine_similarity", "xy", "i", "j", ("xy", "xx", "yy")),  # independent: they meet at their inputs
        ("softmax_top_k", "m", "i", "j", ("m", "l", "best")),  # m and l meet at the input, l and best through e
        ("sigmoid_attention", "s", "i", "j", ("acc",)),  # one reduction over what a product runs over
        ("linear_attention", "s", "i", "j", ("l", "acc")),
        ("qk_norm_attention", "s", "i", "j", ("m", "acc", "l")),
        ("gaussian_mixture", "far", "i", "j", ("m", "l")),
    ],
)
def test_the_axis_and_its_reductions(name: str, first: str, rows: str, fused: str, reductions: tuple[str, ...]) -> None:
    found = parts(name)
    assert (found.first, found.row_axis, found.fused_axis) == (first, rows, fused)
    assert set(found.all_reductions) == set(reductions)


def test_what_comes_before() -> None:
    found = parts("qk_norm_attention")
    assert (set(found.apart), set(found.per_row)) == ({"k_ss", "k_unit"}, {"q_ss", "q_unit"})
    assert found.maps_before == ("score",) and found.epilogue == ("o",)


def test_what_comes_behind() -> None:
    assert parts("softmax").elementwise == ("e", "y")
    assert "loss" in parts("linear_cross_entropy").epilogue


def test_two_chains_over_one_axis_are_one() -> None:
    found = parts("differential_attention")
    assert {"m1", "l1", "acc1", "m2", "l2", "acc2"} == set(found.all_reductions)
    assert "s2" in found.maps_before and found.first == "s1"


def test_rows_that_are_columns_as_well_stay_apart() -> None:
    """Σ over j of max over d of x[i, d] x[j, d]: i and j meet at the input, and are not one axis."""
    x = placeholder((M, 16), "float32", "x")
    d, j, e = reduce_axis((0, 16), "d"), reduce_axis((0, M), "j"), reduce_axis((0, M), "j")
    s = compute((M, M), lambda i, j: sum(x[i, d] * x[j, d], axis=d), "s")
    top = compute((M,), lambda i: max(s[i, j], axis=j), "top")
    found = chain(Schedule(build(compute((M,), lambda i: sum(s[i, e] - top[i], axis=e), "y"))), "test")
    assert (found.first, found.row_axis, found.fused_axis) == ("s", "i", "j")


def test_one_reduction_and_what_is_written_along_it_are_one() -> None:
    """A norm: one reduction over a row, which a map goes along again."""
    found = chain(Schedule(rms_norm("float32")), "test")
    assert (found.first, found.row_axis, found.fused_axis) == ("ss", "i", "j")
    assert found.all_reductions == ("ss",) and found.elementwise == ("y",)


def test_one_reduction_is_no_chain() -> None:
    x, j = placeholder((M, N), "float32", "x"), reduce_axis((0, N), "j")
    with pytest.raises(ScheduleError, match="a reduction over an axis that another reduction runs over"):
        chain(Schedule(build(compute((M,), lambda i: sum(x[i, j], axis=j), "y"))), "test")
