"""Maxima from -inf: read as finite numbers in exponents, kept as they are everywhere else.

What is applied behind a loop that may have folded nothing: 0, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest

from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import Tensor, build, exp, log, select
from neptune.fusion.repairs.roles import Predecessor, Roles
from neptune.fusion.repairs.starts import bounded, guard, starts_infinite, with_previous
from neptune.ir.expr import Const, Expr, Load, Var, cast, maximum, op
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


# --- guards -------------------------------------------------------------------------------------

ROW, COL = Var("i"), Var("j")
S = Load("s", (ROW, COL), "float32")
M, L, Q, LOW = (Load(n, (ROW,), "float32") for n in ("m", "l", "q", "low"))
P = Load("p", (ROW,), "float32")
ROLES = Roles(
    (
        Predecessor(M, "max", S),
        Predecessor(L, "sum", op("exp", S)),
        Predecessor(Q, "sum", S),
        Predecessor(LOW, "max", S, start=Const(-math.inf, "float32")),
    ),
    frozenset({"j"}),
)


def power(e: Expr, by: float) -> Expr:
    return op("pow", e, Const(by, "float32"))


@pytest.mark.parametrize(
    ("phi", "guarded"),
    [
        (power(Q, 2.0), "pow(q[i], 2.0)"),
        (power(Q, -1.0), "select(q[i] != 0.0, pow(q[i], -1.0), 0.0)"),
        (power(Q, 0.5), "select(q[i] >= 0.0, pow(q[i], 0.5), 0.0)"),
        (power(Q, -0.5), "select(q[i] > 0.0, pow(q[i], -0.5), 0.0)"),
        (M, "m[i]"),
        (M / 127.0, "m[i] / 127.0"),
        (P / M, "select(m[i] != 0.0, p[i] / m[i], 0.0)"),
        (maximum(LOW, 1e-6) * P, "max(low[i], 1e-06) * p[i]"),
        (1.0 / LOW, "select(low[i] != 0.0, 1.0 / low[i], 0.0)"),
        (op("tanh", LOW), "tanh(low[i])"),
        # Infinite where nothing was folded, and 0 times that is NaN.
        (LOW, None),
        (M * 2.0, None),
        (M * P, None),
        (M + M, None),
        (M / P, None),
        (cast(M, "float16"), None),
        (op("pow", P, Q), None),
        (op("pow", Q, P), None),
        (exp(M + log(L)), None),
    ],
)
def test_guards(phi: Expr, guarded: str | None) -> None:
    found = guard(phi, ROLES)
    assert (None if found is None else print_expr(found)) == guarded


def _chain(before: Callable[[Tensor], Tensor], g: Callable[[Expr, Expr], Expr]) -> Program:
    """g of x and what a first reduction made of it, summed where a mask allows that."""
    x = matrix("x")
    r = before(x)
    return build([per_row(lambda i, j: select(x[i, j] > 0.5, g(x[i, j], r[i]), 0)), r], name="p")


@pytest.mark.parametrize("by", [-1.0, 2.0, 3.0])
def test_powers_of_negative_numbers_under_a_mask(by: float) -> None:
    program = _chain(lambda x: per_row(lambda i, j: x[i, j] - 0.3, "m"), lambda c, r: c * te.pow(r, by))
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    check_same(program, sch, *ODD)


def test_an_infinite_start_that_multiplies() -> None:
    def highest(x: Tensor) -> Tensor:
        masked = lambda i, j: select(x[i, j] > 0.5, x[i, j], -math.inf)  # noqa: E731
        return per_row(masked, "m", lambda e, axis: te.max(e, axis=axis, init=-math.inf))

    sch, _, j0 = tiled(_chain(highest, lambda c, r: c * r), "m")
    with pytest.raises(FusionError, match="may overflow where nothing is selected"):
        sch.rolling_update("t", j0)


def test_what_a_maximum_leaves_of_an_exponent() -> None:
    """exp(x - max x + w): inf in the first tile and 0 in the end, where its own maximum comes later."""
    x, w = matrix("x"), matrix("w")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    sch, _, j0 = tiled(build([per_row(lambda i, j: exp(x[i, j] - m[i] + w[i, j])), m], name="p"), "m")
    with pytest.raises(FusionError, match="may overflow at an intermediate value"):
        sch.rolling_update("t", j0)
    far = build([per_row(lambda i, j: exp(x[i, j] - m[i] - w[i, j] * w[i, j])), m], name="p")
    sch, _, j0 = tiled(far, "m")
    sch.rolling_update("t", j0)
    check_same(far, sch, *ODD)
