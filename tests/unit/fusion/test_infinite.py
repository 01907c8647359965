"""Maxima from -inf: read as finite numbers in exponents, kept as they are everywhere else."""

from __future__ import annotations

from functools import partial

import pytest

from neptune.frontend import builder as te
from neptune.frontend.builder import build, exp
from neptune.fusion.repairs.starts import bounded, starts_infinite, with_previous
from neptune.ir.expr import Const, Load, Var
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.verify.exact import check_exact
from tests.examples.chains import check_same, matrix, per_row, tiled
from tests.examples.mutants import change, reverse

INF = float("inf")
ODD = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8})


def test_which_starts_are_taken() -> None:
    assert starts_infinite("max", Const(-INF, "float32")) and starts_infinite("min", Const(INF, "float16"))
    assert not starts_infinite("max", Const(INF, "float32")) and not starts_infinite("sum", Const(-INF, "float32"))
    assert not starts_infinite("max", Const(float("nan"), "float32")) and not starts_infinite(
        "max", Var("p", "float32")
    )


def test_every_read_is_bounded_but_those_of_others() -> None:
    m, prev, s = (Load(n, (Var("i"),), "float16") for n in ("m", "m'", "s"))
    reducers = with_previous({"m": "max"})
    assert print_expr(bounded(prev - m, reducers)) == "max(m'[i], -65504.0:f16) - max(m[i], -65504.0:f16)"
    assert bounded(s + s, reducers) == s + s and bounded(s - m, {}) == s - m


def chain(low: bool) -> Program:
    x = matrix("x")
    fold = partial(te.min if low else te.max, init=INF if low else -INF)
    m = per_row(lambda i, j: x[i, j], "m", fold)
    return build([per_row(lambda i, j: exp(m[i] - x[i, j] if low else x[i, j] - m[i])), m], name="p")


@pytest.mark.parametrize("low", [False, True])
def test_fused_programs(low: bool) -> None:
    program = chain(low)
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert "m[i0 * BLOCK_M + i1], " + ("3.40" if low else "-3.40") in str(sch.program)
    check_same(program, sch, *ODD)
    sch.partition(j0)
    check_same(program, sch, *ODD)
    assert check_exact(program, sch.program).accepted
    assert check_exact(program, change(sch.program, "m_rescale", reverse)).verdict == "rejected"
