"""Taylor coefficients of expressions: against SymPy's, at random numbers, and what has none."""

from __future__ import annotations

import random

import pytest
import sympy as sp

from neptune.fusion.prove import _builders, _sympy
from neptune.fusion.repairs.terms import NotPolynomial, below, binomial, taylor
from neptune.ir.expr import Cast, Const, Expr, Load, Var, binary, cast, op, rewrite, select, variables
from neptune.ir.text.printer import print_expr

X, Y, W = (Var(n, "float32") for n in "xyw")
R, T = Load("r", (), "float32"), Load("t", (), "float32")
TWO, THREE = Const(2.0, "float32"), Const(3.0, "float32")
D, E = X - R, Y - T


@pytest.mark.parametrize(
    ("e", "orders"),
    [
        (D, 1),
        (D * D, 2),
        (op("pow", D, THREE), 3),
        (op("pow", W * D, TWO) / Y, 2),
        (op("neg", D) * W + Y, 1),
        ((R * W - Y) * (X - R * R), 3),
        (cast(cast(D, "float64"), "float32") * W, 1),
        (R, 1),
    ],
)
def test_against_sympy(e: Expr, orders: int) -> None:
    found = taylor(e, [R])
    assert max(c.orders[0] for c in found) == orders and found[0].value == e
    build, rho = _builders(), sp.Symbol("r", real=True)

    def over(x: Expr) -> sp.Expr:
        plain = rewrite(rewrite(x, lambda y: Var("r", "float32") if y == R else None), _uncast)
        return _sympy(plain, {}, build)

    want, delta = over(e), sp.Symbol("d", real=True)
    got = sum(
        sp.Rational(c.number.numerator, c.number.denominator) * over(c.value) * delta ** c.orders[0] for c in found
    )
    assert sp.expand(want.subs(rho, rho + delta) - got) == 0


def _uncast(e: Expr) -> Expr | None:
    return rewrite(e.arg, _uncast) if isinstance(e, Cast) else None


def test_forms_are_kept() -> None:
    assert [(str(c.number), print_expr(c.value)) for c in taylor(D * D * W, [R])] == [
        ("1", "(x - r[]) * (x - r[]) * w"),
        ("-2", "(x - r[]) * w"),
        ("1", "w"),
    ]
    masked = select(binary("lt", X, Y), D * D, 0.0)
    assert [print_expr(c.value) for c in taylor(masked, [R])][1:] == [
        "select(x < y, x - r[], 0.0)",
        "select(x < y, 1.0, 0.0)",
    ]


def test_several() -> None:
    found = {c.orders: (str(c.number), print_expr(c.value)) for c in taylor(D * E, [R, T])}
    assert found == {
        (0, 0): ("1", "(x - r[]) * (y - t[])"),
        (1, 0): ("-1", "y - t[]"),
        (0, 1): ("-1", "x - r[]"),
        (1, 1): ("1", "1.0"),
    }
    assert below((1, 2)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert binomial((3, 2), (1, 1)) == 6 and binomial((1, 0), (0, 1)) == 0


@pytest.mark.parametrize(
    "e", [op("abs", D), op("exp", D), 1.0 / D, op("pow", D, Const(0.5, "float32")), op("pow", D, X)]
)
def test_no_polynomial(e: Expr) -> None:
    assert taylor(e, [R]) == NotPolynomial(e)
    # What is around it is looked at first, and the part is told all the same.
    assert taylor(binary("mul", D, binary("add", e, D)), [R]) == NotPolynomial(e)


def test_random_polynomials() -> None:
    random.seed(4)
    for _ in range(20):
        e: Expr = X
        for _ in range(4):
            other = random.choice([R, X, W, D])
            e = binary(random.choice(["add", "sub", "mul"]), e, other)
        for c in taylor(e, [R]):
            assert variables(c.value) <= {"x", "w"}
