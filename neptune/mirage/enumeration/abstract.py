"""The forms of the values of a graph: what the search compares, and what it starts from.

    X[i, k], W[k, j], sum over k of X·W     →     Σ(k.grid)·Σ(k.loop)·Σ(k.tile)·X·W, free of k

Each axis has three parts in every graph, and a sum over all of it has three symbols, so that forms of different
kernels compare. In a kernel that does not cut an axis the tile has all three, in one that only loops over it the tile
has that of the grid too (`Cut`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neptune.errors import ExpressionError
from neptune.mirage.enumeration.algebra import Algebra
from neptune.mirage.ir import GRID, LOOP, SPLIT, TILE, Graph, Kernel, Node, Type
from neptune.mirage.ops import OPS
from neptune.mirage.types import graph_types, kernel_types

PARTS = (GRID, LOOP, TILE)
GRID_BIT, LOOP_BIT, TILE_BIT, ALL_BITS = 1, 2, 4, 7


@dataclass(frozen=True)
class Labels:
    """The axes of a graph in order. A set of parts of axes is an integer, three bits an axis."""

    algebra: Algebra
    axes: tuple[str, ...]

    def bits(self, axis: str, parts: int = ALL_BITS) -> int:
        return parts << (3 * self.axes.index(axis))

    def of(self, axis: str, bits: int) -> int:
        """The bits of one axis, shifted to the bottom."""
        return bits >> (3 * self.axes.index(axis)) & ALL_BITS

    def names(self, bits: int) -> tuple[str, ...]:
        """The axes of which there is any part."""
        return tuple(a for a in self.axes if self.of(a, bits))

    def symbols(self, bits: int) -> int:
        """The product of the sum symbols of these parts."""
        product = 0
        for n, axis in enumerate(self.axes):
            for m, part in enumerate(PARTS):
                if bits >> (3 * n + m) & 1:
                    product += self.algebra.unit("sum", (axis, part))
        return product


class Cut(NamedTuple):
    """How a kernel divides one axis: the bits of its tile, loop and grid parts."""

    tile: int = ALL_BITS
    loop: int = 0
    grid: int = 0


UNCUT = Cut()
LOOPED = Cut(tile=TILE_BIT | GRID_BIT, loop=LOOP_BIT)
SPLIT_ONLY = Cut(tile=TILE_BIT | LOOP_BIT, grid=GRID_BIT)
SPLIT_LOOPED = Cut(tile=TILE_BIT, loop=LOOP_BIT, grid=GRID_BIT)


def cut(axis: str, loop: str | None, splits: Iterable[str]) -> Cut:
    """How a kernel with this loop and these axes split over its grid divides an axis.

    An axis of the grid that is never summed is divided by nothing that the algebra would see.
    """
    if axis in splits:
        return SPLIT_LOOPED if axis == loop else SPLIT_ONLY
    return LOOPED if axis == loop else UNCUT


class Value(NamedTuple):
    """What a tensor computes: its form, and the parts of axes that it varies over."""

    form: int
    free: int


def apply(algebra: Algebra, op: str, args: Sequence[int], symbols: int = 0, label: object = None) -> int:
    """The form of an operator on forms; `symbols` are the units of what a fold or an accumulator takes away.

    `label` is the number of a constant or the name of a function.
    """
    a, row = algebra, OPS[op]
    match op:
        case "acc_rescaled":
            legal = [n for n in OPS if n != op]
            raise ExpressionError(f"operator `{op}`", "the search has no form for it", legal=legal)
        case "power" | "opaque":
            return a.atom(op, label, tuple(args))
        case "cast":
            return args[0]
    if row.kind == "map":
        numbers = [a.constant(label)] if row.constant else []
        return row.applied(a.apply, *args, *numbers)
    x = a.mul(*args) if op == "matmul" else args[0]
    return a.sum(x, symbols) if row.reducer == "sum" else a.max(x, symbols)


def label(node: Node) -> object:
    """What tells a node's operator from others of its name in forms."""
    return (node.function, len(node.operands), node.constant) if node.op == "opaque" else node.constant


def free(labels: Labels, t: Type, cuts: Mapping[str, Cut]) -> int:
    """The type of a value in a kernel as bits. A dimension that an earlier split has left is the grid's bit alone."""
    bits = 0
    for axis, parts in t.items():
        c = cuts.get(axis, UNCUT)
        if c.grid:
            bits |= labels.bits(
                axis, sum(b for b, p in zip((c.grid, c.loop, c.tile), PARTS, strict=True) if p in parts)
            )
        elif TILE in parts:
            bits |= labels.bits(axis, c.tile | (c.loop if LOOP in parts else 0))
        elif LOOP in parts:
            bits |= labels.bits(axis, c.loop)
        else:
            bits |= labels.bits(axis, GRID_BIT)
    return bits


def values(graph: Graph, labels: Labels) -> dict[str, Value]:
    """The forms of all tensors in device memory, by name.

    Where a kernel has an axis in its grid that nothing in it sums, programs hold parts of it and the form sees all:
    a fold over such an axis that is in the grid leaves that part, as a split.
    """
    types = graph_types(graph)
    forms = {t.name: Value(labels.algebra.atom("input", t.name), free(labels, types[t.name], {})) for t in graph.inputs}
    for step in graph.steps:
        if isinstance(step, Kernel):
            forms |= _kernel(step, labels, forms, types)
        else:
            form = _node(step, labels, forms, {})
            forms[step.name] = Value(form, free(labels, types[step.name], {}))
    return forms


def _kernel(
    kernel: Kernel, labels: Labels, tensors: Mapping[str, Value], types: Mapping[str, Type]
) -> dict[str, Value]:
    local = inside(kernel, labels, tensors, types)
    return {s.name: local[s.value] for s in kernel.saves}


def inside(kernel: Kernel, labels: Labels, tensors: Mapping[str, Value], types: Mapping[str, Type]) -> dict[str, Value]:
    """The forms of the values in a kernel, by name."""
    typed = kernel_types(kernel, types)
    folded = {n.axis for n in kernel.nodes if n.axis}
    splits = {a for a in kernel.grid if a in folded}
    cuts = {a: cut(a, kernel.loop, splits) for a in labels.axes}
    forms = {x.name: Value(tensors[x.tensor].form, free(labels, typed[x.name].type, cuts)) for x in kernel.loads}
    for node in kernel.nodes:
        forms[node.name] = Value(_node(node, labels, forms, cuts), free(labels, typed[node.name].type, cuts))
    return forms


def _node(node: Node, labels: Labels, forms: Mapping[str, Value], cuts: Mapping[str, Cut]) -> int:
    symbols = labels.symbols(_taken(node, labels, cuts)) if node.axis else 0
    return apply(labels.algebra, node.op, [forms[o].form for o in node.operands], symbols, label(node))


def _taken(node: Node, labels: Labels, cuts: Mapping[str, Cut]) -> int:
    """The parts that a fold or an accumulator takes away, as bits."""
    c = cuts.get(node.axis, UNCUT)
    if OPS[node.op].kind == "accumulate":
        return labels.bits(node.axis, c.loop | (c.tile if node.op == "acc_sum" else 0))
    return labels.bits(node.axis, GRID_BIT if node.parts == SPLIT else c.tile)
