"""Targets that only order what they fold: which function waits, what is folded, what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, exp, log, tanh
from neptune.fusion.repairs.monotone import fill, ordered
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Problem, Query, Repair, Roles
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Const, Expr, Load, Var, cast, maximum, minimum, op, select
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.tile.localize import localize
from neptune.verify.exact import check_exact
from qa import repair_programs
from tests.examples.chains import check_same, matrix, per_row, tiled
from tests.examples.mutants import Rewrite, change, rename
from tests.unit.fusion.test_repair import value

ROW, COL = Var("i"), Var("j")
S, V = (Load(n, (ROW, COL), "float32") for n in "sv")
M, L, Q = (Load(n, (ROW,), "float32") for n in "mlq")
MAX, SUM, ABS = (
    Predecessor(M, "max", S),
    Predecessor(L, "sum", op("exp", S)),
    Predecessor(Q, "max", op("abs", S)),
)
ROLES = Roles((MAX, SUM, ABS), frozenset({"j"}))


def ask(g: Expr, reducer: str = "max") -> Repair:
    return solve(Query("o", reducer, "float32", g, (MAX, SUM, ABS), frozenset({"j"})))


RISING = [
    (op("log", op("exp", S) + L), "s[i, j]", "log(exp(%t0) + l[i])"),
    (op("exp", S - M) / L, "s[i, j]", "exp(%t0 - m[i]) / l[i]"),
    (op("exp", (S - M) + V), "s[i, j] + v[i, j]", "exp(%t0 - m[i])"),
    (op("tanh", S * V * L), "s[i, j] * v[i, j]", "tanh(%t0 * l[i])"),
    (op("sqrt", op("abs", S) * L), "abs(s[i, j])", "sqrt(%t0 * l[i])"),
    (L / (op("exp", S) + L), "neg(s[i, j])", "l[i] / (exp(neg(%t0)) + l[i])"),
    (op("exp", M - S), "neg(s[i, j])", "exp(m[i] - neg(%t0))"),
    (maximum(S, M), "s[i, j]", "max(%t0, m[i])"),
    (minimum(S * L, M), "s[i, j]", "min(%t0 * l[i], m[i])"),
    (op("floor", S / L), "s[i, j]", "floor(%t0 / l[i])"),
    (cast(cast(op("exp", S - M), "float16"), "float32"), "s[i, j]", "cast(f32, cast(f16, exp(%t0 - m[i])))"),
    (op("pow", op("exp", S), L), "s[i, j]", "pow(exp(%t0), l[i])"),
    (S * L + S, "s[i, j]", "%t0 * l[i] + %t0"),
]  # fmt: skip


@pytest.mark.parametrize(("g", "psi", "f"), RISING)
def test_what_is_folded_and_what_waits(g: Expr, psi: str, f: str) -> None:
    found = ordered(g, ROLES, [])
    assert found is not None and (print_expr(found.psi), print_expr(found.f)) == (psi, f)


@pytest.mark.parametrize(("g", "strict"), [
    (op("exp", S - M) / L, False),  # l is a sum of exponentials: positive
    (op("log", op("exp", S) + L), True), (maximum(S, M), False), (op("floor", S - M), False), (S * Q, False),
    # The smaller of the two stands still with the step, the larger of a value and a constant with that.
    (minimum(S - M, op("floor", S - M)), False), (maximum(maximum(S - M, L), S - M), False),
])  # fmt: skip
def test_strictness(g: Expr, strict: bool) -> None:
    found = ordered(g, ROLES, [])
    assert found is not None and found.strict == (strict or g == RISING[1][0])


@pytest.mark.parametrize(("g", "reason"), [
    (S * M, "the sign of r is unknown"),
    (op("log", op("exp", S) + M), "log rises or falls where its argument is positive, and its sign is unknown"),
    (op("sin", S - M), "it is not known whether sin of it rises or falls"),
    (M / (S - L), "what is divided by may change its sign"),
    (op("tanh", S * M), "the order may turn round"),
    (select(S > M, S, V), "which branch is taken depends on r"),
    (op("tanh", S - M) * V, "tanh mixes r and c"),
    (cast(cast(op("tanh", S - M), "int32"), "float32"), "is not known to keep the order"),
])  # fmt: skip
def test_what_is_not_known_is_refused(g: Expr, reason: str) -> None:
    with pytest.raises(FusionError) as info:
        ask(g)
    assert reason in str(info.value)


@pytest.mark.parametrize("case", range(len(RISING)))
def test_f_rises_on_a_grid(case: int) -> None:
    """The claim itself, by numbers: f(ψ) = g, and f never falls, for every r that can occur."""
    g, psi, f = RISING[case][0], *(getattr(ordered(RISING[case][0], ROLES, []), k) for k in ("psi", "f"))
    s = [-2.0, -0.5, 0.0, 0.7, 1.5, 3.0]
    for v in (-1.0, 0.5):
        rows = {"s": s, "v": [v] * len(s)}
        accs = {"m": 3.0, "l": sum(map(math.exp, s)), "q": 3.0}
        points = sorted((value(psi, j, rows, accs), value(g, j, rows, accs)) for j in range(len(s)))
        assert all(a[1] <= b[1] + 1e-12 for a, b in itertools.pairwise(points))
        for j in range(len(s)):
            assert value(fill(f, psi), j, rows, accs) == pytest.approx(value(g, j, rows, accs))


def test_nothing_is_rolled_and_the_winner_alone_is_computed() -> None:
    r = ask(op("log", op("exp", S) + L))
    (alone,) = r.slots
    assert (r.rolled, alone.start, r.evidence.h) == (False, Const(-math.inf, "float32"), "h = t")
    assert [o.name for o in r.evidence.obligations] == ["split", "commute", "defined", "range"]
    assert ask(op("exp", S - M) / L, "min").slots[0].start == Const(math.inf, "float32")


def test_an_explicit_start_says_nothing_about_the_sign() -> None:
    start = Predecessor(Q, "sum", op("abs", S), start=cast(op("neg", Load("p", (), "float32")), "float32"))
    problems: list[Problem] = []
    assert ordered(S * Q, Roles((start,), frozenset({"j"})), problems) is None and problems
    x = matrix("x")
    m = per_row(lambda i, j: te.abs(x[i, j]), "m", lambda e, axis: te.sum(e, axis=axis, init=-5.0))
    program = build(per_row(lambda i, j: x[i, j] * m[i], fold=te.max), name="p")
    with pytest.raises(FusionError, match="the sign of r is unknown"):
        tiled(program, "m")[0].rolling_update("t", tiled(program, "m")[2])


# --- whole programs --------------------------------------------------------------------------------

ODD = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8})


def chain(g: Callable[[Expr, Expr], Expr], fold: Callable[..., te.Reduction] = te.max) -> Program:
    x, w = matrix("x"), matrix("w")
    m = per_row(lambda i, j: exp(x[i, j]), name="m")
    return build([per_row(lambda i, j: g(x[i, j] + w[i, j], m[i]), fold=fold), m], name="p")


@pytest.mark.parametrize("fold", [te.max, te.min])
@pytest.mark.parametrize("g", [
    lambda c, r: log(exp(c * 0.01) + r), lambda c, r: tanh(c - r) * r, lambda c, r: r / (exp(c * 0.01) + r),
])  # fmt: skip
def test_fused_programs(g: Callable[[Expr, Expr], Expr], fold: Callable[..., te.Reduction]) -> None:
    program = chain(g, fold)
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert sch.decisions[-1].verdict == "deferred"
    check_same(program, sch, *ODD, scales=(1, 10))
    sch.partition(j0)
    check_same(program, sch, *ODD, scales=(1, 10))


def test_a_start_of_ones_own_is_kept() -> None:
    program = chain(lambda c, r: tanh(c - r), lambda e, axis: te.max(e, axis=axis, init=-0.5))
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert "max(-0.5, tanh(t_acc[i0 * BLOCK_M + i1] - m[i0 * BLOCK_M + i1]))" in str(sch.program)
    check_same(program, sch, *ODD)


@pytest.mark.parametrize("low", [False, True])
def test_masked_elements_stay_behind_all_others(low: bool) -> None:
    """A mask whose other branch is -inf, also where it leaves nothing and the maximum itself is -inf."""
    x, last = matrix("x"), math.inf if low else -math.inf
    fold = te.min if low else te.max

    def kept(j: Expr, e: Expr) -> Expr:
        return te.select((j >= 2) & (j < 7), e, last)

    m = per_row(lambda i, j: kept(j, x[i, j]), "m", lambda e, axis: fold(e, axis=axis, init=last))
    program = build([per_row(lambda i, j: kept(j, x[i, j] - m[i]), fold=fold), m], name="p")
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert sch.decisions[-1].verdict == "deferred"
    check_same(program, sch, *ODD, {"r": 2, "n": 2})
    with pytest.raises(FusionError, match="without its mask it would not be"):
        ask(select(COL < 3, op("exp", S - M), float("-inf")))


# --- mutants -----------------------------------------------------------------------------------------


def routed(k: int) -> tuple[Program, Schedule]:
    program = repair_programs.route(k)
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("l", j0)
    sch.rolling_update("best", j0)
    return program, sch


@pytest.mark.parametrize("k", [1, 2])
def test_softmax_and_top_k_in_one_pass(k: int) -> None:
    program, sch = routed(k)
    check_same(program, sch, *({"r": r, "n": n} for r, n in ((5, 11), (1, k), (4, 8))))
    assert check_exact(program, sch.program).accepted
    assert any("are told apart" in d for d in sch.decisions[-1].details)


MISTAKES: list[tuple[str, Rewrite]] = [
    ("best", lambda e: e * -1.0 if isinstance(e, Load) and e.buffer == "x" else None),
    ("best", lambda e: Const(5, "int32") if e == Const(2**31 - 1, "int32") else None),
    ("best_final", rename("exp", "neg")),
    ("best_final", rename("sub", "add")),
    ("best_final", lambda e: Load("m", e.index, e.dtype) if isinstance(e, Load) and e.buffer == "l" else None),
]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_mistakes_in_a_choice_are_noticed(mistake: int) -> None:
    program, sch = routed(2)
    assert check_exact(program, change(sch.program, *MISTAKES[mistake])).verdict == "rejected"


@pytest.mark.parametrize(("stage", "fn"), [
    ("t_final", rename("tanh", "neg")), ("t_final", rename("sub", "add")), ("t_final", rename("max", "min")),
    ("t", lambda e: Const(0.0, "float32") if e == Const(-math.inf, "float32") else None),
    ("t", lambda e: op("neg", e) if isinstance(e, Load) and e.buffer == "x" else None),
])  # fmt: skip
def test_mistakes_in_a_maximum_are_noticed(stage: str, fn: Rewrite) -> None:
    program = chain(lambda c, r: tanh(c - r) * 2.0)
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert check_exact(program, sch.program).accepted
    assert check_exact(program, change(sch.program, stage, fn)).verdict == "rejected"


@pytest.mark.parametrize(
    ("before", "fold", "g", "finite"),
    [
        (lambda x: te.abs(x), te.sum, lambda c, r: c / (r + 1.0), True),
        (lambda x: x, te.sum, lambda c, r: c - r, True),
        (lambda x: te.abs(x), te.max, lambda c, r: c / (r + 1.0), True),
        (lambda x: x, te.min, lambda c, r: c - r, True),
        (lambda x: x, te.max, lambda c, r: exp(c - r), False),
        (lambda x: exp(x * 0.5), te.sum, lambda c, r: c / r, False),
    ],
)
def test_an_infinite_r_makes_elements_equal(
    before: Callable[[Expr], Expr], fold: Callable[..., te.Reduction], g: Callable[[Expr, Expr], Expr], finite: bool
) -> None:
    """x / Σ|x| is 0 for every element where one is infinite, and the first is chosen: assumed not to happen."""
    x = matrix("x")
    r = per_row(lambda i, j: before(x[i, j]), "m", fold)
    best = per_row(lambda i, j: g(x[i, j], r[i]), "t", te.argmax)
    program = build(best, inputs=[x], name="p")
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    assert sch.decisions[-1].finite == (("x",) if finite else ())
    fused = localize(decompose(sch.program))
    assert check_exact(program, fused, draws=4, finite=frozenset(sch.decisions[-1].finite)).accepted
