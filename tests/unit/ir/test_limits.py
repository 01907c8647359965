"""Values where something is infinite, extreme or 0: the numbers that stand for all, against all numbers."""

from __future__ import annotations

import math
from math import inf

import pytest

from neptune.ir.analysis.limits import EXTREME, ORDINARY, SMALL, Values, is_finite, of_sign, values_of
from neptune.ir.expr import Const, Expr, Load, binary, cast, maximum, op, select

X, Y, M = (Load(n, (), "float32") for n in "xym")
START = frozenset({-EXTREME})


def at(e: Expr, x: Values, *, defined: bool = False) -> Values:
    """The values of `e` for these of x, and an ordinary y."""
    return values_of(e, lambda n: {X: x, Y: ORDINARY}.get(n) if isinstance(n, Load) else None, defined=defined)


@pytest.mark.parametrize(
    ("e", "finite"),
    [
        (X, True),
        (X / 127.0, True),
        (X + Y, True),
        (X * 0.5 - Y * Y * Y, True),
        (op("tanh", X) * Y, True),
        (maximum(X, Y), True),
        (X * 2.0, False),
        (X * Y, False),
        (X / Y, False),
        (X + X, False),
        (X * 1e-9 * Y, False),
        (cast(X, "float16"), False),
        (cast(X, "float64"), True),
        (cast(X, "float8_e5m2"), False),
        (cast(X, "float8_e4m3fn"), True),
        (op("exp", X), True),
        (op("exp", Y * 1e-9), False),
        (op("exp", op("neg", X)), False),
        (op("pow", Y, Const(3.0, "float32")), True),
        (op("pow", Y, Y), False),
        (op("sin", Y) * 3.0, True),
    ],
    ids=str,
)
def test_the_lowest_number_and_ordinary_ones(e: Expr, finite: bool) -> None:
    assert is_finite(at(e, START, defined=True)) == finite


@pytest.mark.parametrize(
    ("e", "values"),
    [
        (op("exp", X), {0.0}),
        (op("tanh", X), {-1.0}),
        (X - 3.0, {-inf}),
        (1.0 / X, {0.0}),
        (maximum(X, 2.0), {2.0}),
        (select(binary("lt", Y, 0.0), X, Const(1.0, "float32")), {-inf, 1.0}),
    ],
    ids=str,
)
def test_minus_infinity(e: Expr, values: set[float]) -> None:
    assert at(e, frozenset({-inf})) == values


@pytest.mark.parametrize("e", [X - X, X * 0.0, op("sin", X), op("log", X), op("sqrt", X), X + Load("z", (), "float32")])
def test_what_is_undefined_is_nan(e: Expr) -> None:
    assert any(map(math.isnan, at(e, frozenset({-inf}))))


def test_where_an_operator_is_defined() -> None:
    values = frozenset({-4.0, 0.0, 4.0})
    assert at(op("sqrt", X), values, defined=True) == {0.0, 2.0}
    assert at(1.0 / X, values, defined=True) == {-0.25, 0.25}
    for by, wanted in ((-1.0, {-0.25, 0.25}), (0.5, {0.0, 2.0}), (-0.5, {0.5}), (2.0, {0.0, 16.0})):
        assert at(op("pow", X, Const(by, "float32")), values, defined=True) == wanted, by
    assert at(1.0 / X, frozenset({0.0}), defined=True) == frozenset()


def test_values_of_a_sign() -> None:
    assert of_sign(SMALL, "+") == {0.5, 1.0} and of_sign(SMALL, "0-") == {0.0, -0.5, -1.0}
    assert of_sign(SMALL, None) == SMALL


def test_what_saturates_has_no_infinity() -> None:
    made = at(cast(X, "float8_e4m3fn"), frozenset({-inf, 1.0, EXTREME, math.nan}))
    assert {-448.0, 1.0, 448.0} <= made and is_finite(v for v in made if v == v) and any(v != v for v in made)
