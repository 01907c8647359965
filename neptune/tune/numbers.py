"""Sizes and bounds as Python functions of names, for evaluations by the thousand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from neptune.ir.expr import Cast, Expr, Select, Var
from neptune.ir.integers import Integers
from neptune.ir.ops import INTEGER

UNKNOWN = 1 << 30
"""What an element of a tensor is taken to be in bounds, which other bounds then limit."""
Number = Callable[[Mapping[str, int]], int]
"""A size as a function of names."""


def _lifted(fn: Callable[..., int]) -> Callable[..., Number]:
    def lifted(*parts: Number) -> Number:
        return lambda known: fn(*(p(known) for p in parts))

    return lifted


class Numbers(Integers[Number]):
    """Sizes as functions of names, made once; elements of tensors are UNKNOWN.

    >>> Numbers().of(Op("floordiv", (Var("n"), Const(2, "int32")), "int32"))({"n": 7})
    3
    """

    operators: ClassVar[Mapping[str, Callable[..., Number]]] = {name: _lifted(fn) for name, fn in INTEGER.items()}

    def number(self, value: int | float) -> Number:
        return lambda known: int(value)

    def var(self, e: Var) -> Number:
        return lambda known: known[e.name]

    def other(self, e: Expr) -> Number:
        # An element of a tensor, or what follows from one.
        return lambda known: UNKNOWN

    def cast(self, e: Cast[Expr]) -> Number:
        return self.of(e.arg)

    def select(self, e: Select[Expr]) -> Number:
        pred, then, other = self.of(e.pred), self.of(e.then), self.of(e.other)
        return lambda known: then(known) if pred(known) else other(known)
