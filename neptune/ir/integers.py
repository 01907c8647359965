"""Sizes as numbers: what shapes and loop bounds come to once the scalars and tunables are known.

`Span` is what the offsets of a tile add up to: a launch tells from it whether 32 bits do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Generic, TypeVar, cast

from neptune.errors import InternalError
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, walk
from neptune.ir.ops import INTEGER
from neptune.ir.text.printer import print_expr

V = TypeVar("V")
N = TypeVar("N")


class Integers(Generic[V]):
    """Integer expressions in something that knows Python's operators: numbers, polynomials, tensors. A subclass says
    what the leaves are; what it does not say is `other`."""

    operators: ClassVar[Mapping[str, Callable[..., Any]]] = INTEGER

    def of(self, e: Expr) -> V:
        """The value of an expression."""
        match e:
            case Const(value, _):
                return self.number(value)
            case Op(name, args, _) if name in self.operators:
                return cast("V", self.operators[name](*[self.of(a) for a in args]))
            case Var():
                return self.var(e)
            case Cast():
                return self.cast(e)
            case Select():
                return self.select(e)
            case Load():
                return self.load(e)
            case _:
                return self.other(e)

    def number(self, value: int | float) -> V:
        raise NotImplementedError

    def other(self, e: Expr) -> V:
        raise NotImplementedError

    def var(self, e: Var) -> V:
        return self.other(e)

    def load(self, e: Load) -> V:
        return self.other(e)

    def cast(self, e: Cast[Expr]) -> V:
        return self.other(e)

    def select(self, e: Select[Expr]) -> V:
        return self.other(e)


class _Sizes(Integers[int]):
    def __init__(self, env: Mapping[str, int | float]) -> None:
        self.env = env

    def number(self, value: int | float) -> int:
        return int(value)

    def var(self, e: Var) -> int:
        return int(self.env[e.name]) if e.name in self.env else self.other(e)

    def cast(self, e: Cast[Expr]) -> int:
        return self.of(e.arg)

    def select(self, e: Select[Expr]) -> int:
        return self.of(e.then if self.of(e.pred) else e.other)

    def other(self, e: Expr) -> int:
        raise InternalError(f"the size {print_expr(e)} cannot be computed before the launch")


def evaluate_size(e: Expr, env: Mapping[str, int | float]) -> int:
    """The value of a size: integer arithmetic on scalars and tunables.

    >>> evaluate_size(Op("floordiv", (Var("n"), Const(2, "int32")), "int32"), {"n": 7})
    3
    """
    return int(_Sizes(env).of(e))


def is_size(e: Expr, known: Collection[str]) -> bool:
    """True where an expression is integer arithmetic on these scalars and tunables alone."""
    return all(
        x.name in (INTEGER if isinstance(x, Op) else known) if isinstance(x, Op | Var) else not isinstance(x, Load)
        for x in walk(e)
    )


def known_size(e: Expr, values: Mapping[str, N]) -> N | int:
    """The extent of a tile axis for these values of tunables; of one that covers a size, at least 1."""
    return int(e.value) if isinstance(e, Const) else values.get(e.name, 1) if isinstance(e, Var) else 1


def constant_length(e: Expr) -> float:
    """The extent of an axis as a number; a size or a tunable counts as long."""
    return float(e.value) if isinstance(e, Const) else inf


# --- what the offsets of a tile add up to -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The sum that a tile of int32 offsets into a buffer is: (dimension, extent, factor) of each axis."""

    buffer: str
    axes: tuple[tuple[int, Expr, int], ...]
