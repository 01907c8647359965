"""Syntax of nodes: one row says how a node is written on a line, and so how it is read.

    row(Ring, "ring {name}<{dims:words}> of {tensor}‹, barrier {barrier}›")
    Ring("k", ("i", "j"), "K", None)   →   "ring k<i j> of K"

A row names the fields of a node in the order of the text, each with a kind (by default `name`): a Notation says how a
value of a kind is written, the method of that name of a `neptune.ir.text.line.Line` how it is read. What stands between
`‹ ›` is there where the first field in it has another value than the default of the node's class. A field that is in no
text has its default, or comes from where the node is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, Generic, TypeVar

from neptune.ir.dtypes import DTYPES
from neptune.ir.text.line import Env, Line, is_name, print_expr

T = TypeVar("T")
Writer = Callable[[Any], str]


@dataclass(frozen=True)
class Notation:
    """How values are written, by the kinds of their fields; a room extends those below by its own."""

    writers: Mapping[str, Writer]

    def extended(self, **writers: Writer) -> Notation:
        return Notation({**self.writers, **writers})

    def row(self, node: type[T], text: str) -> Syntax[T]:
        """How a `node` is written on a line; see above for `text`."""
        return Syntax(node, text, self.writers)


_ITEM = re.compile(r"\{(\w+)(?::(\w+))?\}|‹(.*?)›|([^{‹]+)")


@dataclass(frozen=True)
class _Field:
    name: str
    kind: str


@dataclass(frozen=True)
class _Literal:
    text: str
    tokens: tuple[str, ...]


_Item = _Field | _Literal | tuple["_Item", ...]


@dataclass(frozen=True)
class Syntax(Generic[T]):
    """The row of a node."""

    node: type[T]
    text: str
    writers: Mapping[str, Writer]

    @cached_property
    def _items(self) -> tuple[_Item, ...]:
        return tuple(_items(self.text))

    @cached_property
    def _defaults(self) -> Mapping[str, object]:
        return {f.name: f.default for f in fields(self.node) if f.default is not MISSING}  # type: ignore[arg-type]

    def write(self, node: T) -> str:
        return "".join(self._written(self._items, node))

    def _written(self, items: tuple[_Item, ...], node: T) -> Iterator[str]:
        for item in items:
            if isinstance(item, _Literal):
                yield item.text
            elif isinstance(item, _Field):
                yield self.writers[item.kind](getattr(node, item.name))
            elif getattr(node, (name := _first(item).name)) != self._defaults.get(name):
                yield from self._written(item, node)

    def read(self, line: Line) -> T:
        """The node that stands next on a line."""
        return self.node(**self.values(line))

    def read_line(self, line: Line, env: Env) -> T:
        """The node that the rest of a line is, in the scope of `env`."""
        return self.node(**self.line_values(line, env))

    def line_values(self, line: Line, env: Env) -> dict[str, Any]:
        """The fields that the rest of a line holds, of a node that goes on below it."""
        line.env = env
        values = self.values(line)
        line.end()
        return values

    def values(self, line: Line) -> dict[str, Any]:
        """The fields of the node that stands next on a line; one that is left out has its default, or else None."""
        return dict(self._read(self._items, line))

    def _read(self, items: tuple[_Item, ...], line: Line) -> Iterator[tuple[str, Any]]:
        for k, item in enumerate(items):
            if isinstance(item, _Literal):
                line.expect(*item.tokens)
            elif isinstance(item, _Field):
                yield item.name, getattr(line, item.kind)()
            elif _begins(item, items[k + 1 :], line):
                yield from self._read(item, line)
            elif (name := _first(item).name) not in self._defaults:
                yield name, None


def _items(text: str) -> Iterator[_Item]:
    for name, kind, optional, literal in _ITEM.findall(text):
        if name:
            yield _Field(name, kind or "name")
        elif optional:
            yield tuple(_items(optional))
        else:
            yield _Literal(literal, tuple(Line(0, literal).tokens))


def _first(items: tuple[_Item, ...]) -> _Field:
    return next(x for x in items if isinstance(x, _Field))


def _begins(items: tuple[_Item, ...], behind: tuple[_Item, ...], line: Line) -> bool:
    """True where what may be left out stands next on a line."""
    words = _words(items)
    if words:
        return all(line.peek(k) == token for k, token in enumerate(words))
    ends = _words(behind)
    return line.peek() != ends[0] if ends else is_name(line.peek())


def _words(items: tuple[_Item, ...]) -> tuple[str, ...]:
    """The tokens that a text begins with, before its first field."""
    return items[0].tokens if items and isinstance(items[0], _Literal) else ()


LOOPS = Notation(
    {
        "name": str,
        "word": str,
        "words": " ".join,
        "names": lambda names: f"({', '.join(names)})",
        "integer": str,
        "integers": lambda values: f"{{{', '.join(map(str, values))}}}",
        "dtype": lambda dtype: DTYPES[dtype].short,
        "flag": lambda _: "",
        "expr": print_expr,
        "exprs": lambda values: ", ".join(map(print_expr, values)),
        "index": lambda index: f"[{', '.join(map(print_expr, index))}]",
    }
)
"""The kinds that every notation has."""
