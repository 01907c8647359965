"""Sums taken apart: into terms with signs and scales, summands that keep their form, or Taylor coefficients.

(s[i, j] - m[i]) * 0.5 + b   →   (s[i, j], +, * 0.5), (m[i], -, * 0.5), (b, +)
                             →   s[i, j] * 0.5, -m[i] * 0.5, b

Of a polynomial in ρ about another ρ these are the Taylor coefficients, as expressions:

    (x - ρ)²        1: (x - ρ)²      δ: -2 · (x - ρ)      δ²: 1 · 1
    (x - ρ) · w     1: (x - ρ) · w   δ: -1 · w

so that (x - (ρ + δ))² = (x - ρ)² - 2·(x - ρ)·δ + δ².  The structure of the expression is kept: what was
subtracted before it is squared still is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, prod

from neptune.ir.analysis.facts import linear_in
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, cast, op, rebuild, select, walk
from neptune.ir.ops import OPS, SUMS
from neptune.ir.text.printer import print_expr

Leaf = tuple[Expr, bool, tuple[tuple[str, Expr], ...]]


def with_part(e: Expr, k: int, part: Expr) -> Expr:
    """The node `e` with another part `k`."""
    return rebuild(e, tuple(part if n == k else x for n, x in enumerate(e.parts)))


def scaled(a: Expr, b: Expr) -> Expr:
    """a · b without a factor that is 1."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Const) and x.value == 1:
            return other
    return binary("mul", a, b)


def additive(
    e: Expr, involved: Callable[[Expr], bool], negative: bool = False, scale: tuple[tuple[str, Expr], ...] = ()
) -> Iterator[Leaf]:
    """The terms of a sum as (leaf, negative, scale), opened down to what does not depend on r."""
    name = e.name if isinstance(e, Op) else ""
    moving = [k for k, x in enumerate(e.parts) if involved(x)]
    if name in SUMS and moving:
        for k, x in enumerate(e.parts):
            yield from additive(x, involved, negative != (k == 1 and name == "sub"), scale)
    elif len(moving) == 1 and linear_in(e, moving[0]):
        by = tuple((name, x) for k, x in enumerate(e.parts) if k != moving[0])
        yield from additive(e.parts[moving[0]], involved, negative != (name == "neg"), (*by, *scale))
    else:
        yield e, negative, scale


def without(e: Expr, leaves: set[Expr]) -> Expr | None:
    """The sum `e` less some of its terms, which stand there unscaled; None for no other term."""
    if e in leaves:
        return None
    if not isinstance(e, Op) or e.name not in (*SUMS, "neg"):
        return e
    rest = [without(x, leaves) for x in e.args]
    left = [x for x in rest if x is not None]
    if len(left) == len(rest):
        return rebuild(e, tuple(left))
    negative = e.name == "neg" or (e.name == "sub" and rest[0] is None)
    return None if not left else op("neg", left[0]) if negative else left[0]


def summands(e: Expr, involved: Callable[[Expr], bool], bits: int) -> list[Expr]:
    """The terms of a sum whose sides read r, through products, quotients and casts of at least `bits`.

    x·rstd·w + b·w of (x·rstd + b)·w
    """
    if not involved(e):
        return [e]
    each = [summands(x, involved, bits) for x in e.parts]
    if isinstance(e, Op) and e.name in SUMS:
        return [*each[0], *((op("neg", x) for x in each[1]) if e.name == "sub" else each[1])]
    sums = [k for k, terms in enumerate(each) if len(terms) > 1]
    if len(sums) != 1 or not linear_in(e, sums[0]) or (isinstance(e, Cast) and DTYPES[e.dtype].bits < bits):
        return [e]
    return [with_part(e, sums[0], x) for x in each[sums[0]]]


# --- Taylor coefficients ----------------------------------------------------------------------------

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
