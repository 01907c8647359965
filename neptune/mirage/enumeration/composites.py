"""Composite operators: what a reference does in one go, counted as one operator of a kernel.

    q_squares = sum(sqr(q)) over d; scale; sqrt; div(q, …)    →    composite (sqr, sum d, scale, sqrt | div)

A norm of five operators, twice, leaves no room for attention around it, and its inner values are of no use to anything
else. So a chain of operators on one value, each read by the next alone, is one more operator of the search, with the
operator that ends it where that reads the first value again. What is found is written with the plain operators; the
search finds the same graphs without composites where the bounds are large enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from neptune.mirage.ir import Graph, Node
from neptune.mirage.ops import OPS

COMPOSITE = "composite"


class Link(NamedTuple):
    """An operator of a chain; its operand is the one before it."""

    op: str
    axis: str = ""
    constant: Any = None


class Chain(NamedTuple):
    """Operators one after another. `end` is an operator of two operands on the first value and the last, or "".

    `swapped`: the last value is its first operand.
    """

    links: tuple[Link, ...]
    end: str = ""
    swapped: bool = False

    @property
    def brings(self) -> frozenset[str]:
        return frozenset(x.op for x in self.links)


def chains(graph: Graph) -> Iterator[Chain]:
    """The longest chains of two operators or more that hold a fold, and those with what ends them."""
    nodes = [s for s in graph.steps if isinstance(s, Node)]
    same = _casts(nodes)
    readers: dict[str, list[Node]] = {}
    for n in nodes:
        if n.op != "cast":
            for operand in n.operands:
                readers.setdefault(same.get(operand, operand), []).append(n)
    results = {same.get(o.value, o.value) for o in graph.outputs}
    by_name = {n.name: n for n in nodes if _links(n)}
    for node in by_name.values():
        start = same.get(node.operands[0], node.operands[0])
        if start in by_name and _only(start, readers, results) is node:
            continue
        links = [node]
        while (after := _only(links[-1].name, readers, results)) is not None and _links(after):
            links.append(after)
        if len(links) < 2 or not any(OPS[x.op].kind == "fold" for x in links):
            continue
        plain = tuple(Link(x.op, x.axis, x.constant) for x in links)
        yield Chain(plain)
        after = _only(links[-1].name, readers, results)
        if after is not None and OPS[after.op].arity == 2 and OPS[after.op].kind == "map":
            both = tuple(same.get(o, o) for o in after.operands)
            if both in ((start, links[-1].name), (links[-1].name, start)):
                yield Chain(plain, after.op, swapped=both[0] != start)


def _links(node: Node) -> bool:
    row = OPS[node.op]
    return row.arity == 1 and row.name != "cast" and row.kind != "accumulate"


def _casts(nodes: list[Node]) -> Mapping[str, str]:
    """Names of casts, and the value that each is of."""
    sources: dict[str, str] = {}
    for n in nodes:
        if n.op == "cast":
            sources[n.name] = sources.get(n.operands[0], n.operands[0])
    return sources


def _only(name: str, readers: Mapping[str, list[Node]], results: set[str]) -> Node | None:
    """The one reader of a value."""
    readers_of = readers.get(name, [])
    return readers_of[0] if len(readers_of) == 1 and name not in results else None
