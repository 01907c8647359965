"""Theorem 4.3 by SymPy's solver: what only that takes, that it is proved, and that it is killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, exp, log, select
from neptune.fusion.repairs import repair, theorem
from neptune.fusion.repairs.repair import SOLVERS, solve
from neptune.fusion.repairs.roles import Predecessor, Problem, Query
from neptune.ir.expr import Expr, Load, Var, op
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.verify.exact import check_exact
from tests.examples.chains import cells, check_same, matrix, per_row, tiled
from tests.examples.mutants import change, rename

ROW, COL = Var("i"), Var("j")
S, U = (Load(n, (ROW, COL), "float32") for n in "su")
L = Load("l", (ROW,), "float32")
SUM = Predecessor(L, "sum", op("exp", S))
POSITIVE = op("abs", S) + 0.5
ODD = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8})


def query(g: Expr, reducer: str = "max") -> Query:
    return Query("o", reducer, "float32", g, (SUM,), frozenset({"j"}), Var("n"))


SOLVED = [
    (op("log", op("exp", S) / L) + U, "log(exp(s[i, j])) + u[i, j]", "%t0 - log(l[i])"),
    (op("log", POSITIVE * L) - U, "log(abs(s[i, j]) + 0.5) - u[i, j]", "%t0 + log(l[i])"),
    (U - op("log", L / POSITIVE), "u[i, j] - log(1.0 / (abs(s[i, j]) + 0.5))", "%t0 - log(l[i])"),
]


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize(("g", "psi", "f"), SOLVED)
def test_what_no_other_solver_takes(g: Expr, psi: str, f: str, reducer: str) -> None:
    asked = query(g, reducer)
    assert SOLVERS[-1] is theorem.by_inverse
    assert all(other(asked, list[Problem]()) is None for other in SOLVERS[:-1])
    found = solve(asked)
    assert [print_expr(s.value) for s in found.slots] == [psi] and print_expr(found.finish) == f
    assert [o.name for o in found.evidence.obligations] == ["split", "commute", "defined", "range"]
    assert any("is not rounded more than that is" in p.text for p in found.evidence.ranges)


@pytest.mark.parametrize("g", [
    op("tanh", S * L) * U,  # opaque
    POSITIVE * L / (POSITIVE * L + op("exp", U)),  # its h reads no c, but the direction of that is not known
    op("log", POSITIVE + L) + U,  # its h reads a c
    op("exp", S - L) * op("sin", U),  # exp(s) is larger than exp(s - l)
])  # fmt: skip
def test_what_it_does_not_take_is_refused(g: Expr) -> None:
    with pytest.raises(FusionError, match="no repair was found"):
        solve(query(g))


def test_sums_do_not_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theorem, "answer", lambda *_: pytest.fail("asked"))
    with pytest.raises(FusionError):
        solve(query(SOLVED[0][0], "sum"))


def test_the_process_is_killed() -> None:
    """A question that SymPy does not answer in time has no answer; the same question has one in a second."""
    import sympy as sp

    c, u = (sp.Symbol(n, real=True) for n in ("c1", "c2"))
    r = sp.Symbol("r", positive=True)
    text = str(sp.srepr(sp.log(sp.exp(c) * r) + u))
    assert theorem.answer(text, ("c2",), 60.0) is not None
    assert theorem.answer(text, ("c2",), 1e-6) is None
    hangs = sp.exp(50 * sp.tanh(c / 50) - r) * u
    assert theorem.answer(str(sp.srepr(hangs)), ("c1",), 1.0) is None


def test_a_wrong_answer_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sympy as sp

    g = SOLVED[0][0]
    t, r = sp.Symbol("t", real=True), sp.Symbol("r'", positive=True, real=True)
    repair.solve.cache_clear()
    for wrong in (t + sp.log(r), t - 2 * sp.log(r), -t - sp.log(r), t):
        monkeypatch.setattr(theorem, "answer", lambda *_, h=wrong: str(sp.srepr(h)))
        with pytest.raises(FusionError, match="no repair was found"):
            solve(query(g))
    repair.solve.cache_clear()


def scored(masked: bool, fold: Callable[..., te.Reduction] = te.max) -> Program:
    """The largest log probability with a bonus: max over j of log(exp(x[i, j]) / Σ exp(x)) + u[i, j]."""
    x, u = matrix("x"), matrix("u")
    l = per_row(lambda i, j: exp(x[i, j]), "l")  # noqa: E741
    p = cells(lambda i, j: exp(x[i, j]) / l[i], "p")

    def score(i: Expr, j: Expr) -> Expr:
        value = log(p[i, j]) + u[i, j]
        return select(j < 7, value, float("-inf")) if masked else value

    return build([per_row(score, fold=fold), l], name="scored")


@pytest.mark.parametrize("masked", [False, True])
def test_fused_programs(masked: bool) -> None:
    program = scored(masked)
    sch, _, j0 = tiled(program, "l")
    sch.rolling_update("t", j0)
    assert sch.decisions[-1].verdict == "deferred"
    check_same(program, sch, *ODD, scales=(1, 10))
    assert check_exact(program, sch.program).accepted
    for old, new in (("log", "exp"), ("sub", "add")):
        assert check_exact(program, change(sch.program, "t_final", rename(old, new))).verdict == "rejected"
