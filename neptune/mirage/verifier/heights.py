"""Each element of a result as a fraction in inputs, roots and exponentials: its degree, its height, what is in it.

`Heights` are numbers for `evaluate`: an element is a `Form`, numerator over a product of factors, with bounds

    degree   of a polynomial in inputs, roots (T with T² = R counts half of R's degree) and exponentials (1 each)
    height   log₂ of the sum of the absolute values of its integer coefficients, roots reduced to first powers
    terms    of how many products of exponentials it is a sum

and exactly, as long as it is small and has no exponential: exponents and radicands are needed as they are. Sums are
brought to the least common multiple of their factors, which are known by their polynomials.

    x/√(Σ x²/5)   →   numerator 5·x, denominator T with T² = 5·Σ x²
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, permutations
from math import isqrt, log2
from typing import Any

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.evaluate.domains import Array, Elementwise, Value
from neptune.mirage.verifier.polynomials import Poly, Ring, number, variable

MAXIMUM = "maximum"
"""The owner of drawn maxima."""
_OPS = ("neg", "add", "sub", "mul", "div", "exp", "sqrt", "rsqrt", "sigmoid")
PRIMES = (2, 3, 5, 7)
"""Whose roots are numbers of the fields."""


@dataclass(frozen=True)
class Factor:
    """A factor of denominators: `key` is its polynomial, or a number of its own."""

    key: Poly | int
    degree: float
    height: float
    terms: int
    roots: frozenset[int]
    exponents: frozenset[int]

    @property
    def exact(self) -> Poly | None:
        return self.key if isinstance(self.key, Poly) else None


@dataclass(frozen=True, eq=False)
class Form:
    """An element: numerator and the factors of its denominator with their powers."""

    degree: float
    height: float
    terms: int
    below: dict[Factor, int]
    exact: Poly | None
    roots: frozenset[int] = frozenset()
    exponents: frozenset[int] = frozenset()

    def all_roots(self) -> frozenset[int]:
        return self.roots.union(*(f.roots for f in self.below))

    def all_exponents(self) -> frozenset[int]:
        return self.exponents.union(*(f.exponents for f in self.below))


@dataclass(frozen=True)
class Root:
    """A radicand scale·top/below with primitive polynomials, and T = bottom·√radicand, a variable of the ring."""

    top: Poly
    below: Poly
    scale: Fraction
    bottom: Poly
    inside: frozenset[int]


@dataclass
class Heights(Elementwise):
    """The numbers. Variables are inputs, drawn numbers and roots; exponents and roots are kept in the order found."""

    name = "degrees and heights"
    ring: Ring = field(default_factory=Ring)
    owners: dict[int, str] = field(default_factory=dict)
    """Of each variable that is no root the array that it was drawn for."""
    roots: dict[int, Root] = field(default_factory=dict)
    exponents: list[tuple[Poly, Poly, frozenset[int]]] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    """Primes of which roots are taken."""
    scales: set[int] = field(default_factory=set)
    """Whole numbers that a root of their square became."""
    pairs: set[tuple[frozenset[int], int]] = field(default_factory=set)
    """Two roots whose product (1) or quotient (−1) is the root of a radicand."""
    _degrees: dict[int, float] = field(default_factory=dict)
    _weights: dict[int, float] = field(default_factory=dict)
    _names: Iterator[int] = field(default_factory=count)

    # --- what `evaluate` needs ---------------------------------------------------------------------

    def parts(self, v: Value) -> tuple[Array, ...]:
        return (v,)

    def make(self, parts: Sequence[Array]) -> Value:
        return parts[0]

    def number(self, value: Fraction) -> Value:
        array = np.empty((), object)
        array[()] = self.over(number(value.numerator), number(value.denominator))
        return array

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        return self.drawn(MAXIMUM if shape else "a number", (1, *shape))

    def drawn(self, owner: str, shape: tuple[int, ...]) -> Value:
        """Variables of their own."""
        values = np.empty(shape, object)
        for index in np.ndindex(shape):
            values[index] = self.free(owner)
        return values

    def free(self, owner: str) -> Form:
        v = next(self._names)
        self.owners[v] = owner
        return self.of(variable(v))

    def apply(self, name: str, args: Sequence[Value], dtype: str = "") -> Value:
        if name not in _OPS:
            raise Unsupported(f"of {name} nothing is known")
        return np.frompyfunc(getattr(self, f"_{name}"), len(args), 1)(*args)

    # --- forms -------------------------------------------------------------------------------------

    def of(self, p: Poly) -> Form:
        roots = frozenset(v for v in p.variables if v in self.roots)
        return Form(p.total_degree(self._degrees), p.weight(self._weights), 1, {}, p, roots)

    def over(self, top: Poly, bottom: Poly) -> Form:
        return self._divided(self.of(top), self.of(bottom))

    def factor(self, a: Form) -> Factor:
        """A numerator as a factor of denominators."""
        key = a.exact if a.exact is not None else next(self._names)
        return Factor(key, a.degree, a.height, a.terms, a.roots, a.exponents)

    def bottom(self, a: Form) -> Form:
        """The denominator as a form without one."""
        return self._raised(Form(0.0, 0.0, 1, {}, number(1)), a.below)

    def fraction(self, a: Form) -> tuple[Poly, Poly]:
        """Numerator and denominator. Raises Unsupported where they are not known."""
        below = self.bottom(a).exact
        if a.exact is None or below is None:
            raise Unsupported("an exponential, or what is too large to be written out, in an exponent or radicand")
        return a.exact, below

    def _raised(self, a: Form, by: dict[Factor, int]) -> Form:
        """A numerator times factors."""
        for f, n in by.items():
            for _ in range(n):
                exact = self.ring.mul(a.exact, f.exact)
                a = self._numerator(exact, a.degree + f.degree, a.height + f.height, a.terms * f.terms, (a, f), a.below)
        return a

    def _numerator(
        self,
        exact: Poly | None,
        degree: float,
        height: float,
        terms: int,
        operands: Sequence[Any],
        below: dict[Factor, int],
    ) -> Form:
        if exact is not None:
            exact_form = self.of(exact)
            return Form(exact_form.degree, exact_form.height, 1, below, exact, exact_form.roots)
        roots = frozenset[int]().union(*(x.roots for x in operands))
        return Form(degree, height, terms, below, None, roots, frozenset[int]().union(*(x.exponents for x in operands)))

    def _neg(self, a: Form) -> Form:
        return self._mul(a, self.of(number(-1)))

    def _add(self, a: Form, b: Form) -> Form:
        below = {f: max(a.below.get(f, 0), b.below.get(f, 0)) for f in (*a.below, *b.below)}
        a, b = (self._raised(x, {f: n - x.below.get(f, 0) for f, n in below.items()}) for x in (a, b))
        exact = self.ring.add(a.exact, b.exact)
        height = max(a.height, b.height) + log2(1 + 2 ** -abs(a.height - b.height))
        return self._numerator(exact, max(a.degree, b.degree), height, a.terms + b.terms, (a, b), below)

    def _sub(self, a: Form, b: Form) -> Form:
        return self._add(a, self._neg(b))

    def _mul(self, a: Form, b: Form) -> Form:
        below = {f: a.below.get(f, 0) + b.below.get(f, 0) for f in (*a.below, *b.below)}
        exact = self.ring.mul(a.exact, b.exact)
        if exact is not None and not exact.terms:
            below = {}
        return self._numerator(exact, a.degree + b.degree, a.height + b.height, a.terms * b.terms, (a, b), below)

    def _div(self, a: Form, b: Form) -> Form:
        return self._divided(a, b)

    def _divided(self, a: Form, b: Form) -> Form:
        if b.exact is not None and not b.exact.terms:
            raise Unsupported("it divides by 0")
        over = self._raised(a, b.below)
        below = dict(a.below)
        if b.exact != number(1):
            f = self.factor(b)
            below[f] = below.get(f, 0) + 1
        return Form(over.degree, over.height, over.terms, below, over.exact, over.roots, over.exponents)

    def _exp(self, a: Form) -> Form:
        top, below = self.fraction(a)
        if not top.terms:
            return self.of(number(1))
        k = next((k for k, (t, b, _) in enumerate(self.exponents) if self.same((t, b), (top, below))), None)
        if k is None:
            k = len(self.exponents)
            self.exponents.append((top, below, self._behind(a.all_roots())))
        return Form(1.0, 0.0, 1, {}, None, frozenset(), frozenset({k}))

    def same(self, a: tuple[Poly | None, Poly | None], b: tuple[Poly, Poly]) -> bool:
        """Return True where two fractions are known to be one."""
        if a == b:
            return True
        left, right = self.ring.mul(a[0], b[1]), self.ring.mul(b[0], a[1])
        return left is not None and left == right

    def _behind(self, roots: frozenset[int]) -> frozenset[int]:
        """The roots, and those in their radicands."""
        return roots.union(*(self.roots[r].inside for r in roots))

    def _sigmoid(self, a: Form) -> Form:
        one = self.of(number(1))
        return self._divided(one, self._add(one, self._exp(self._neg(a))))

    def _rsqrt(self, a: Form) -> Form:
        return self._divided(self.of(number(1)), self._sqrt(a))

    def _sqrt(self, a: Form) -> Form:
        """√(c·R) with R primitive is √(c/c₀) times the root of c₀·R, the first of its kind; or times two such roots."""
        top, below = self.fraction(a)
        if not top.terms:
            return a
        c = Fraction(abs(top.content), abs(below.content))
        sign = 1 if below.content > 0 else -1
        top, below = top.divided(sign * abs(top.content)), below.divided(sign * abs(below.content))
        if top.constant is not None and below.constant is not None:
            if top.constant * below.constant < 0:
                raise Unsupported("a root of a negative number")
            return self._number_root(c)
        g, f = squares_of(c)
        self.scales |= {g.numerator, g.denominator} - {1}
        result, left = self.over(number(g.numerator), number(g.denominator)), Fraction(f)
        for t, up in self._roots(top, below, left).items():
            factor = self.over(variable(t), self.roots[t].bottom)
            result = self._mul(result, factor) if up > 0 else self._divided(result, factor)
            left /= self.roots[t].scale ** up
        return self._mul(result, self._number_root(left))

    def _number_root(self, c: Fraction) -> Form:
        """√c = g·√f with f free of squares."""
        g, f = squares_of(c)
        result = self.over(number(g.numerator), number(g.denominator))
        self.scales |= {g.numerator, g.denominator} - {1}
        for p in PRIMES:
            if f % p == 0:
                f //= p
                result = self._mul(result, self.of(variable(self._prime_root(p))))
        if f != 1:
            raise Unsupported(f"a root of {c}: only 2, 3, 5 and 7 have one")
        return result

    def _prime_root(self, p: int) -> int:
        v = -p
        self.numbers.add(p)
        self.ring.squares[v] = number(p)
        self._degrees[v], self._weights[v] = 0.0, log2(p) / 2
        return v

    def _roots(self, top: Poly, below: Poly, scale: Fraction) -> dict[int, int]:
        """Roots with powers ±1 whose product is a number times √(top/below): those there are, or a new one."""
        for v, r in self.roots.items():
            if self.same((r.top, r.below), (top, below)):
                return {v: 1}
        degree = top.degree - below.degree
        for (v, a), (w, b) in permutations(self.roots.items(), 2):
            for up, (t, u) in ((1, (b.top, b.below)), (-1, (b.below, b.top))):
                if a.top.degree - a.below.degree + t.degree - u.degree != degree:
                    continue
                if self.same((self.ring.mul(a.top, t), self.ring.mul(a.below, u)), (top, below)):
                    self.pairs.add((frozenset({v, w}), up))
                    return {v: 1, w: up}
        return {self._root(top, below, scale): 1}

    def _root(self, top: Poly, below: Poly, scale: Fraction) -> int:
        """A new root, of scale·top/below."""
        v = next(self._names)
        bottom = self.ring.scaled(below, scale.denominator)
        radicand = self.ring.mul(self.ring.scaled(top, scale.numerator), bottom)
        if radicand is None:
            raise Unsupported("a radicand that is too large to be written out")
        self.ring.squares[v] = radicand
        inside = frozenset(x for p in (top, below) for x in p.variables if x in self.roots)
        self.roots[v] = Root(top, below, scale, bottom, self._behind(inside))
        square = self.of(radicand)
        self._degrees[v], self._weights[v] = square.degree / 2, square.height / 2
        return v


def squares_of(c: Fraction) -> tuple[Fraction, int]:
    """g and f with c = g²·f, where f is whole and the squares of small primes, or all of it, are taken out."""
    f, g = c.numerator * c.denominator, Fraction(1, c.denominator)
    for p in PRIMES:
        while f % (p * p) == 0:
            f, g = f // (p * p), g * p
    if (r := isqrt(f)) ** 2 == f:
        f, g = 1, g * r
    return g, f
