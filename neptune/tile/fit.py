"""fit: default values of tunables with which the tiles of a kernel stay in registers.

What does not fit is spilled to memory, and a spilled kernel is slower than one with smaller tiles. The registers of a
thread are estimated from what is alive at one time: tiles, vectors beside them (which several threads hold), addresses,
and the operands of products that no matrix unit takes. While they exceed BUDGET, the longest tile is made shorter, the
last one of equals; where no tile can be, there are more threads.

    params(program)  →  {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Var
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
    TileProgram,
    stmt_exprs,
    tile_children,
    tile_walk,
    walk_stmts,
)
from neptune.tile.passes.util import Block, bound_reads, reads

WARPS, MATRIX_WARPS, MOST_WARPS = 4, 8, 16
"""Warps of a program; with products on the matrix unit, which wants two warp groups on Hopper, and two rows of warps
elsewhere; and where nothing else helps."""
MATRIX_ROWS = 16
"""Rows that a warp of a matrix unit works on at one time."""
STAGES = 2
THREADS = 32
"""Of a warp; gfx9 has 64, and as many more registers."""
BUDGET = 176
"""Registers that the estimate may come to, of the 255 that a thread of sm_80 and sm_90 has."""
BESIDE = 8
"""Threads that hold the same element of a vector beside tiles, in the middle of what layouts do."""
TYPICAL = 1024
"""What a tile is taken to cover that covers a size."""


def params(program: TileProgram, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A value for every tunable that does not cover a size, num_warps and num_stages: what is given, and defaults."""
    return dict(_params(program, tuple((given or {}).items())))


@lru_cache(maxsize=16)
def _params(program: TileProgram, fixed: tuple[tuple[str, int], ...]) -> dict[str, int]:
    given = dict(fixed)
    free = {t.name: t.candidates[0] for t in program.tunables if t.covers is None}
    warps = MATRIX_WARPS if any(True for k in program.kernels for _ in dots(k)) else WARPS
    values = {**free, "num_warps": warps, "num_stages": STAGES, **given}
    candidates = {t.name: t.candidates for t in program.tunables if t.covers is None and t.name not in given}
    covers = {t.name: TYPICAL for t in program.tunables if t.covers is not None}
    for kernel in program.kernels:
        while registers(kernel, {**covers, **values}) > BUDGET:
            smaller = _shortened(kernel, candidates, values)
            more = {} if "num_warps" in given or values["num_warps"] >= MOST_WARPS else _more_warps(values)
            if not (smaller or more):
                break
            values |= smaller or more
    return values


def fits(program: TileProgram) -> bool:
    """Whether all tiles stay in registers with default values; one that covers a size is taken to be TYPICAL long."""
    values = {**{t.name: TYPICAL for t in program.tunables if t.covers is not None}, **params(program)}
    return all(registers(k, values) <= BUDGET for k in program.kernels)


def dots(kernel: TileKernel) -> Iterator[Dot]:
    """The matrix products of a kernel."""
    roots = (e for s in walk_stmts(kernel.body) for e in stmt_exprs(s))
    return (n for e in roots for n in tile_walk(e) if isinstance(n, Dot))


def _shortened(
    kernel: TileKernel, candidates: Mapping[str, tuple[int, ...]], values: Mapping[str, int]
) -> dict[str, int]:
    """The longest tile of a kernel, the last one of equals, with its next smaller candidate; nothing where all are
    short. As long as others can be, rows that give each warp of a matrix unit its own are not shortened."""
    mine = {e.name for _, e in kernel.axes if isinstance(e, Var)}
    shorter = {
        n: max(c for c in of if c < values[n]) for n, of in candidates.items() if n in mine and min(of) < values[n]
    }
    extents = dict(kernel.axes)
    rows = {e.name for d in dots(kernel) if d.a.dtype != "float32" and isinstance(e := extents[d.a.dims[0]], Var)}
    spared = {n for n in rows if n in shorter and values[n] <= MATRIX_ROWS * values["num_warps"]}
    name = max(reversed([n for n in shorter if n not in spared] or [*shorter]), key=lambda n: values[n], default=None)
    return {} if name is None else {name: shorter[name]}


def _more_warps(values: Mapping[str, int]) -> dict[str, int]:
    return {"num_warps": 2 * values["num_warps"]}


