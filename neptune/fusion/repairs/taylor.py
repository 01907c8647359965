"""Polynomials in ρ about another ρ: the Taylor coefficients of an expression, as expressions.

    (x - ρ)²        1: (x - ρ)²      δ: -2 · (x - ρ)      δ²: 1 · 1
    (x - ρ) · w     1: (x - ρ) · w   δ: -1 · w

so that (x - (ρ + δ))² = (x - ρ)² - 2·(x - ρ)·δ + δ².  The structure of the expression is kept: what was
subtracted before it is squared still is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, prod

from neptune.fusion.repairs.linear import scaled
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, cast, op, select, walk
from neptune.ir.ops import OPS
from neptune.ir.text.printer import print_expr

Terms = list[tuple[Fraction, Expr]]
Orders = tuple[int, ...]
HIGHEST = 6
"""The highest degree that is taken apart."""


@dataclass(frozen=True)
class NotPolynomial:
    """A part of an expression that is no polynomial in ρ of a low degree."""

    part: Expr


@dataclass(frozen=True)
class Coefficient:
    """`number` · `value`, that of Π δ^orders."""

    orders: Orders
    number: Fraction
    value: Expr


def polynomial(e: Expr, shifts: Sequence[Load]) -> tuple[Coefficient, ...]:
    """`taylor` of what is known to be a polynomial in ρ."""
    series = taylor(e, shifts)
    assert not isinstance(series, NotPolynomial), print_expr(series.part)
    return series


def taylor(e: Expr, shifts: Sequence[Load]) -> tuple[Coefficient, ...] | NotPolynomial:
    """All coefficients but zeros, that of order 0, `e` itself, first; NotPolynomial where there are no such."""
    other: list[Expr] = []
    series: dict[Orders, Terms] = {(0,) * len(shifts): [(Fraction(1), e)]}
    todo = list(series)
    for orders in todo:
        for k, shift in enumerate(shifts):
            higher = (*orders[:k], orders[k] + 1, *orders[k + 1 :])
            if higher in series:
                continue
            terms = [(c * d / higher[k], x) for c, term in series[orders] for d, x in _derivative(term, shift, other)]
            if other:
                return NotPolynomial(other[0])
            if terms := _collected(terms):
                if sum(higher) > HIGHEST:
                    return NotPolynomial(e)
                series[higher] = terms
                todo.append(higher)
    return tuple(_coefficient(orders, terms) for orders, terms in series.items())


def binomial(top: Orders, bottom: Orders) -> int:
    """Π C(of_k, at_k): 0 where some at_k is larger."""
    return prod(comb(a, b) for a, b in zip(top, bottom, strict=True))


def below(orders: Orders) -> list[Orders]:
    """All orders up to these, in every variable."""
    return list(product(*(range(k + 1) for k in orders)))


def _coefficient(orders: Orders, terms: Terms) -> Coefficient:
    number, value = terms[0]
    for c, x in terms[1:]:
        ratio = c / number
        value = binary("add" if ratio > 0 else "sub", value, _scaled(x, abs(ratio)))
    return Coefficient(orders, number, value)


def _scaled(e: Expr, by: Fraction) -> Expr:
    return e if by == 1 else binary("mul", e, Const(float(by), e.dtype))


def _collected(terms: Terms) -> Terms:
    total: dict[Expr, Fraction] = {}
    for c, x in terms:
        total[x] = total.get(x, Fraction(0)) + c
    return [(c, x) for x, c in total.items() if c]


def _derivative(e: Expr, by: Load, other: list[Expr]) -> Terms:
    """∂e/∂ρ as terms; factors 1 are left out. `other` gets the parts that are no polynomials in ρ."""
    if not any(x == by for x in walk(e)):
        return []
    match e:
        case Load():
            return [(Fraction(1), Const(1.0, e.dtype))]
        case Op("add" | "sub" | "neg" | "mul" as name, args, _):
            terms: Terms = []
            for k, (a, partial) in enumerate(zip(args, OPS[name].partials, strict=True)):
                slope = partial(op, *args)
                for c, x in _derivative(a, by, other):
                    whole = isinstance(slope, int)
                    terms.append((c * slope, x) if whole else (c, scaled(x, slope) if k == 0 else scaled(slope, x)))
            return _collected(terms)
        case Op("div", (a, b), _) if not any(x == by for x in walk(b)):
            return [(c, binary("div", x, b)) for c, x in _derivative(a, by, other)]
        case Op("pow", (a, Const(value, _)), _) if value >= 1 and float(value).is_integer():
            n = int(value)
            power: Expr = a if n == 2 else op("pow", a, Const(float(n - 1), a.dtype))
            return [(c * n, x if n == 1 else scaled(power, x)) for c, x in _derivative(a, by, other)]
        case Cast(a, dtype):
            return [
                (c, Const(1.0, dtype) if x == Const(1.0, x.dtype) else cast(x, dtype))
                for c, x in _derivative(a, by, other)
            ]
        case Select(p, a, b) if not any(x == by for x in walk(p)):
            zero = Const(0.0, e.dtype)
            left = [(c, select(p, x, zero)) for c, x in _derivative(a, by, other)]
            return [*left, *((c, select(p, zero, x)) for c, x in _derivative(b, by, other))]
        case _:
            other.append(e)
            return []
