"""An estimate of the registers that each thread of a kernel needs.

Counted is what is alive at one time: tiles, vectors beside them (which several threads hold), addresses, and the
operands of products that no matrix unit takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import TypeAlias

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import children, walk
from neptune.ir.integers import known_size
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    TExpr,
    TileKernel,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block, bound_reads, products, reads

THREADS = 32
"""Of a warp; gfx9 has 64, and as many more registers."""
BESIDE = 8
"""Threads that hold the same element of a vector beside tiles, in the middle of what layouts do."""


def registers(kernel: TileKernel, values: Mapping[str, int]) -> float:
    """About how many registers each thread of a kernel needs, with a value for every tunable and num_warps.

    Temporaries of elementwise code take the place of what they are computed from; those that are folded or multiplied
    are tiles of their own. What only products read goes through shared memory.
    """
    return Estimate(kernel).registers(values)


@dataclass(frozen=True)
class _Tile:
    """A value of a kernel: what a thread holds of it, in registers."""

    dims: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class _Summed:
    """A product of float32, which is summed element by element: its operands have been put into shared memory, and of
    each result of a thread a row and a column come back, half of them before the first is used up."""

    dims: tuple[str, ...]
    depth: str


Held: TypeAlias = tuple[_Tile | _Summed, ...]
"""What is held beside locals, each counted in halves: of a 64-bit address for every 16 bytes of a tile."""
Points: TypeAlias = set[tuple[frozenset[str], Held]]
"""The points of a kernel, of which many are alike: the locals that are alive, and what is held beside them."""


class Estimate:
    """The estimate of one kernel: what its form says, for any values of its tunables."""

    def __init__(self, kernel: TileKernel) -> None:
        self.kernel = kernel
        assigned = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign)]
        elsewhere = {n for s in walk_stmts(kernel.body) for e in stmt_exprs(s) for n in read_in_registers(e)}
        loaded = {s.name for s in assigned if isinstance(s.value, LoadTile)}
        self.shared = loaded - elsewhere
        self.locals = {s.name: _Tile(s.value.dims, s.value.dtype) for s in assigned if s.name not in self.shared}
        self.dims = {e.dims for s in assigned for e in walk(s.value)}
        points = self._points(kernel.body, frozenset())[1]
        # Which is the highest follows from the values.
        self.points = [self._counted(names, beside) for names, beside in points]
        self.held = {t for p in self.points for t in p}

    def registers(self, values: Mapping[str, int]) -> float:
        """`registers` of the kernel."""
        figures = _AtValues(self, values)
        sizes = {t: figures.summed(t) if isinstance(t, _Summed) else figures.size(t) for t in self.held}
        return max(sum(n * sizes[t] for t, n in p.items()) for p in self.points) / 2

    def _points(self, body: Block, behind: frozenset[str]) -> tuple[frozenset[str], Points]:
        """Return the locals a block reads that are assigned before it, and its points; `behind` is read after it."""
        live, points = behind, Points({(behind, ())})
        for s in reversed(body):
            if isinstance(s, Loop | Branch):
                inside, within = self._points(s.body, live)
                while isinstance(s, Loop) and not inside <= live:
                    # What an iteration reads first comes from the one before.
                    live |= inside
                    inside, within = self._points(s.body, live)
                live = live | inside | bound_reads(s)
                addresses = self._addresses(s.body) if isinstance(s, Loop) else ()
                points |= {(names, (*held, *addresses)) for names, held in within}
            else:
                before = live - ({s.name} if isinstance(s, Assign) else set()) | frozenset(reads(s))
                after = live | ({s.name} if isinstance(s, Assign) else set())
                for e in stmt_exprs(s):
                    points |= {(before, held) for held in _beside(e)} | {(after, held) for held in _one_by_one(e)}
                live = before
        return live, points

    def _counted(self, names: frozenset[str], beside: Held) -> Counter[_Tile | _Summed]:
        return Counter([*beside, *(self.locals[n] for n in (*names, *names) if n in self.locals)])

    def _addresses(self, body: Block) -> Held:
        """The addresses of all that a loop loads to registers."""
        tiles = {s.value for s in walk_stmts(body) if isinstance(s, Assign) and s.name not in self.shared}
        return tuple(_Tile(e.dims, e.dtype) for e in tiles if isinstance(e, LoadTile) and len(e.dims) > 1)


class _AtValues:
    """The sizes of the tiles of one kernel with some values of its tunables."""

    def __init__(self, estimate: Estimate, values: Mapping[str, int]) -> None:
        self.extents = {name: known_size(e, values) for name, e in estimate.kernel.axes}
        self.threads = THREADS * values["num_warps"]
        self.rows = self._rows(estimate.dims)

    def size(self, t: _Tile) -> float:
        """The registers of a thread that hold a value."""
        axes = [d for d in t.dims if self.extents.get(d, 1) > 1]
        held = min(BESIDE, self.rows.get(axes[0], 1)) if len(axes) == 1 else 1
        return held * prod(self.extents[d] for d in axes) * DTYPES[t.dtype].bits / 32 / self.threads if axes else 0.0

    def summed(self, t: _Summed) -> float:
        """The registers of a thread that hold operands."""
        rows, cols, depth = (self.extents.get(d, 1) for d in (*t.dims, t.depth))
        return sqrt(max(1.0, rows * cols / self.threads)) * depth

    def _rows(self, tiles: Iterable[tuple[str, ...]]) -> dict[str, int]:
        """For each axis how many elements of a tile share one of its elements: so many copies of a vector there are."""
        rows: dict[str, int] = {}
        for dims in tiles:
            whole = prod(self.extents.get(d, 1) for d in dims)
            rows |= {d: max(rows.get(d, 1), whole // max(1, self.extents.get(d, 1))) for d in dims}
        return rows


def _beside(e: TExpr) -> Iterator[Held]:
    """What each part of an expression needs beside the locals that it reads: what is folded or multiplied, where it is
    no local itself."""
    yield ()
    for n in walk(e):
        parts = (n.arg,) if isinstance(n, Reduce) else (n.a, n.b) if isinstance(n, Dot) else ()
        beside = [_Tile(x.dims, x.dtype) for x in parts if not isinstance(_plain(x), Local)]
        if beside:
            yield (*beside, *beside)


def _one_by_one(e: TExpr) -> Iterator[Held]:
    """What each product of float32 needs, none of which a matrix unit takes."""
    yield ()
    for n in walk(e):
        if isinstance(n, Dot) and n.a.dtype == "float32":
            summed = _Summed(n.dims, n.a.dims[1])
            yield summed, summed


def _plain(e: TExpr) -> TExpr:
    return _plain(e.arg) if isinstance(e, Rearrange) else e


def read_in_registers(e: TExpr) -> Iterator[str]:
    """The locals that an expression reads otherwise than as an operand of a product."""
    if isinstance(e, Local):
        yield e.name
    for child in children(e):
        operand = isinstance(e, Dot) and child is not e.acc and isinstance(_plain(child), Local)
        if not operand:
            yield from read_in_registers(child)


def dots(kernel: TileKernel) -> Iterator[Dot]:
    """The matrix products of a kernel."""
    return (dot for _, dot in products(kernel.body))
