"""Steps and analysis of `neptune.templates.stagewise`: which maps to inline, which axes of a stage make up a tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from neptune.ir.contraction import NoProduct, contraction, matrix_product
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Const, variables, walk
from neptune.ir.integers import constant_length
from neptune.schedule.checked import attempt
from neptune.schedule.definition import Definition, MapDef
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.state import Loop

LARGEST_INLINE = 64
"""How many nodes all copies of an expression may have that is computed where it is read."""
SHORTEST_DEPTH = 8
"""A product with a shorter constant depth is no work for the matrix unit."""
WHOLE = 16
"""A constant axis up to this length is not cut."""


# --- maps ---------------------------------------------------------------------------------------


def inline_maps(sch: ScheduleBase) -> None:
    """Compute small maps where they are read."""
    outputs = {b.name for b in sch.program.outputs}
    for stage in sch.stages:
        d = sch.definition(stage)
        if not isinstance(d, MapDef) or d.action.buffer in outputs:
            continue
        readers = [sch.definition(c) for c in sch.consumers(stage)]
        count = sum(x.buffer == d.action.buffer for r in readers for x in r.reads())
        small = count * sum(1 for _ in walk(d.action.value)) <= LARGEST_INLINE
        if small and all(_reads_once(r, d.action.buffer) for r in readers):
            attempt(sch.inline, stage)


def _reads_once(d: Definition, buffer: str) -> bool:
    """True for a map, and for a reduction that reads each element of the buffer for one value only."""
    if isinstance(d, MapDef):
        return True
    indices = [x.index for x in d.reads() if x.buffer == buffer]
    return all(set(d.extents) <= frozenset[str]().union(*map(variables, index)) for index in indices)


def follow(sch: ScheduleBase, stage: str, grid: list[Loop]) -> bool:
    """Fuse a map into the kernel of the reduction before it, where all else that it reads is older."""
    producers = sch.producers(stage)
    if not producers:
        return False
    last = max(producers, key=sch.stages.index)
    spatial = len(sch.definition(last).spatial)
    # Outside of its reduction loops the sum is complete.
    around = [f for f in sch.loops(last) if f in grid]
    if last not in sch.reductions or not around or spatial != len(sch.definition(stage).axes):
        return False
    return attempt(sch.fuse_at, stage, around[-1]) is None


# --- tiles --------------------------------------------------------------------------------------


def tile_stage(sch: ScheduleBase, stage: str, tiles: Mapping[str, Sequence[int]]) -> tuple[list[Loop], list[Loop]]:
    """Cut the axes that make up a tile, put the tile inside, reductions around it, and bind the rest.

    `tiles` has the candidates of each tile size. Returns the bound loops and the reduction loops.
    """
    d = sch.definition(stage)
    # An axis that the range of another depends on is no axis of a tile: each of its elements has its own range.
    ranged = frozenset[str]().union(*(variables(extent) for extent in d.extents.values()))
    sizes = {a: name for a, name in _tile_sizes(d).items() if a not in ranged}
    outer: list[Loop] = []
    ragged: list[Loop] = []
    around: list[Loop] = []
    inner: list[Loop] = []
    for loop, (axis, extent) in zip(sch.loops(stage), d.extents.items(), strict=True):
        # A loop whose range is another one in each row is no axis of a grid.
        steps = around if axis in d.reduced else ragged if variables(extent) & d.extents.keys() else outer
        if axis not in sizes:
            steps.append(loop)
        elif isinstance(extent, Const) and extent.value <= WHOLE:
            inner.append(loop)
        else:
            a, b = sch.split(loop, sch.param(sizes[axis], tiles[sizes[axis]]))
            steps.append(a)
            inner.append(b)
    # What a loop's range or an index forbids stays as it is: a serial loop.
    attempt(sch.reorder, *outer, *ragged, *around, *inner)
    letters = [*reversed(["grid.y", *["grid.z"] * len(outer)][: max(0, len(outer) - 1)]), "grid.x"]
    bound = takewhile(lambda x: attempt(sch.bind, *x) is None, zip(outer, letters, strict=False))
    return [loop for loop, _ in bound], around


def _tile_sizes(d: Definition) -> dict[str, str]:
    """The names of the tile sizes of those axes that are cut."""
    spatial = [a.name for a in d.spatial]
    if isinstance(d, MapDef):
        return dict(zip(reversed(spatial), ("MAP_N", "MAP_M"), strict=False))
    if (product := _product(d)) is not None:
        return dict(zip(product, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), strict=True))
    along = _last_dimension(d)
    if along is not None or not spatial:
        return {**dict.fromkeys(spatial[-1:], "ROW_M"), along or d.reduced[-1]: "ROW_N"}
    return {d.reduced[-1]: "COLUMN_M", spatial[-1]: "COLUMN_N"}


def _last_dimension(d: Definition) -> str | None:
    """A reduced axis along which some operand lies densely in memory."""
    last = [variables(x.index[-1]) for x in d.reads() if x.index]
    return next((a for a in d.reduced if any(a in names for names in last)), None)


def _product(d: Definition) -> tuple[str, str, str] | None:
    """The axes (x, y, k) of `c[…, x, y] += a[…, x, k] * b[…, k, y]`."""
    product = contraction(d.action, d.extents)
    if product is None or not product.of_matrices:
        return None
    if not is_float(product.dtype) and isinstance(matrix_product(d.action, d.extents), NoProduct):
        return None
    depths = [n for n in product.depth if constant_length(d.extents[n]) >= SHORTEST_DEPTH]
    if not depths:
        return None
    return product.rows[-1], product.cols[-1], max(depths, key=lambda n: constant_length(d.extents[n]))
