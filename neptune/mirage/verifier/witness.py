"""Witness sizes: small lengths of axes at which graphs are evaluated, and how grids and loops cut them.

Axes are told apart by their labels, so lengths need not differ for that; those that are folded differ, so that their
sizes as numbers do. Every cut of those has a tail: the last program and the last iteration have less than others.

    length 5, cut by the loop: 0 1 | 2 3 | 4 .      by the grid: 0 1 2 ‖ 3 4 .     by both: 0 1 | 2 . ‖ 3 4 | . .
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from neptune.ir.evaluate.domains import Array, Value
from neptune.ir.expr import Expr, Var, variables
from neptune.ir.integers import evaluate_size
from neptune.mirage.ir import GRID, LOOP, Graph, Kernel, Node, nodes
from neptune.mirage.ops import OPS

FOLDED = (5, 4, 7, 6, 8)
"""Lengths of axes that are folded, the last one that is folded first: it is the one that loops go over."""
KEPT = 2
"""The length of an axis that is never folded: no sum sees its tail."""
MOST = 8
"""Sizes that are numbers have their own lengths up to this, and lengths that are drawn are no longer, but for a few."""
LONG = 9, 50
"""Between these is the length that is drawn for a folded axis."""
LINKED = 128
"""Sizes that are made of others have their own lengths up to this."""
MUCH = 7
"""A length from which on a grid has three programs."""
_TILES = {1: 1, 2: 1, 5: 2, 7: 3, 8: 3}


class Drawing(Protocol):
    """Numbers that can be drawn."""

    def number(self, value: Fraction) -> Value: ...

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value: ...


class Cut(NamedTuple):
    """An axis in parts: the index of the element at each place, the last one again in tails, and where one is.

    The dimensions of both are those of `parts`, of "grid", "loop", "tile" in this order.
    """

    parts: tuple[str, ...]
    element: Array
    valid: Array


@dataclass(frozen=True)
class Witness:
    """The length of each axis."""

    lengths: Mapping[str, int]
    _cuts: dict[tuple[str, frozenset[str]], Cut] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return ", ".join(f"{a} = {n}" for a, n in self.lengths.items())

    def cut(self, axis: str, by: frozenset[str]) -> Cut:
        """The axis, cut by "grid", "loop", both or neither."""
        known = self._cuts.get((axis, by))
        if known is None:
            known = self._cuts[axis, by] = _cut(self.lengths[axis], by)
        return known


def _cut(length: int, by: frozenset[str]) -> Cut:
    chunk = _part(length) if GRID in by else length
    tile = _TILES.get(chunk, chunk // 2 + 1) if LOOP in by else chunk
    programs, steps = -(-length // chunk), -(-chunk // tile)
    g, s, t = np.ogrid[:programs, :steps, :tile]
    within = s * tile + t
    end = np.minimum((g + 1) * chunk, length)
    index, valid = np.minimum(g * chunk + within, end - 1), (within < chunk) & (g * chunk + within < end)
    keep = [GRID in by, LOOP in by, True]
    shape = [n for n, k in zip((programs, steps, tile), keep, strict=True) if k]
    parts = tuple(p for p, k in zip((GRID, LOOP, "tile"), keep, strict=True) if k)
    return Cut(parts, index.reshape(shape), np.broadcast_to(valid, index.shape).reshape(shape))


def _part(length: int) -> int:
    """What each of two programs has, of three where there is much: a graph may not count on how many there are."""
    return 1 if length < 3 else length // (3 if length >= MUCH else 2) + 1


def witness(reference: Graph, lengths: Sequence[int] = FOLDED, kept: int = KEPT) -> Witness:
    """The lengths for a reference and all graphs that are compared with it; axes of one size have one length.

    A size that is a number, or made of others, has its own length up to MOST or LINKED; beyond, the axis is as long as
    others are, and the size is a number that has nothing to do with it (`linked`).
    """
    last: dict[str, int] = {}
    for place, step in enumerate(reference.steps):
        for node in step.nodes if isinstance(step, Kernel) else (step,):
            if folds(node):
                last[node.axis] = place
    folded = sorted(last, key=lambda axis: -last[axis])
    free = iter((*lengths, *range(max(lengths) + 1, max(lengths) + 1 + len(folded))))
    lengths_of: dict[Expr, int] = {}
    for axis in (*folded, *(a for a in reference.axes if a not in last)):
        size = reference.axes[axis]
        if size not in lengths_of and isinstance(size, Var):
            lengths_of[size] = next(free) if axis in last else kept
    sizes = {e.name: n for e, n in lengths_of.items() if isinstance(e, Var)}
    for axis in (*folded, *reference.axes):
        size = reference.axes[axis]
        if size not in lengths_of:
            lengths_of[size] = _linked(size, sizes) or (next(free) if axis in last else kept)
    return Witness({axis: lengths_of[size] for axis, size in reference.axes.items()})


def _linked(size: Expr, sizes: Mapping[str, int]) -> int | None:
    """The length that a size has by its value, None where that is not known or too large."""
    symbols = variables(size)
    value = evaluate_size(size, sizes) if symbols <= sizes.keys() else 0
    return value if 1 <= value <= (LINKED if symbols else MOST) else None


def linked(reference: Graph, probe: Witness) -> bool:
    """True where each axis is as long as its size says."""
    sizes = size_scalars(reference, probe.lengths)
    return all(isinstance(e, Var) or _linked(e, sizes) == probe.lengths[a] for a, e in reference.axes.items())


def drawn(reference: Graph, rng: np.random.Generator) -> Iterator[Witness]:
    """Lengths that nothing can have been made for: those of one with a long folded axis, of one where kept ones are."""
    for long, kept in ((int(rng.integers(*LONG)), int(rng.integers(1, 4))), (0, int(rng.integers(MOST + 1, 2 * MOST)))):
        lengths = [int(k) for k in rng.permutation(np.arange(2, MOST + 1))[: len(FOLDED)]]
        yield witness(reference, [long or lengths[0], *lengths[1:]], kept)


def folds(node: Node) -> bool:
    """Return True for a fold or an accumulator."""
    return node.op in OPS and OPS[node.op].kind != "map"


def draw_inputs(
    numbers: Drawing, graph: Graph, probe: Witness, rng: np.random.Generator
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Inputs by buffer and the scalars in constants. Scalars that are the size of an axis are numbers, others drawn."""
    inputs = {name: numbers.draw(rng, shape) for name, shape in drawn_shapes(graph, probe).items()}
    sizes = size_scalars(graph, probe.lengths)
    names = {v for n in nodes(graph) if n.constant is not None for v in variables(n.constant)}
    names |= {s.name for s in graph.scalars} | set(sizes)
    scalars = {n: numbers.number(Fraction(sizes[n])) if n in sizes else numbers.draw(rng, ()) for n in sorted(names)}
    return inputs, scalars


def drawn_shapes(graph: Graph, probe: Witness) -> dict[str, tuple[int, ...]]:
    """The shape of each buffer: each use reads the beginning, as far as its own axes go."""
    shapes: dict[str, tuple[int, ...]] = {}
    for t in graph.inputs:
        own = tuple(probe.lengths[a] for a in t.axes)
        shapes[t.source] = tuple(map(max, own, shapes.get(t.source, own)))
    return shapes


def size_scalars(graph: Graph, lengths: Mapping[str, int]) -> dict[str, int]:
    """The values of the scalars that are the sizes of axes."""
    return {e.name: lengths[axis] for axis, e in graph.axes.items() if isinstance(e, Var)}
