"""Theorem 4.3: the h of every example of the paper, with equations 4 and 5, and those that do not commute."""

from __future__ import annotations

import random

import pytest

from neptune.fusion.repairs.roles import Predecessor, Query
from neptune.fusion.repairs.theorem import inverse, peeled
from neptune.ir.expr import Expr, Load, Var, op
from tests.examples.values import run

ROW, COL = Var("i"), Var("j")
S, V, C, K = (Load(n, (ROW, COL), "float32") for n in "svck")
M, L = Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
PREDS = (Predecessor(M, "max", S), Predecessor(L, "sum", op("exp", S)))


def exp(e: Expr) -> Expr:
    return op("exp", e)


def ask(g: Expr, reducer: str = "sum") -> tuple[str, str, bool, bool] | None:
    found = inverse(Query("o", reducer, "float32", g, PREDS, frozenset({"j"})))
    return None if found is None else (found.g, found.h, found.update is not None, found.commute is not None)


PAPER = [
    (exp(S - M), "g = exp(c - r)", "h = t*exp(r - r')"),
    (exp(S - M) / L * V, "g = exp(c1 - r1)/r2*c2", "h = r2*t*exp(r1 - r1')/r2'"),
    (0.5 * exp(S - M - 0.25 * C), "g = 0.5*exp(c1 - r - c2)", "h = t*exp(r - r')"),
    (0.5 * V * exp(S - M - 0.25 * C), "g = c1*exp(c2 - r - c3)", "h = t*exp(r - r')"),
    (0.5 * exp(S - M - 0.25 * C * K) / L, "g = 0.5*exp(c1 - r1 - c2)/r2", "h = r2*t*exp(r1 - r1')/r2'"),
]


@pytest.mark.parametrize(("g", "shown", "h"), PAPER)
def test_the_paper(g: Expr, shown: str, h: str) -> None:
    assert ask(g) == (shown, h, True, True)


@pytest.mark.parametrize(("g", "reducer", "h"), [
    (S - M, "sum", "h = r - r' + t"),
    (S * L, "prod", "h = r'*t/r"),
    (op("log", exp(S) + L), "sum", "h = log(-r + r' + exp(t))"),
])  # fmt: skip
def test_what_does_not_commute(g: Expr, reducer: str, h: str) -> None:
    found = ask(g, reducer)
    assert found is not None and found[1:] == (h, True, False)


@pytest.mark.parametrize("g", [op("tanh", S - M), op("abs", S - M), S * (S - M), op("sin", S * M)])
def test_no_inverse(g: Expr) -> None:
    assert ask(g) is None


def test_maxima_and_what_reads_no_r_are_not_asked_about() -> None:
    assert ask(exp(S - M), "max") is None and ask(S * V) is None


@pytest.mark.parametrize("name", ["exp", "log", "exp2", "log2", "neg", "sqrt", "rsqrt"])
def test_operators_of_one_argument_are_undone(name: str) -> None:
    c, t = Var("c", "float32"), Var("t", "float32")
    back = peeled(op(name, c), "c", t)
    assert back is not None
    for x in (0.3, 1.7):
        image = run(op(name, c), {"c": x})
        assert run(back, {"t": image}) == pytest.approx(x)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow"])
@pytest.mark.parametrize("k", [0, 1])
def test_operators_of_two_arguments_are_undone(name: str, k: int) -> None:
    c, r, t = (Var(n, "float32") for n in "crt")
    back = peeled(op(name, *((c, r) if k == 0 else (r, c))), "c", t)
    assert (back is None) == (name == "pow" and k == 1)
    if back is not None:
        x, y = random.Random(7).uniform(1, 2), 1.3
        image = run(op(name, *((c, r) if k == 0 else (r, c))), {"c": x, "r": y})
        assert run(back, {"t": image, "r": y}) == pytest.approx(x)
