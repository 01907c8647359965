"""The numbers in a graph: constants of nodes, as numbers of any kind that a graph is evaluated on.

1/k at k = 5    →    the rational 1/5, in a field or as a float          0.1, drawn    →    a number like any other
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import Array, EvaluationError, Value
from neptune.ir.expr import Cast, Const, Expr, Op, Var
from neptune.ir.ops import OPS

SMALL = 1 << 10
"""Constants of a larger numerator or denominator may be drawn too: their digits make no graph right."""


class Numbers(Protocol):
    """What values are made of: some methods of a domain (`neptune.ir.evaluate.domains`), and exact rationals."""

    def parts(self, v: Value) -> tuple[Array, ...]: ...

    def make(self, parts: Sequence[Array]) -> Value: ...

    def number(self, value: Fraction) -> Value: ...

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value: ...

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value: ...

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        """Numbers for a free variable; `shape` without the first dimension, which numbers the draws."""


def applied(numbers: Numbers, name: str, *values: Value) -> Value:
    """An operator, without warnings of numpy."""
    with np.errstate(all="ignore"):
        return numbers.apply(name, values, "float64")


class Constants:
    """Constants by their expressions. `scalars` gives numbers (arrays over draws) to variables.

    `draw` makes a free number for what has many digits, by a key; None takes them as they are.
    """

    def __init__(
        self, numbers: Numbers, scalars: Mapping[str, Value], draw: Callable[[int], Value] | None = None
    ) -> None:
        self.numbers, self.scalars, self.draw = numbers, scalars, draw
        self._known: dict[Expr, Value] = {}

    def at(self, e: Expr | None, rank: int) -> Value:
        """The number beside arrays of so many dimensions behind that of draws; 1 where there is none."""
        return self._beside(self.numbers.number(Fraction(1)) if e is None else self.value(e), rank)

    def _beside(self, v: Value, rank: int) -> Value:
        return self.numbers.make([x.reshape(-1, *(1,) * rank) for x in self.numbers.parts(v)])

    def value(self, e: Expr) -> Value:
        """The number, as an array over draws or of rank 0."""
        if e not in self._known:
            self._known[e] = self._value(e)
        return self._known[e]

    def _value(self, e: Expr) -> Value:
        exact = rational(e)
        if exact is not None and self.draw is not None and max(abs(exact.numerator), exact.denominator) > SMALL:
            return self.draw(hash(exact))
        if exact is not None:
            return self.numbers.number(exact)
        match e:
            case Var(name) if name in self.scalars:
                return self.scalars[name]
            case Cast(arg, dtype) if is_float(dtype):
                return self.value(arg)
            case Op(name, args, _):
                return applied(self.numbers, name, *(self.at(x, 0) for x in args))
        raise EvaluationError(f"`{e}` is no number that an operator takes")

    def power(self, base: Value, exponent: Expr | None, rank: int) -> Value:
        """Whole powers multiply, halves and quarters take roots; any other is a function of both."""
        exact = None if exponent is None else rational(exponent)
        if exact is None or exact.denominator not in (1, 2, 4, 8) or abs(exact) > 64:
            return applied(self.numbers, "pow", base, self.at(exponent, rank))
        for _ in range(exact.denominator.bit_length() - 1):
            base = applied(self.numbers, "sqrt", base)
        one = self.at(None, rank)
        shape = self.numbers.parts(base)[0].shape
        result = self.numbers.make([np.broadcast_to(x, shape).copy() for x in self.numbers.parts(one)])
        for _ in range(abs(exact.numerator)):
            result = applied(self.numbers, "mul", result, base)
        return applied(self.numbers, "div", one, result) if exact < 0 else result


def rational(e: Expr) -> Fraction | None:
    """The exact value of a constant, None where it has none as a rational."""
    match e:
        case Const(value, _) if np.isfinite(value):
            return Fraction(value)
        case Cast(arg, dtype) if is_float(dtype):
            return rational(arg)
        case Op(name, args, _) if name in _EXACT:
            numbers = [rational(x) for x in args]
            function = None if None in numbers else OPS[name].value
            result = None if function is None else function(*numbers)
            return result if isinstance(result, Fraction) else None
    return None


_EXACT = ("add", "sub", "mul", "div", "neg")
"""Operators of rationals that give rationals, but for x/0."""
