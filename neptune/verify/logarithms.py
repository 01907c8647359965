"""Exact logarithms for the ordered rationals: numbers q + log₄ x, and opaque functions that keep the order.

exp(y) is 4^y there, so log(x) is log₄ x.  Powers of two have rational logarithms; of any other x the odd part is
kept as it is, which makes the representation unique: log(a·b) = log a + log b, exp(log x) = x and a < b ⇔ log a <
log b hold exactly, so that a log-sum-exp, a product taken as a sum of logarithms and a maximum of logarithms can
be checked and not only compared with themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

LARGEST = 1 << 14
"""Bits that the argument of a logarithm may have before it counts as opaque."""
STEPS = 4
"""How finely a rising function tells its arguments apart: steps per unit."""
SPAN = 256
"""How many steps on each side of 0 are random; beyond them a rising function rises by 1."""
LIMIT = 10**5


class Logarithm:
    """q + log₄ x, with x > 0 other than 1, an odd number over an odd number; irrational."""

    __slots__ = ("q", "x")

    def __init__(self, q: Fraction, x: Fraction) -> None:
        self.q, self.x = q, x

    def __repr__(self) -> str:
        return f"{self.q} + log({self.x})"

    def __hash__(self) -> int:
        return hash((self.q, self.x))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Logarithm) and (self.q, self.x) == (other.q, other.x)

    def __neg__(self) -> Logarithm:
        return Logarithm(-self.q, 1 / self.x)

    def __abs__(self) -> Logarithm:
        return self if self > 0 else -self

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Logarithm):
            return made(self.q + other.q, self.x * other.x)
        return Logarithm(self.q + other, self.x)

    __radd__ = __add__

    def times(self, n: int) -> Any:
        """n times this number, None where its argument grows too long."""
        if abs(n) * max(self.x.numerator.bit_length(), self.x.denominator.bit_length()) > LARGEST:
            return None
        return made(self.q * n, self.x**n)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other) < 0

    def __le__(self, other: Any) -> bool:
        return self._compare(other) <= 0

    def __gt__(self, other: Any) -> bool:
        return self._compare(other) > 0

    def __ge__(self, other: Any) -> bool:
        return self._compare(other) >= 0

    def __float__(self) -> float:
        return float(self.q) + (math.log2(self.x.numerator) - math.log2(self.x.denominator)) / 2

    def __int__(self) -> int:
        return int(float(self))

    def _compare(self, other: Any) -> int:
        """The sign of self - other."""
        if isinstance(other, float) and not math.isfinite(other):
            return 0 if other != other else -1 if other > 0 else 1
        gap = self + (-other)
        if not isinstance(gap, Logarithm):
            return int(gap > 0) - int(gap < 0)
        guess = float(gap)
        if abs(guess) > 1e-6:
            return 1 if guess > 0 else -1
        return gap._sign()

    def _sign(self) -> int:
        """The sign, to as many digits as it takes: no power of 4 is the odd part of a number, so it is not 0.

        (x^d > 4^(-n), for q = n / d, says the same, but a gap of many terms has a d with thousands of digits.)
        """
        digits = 40
        while True:
            with localcontext() as context:
                context.prec = digits
                q = Decimal(self.q.numerator) / Decimal(self.q.denominator)
                up, down = (Decimal(k).ln() / Decimal(4).ln() for k in (self.x.numerator, self.x.denominator))
                value = q + up - down
                if abs(value) > max(abs(q), up, down, Decimal(1)).scaleb(6 - digits):
                    return 1 if value > 0 else -1
            digits *= 2

    def power(self) -> Fraction | None:
        """2^self where that is rational."""
        if self.q.denominator != 1 or abs(self.q) > LIMIT:
            return None
        roots = [math.isqrt(k) for k in (self.x.numerator, self.x.denominator)]
        square = Fraction(roots[0] ** 2, roots[1] ** 2) == self.x
        return Fraction(2) ** int(self.q) * Fraction(*roots) if square else None


def made(q: Fraction, x: Fraction) -> Any:
    """q + log₄ x for odd parts x; a rational where x = 1."""
    return q if x == 1 else Logarithm(q, x)


def logarithm(x: int | Fraction) -> Any:
    """log₄ of a positive number; None where it is too long."""
    value = Fraction(x)
    twos = [(k & -k).bit_length() - 1 for k in (value.numerator, value.denominator)]
    odd = Fraction(value.numerator >> twos[0], value.denominator >> twos[1])
    if max(odd.numerator.bit_length(), odd.denominator.bit_length()) > LARGEST:
        return None
    return made(Fraction(twos[0] - twos[1], 2), odd)


def rising(seed: int, key: int) -> Callable[[Any], int]:
    """A random function from numbers to integers that never falls; 0 at 0, other at every other integer."""
    steps = np.random.default_rng((seed, key)).integers(1, 3, 2 * SPAN)
    table = np.concatenate([[0], np.cumsum(steps)])
    table = table - table[SPAN]

    def at(x: Any) -> int:
        if isinstance(x, float):
            x = LIMIT if x > 0 else -LIMIT
        k = math.floor(float(x) * STEPS) if isinstance(x, Logarithm) else math.floor(x * STEPS)
        k = max(-LIMIT, min(LIMIT, k))
        inside = max(-SPAN, min(SPAN, k))
        return int(table[inside + SPAN]) + k - inside

    return at
