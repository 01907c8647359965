"""stagewise: a schedule for every program, one kernel a stage.

Maps are computed where they are read, or behind the reduction that they follow; what remains is tiled by
its kind: products for the matrix unit, rows or columns for other reductions, plain tiles for maps.
"""

from __future__ import annotations

from contextlib import suppress

from neptune.errors import NeptuneError
from neptune.fusion.schedule import Schedule
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Const, Expr, Op, variables, walk
from neptune.ir.program import Store, Update
from neptune.schedule.state import Definition, Loop
from neptune.schedule.template import template

TILES = {
    "BLOCK_M": (64, 32, 128, 16),
    "BLOCK_N": (64, 32, 128, 16),
    "BLOCK_K": (32, 16, 64),
    "MAP_M": (16, 8, 32, 1),
    "MAP_N": (64, 128, 32, 256),
    "ROW_M": (4, 1, 2, 8),
    "ROW_N": (256, 128, 512, 1024),
    "COLUMN_M": (8, 4, 16, 32),
    "COLUMN_N": (128, 64, 256, 32),
}
"""Tile sizes: of products, maps, reductions along a last dimension, and other reductions."""
LARGEST_INLINE = 64
"""How many nodes all copies of an expression may have that is computed where it is read."""
SHORTEST_DEPTH = 8
"""A product with a shorter constant depth is no work for the matrix unit."""
WHOLE = 16
"""A constant axis up to this length is not cut."""


@template()
def stagewise(sch: Schedule) -> None:
    """Inline maps, tile and bind what remains, and put maps behind the reductions that they follow."""
    _inline_maps(sch)
    grid: list[Loop] = []
    cut: list[Loop] = []
    # Reductions first: the maps that follow them take over their tiles.
    folds = [s for s in sch.stages if isinstance(sch.definition(s).action, Update)]
    for stage in folds:
        bound, around = _tile(sch, stage)
        grid += bound
        cut += around
    for stage in sch.stages:
        if stage not in folds and not _follow(sch, stage, grid):
            _tile(sch, stage)
    for loop in cut:
        with suppress(NeptuneError):
            sch.partition(loop)


# --- maps ---------------------------------------------------------------------------------------


def _inline_maps(sch: Schedule) -> None:
    outputs = {b.name for b in sch.program.outputs}
    for stage in sch.stages:
        action = sch.definition(stage).action
        if not isinstance(action, Store) or action.buffer in outputs:
            continue
        readers = [sch.definition(c) for c in sch.consumers(stage)]
        count = sum(x.buffer == action.buffer for r in readers for x in r.reads())
        small = count * sum(1 for _ in walk(action.value)) <= LARGEST_INLINE
        if small and all(_reads_once(r, action.buffer) for r in readers):
            with suppress(NeptuneError):
                sch.inline(stage)


def _reads_once(d: Definition, buffer: str) -> bool:
    """True for a map, and for a reduction that reads each element of the buffer for one value only."""
    if isinstance(d.action, Store):
        return True
    indices = [x.index for x in d.reads() if x.buffer == buffer]
    return all(set(d.extents) <= frozenset[str]().union(*map(variables, index)) for index in indices)


def _follow(sch: Schedule, stage: str, grid: list[Loop]) -> bool:
    """Fuse a map into the kernel of the reduction before it, where all else that it reads is older."""
    producers = sch.producers(stage)
    if not producers:
        return False
    last = max(producers, key=sch.stages.index)
    source = sch.definition(last)
    spatial = len(source.axes) - len(source.reduced)
    # Outside of its reduction loops the sum is complete.
    around = [f for f in sch.loops(last) if f in grid]
    if not isinstance(source.action, Update) or not around or spatial != len(sch.definition(stage).axes):
        return False
    try:
        sch.fuse_at(stage, around[-1])
    except NeptuneError:
        return False
    return True


# --- tiles --------------------------------------------------------------------------------------


def _tile(sch: Schedule, stage: str) -> tuple[list[Loop], list[Loop]]:
    """Cut the axes that make up a tile, put the tile inside, reductions around it, and bind the rest.

    Returns the bound loops and the reduction loops.
    """
    d = sch.definition(stage)
    # An axis that the range of another depends on is no axis of a tile: each of its elements has its own range.
    ranged = frozenset[str]().union(*(variables(extent) for extent in d.extents.values()))
    sizes = {a: name for a, name in _tile_sizes(d).items() if a not in ranged}
    outer: list[Loop] = []
    around: list[Loop] = []
    inner: list[Loop] = []
    for loop, (axis, extent) in zip(sch.loops(stage), d.axes, strict=True):
        steps = around if axis in d.reduced else outer
        if axis not in sizes:
            steps.append(loop)
        elif isinstance(extent, Const) and extent.value <= WHOLE:
            inner.append(loop)
        else:
            a, b = sch.split(loop, sch.param(sizes[axis], TILES[sizes[axis]]))
            steps.append(a)
            inner.append(b)
    # What a loop's range or an index forbids stays as it is: a serial loop.
    with suppress(NeptuneError):
        sch.reorder(*outer, *around, *inner)
    bound: list[Loop] = []
    with suppress(NeptuneError):
        letters = ["grid.y", *["grid.z"] * len(outer)][: max(0, len(outer) - 1)]
        for loop, letter in zip(outer, [*reversed(letters), "grid.x"], strict=False):
            sch.bind(loop, letter)
            bound.append(loop)
    return bound, around


def _tile_sizes(d: Definition) -> dict[str, str]:
    """The names of the tile sizes of those axes that are cut."""
    spatial = [a for a, _ in d.axes if a not in d.reduced]
    if isinstance(d.action, Store):
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
    action = d.action
    if not (isinstance(action, Update) and action.reducer == "sum" and len(action.values) == 1):
        return None
    (value,) = action.values
    if not (isinstance(value, Op) and value.name == "mul" and is_float(value.dtype)):
        return None
    a, b = (variables(_plain(x)) for x in value.args)
    spatial = [n for n, _ in d.axes if n not in d.reduced]
    rows, columns = [n for n in spatial if n in a - b], [n for n in spatial if n in b - a]
    depths = [n for n in d.reduced if n in a & b and _length(d.extents[n]) >= SHORTEST_DEPTH]
    if not rows or not columns or not depths:
        return None
    return rows[-1], columns[-1], max(depths, key=lambda n: _length(d.extents[n]))


def _plain(e: Expr) -> Expr:
    return e.arg if isinstance(e, Cast) else e


def _length(e: Expr) -> float:
    """The extent of an axis; a size counts as long."""
    return float(e.value) if isinstance(e, Const) else float("inf")
