"""What is folded without its scale, or before r is final, stays in range: proved, assumed with bounds, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neptune
from neptune.driver.pipeline import as_program
from neptune.errors import FusionError
from neptune.frontend import builder as nt
from neptune.frontend.assemble import Tensor
from neptune.fusion.repairs.degrees import degree, steep
from neptune.fusion.repairs.range import leaf_of, owed
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair, Roles
from neptune.fusion.schedule import Schedule
from neptune.ir.analysis.facts import range_of
from neptune.ir.expr import Const, Expr, Load, Var, cast, op, select
from neptune.ir.ops import Range
from neptune.ir.text.printer import print_expr

ROW, J, N = Var("i"), Var("j"), Var("n")
X, Y = (Load(n, (ROW, J), "float32") for n in "xy")
H = cast(Load("h", (ROW, J), "float16"), "float32")
M, L, P = (Load(n, (ROW,), "float32") for n in "mlp")
ONE = Const(1.0, "float32")


def ask(g: Expr, *preds: Predecessor, reducer: str = "sum", dtype: str = "float32", vector: bool = False) -> Repair:
    return solve(Query("o", reducer, dtype, g, preds, frozenset({"j"}), N, vector))


def assumed(r: Repair) -> list[str]:
    return [p.text for p in r.evidence.ranges]


MAX = Predecessor(M, "max", X)
TOP = Predecessor(M, "max", op("abs", X))
SUM = Predecessor(L, "sum", op("abs", X))
EXP = Predecessor(L, "sum", op("exp", X - M))
ROLES = Roles((TOP, SUM), frozenset({"j"}))

# --- degrees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("e", "x", "y"),
    [
        (X * Y, (1, 1), (1, 1)),
        (X * Y / L, (0, 0), (1, 1)),
        (X / L / M, (-1, -1), (0, 0)),
        (op("pow", X / L, Const(4.0, "float32")), (0, 0), (0, 0)),
        (op("pow", X, Const(-2.0, "float32")), (-2, -2), (0, 0)),
        (op("sqrt", X * X) + Y, (0, 1), (0, 1)),
        (op("rsqrt", X * X + 1.0), (-1, 0), (0, 0)),
        (op("tanh", X), (0, 1), (0, 0)),
        (op("exp", X) * op("neg", Y), (0, 0), (1, 1)),
        (select(op("lt", X, Y), X, 0.0), (1, 1), (0, 0)),
        (op("max", X, Y * Y), (0, 1), (0, 2)),
    ],
)
def test_degrees(e: Expr, x: tuple[float, float], y: tuple[float, float]) -> None:
    assert (degree(e, "x", ROLES), degree(e, "y", ROLES)) == (x, y)


def test_steep() -> None:
    by = (ONE / L,)
    assert steep(X * Y, by, (), ROLES) is None
    assert steep(X * X, by, (), ROLES) == ("x", 2)
    assert steep(ONE / X / X, by, (), ROLES) == ("x", 2)
    # The scale says nothing of y; and what the original computes itself may be folded as it is.
    assert steep(X * Y * Y, by, (), ROLES) is None
    assert steep(X * X * Y, by, (X * X,), ROLES) is None


# --- ranges of what waits ----------------------------------------------------------------------------


def of(*preds: Predecessor) -> Range:
    return range_of(L, leaf_of(Roles(preds, frozenset({"j"})), {}))


def test_a_sum_of_exponentials_is_at_least_one() -> None:
    assert of(MAX, EXP).least == 1
    assert of(MAX, Predecessor(L, "sum", op("exp", X - M) * 0.5)).least == 0.5
    assert of(MAX, Predecessor(L, "sum", op("exp", M - X))).least == 0
    assert of(MAX, Predecessor(L, "sum", op("exp", X - M - Y * Y))).least == 0
    assert of(Predecessor(M, "min", X), Predecessor(L, "sum", op("exp", M - X))).least == 1


def test_a_mask_may_hide_the_maximum() -> None:
    mask, last = op("lt", Y, ONE), Const(float("-inf"), "float32")
    hidden = Predecessor(L, "sum", select(mask, op("exp", X - M), 0.0))
    assert of(MAX, hidden).least == 0
    assert of(Predecessor(M, "max", select(mask, X, last)), hidden).least == 1
    assert of(Predecessor(M, "max", select(mask, X, -1.0)), hidden).least == 0
    assert of(Predecessor(M, "max", select(op("lt", X, ONE), X, last)), hidden).least == 0


# --- the obligation ----------------------------------------------------------------------------------


def test_float16_inputs_are_proved() -> None:
    r = ask(op("exp", X - M) / L * H, MAX, EXP)
    assert not r.evidence.ranges and any("h[i, j]| <= 6.6e+04" in o.statement for o in r.evidence.obligations)
    w = cast(Load("w", (J,), "float16"), "float32")
    assert not ask(H / L * w, Predecessor(L, "sum", op("abs", H))).evidence.ranges


def test_what_a_predecessor_folds_is_proved() -> None:
    assert not ask(X / L, SUM).evidence.ranges
    assert not ask(X * X / L, Predecessor(L, "sum", X * X)).evidence.ranges
    assert assumed(ask(X / M, TOP)) == ["|x[i, j]| < 3.4e+38 / n"]


def test_a_maximum_that_is_kept_finite_bounds_what_it_folds() -> None:
    largest = 3.4028234663852886e38
    kept = Predecessor(M, "max", nt.minimum(X, largest))
    r = ask(op("exp", X - M), kept)
    assert not r.evidence.ranges and any("exp(x[i, j] - m[i]) <= 1" in o.statement for o in r.evidence.obligations)
    ask(op("exp", M - X), Predecessor(M, "min", nt.maximum(X, -largest)))
    # What is cut off earlier bounds nothing: exp(x - m) of a finite x leaves float32 while the expression does not.
    for cut in (nt.minimum(X, 3e38), nt.maximum(X, largest), nt.minimum(X, Y)):
        with pytest.raises(FusionError, match="does not bound it"):
            ask(op("exp", X - M), Predecessor(M, "max", cut))


def test_predicates() -> None:
    assert assumed(ask(X / L * Y, SUM)) == ["1.2e-38 < |x[i, j] * y[i, j]| < 3.4e+38 / n"]
    assert assumed(ask(op("exp", X - M) / L * Y, MAX, EXP)) == ["|y[i, j]| < 3.4e+38 / n"]
    # With a denominator of which nothing is known both limits matter.
    far = Predecessor(L, "sum", op("exp", X))
    assert assumed(ask(op("exp", X) / L * X, far)) == ["1.2e-38 < |exp(x[i, j]) * x[i, j]| < 3.4e+38 / n"]
    brain = cast(Load("b", (ROW, J), "bfloat16"), "float32")
    assert assumed(ask(op("exp", X - M) / L * brain, MAX, EXP)) == ["|b[i, j]| < 3.4e+38 / n"]


def test_a_factor_that_may_be_zero_bounds_nothing() -> None:
    """A count is at least 1 or 0, and 0 times what overflowed is no number."""
    count = Predecessor(L, "sum", select(op("gt", X, Const(0.0, "float32")), ONE, 0.0))
    assert assumed(ask(L * X * Y, count)) == ["1.2e-38 < |x[i, j] * y[i, j]| < 3.4e+38 / n"]
    assert assumed(ask(op("max", L, ONE) * X * Y, count)) == ["1.2e-38 < |x[i, j] * y[i, j]|"]


def test_an_exponential_that_is_divided_by_is_bounded_from_below() -> None:
    far = Y * Y
    assert assumed(ask(Y / op("exp", M - X), MAX)) == ["|y[i, j]| < 3.4e+38 / n"]
    r = ask(Y / op("exp", M - X + far), MAX)
    assert assumed(r) == ["|y[i, j]| < 3.4e+38 / n"]
    assert any("exp(neg(m[i] - x[i, j] + y[i, j] * y[i, j])) <= " in o.statement for o in r.evidence.obligations)
    for g in (Y / op("exp", M - X - far), op("pow", op("exp", M - X - 200.0), Const(-1.0, "float32"))):
        with pytest.raises(FusionError, match="in the exponent of exp, which may overflow"):
            ask(g, MAX)


def test_maxima_owe_the_same_as_sums() -> None:
    r = ask(X / L * Y, SUM, reducer="max")
    assert assumed(r) == ["1.2e-38 < |x[i, j] * y[i, j]| < 3.4e+38"]
    with pytest.raises(FusionError, match="grows with the power 2 of x"):
        ask(X / L * (Y * X / L), SUM, reducer="min")
    # What rises can wait as a whole.
    cubed = op("pow", op("abs", X) / L, Const(3.0, "float32"))
    assert print_expr(ask(cubed, SUM, reducer="max").finish) == "pow(%t0 / l[i], 3.0)"


def test_a_float16_accumulator_is_short() -> None:
    r = ask(cast(op("exp", X - M), "float16"), MAX, dtype="float16")
    assert assumed(r) == ["n < 6.6e+04"]


def test_an_atom_in_the_exponent_is_harmless_where_the_maximum_is_folded() -> None:
    e = op("exp", X - M + P)
    assert assumed(ask(e, MAX)) == ["|exp(p[i])| < 3.4e+38 / n"]
    hidden = ask(select(op("lt", Y, ONE), e, 0.0), MAX)
    assert assumed(hidden) == ["|exp(p[i])| < 3.4e+38 / n"]
    times = ask(select(op("lt", Y, ONE), e * Y, 0.0), MAX)
    assert assumed(times) == ["|exp(p[i])| < 3.4e+38", "|exp(p[i]) * y[i, j]| < 3.4e+38 / n"]
    assert assumed(ask(e * Y, MAX)) == ["|exp(p[i]) * y[i, j]| < 3.4e+38 / n"]
    assert not ask(op("exp", X - M - op("abs", P)), MAX).evidence.ranges


def test_factors_are_multiplied_before_they_are_applied() -> None:
    r = ask(X / L * (Y / M), SUM, Predecessor(M, "sum", op("abs", Y)))
    assert "1.2e-38 < |1.0 / l[i] * (1.0 / m[i])| < 3.4e+38" in assumed(r)


def test_nothing_is_owed_where_nothing_waits() -> None:
    found = owed(Query("o", "sum", "float32", X * Y, (), frozenset({"j"})), X * Y, (), {}, {})
    assert not found.problems and not found.records


# --- whole programs: within the bounds right, else by another template ---------------------------------

ROWS, COLS = nt.var("rows"), nt.var("cols")
x, y = (nt.placeholder((ROWS, COLS), "float32", n) for n in "xy")


def row(fold: Callable[..., Any], value: Callable[[Any, Any], Any], name: str) -> Any:
    j = nt.reduce_axis((0, COLS), "j")
    return nt.compute((ROWS,), lambda i: fold(value(i, j), axis=j), name)


def power(by: float) -> Any:
    s = row(nt.sum, lambda i, j: nt.abs(x[i, j]), "s")
    return row(nt.sum, lambda i, j: nt.pow(x[i, j] / s[i], by), "t")


def kurtosis(by: float) -> Any:
    total = row(nt.sum, lambda i, j: x[i, j], "total")
    mean = nt.compute((ROWS,), lambda i: total[i] / nt.cast(COLS, "float32"), "mean")
    v = row(nt.sum, lambda i, j: (x[i, j] - mean[i]) * (x[i, j] - mean[i]), "v")
    return row(nt.sum, lambda i, j: nt.pow((x[i, j] - mean[i]) * nt.rsqrt(v[i]), by), "t")


def halves() -> Tensor:
    w = nt.placeholder((COLS, 16), "float16", "w")
    j = nt.reduce_axis((0, COLS), "j")
    r = row(nt.max, lambda i, j: nt.abs(nt.tanh(x[i, j])), "r")
    return nt.compute(
        (ROWS, 16),
        lambda i, c: nt.sum(
            nt.cast(nt.cast(nt.tanh(x[i, j]) / r[i], "float16"), "float32") * nt.cast(w[j, c], "float32"), axis=j
        ),
        "t",
    )


@pytest.mark.parametrize("tensor", [power(4.0), power(3.0), power(2.0), kurtosis(4.0), halves()])
def test_refused(tensor: Tensor) -> None:
    sch = Schedule(as_program(tensor))
    last = sch.stages[-1]
    with pytest.raises(FusionError, match=r"grows with the power|below the smallest normal of float16"):
        for stage in sch.stages[1:]:
            if sch.loops(stage)[-1].var.startswith("j") or stage == last:
                sch.rolling_update(stage, sch.loops(sch.stages[0])[1])


def run(tensor: Tensor, *tensors: torch.Tensor, template: str | None = None) -> torch.Tensor:
    kernel = neptune.compile(tensor, template, target="llvm")
    return one(kernel(*tensors))


def one(result: object) -> torch.Tensor:
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("scale", [1e10, 1e-12])
def test_a_power_of_a_share_is_right_by_another_template(scale: float) -> None:
    a = torch.randn(3, 200, generator=torch.Generator().manual_seed(1)) * scale
    want = ((a / a.abs().sum(1, keepdim=True)).double() ** 4).sum(1)
    assert torch.allclose(run(power(4.0), a).double(), want, rtol=1e-5, atol=0)


def test_small_numbers_are_right_by_another_template() -> None:
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(3, 200, generator=g) * 1e-8, torch.randn(200, 16, generator=g).half()
    want = (a / a.abs().amax(1, keepdim=True)).half().double() @ b.double()
    assert torch.allclose(run(halves(), a, b).double(), want, rtol=2e-3, atol=2e-2)


def test_weights_are_right_up_to_the_edge() -> None:
    """Within the predicate the fused form agrees; beyond it the accumulator would overflow on the way."""
    m = row(nt.max, lambda i, j: x[i, j], "m")
    total = row(nt.sum, lambda i, j: nt.exp(x[i, j] - m[i]), "l")
    o = row(nt.sum, lambda i, j: nt.exp(x[i, j] - m[i]) / total[i] * y[i, j], "o")
    kernel = neptune.compile(o, "softmax_online", target="llvm")
    assert "assumed, not proved: |y[i, j]| < 3.4e+38 / cols" in str(kernel.explain())
    late = torch.arange(1000) >= 500
    a, b = torch.where(late, 80.0, 0.0)[None], torch.where(late, 1.0, 3e35)[None]
    want = (torch.softmax(a.double(), 1) * b.double()).sum(1)
    assert torch.allclose(one(kernel(a, b)).double(), want, rtol=1e-5, atol=0)


def test_softmax_of_float64_is_not_rejected() -> None:
    """The lowest number of float64, from which its maximum starts, is out of the range of float32."""
    wide, j = nt.placeholder((ROWS, COLS), "float64", "w"), nt.reduce_axis((0, COLS), "j")
    m = nt.compute((ROWS,), lambda i: nt.max(wide[i, j], axis=j), "m")
    total = nt.compute((ROWS,), lambda i: nt.sum(nt.exp(wide[i, j] - m[i]), axis=j), "l")
    kernel = neptune.compile(total, "softmax_online", target="llvm")
    a = torch.randn(3, 70, dtype=torch.float64) * 100
    assert torch.allclose(one(kernel(a)), torch.exp(a - a.amax(1, keepdim=True)).sum(1), rtol=1e-12, atol=0)
