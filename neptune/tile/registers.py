"""An estimate of the registers that each thread of a kernel needs.

Counted is what is alive at one time: tiles, vectors beside them (which several threads hold), addresses, and the
operands of products that no matrix unit takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt

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
from neptune.tile.passes.util import Block, bound_reads, reads

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

    def registers(self, values: Mapping[str, int]) -> float:
        """`registers` of the kernel."""
        return _AtValues(self, values).most(self.kernel.body, frozenset())[1]


class _AtValues:
    """The estimate of one kernel with some values of its tunables."""

    def __init__(self, of: Estimate, values: Mapping[str, int]) -> None:
        self.extents = {name: known_size(e, values) for name, e in of.kernel.axes}
        self.threads = THREADS * values["num_warps"]
        self.shared = of.shared
        self.rows = self._rows(of.dims)
        self.sizes = {name: self.size(t) for name, t in of.locals.items()}

    def size(self, t: _Tile | TExpr) -> float:
        """The registers of a thread that hold a value."""
        axes = [d for d in t.dims if self.extents.get(d, 1) > 1]
        held = min(BESIDE, self.rows.get(axes[0], 1)) if len(axes) == 1 else 1
        return held * prod(self.extents[d] for d in axes) * DTYPES[t.dtype].bits / 32 / self.threads if axes else 0.0

    def _rows(self, tiles: Iterable[tuple[str, ...]]) -> dict[str, int]:
        """For each axis how many elements of a tile share one of its elements: so many copies of a vector there are."""
        rows: dict[str, int] = {}
        for dims in tiles:
            whole = prod(self.extents.get(d, 1) for d in dims)
            rows |= {d: max(rows.get(d, 1), whole // max(1, self.extents.get(d, 1))) for d in dims}
        return rows

    def most(self, body: Block, behind: frozenset[str]) -> tuple[frozenset[str], float]:
        """Return the locals a block reads that are assigned before it, and the most registers at any of its points;
        `behind` is read after the block."""
        live, most = behind, self._held(behind)
        for s in reversed(body):
            if isinstance(s, Loop | Branch):
                inside, registers = self.most(s.body, live)
                while isinstance(s, Loop) and not inside <= live:
                    # What an iteration reads first comes from the one before.
                    live |= inside
                    inside, registers = self.most(s.body, live)
                live = live | inside | bound_reads(s)
                most = max(most, registers + (self._addresses(s.body) if isinstance(s, Loop) else 0.0))
            else:
                before = live - ({s.name} if isinstance(s, Assign) else set()) | frozenset(reads(s))
                after = live | ({s.name} if isinstance(s, Assign) else set())
                for e in stmt_exprs(s):
                    most = max(most, self._held(before) + self._beside(e), self._held(after) + self._one_by_one(e))
                live = before
        return live, most

    def _held(self, names: frozenset[str]) -> float:
        return sum(self.sizes[n] for n in names if n in self.sizes)

    def _addresses(self, body: Block) -> float:
        """A 64-bit address for every 16 bytes that a loop loads to registers."""
        tiles = [s.value for s in walk_stmts(body) if isinstance(s, Assign) and s.name not in self.shared]
        return sum(self.size(e) / 2 for e in {x for x in tiles if isinstance(x, LoadTile)} if len(e.dims) > 1)

    def _beside(self, e: TExpr) -> float:
        """The most that evaluating an expression needs beside the locals that it reads."""
        own = max(map(self._beside, children(e)), default=0.0)
        if isinstance(e, Reduce):
            return max(own, self._temporary(e.arg))
        if isinstance(e, Dot):
            return max(own, self._temporary(e.a) + self._temporary(e.b))
        return own

    def _temporary(self, e: TExpr) -> float:
        return 0.0 if isinstance(_plain(e), Local) else self.size(e)

    def _one_by_one(self, e: TExpr) -> float:
        """Operands of a product of float32, which is summed element by element: they have been put into shared memory,
        and of each result of a thread a row and a column come back, half of them before the first is used up."""
        registers = 0.0
        for n in walk(e):
            if isinstance(n, Dot) and n.a.dtype == "float32":
                rows, cols, depth = (self.extents.get(d, 1) for d in (*n.dims, n.a.dims[1]))
                registers = max(registers, sqrt(max(1.0, rows * cols / self.threads)) * depth)
        return registers


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
    roots = (e for s in walk_stmts(kernel.body) for e in stmt_exprs(s))
    return (n for e in roots for n in walk(e) if isinstance(n, Dot))
