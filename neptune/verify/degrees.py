"""Degrees of rational functions, for the one fragment that has a bound: + - * / and constants.

A value is a quotient of polynomials in the inputs; what is kept is (numerator's degree, denominator's
degree, total degree of all divisors met on the way), each an upper bound.  Two outputs n/d and n'/d' that
differ as rational functions over Z_P agree at a uniform point with probability at most
max(deg n + deg d', deg n' + deg d) / P (Schwartz-Zippel); a divisor that vanishes, and leaves the original
undefined there, adds the total degree of its divisors.  `exact.check_exact` states that sum over P.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.evaluate.domains import Array, Elementwise, Value

# Degrees saturate: a bound above one says nothing, and P is about 2^31.
_MAX = 1 << 40


class Degree(NamedTuple):
    """Degrees of numerator, denominator and all divisors."""

    top: Array
    bottom: Array
    divisors: Array


class Degrees(Elementwise):
    """Evaluates a program to the degrees of its outputs; raises Unsupported for what has none."""

    name = "degrees"

    def parts(self, v: Value) -> tuple[Array, ...]:
        return tuple(v)

    def make(self, parts: Sequence[Array]) -> Value:
        return Degree(*parts)

    def _full(self, shape: tuple[int, ...], top: int) -> Degree:
        return Degree(np.full(shape, top), np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    def undefined(self, shape: tuple[int, ...]) -> Value:
        return self._full(shape, 0)

    def const(self, value: float, dtype: str) -> Value:
        return self._full((), 0)

    def lift(self, value: Any, dtype: str) -> Value:
        """An input is a variable of its own in every element, whatever its value."""
        return self._full(np.shape(value), 1)

    def embed(self, value: Array, dtype: str) -> Value:
        return self._full(np.shape(value), 0)

    def truncate(self, v: Value, dtype: str) -> Array:
        raise Unsupported("a cast to integers is no rational function")

    def cast(self, v: Value, dtype: str) -> Value:
        return v

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        if not args:
            return self._full((), 0)
        if name == "neg":
            return args[0]
        if name not in ("add", "sub", "mul", "div"):
            raise Unsupported(f"{name} is no rational function")
        a, b = args
        met = a.divisors + b.divisors
        if name == "mul":
            result = (a.top + b.top, a.bottom + b.bottom, met)
        elif name == "div":
            result = (a.top + b.bottom, a.bottom + b.top, met + b.top)
        else:
            result = (np.maximum(a.top + b.bottom, b.top + a.bottom), a.bottom + b.bottom, met)
        return Degree(*(np.minimum(x, _MAX) for x in result))

    def compare(self, name: str, a: Value, b: Value) -> Array:
        raise Unsupported("a comparison is no rational function")

    def check(self, name: str, v: Value) -> None:
        """Poison has been looked for by the exact domains."""


def agreement(original: Degree, transformed: Degree) -> int:
    """D such that different results pass one draw with probability at most D/P, for any one element."""
    cross = np.maximum(original.top + transformed.bottom, transformed.top + original.bottom)
    total = cross + original.divisors
    return int(total.max()) if total.size else 0
