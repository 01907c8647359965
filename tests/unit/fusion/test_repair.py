"""Solved repairs: their form, their obligations, and that rolling with them gives the two-pass result."""

import operator
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.errors import FusionError
from neptune.fusion.repairs.monotone import fill
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair, previous, scale_of, slot
from neptune.ir.expr import Const, Expr, Load, Var, cast, op, select
from neptune.ir.text.printer import print_expr
from tests.examples.values import run
from tests.work import calls

ROW, COL = Var("i"), Var("j")
S, V, C, K = (Load(n, (ROW, COL), "float32") for n in "svck")
M, L = Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
NONE = float("-inf")


def exp(e: Expr) -> Expr:
    return op("exp", e)


MAX, SUM = Predecessor(M, "max", S), Predecessor(L, "sum", exp(S))
ABS, SQUARES = Predecessor(M, "max", op("abs", S)), Predecessor(L, "sum", S * S)
MASKED = select(COL < 3, S, NONE)


def ask(g: Expr, *preds: Predecessor, reducer: str = "sum", dtype: str = "float32", stage: str = "o") -> Repair:
    return solve(Query(stage, reducer, dtype, g, preds, frozenset({"j"})))


def factor(r: Repair) -> Expr | None:
    """The factor of the step T·factor; None where nothing is rolled."""
    (alone,) = r.slots
    return None if alone.step is None else scale_of(alone.step)


def body(r: Repair) -> Expr:
    return r.slots[0].value


def test_figure_1() -> None:
    r = ask(exp(S - M), MAX)
    assert (r.rolled, r.evidence.g, r.evidence.h) == (True, "g = exp(c - r)", "h = t*exp(r - r')")
    assert r.evidence.symbols == (("c", "s[i, j]"), ("r", "m[i]"))
    assert factor(r) == exp(previous(M) - M)
    assert not r.deferred and body(r) == exp(S - M) and r.finish == slot(0, "float32")
    names = [o.name for o in r.evidence.obligations]
    assert names == ["update", "commute", "compose", "compose", "defined", "range", "range", "range"]


def test_a_divisor_that_may_be_0_is_an_assumption() -> None:
    def assumed(g: Expr, *predecessors: Predecessor) -> list[str]:
        return [a.name for a in ask(g, *predecessors).evidence.assumptions]

    assert assumed(S / M, MAX) == ["divisor"]
    assert assumed(S * op("rsqrt", M), MAX) == ["divisor"]
    # A sum of exponentials is above 0, and so is what an ε is added to.
    assert assumed(exp(S - M) / L * V, MAX, SUM) == []
    assert assumed(S * op("rsqrt", L + 1e-5), SQUARES) == []


def test_attention_defers_the_sum_and_rolls_the_max() -> None:
    r = ask(exp(S - M) / L * V, MAX, SUM)
    assert r.evidence.g == "g = exp(c1 - r1)/r2*c2"
    assert r.evidence.h == "h = t*exp(r1 - r1')"
    assert (r.finish, scale_of(r.finish)) == (slot(0, "float32") / L, 1.0 / L)
    assert body(r) == exp(S - M) * V and factor(r) == exp(previous(M) - M)
    assert r.evidence.obligations[0].statement == "g = (exp(c1 - r1)*c2)*(1.0/r2)"


@pytest.mark.parametrize(
    ("e", "g", "deferred"),
    [
        (0.5 * exp(S - M - 0.25 * op("abs", C)), "g = 0.5*exp(c1 - r - c2)", None),
        (0.5 * K * exp(S - M - 0.25 * op("abs", C)), "g = c1*exp(c2 - r - c3)", None),
        (0.5 * exp(S - M - 0.25 * op("abs", C * K)) / L, "g = 0.5*exp(c1 - r1 - c2)/r2", "1.0 / l[i]"),
    ],
)
def test_performers(e: Expr, g: str, deferred: str | None) -> None:
    r = ask(e, MAX, SUM)
    assert r.evidence.g == g and factor(r) == exp(previous(M) - M)
    phi = scale_of(r.finish)
    assert (None if phi is None else print_expr(phi)) == deferred
    assert any("exp(-0.25*" in o.statement for o in r.evidence.obligations if o.name == "range")


def test_rms_norm_has_a_p() -> None:
    r = ask(S * V * op("rsqrt", L / cast(Var("n"), "float32") + 1e-5), SQUARES)
    assert (r.rolled, r.evidence.g, r.evidence.h) == (False, "g = c*rsqrt(r/p + 1e-05)", "h = t")
    assert body(r) == S * V and r.deferred


