"""Reads that leave their buffer whatever the sizes are."""

from __future__ import annotations

import pytest

from neptune.errors import ExpressionError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, select, sum, var
from neptune.ir.check import check_reads, nearest_size
from neptune.ir.program import Program, Scalar

N, M = var("n"), var("m")


def shifted(by: int, extra: int = 0, guarded: bool = False) -> Program:
    x = placeholder((N + extra,), "float32", "x")
    y = compute((N,), lambda i: select(i + by < N, x[i + by], 0.0) if guarded else x[i + by], "y")
    return build(y, name="shifted")


@pytest.mark.parametrize(("by", "extra"), [(1, 0), (-1, 0), (3, 2)])
def test_a_read_beyond_the_end_is_refused(by: int, extra: int) -> None:
    with pytest.raises(ExpressionError, match="reads `x` at"):
        check_reads(shifted(by, extra))


@pytest.mark.parametrize(("by", "extra", "guarded"), [(0, 0, False), (2, 2, False), (1, 0, True)])
def test_a_read_inside_or_under_a_predicate_is_not(by: int, extra: int, guarded: bool) -> None:
    check_reads(shifted(by, extra, guarded))


def test_what_depends_on_sizes_or_data_is_left_to_them() -> None:
    x, at = placeholder((N,), "float32", "x"), placeholder((M,), "int32", "at")
    r = reduce_axis((0, M), "r")
    check_reads(build([compute((M,), lambda i: x[i], "y"), compute((M,), lambda i: x[at[i] - 100], "z")], name="p"))
    check_reads(build(compute((N,), lambda i: sum(x[(i + r) % N], axis=r), "y"), name="p"))


@pytest.mark.parametrize(("value", "nearest"), [(1, 16), (33, 48), (97, 96), (515, 96)])
def test_the_nearest_size_is_a_multiple_within_its_bounds(value: int, nearest: int) -> None:
    assert nearest_size(Scalar("n", lo=5, hi=100, divisor=16), value) == nearest
