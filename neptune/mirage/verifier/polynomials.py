"""Polynomials with integer coefficients, exact and small: exponents and radicands at witness sizes.

A polynomial maps monomials to coefficients; a monomial is a sorted tuple of (variable, power). A `Ring` knows which
variables are roots, T² = R with R a polynomial in earlier variables, and reduces their powers to 0 and 1. What would
have too many terms is None, and so is all that is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, log2
from typing import TypeAlias

import numpy as np

from neptune.ir.evaluate.domains import Array
from neptune.verify.residues import power, reduced

Monomial: TypeAlias = tuple[tuple[int, int], ...]
TERMS = 600
"""The most terms of a polynomial."""


@dataclass(frozen=True)
class Poly:
    """A polynomial, its terms sorted."""

    terms: tuple[tuple[Monomial, int], ...]

    @property
    def degree(self) -> int:
        return max((sum(e for _, e in m) for m, _ in self.terms), default=0)

    @property
    def constant(self) -> int | None:
        """Its value, where it has no variables."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def content(self) -> int:
        """The greatest common divisor of the coefficients, with the sign of the first."""
        divisor = gcd(*(c for _, c in self.terms))
        return -divisor if self.terms and self.terms[0][1] < 0 else divisor

    @property
    def variables(self) -> frozenset[int]:
        return frozenset(v for m, _ in self.terms for v, _ in m)

    def divided(self, by: int) -> Poly:
        return Poly(tuple((m, c // by) for m, c in self.terms))

    def weight(self, weights: Mapping[int, float]) -> float:
        """log₂ of the sum of the absolute values of its coefficients, where variables have weights."""
        return log2(sum(abs(c) * 2 ** sum(weights.get(v, 0.0) * e for v, e in m) for m, c in self.terms) or 1)

    def total_degree(self, degrees: Mapping[int, float]) -> float:
        """The degree, where variables have other degrees than 1."""
        return max((sum(degrees.get(v, 1.0) * e for v, e in m) for m, _ in self.terms), default=0.0)

    def coefficients(self, some: frozenset[int]) -> dict[Monomial, Poly]:
        """As a polynomial in some of its variables: the monomials in them with their coefficients."""
        terms_of: dict[Monomial, list[tuple[Monomial, int]]] = {}
        for m, c in self.terms:
            key = tuple(x for x in m if x[0] in some)
            terms_of.setdefault(key, []).append((tuple(x for x in m if x[0] not in some), c))
        return {k: Poly(tuple(sorted(t))) for k, t in terms_of.items()}

    def at(self, values: Mapping[int, Array], modulus: int) -> Array:
        """Its values modulo a prime at many points."""
        total: Array = np.zeros((), np.int64)
        for m, c in self.terms:
            x: Array = np.asarray(c % modulus)
            for v, e in m:
                x = reduced(x * power(values[v], e, modulus), modulus)
            total = reduced(total + x, modulus)
        return total


def number(value: int) -> Poly:
    """A constant."""
    return Poly((((), value),) if value else ())


def variable(index: int) -> Poly:
    """The polynomial of one variable, by its number."""
    return Poly(((((index, 1),), 1),))


def collected(terms: Iterable[tuple[Monomial, int]]) -> Poly | None:
    """The polynomial of terms in any order; None of too many."""
    coefficients: dict[Monomial, int] = {}
    for m, c in terms:
        coefficients[m] = coefficients.get(m, 0) + c
    if len(coefficients) > TERMS:
        return None
    return Poly(tuple(sorted((m, c) for m, c in coefficients.items() if c)))


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for v, e in b:
        powers[v] = powers.get(v, 0) + e
    return tuple(sorted(powers.items()))


@dataclass
class Ring:
    """Polynomials with roots. `squares` says of each root what its square is."""

    squares: dict[int, Poly] = field(default_factory=dict)

    def add(self, a: Poly | None, b: Poly | None) -> Poly | None:
        return None if a is None or b is None else collected((*a.terms, *b.terms))

    def scaled(self, a: Poly, by: int) -> Poly:
        return Poly(tuple((m, c * by) for m, c in a.terms)) if by else Poly(())

    def mul(self, a: Poly | None, b: Poly | None) -> Poly | None:
        if a is None or b is None or len(a.terms) * len(b.terms) > 4 * TERMS:
            return None
        return self.reduce(collected((_times(m, n), c * d) for m, c in a.terms for n, d in b.terms))

    def product(self, factors: Sequence[Poly]) -> Poly | None:
        result: Poly | None = number(1)
        for f in factors:
            result = self.mul(result, f)
        return result

    def reduce(self, a: Poly | None) -> Poly | None:
        """The powers of roots reduced to 0 and 1. Roots in a root's square are older, so that this ends."""
        while a is not None and any(e > 1 and v in self.squares for m, _ in a.terms for v, e in m):
            a = collected(x for m, c in a.terms for x in self._lower(m, c))
        return a

    def _lower(self, m: Monomial, c: int) -> list[tuple[Monomial, int]]:
        v = next((v for v, e in m if e > 1 and v in self.squares), None)
        if v is None:
            return [(m, c)]
        less = tuple((u, e - 2 * (u == v)) for u, e in m if u != v or e > 2)
        return [(_times(less, n), c * d) for n, d in self.squares[v].terms]


def rank(rows: Sequence[Sequence[int]], modulus: int) -> int:
    """The rank of a matrix modulo a prime."""
    left = [[x % modulus for x in row] for row in rows]
    pivots = 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((k for k in range(pivots, len(left)) if left[k][column]), None)
        if pivot is None:
            continue
        left[pivots], left[pivot] = left[pivot], left[pivots]
        by = pow(left[pivots][column], -1, modulus)
        left[pivots] = [x * by % modulus for x in left[pivots]]
        for k in range(pivots + 1, len(left)):
            if by := left[k][column]:
                left[k] = [(x - by * y) % modulus for x, y in zip(left[k], left[pivots], strict=True)]
        pivots += 1
    return pivots