def test_what_is_gathered_is_said_to_be_rounded() -> None:
    """(s - max s) + v is exact for large s; (s + v) - max s is not."""

    def rounded(g: Expr) -> list[str]:
        return [p.text for p in ask(g, MAX, reducer="max").evidence.ranges if p.rounded]

    (text,) = rounded(S - M + V)
    assert text.startswith("s[i, j] + v[i, j], which the expression does not compute")
    assert rounded(op("tanh", S - M + V)) == [text]
    assert rounded((S + V) - M) == rounded(S - M) == []


def test_scales() -> None:
    assert factor(ask(exp((S - M) * 0.125), MAX)) == exp((previous(M) - M) * 0.125)
    r = ask(op("exp2", (S - M) * op("log2e")), MAX)
    assert r.evidence.h == "h = t*exp2((r - r')*p)"
    positive = exp(Load("p", (ROW,), "float32"))
    assert ask(exp((S - M) * positive), MAX).evidence.h == "h = t*exp((r - r')*p)"


def test_the_factor_is_computed_in_the_accumulators_dtype() -> None:
    half = Load("m", (ROW,), "float16")
    s = Load("s", (ROW, COL), "float16")
    r = ask(cast(exp((s - half) * 0.5), "float32"), Predecessor(half, "max", s))
    found = factor(r)
    assert found is not None
    assert print_expr(found) == "exp((cast(f32, m'[i]) - cast(f32, m[i])) * cast(f32, 0.5:f16))"


def test_min_moves_the_other_way() -> None:
    assert factor(ask(exp(M - S), Predecessor(M, "min", S))) == exp(M - previous(M))


def test_max_targets() -> None:
    shift = ask(S - M, MAX, reducer="max")
    assert (shift.finish, body(shift), shift.rolled) == (slot(0, "float32") + op("neg", M), S, False)
    scale = ask(op("abs", S) / M, ABS, reducer="max")
    assert scale_of(scale.finish) == 1.0 / M
    assert ask(exp(S - M) * op("abs", V), MAX, reducer="max").rolled


def test_casts_are_reported_and_kept() -> None:
    half = cast(cast(exp(S - M) / L, "float16"), "float32")
    # Σ exp(s - m) is at least 1: what waits is at most 1, and what is cast no smaller than in the original.
    r = ask(half * V, MAX, Predecessor(L, "sum", exp(S - M)))
    assert r.evidence.casts == ("float32 → float16 of exp(s[i, j] - m[i]) / l[i]",)
    assert body(r) == cast(cast(exp(S - M), "float16"), "float32") * V


def test_a_cast_to_float16_that_may_underflow_is_refused() -> None:
    half = cast(cast(exp(S - M) / L, "float16"), "float32") * V
    for value in (exp(S), select(COL < 3, exp(S - M), 0.0), exp(S - M - 9.0)):
        with pytest.raises(FusionError, match="below the smallest normal of float16"):
            ask(half, MAX, Predecessor(L, "sum", value))
    assert ask(half, MAX, Predecessor(L, "sum", exp(S - M) + op("abs", V))).evidence.casts


def test_a_solve_is_a_bounded_amount_of_work() -> None:
    ask(exp(S - M), MAX)
    assert 100 < calls(lambda: ask(exp(S - M) * V / L, MAX, SUM, stage="counted")) < 60_000


# --- rolling equals two passes -------------------------------------------------------------------

Row = dict[str, list[float]]

_FOLD: dict[str, Callable[[float, float], float]] = {"sum": operator.add, "max": max, "min": min}
_START = {"sum": 0.0, "max": -3.4e38, "min": 3.4e38}


def value(e: Expr, j: int, rows: Row, accs: dict[str, float]) -> float:
    """The expression in float64 at position j; accumulators by buffer name."""
    return run(e, {**{n: row[j] for n, row in rows.items()}, **accs, "j": j, "n": 3}, finite=False)


def finals(preds: tuple[Predecessor, ...], rows: Row, n: int) -> dict[str, float]:
    accs: dict[str, float] = {}
    for p in preds:
        assert p.value is not None
        acc = _START[p.reducer]
        for j in range(n):
            acc = _FOLD[p.reducer](acc, value(p.value, j, rows, accs))
        accs[p.load.buffer] = acc
    return accs


def two_pass(g: Expr, preds: tuple[Predecessor, ...], reducer: str, rows: Row, n: int) -> float:
    accs, x = finals(preds, rows, n), _START[reducer]
    for j in range(n):
        x = _FOLD[reducer](x, value(g, j, rows, accs))
    return x


