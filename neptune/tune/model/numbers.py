"""Sizes and bounds as functions of arrays: a number for each of many points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, ClassVar, TypeAlias

import numpy as np

from neptune.ir.expr import Cast, Expr, Load, Select, Var
from neptune.ir.integers import Integers
from neptune.ir.ops import INTEGER

UNKNOWN = float(1 << 30)
"""What an element of a tensor is taken to be in bounds, which other bounds then limit; the least of several is 0."""
Array: TypeAlias = Any
"""Floats of NumPy, or one for all points."""
Number = Callable[[Mapping[str, Array]], Array]
"""A size as a function of names, in floats: products of large sizes have no end there."""
_OF_ARRAYS: Mapping[str, Callable[..., Array]] = {
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
_OF_BITS = ("bitand", "bitor", "bitxor", "shl", "shr")


def _operator(name: str, fn: Callable[..., Any]) -> Callable[..., Array]:
    """The operator on arrays of floats."""
    if name not in _OF_BITS:
        return _OF_ARRAYS.get(name, fn)
    return lambda *args: fn(*(np.asarray(a).astype(np.int64) for a in args)).astype(np.float64)


def _lifted(fn: Callable[..., Array]) -> Callable[..., Number]:
    def lifted(*parts: Number) -> Number:
        return lambda known: fn(*(p(known) for p in parts))

    return lifted


class Numbers(Integers[Number]):
    """Sizes as functions of names, made once; elements of tensors are UNKNOWN, but 0 for those `least` of several.

    >>> Numbers().of(Op("floordiv", (Var("n"), Const(2, "int32")), "int32"))({"n": np.array([7.0, 8.0])})
    array([3., 4.])
    """

    operators: ClassVar[Mapping[str, Callable[..., Number]]] = {
        name: _lifted(_operator(name, fn)) for name, fn in INTEGER.items()
    }

    def __init__(self, least: Set[str] = frozenset()) -> None:
        self.least = least

    def number(self, value: int | float) -> Number:
        return lambda known: np.float64(value)

    def load(self, e: Load) -> Number:
        value = 0.0 if e.buffer in self.least else UNKNOWN
        return lambda known: value

    def var(self, e: Var) -> Number:
        return lambda known: known[e.name]

    def other(self, e: Expr) -> Number:
        # An element of a tensor, or what follows from one.
        return lambda known: UNKNOWN

    def cast(self, e: Cast[Expr]) -> Number:
        arg = self.of(e.arg)
        # Sums of bools are numbers, which they are for Python but not for arrays.
        return lambda known: np.multiply(arg(known), 1.0)

    def select(self, e: Select[Expr]) -> Number:
        pred, then, other = self.of(e.pred), self.of(e.then), self.of(e.other)
        return lambda known: np.where(pred(known), then(known), other(known))