# --- the estimate ----------------------------------------------------------------------------------


def registers(kernel: TileKernel, values: Mapping[str, int]) -> float:
    """About how many registers each thread of a kernel needs, with a value for every tunable and num_warps.

    Temporaries of elementwise code take the place of what they are computed from; those that are folded or multiplied
    are tiles of their own. What only products read goes through shared memory.
    """
    return _Estimate(kernel, values).most(kernel.body, frozenset())[1]


@dataclass(frozen=True)
class _Tile:
    """A value of a kernel: what a thread holds of it, in registers."""

    dims: tuple[str, ...]
    dtype: str


class _Estimate:
    """The estimate of one kernel with some values of its tunables."""

    def __init__(self, kernel: TileKernel, values: Mapping[str, int]) -> None:
        self.extents = {name: _extent(e, values) for name, e in kernel.axes}
        self.threads = THREADS * values["num_warps"]
        assigned = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign)]
        elsewhere = {n for s in walk_stmts(kernel.body) for e in stmt_exprs(s) for n in _read_in_registers(e)}
        loaded = {s.name for s in assigned if isinstance(s.value, LoadTile)}
        self.shared = loaded - elsewhere
        self.locals = {s.name: _Tile(s.value.dims, s.value.dtype) for s in assigned if s.name not in self.shared}

    def size(self, t: _Tile | TExpr) -> float:
        """The registers of a thread that hold a value."""
        long = [n for d in t.dims if (n := self.extents.get(d, 1)) > 1]
        held = BESIDE if len(long) == 1 else 1
        return held * prod(long) * DTYPES[t.dtype].bits / 32 / self.threads if long else 0.0

    def most(self, body: Block, behind: frozenset[str]) -> tuple[frozenset[str], float]:
        """What a block reads that was assigned before it, and the most registers at any of its points; `behind` is
        read behind it."""
        live, most = behind, self._held(behind)
        for s in reversed(body):
            if isinstance(s, Loop | Branch):
                inside, found = self.most(s.body, live)
                while isinstance(s, Loop) and not inside <= live:
                    # What an iteration reads first comes from the one before.
                    live |= inside
                    inside, found = self.most(s.body, live)
                live = live | inside | bound_reads(s)
                most = max(most, found + (self._addresses(s.body) if isinstance(s, Loop) else 0.0))
            else:
                before = live - ({s.name} if isinstance(s, Assign) else set()) | frozenset(reads(s))
                after = live | ({s.name} if isinstance(s, Assign) else set())
                for e in stmt_exprs(s):
                    most = max(most, self._held(before) + self._beside(e), self._held(after) + self._one_by_one(e))
                live = before
        return live, most

    def _held(self, names: frozenset[str]) -> float:
        return sum(self.size(self.locals[n]) for n in names if n in self.locals)

    def _addresses(self, body: Block) -> float:
        """A 64-bit address for every 16 bytes that a loop loads to registers."""
        tiles = [s.value for s in walk_stmts(body) if isinstance(s, Assign) and s.name not in self.shared]
        return sum(self.size(e) / 2 for e in {x for x in tiles if isinstance(x, LoadTile)} if len(e.dims) > 1)

    def _beside(self, e: TExpr) -> float:
        """The most that evaluating an expression needs beside the locals that it reads."""
        own = max(map(self._beside, tile_children(e)), default=0.0)
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
        found = 0.0
        for n in tile_walk(e):
            if isinstance(n, Dot) and n.a.dtype == "float32":
                rows, cols, depth = (self.extents.get(d, 1) for d in (*n.dims, n.a.dims[1]))
                found = max(found, sqrt(max(1.0, rows * cols / self.threads)) * depth)
        return found


def _extent(e: Expr, values: Mapping[str, int]) -> int:
    return int(e.value) if isinstance(e, Const) else values[e.name] if isinstance(e, Var) else 1


def _plain(e: TExpr) -> TExpr:
    return _plain(e.arg) if isinstance(e, Rearrange) else e


def _read_in_registers(e: TExpr) -> Iterator[str]:
    """The locals that an expression reads otherwise than as an operand of a product."""
    if isinstance(e, Local):
        yield e.name
    for child in tile_children(e):
        operand = isinstance(e, Dot) and child is not e.acc and isinstance(_plain(child), Local)
        if not operand:
            yield from _read_in_registers(child)