def rolled(r: Repair, preds: tuple[Predecessor, ...], reducer: str, rows: Row, n: int, tile: int) -> float:
    """One pass, a tile at a time: update every r, make the step, fold; finish behind the loop."""
    (alone,) = r.slots
    now = {p.load.buffer: _START[p.reducer] for p in preds}
    x = _START[reducer] if alone.start is None else float(alone.start.value)
    for start in range(0, n, tile):
        before = dict(now)
        for p in preds:
            assert p.value is not None
            for j in range(start, min(start + tile, n)):
                # A sum of exp(s - m) would itself be rolled; here predecessors read inputs only.
                now[p.load.buffer] = _FOLD[p.reducer](now[p.load.buffer], value(p.value, j, rows, {}))
        accs = now | {f"{k}'": v for k, v in before.items()}
        if alone.step is not None:
            x = value(fill(alone.step, Const(x, "float32")), start, rows, accs)
        for j in range(start, min(start + tile, n)):
            x = _FOLD[alone.fold](x, value(alone.value, j, rows, accs))
    return value(fill(r.finish, Const(x, "float32")), 0, rows, now)


CASES: list[tuple[Expr, tuple[Predecessor, ...], str]] = [
    (exp(S - M), (MAX,), "sum"),
    (exp(S - M), (MAX,), "max"),
    (exp(S - M) * op("abs", V), (MAX,), "max"),
    (exp(M - S), (Predecessor(M, "min", S),), "sum"),
    (exp(S - M) / L * V, (MAX, SUM), "sum"),
    (exp(S - (M + op("log", L))) * V, (MAX, SUM), "sum"),
    (op("exp2", (S - M) * 0.5) * V, (MAX,), "sum"),
    (0.5 * exp(S - M - 0.25 * op("abs", C * K)) / L, (MAX, SUM), "sum"),
    (S * V * op("rsqrt", L / cast(Var("n"), "float32") + 1e-5), (SQUARES,), "sum"),
    (select(COL < 3, exp(S - M) / L, 0) * V, (Predecessor(M, "max", MASKED), SUM), "sum"),
    (exp(MASKED - M) * V, (Predecessor(M, "max", MASKED),), "sum"),
    (S - M, (MAX,), "max"),
    (S / (op("exp", M) + 1.0), (MAX,), "min"),
    (-(S / L) + V / L, (SUM,), "sum"),
    (op("sqrt", exp(S - M)) * V, (MAX,), "sum"),
]  # fmt: skip

numbers = st.lists(st.integers(-60, 60).map(lambda k: k / 4), min_size=7, max_size=7)


@pytest.mark.parametrize("case", range(len(CASES)))
@settings(max_examples=25, deadline=None)
@given(data=st.tuples(numbers, numbers, numbers, numbers), tile=st.integers(1, 4))
def test_rolling_equals_two_passes(case: int, data: tuple[list[float], ...], tile: int) -> None:
    g, preds, reducer = CASES[case]
    rows = dict(zip("svck", data, strict=True))
    if case == 9:  # nothing is defined where the sum l folds what the mask hides
        rows["s"] = [x / 10 for x in rows["s"]]
    r = ask(g, *preds, reducer=reducer)
    expected = two_pass(g, preds, reducer, rows, 7)
    scale = sum(abs(value(g, j, rows, finals(preds, rows, 7))) for j in range(7))
    assert rolled(r, preds, reducer, rows, 7, tile) == pytest.approx(expected, rel=1e-9, abs=1e-9 * max(scale, 1e-6))


def test_masked_starts_and_empty_rows_stay_defined() -> None:
    masked = select(COL >= 3, S, NONE)
    pred = Predecessor(M, "max", masked)
    rows: Row = {"s": [5.0, 6.0, 7.0, 1.0, 2.0], "v": [1.0, 2.0, 3.0, 4.0, 5.0]}
    g = exp(masked - M) * V
    want = two_pass(g, (pred,), "sum", rows, 5)
    assert rolled(ask(g, pred), (pred,), "sum", rows, 5, 1) == pytest.approx(want)
    # Nothing selected at all: the original is 0, although l is 0 and 1 / l is not defined.
    g = select(COL >= 9, S / L, 0)
    pred = Predecessor(L, "sum", select(COL >= 9, exp(S), 0))
    assert rolled(ask(g, pred), (pred,), "sum", rows, 5, 2) == 0.0
