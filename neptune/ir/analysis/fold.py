"""One walk for all facts about expressions: what is known of a node, from what is known of its parts.

range_of    numbers            leaf: those of its dtype     op: the columns of `OPS`     choice: either
degree_of   powers of λ        leaf: 0                      op: degrees                  choice: the widest
known       -inf, 0, 1, …      leaf: what memory holds      op: `value`                  choice: where both agree
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from neptune.ir.expr import Cast, Op, Select
from neptune.ir.nodes import E, Node

T = TypeVar("T")


def nothing_known(_e: Any) -> None:
    """What a `known` answers that leaves everything to the structure."""
    return None


def fold(
    e: Node[E],
    leaf: Callable[[Any], T],
    op: Callable[[Op[Any], Sequence[T]], T],
    choice: Callable[[Select[Any], T, T], T],
    *,
    cast: Callable[[Cast[Any], T], T] = lambda _e, of: of,
    known: Callable[[E], T | None] = nothing_known,
) -> T:
    """The fact about `e`: `known` of a node where that answers, else by its kind from the facts about its parts.

    `leaf` answers for numbers, variables and loads, and for a tile's own nodes; `choice` gets the facts about the two
    branches; a cast passes on what is cast.

    >>> from neptune.ir.expr import Var
    >>> fold(Var("i") * 2 + 1, lambda _: 1, lambda _, of: sum(of), lambda _, a, b: a + b)
    3
    """

    def of(x: Any) -> T:
        stated = known(x)
        if stated is not None:
            return stated
        match x:
            case Op(_, args, _):
                return op(x, [of(a) for a in args])
            case Cast(a, _):
                return cast(x, of(a))
            case Select(_, a, b):
                return choice(x, of(a), of(b))
            case _:
                return leaf(x)

    return of(e)
