"""The nodes that scalar and tile expressions have in common: parts to walk through, and dims.

The dims of a node are the tile axes that it runs over, by name: `("m", "1")`, where "1" is a dimension of length one.
A scalar has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any, Generic, Protocol, TypeVar, cast

Dims = tuple[str, ...]


_P_co = TypeVar("_P_co", covariant=True)


class Node(Protocol[_P_co]):
    """A node of an expression whose parts are `_P_co`: an `Expr`, or a `TExpr` of `neptune.tile.ir`."""

    @property
    def dtype(self) -> str: ...

    @property
    def dims(self) -> Dims: ...

    @property
    def parts(self) -> tuple[_P_co, ...]: ...

    def with_parts(self, parts: tuple[Any, ...], /) -> Any: ...


E = TypeVar("E", bound=Node[Any])
E_co = TypeVar("E_co", bound=Node[Any], covariant=True)


class Tile(Generic[_P_co]):
    """The base of a node that only tile expressions have. Operators, casts and choices may be of such nodes."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[_P_co, ...]:
        """The direct subexpressions, in printing order."""
        return ()

    def with_parts(self, _parts: tuple[Any, ...]) -> Any:
        """The node with other parts."""
        return self


# --- dims --------------------------------------------------------------------------------------


def join(*operands: Dims) -> Dims | None:
    """The common dims of operands of one rank, scalars apart; None where they do not agree.

    >>> join(("m", "1"), ("1", "n"), ())
    ('m', 'n')
    >>> join(("m",), ("n",)) is None
    True
    """
    ranked = [d for d in operands if d]
    if len({len(d) for d in ranked}) > 1:
        return None
    joined: list[str] = []
    for names in zip(*ranked, strict=True):
        wide = {n for n in names if n != "1"}
        if len(wide) > 1:
            return None
        joined.append(wide.pop() if wide else "1")
    return tuple(joined)


def joined(operands: Iterable[Node[Any]]) -> Dims:
    """The dims of an elementwise operator on these operands; where they do not agree, of the first that has some.

    The verifier of tile programs refuses operands that do not agree.
    """
    different = list(dict.fromkeys(d for x in operands if (d := x.dims)))
    if len(different) <= 1:
        return different[0] if different else ()
    dims = join(*different)
    return different[0] if dims is None else dims


# --- traversal ---------------------------------------------------------------------------------


def children(e: Node[E]) -> tuple[E, ...]:
    """The direct subexpressions, in printing order."""
    return e.parts


def rebuild(e: Node[E], parts: tuple[E, ...]) -> E:
    """The node `e` with other children (through the folding constructors)."""
    fresh: E = e.with_parts(parts)
    return fresh


def walk(e: Node[E]) -> Iterator[E]:
    """Every node, the root first."""
    # Not by recursion: a generator inside of each other costs every node its depth.
    left: list[Any] = [e]
    while left:
        node = left.pop()
        yield node
        if parts := node.parts:
            left += parts[::-1]


def rewrite(e: Node[E], fn: Callable[[E], E | None]) -> E:
    """Top-down rewriting: where `fn` returns an expression it replaces the node (not revisited)."""
    new = fn(cast("E", e))
    return rewrite_parts(e, fn) if new is None else new


def rewrite_parts(e: Node[E], fn: Callable[[E], E | None]) -> E:
    """The node with its parts rewritten: with it `fn` can rewrite inside of what it replaces."""
    parts = e.parts
    fresh = tuple([rewrite(c, fn) for c in parts])
    return cast("E", e) if all(map(is_, parts, fresh)) else rebuild(e, fresh)
