"""Default values of tunables, with which the tiles of a kernel stay in registers.

What does not fit is spilled to memory, and a spilled kernel is slower than one with smaller tiles. While the estimate
of `neptune.tile.registers` exceeds BUDGET, the longest tile is made shorter, the last one of equals; where no tile can
be, there are more threads.

    defaults(program)  →  {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from neptune.ir.expr import Var
from neptune.tile.context import SHORTEST_DOT
from neptune.tile.ir import TileKernel, TileProgram
from neptune.tile.registers import Estimate, dots, registers

WARPS, MATRIX_WARPS, MOST_WARPS = 4, 8, 16
"""Warps of a program; with products on the matrix unit, which wants two warp groups on Hopper, and two rows of warps
elsewhere; and where nothing else helps."""
MATRIX_ROWS = 16
"""Rows that a warp of a matrix unit works on at one time."""
STAGES = 2
BUDGET = 176
"""Registers that the estimate may come to, of the 255 that a thread of sm_80 and sm_90 has."""
TYPICAL, SIDE = 1024, 64
"""What a tile is taken to cover that covers a size, and one that is a side of a product of matrices."""


def least_tiles(program: TileProgram) -> dict[str, int]:
    """The least values of tiles that the matrix unit sums over."""
    products = [(dict(k.axes), n) for k in program.kernels for n in dots(k)]
    summed = {e.name for axes, n in products if isinstance(e := axes[n.a.dims[1]], Var)}
    return {t.name: SHORTEST_DOT for t in program.tunables if t.covers is None and t.name in summed}


def defaults(program: TileProgram, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A value for every tunable that does not cover a size, num_warps and num_stages: what is given, and defaults."""
    return dict(_defaults(program, tuple((given or {}).items())))


@lru_cache(maxsize=16)
def _defaults(program: TileProgram, fixed: tuple[tuple[str, int], ...]) -> dict[str, int]:
    given = dict(fixed)
    free = {t.name: t.candidates[0] for t in program.tunables if t.covers is None}
    warps = MATRIX_WARPS if any(True for k in program.kernels for _ in dots(k)) else WARPS
    values = {**free, "num_warps": warps, "num_stages": STAGES, **given}
    candidates = {t.name: t.candidates for t in program.tunables if t.covers is None and t.name not in given}
    covers = _covering(program)
    for kernel in program.kernels:
        estimate = Estimate(kernel)
        while estimate.registers({**covers, **values}) > BUDGET:
            smaller = _shortened(kernel, candidates, values)
            more = {} if "num_warps" in given or values["num_warps"] >= MOST_WARPS else _more_warps(values)
            if not (smaller or more):
                break
            values |= smaller or more
    return values


def _covering(program: TileProgram) -> dict[str, int]:
    covers = (t for t in program.tunables if t.covers is not None)
    return {t.name: SIDE if t.least >= SHORTEST_DOT else TYPICAL for t in covers}


def fits(program: TileProgram) -> bool:
    """True if all tiles stay in registers with default values; one that covers a size is taken to be TYPICAL long."""
    values = {**_covering(program), **defaults(program)}
    return all(registers(k, values) <= BUDGET for k in program.kernels)


def _shortened(
    kernel: TileKernel, candidates: Mapping[str, tuple[int, ...]], values: Mapping[str, int]
) -> dict[str, int]:
    """The longest tile of a kernel, the last one of equals, with its next smaller candidate; nothing where all are
    short. As long as others can be, rows that give each warp of a matrix unit its own are not shortened."""
    tunables = {e.name for _, e in kernel.axes if isinstance(e, Var)}
    shorter = {
        n: max(c for c in legal if c < values[n])
        for n, legal in candidates.items()
        if n in tunables and min(legal) < values[n]
    }
    extents = dict(kernel.axes)
    rows = {e.name for d in dots(kernel) if d.a.dtype != "float32" and isinstance(e := extents[d.a.dims[0]], Var)}
    spared = {n for n in rows if n in shorter and values[n] <= MATRIX_ROWS * values["num_warps"]}
    name = max(reversed([n for n in shorter if n not in spared] or [*shorter]), key=lambda n: values[n], default=None)
    return {} if name is None else {name: shorter[name]}


def _more_warps(values: Mapping[str, int]) -> dict[str, int]:
    return {"num_warps": 2 * values["num_warps"]}
