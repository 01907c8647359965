"""The schedule of a µGraph's definitions: its kernels' grids, their loops, and what is computed where.

    loads, fold, accumulator        for i0 grid.x: for j0 grid.y:
    over the loop              →      for k0: for i1: for j1: for k1: product, squares
    maps behind it                    for i1: for j1: y

Axes of the grid are cut into tiles BLOCK_<axis>, but for those that go side by side through all operands of a product
(a batch, heads), of which a program has one. A stage that does not run over an axis of the grid (φ) is computed anew
for each tile of that axis: a map where it is read, a fold by `replicate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.contraction import Contraction, contraction
from neptune.ir.expr import Const, Expr, Load, Var, loads, walk
from neptune.ir.names import fresh_name
from neptune.ir.program import for_loops, paths
from neptune.mirage.lowering.operands import NARROW
from neptune.schedule.checked import attempt
from neptune.schedule.definition import Definition
from neptune.schedule.roles import reaches
from neptune.schedule.stagewise import tile_stage
from neptune.schedule.state import Loop
from neptune.templates.stagewise import TILES
from neptune.tile.context import SHORTEST_DOT
from neptune.tile.localize import MAX_AXIS

MATRICES = ((64, 32, 128, 16), (64, 128, 32, 16, 256), (64, 32, 128, 16))
VECTORS = ((1, 2, 4, 8, 16), (64, 128, 32, 256), (256, 128, 512, 1024))
"""Candidates of tiles, where there are products of matrices and where there are none: of the axis that comes first in a
grid, of those behind it, and of loops."""
STREAMED = (*MATRICES[2], 256)
"""Those of loops whose products read tensors as they are: threads hold nothing of a tile but sums."""
PARTED = (4, 8, 2, 16, 32, 64)
"""Candidates of tiles of what splits have left: a launch cuts an axis in few parts, mostly."""


@dataclass(frozen=True)
class Place:
    """What one kernel of a graph computes: the loop variables of its grid, its loop, and stages; those `inside` change
    in the loop. `sizes` are the lengths of axes. `split`: the axis of which each program of a further axis of the grid
    folds a part; `combines`: the numbers of the places whose parts this one combines; `step`: what a part is a multiple
    of; `combining`: the loop goes over parts."""

    name: str
    grid: tuple[str, ...]
    loop: str | None
    stages: tuple[str, ...]
    inside: tuple[str, ...]
    sizes: frozenset[Expr] = frozenset()
    split: str = ""
    combines: tuple[int, ...] = ()
    step: Var | None = None
    combining: bool = False


def scheduled(sch: Schedule, places: Sequence[Place]) -> None:
    """Make the kernels of a graph, one after the other."""
    name = {p.name: p.name if len(places) > 1 else "" for p in places}
    steps: dict[str, Var] = {}
    for place in places:
        _split(sch, place, name[place.name], steps)
    # Maps that a split folds are computed where it folds them: their kernels have nothing left to do.
    places = [replace(p, stages=_left(sch, p.stages), inside=_left(sch, p.inside)) for p in places]
    parted = [_parted(sch, p, steps) for p in places]
    parts = [part for *_, part in parted]
    places = [replace(p, combines=_put_together(sch, places, p, part)) for p, part in zip(places, parts, strict=True)]
    combined = {n for p in places for n in p.combines}
    kernels: list[tuple[Loop | None, Loop | None]] = []
    for number, place in enumerate(places):
        local, combining, part = parted[number]
        others = [parted[n][1] for n in place.combines]
        prefix = name[place.name]
        if part is not None:
            kernels.append((_kernel(sch, local, prefix), part))
            if number in combined:
                continue
            # What another kernel's split has cut is put together here.
            local, others, prefix = (
                replace(place, loop=None, stages=(), inside=()),
                [*others, combining],
                f"{prefix}_all",
            )
        for other in others:
            local = _combining(other, local)
        if local.grid and local.stages:
            kernels.append((_kernel(sch, local, prefix), None))
        else:
            _alone(sch, local.stages)
    again = {step.args[0] for step in sch.trace if step.primitive == "replicate"}
    for loop, part in kernels:
        # A result that more than this must be computed for stays with the kernel that combines the parts.
        if part is not None and not again:
            attempt(sch.write_directly, part)
        if loop is not None:
            attempt(sch.partition, loop)


def _left(sch: Schedule, stages: Sequence[str]) -> tuple[str, ...]:
    return tuple(s for s in stages if s in sch.stages)


def _put_together(sch: Schedule, places: Sequence[Place], place: Place, part: Loop | None) -> tuple[int, ...]:
    """The places whose parts are put together in this kernel; those of others are in one of their own before it.

    That is where a loop of its own goes over another axis than the parts, or where others read what they make.
    """
    if place.loop is not None and part is None:
        return ()
    every = {s for p in places for s in p.stages}
    reads = {s: {x.buffer for e in sch.definition(s).action.values for x in loads(e)} for s in every}

    def alone(other: Place) -> bool:
        others = every - {*other.stages, *place.stages}
        return not any(reads[s] & {f for f in other.stages if f in sch.reductions} for s in others)

    return tuple(n for n in place.combines if alone(places[n]))


def _alone(sch: Schedule, stages: Sequence[str]) -> None:
    """Each stage in a kernel of its own."""
    for stage in stages:
        if stage in sch.stages:
            tile_stage(sch, stage, TILES)


def _split(sch: Schedule, place: Place, prefix: str, steps: dict[str, Var]) -> None:
    """Fold the axis of a place in parts, unless that came with another place; a part holds a multiple of its step."""
    folds = [s for s in place.stages if s in sch.reductions and place.split in sch.definition(s).reduced]
    if folds and _part(sch, folds[0]) is None:
        size = _param(sch, prefix, place.split, _depths(sch, place))
        number = f"NUM_SPLITS_{place.split.upper()}" if steps else "NUM_SPLITS"
        steps[place.split] = size
        sch.split_k(sch.loop_of(folds[0], place.split), number, size)


def _part(sch: Schedule, stage: str) -> str | None:
    """The reduction over a part of what a stage folds together."""
    return next(iter(sch._state.made("part", stage)), None)


def _parted(sch: Schedule, place: Place, steps: Mapping[str, Var]) -> tuple[Place, Place, Loop | None]:
    """The kernel that folds parts of its axis, what combines them, and the loop over the parts."""
    folds = {s: part_of for s in place.stages if (part_of := _part(sch, s)) is not None}
    if not folds:
        return place, place, None
    first = next(iter(folds.values()))
    part = sch.loops(first)[0]
    later = _following(sch, place, list(folds), part.var)
    own = tuple(folds.get(s, s) for s in place.stages if s not in later)
    axis = place.split or place.loop
    inside = tuple(s for s in own if axis in sch.definition(s).names)
    step = steps.get(axis or "")
    kernel = replace(place, grid=(part.var, *place.grid), loop=axis, stages=own, inside=inside, step=step)
    rest = tuple(s for s in place.stages if s in folds or s in later)
    combining = replace(place, grid=(), loop=part.var, stages=rest, inside=tuple(folds))
    return kernel, combining, part


def _following(sch: Schedule, place: Place, folds: Sequence[str], part: str) -> set[str]:
    """The stages that need what the parts make together."""
    behind = {s for s in reaches(sch, folds) if s in place.stages and s not in folds}
    return {s for s in behind if part not in sch.definition(s).names}


def _combining(combining: Place, place: Place) -> Place:
    """The kernel that combines parts, and what it computes behind that."""
    stages, inside = (*combining.stages, *place.stages), (*combining.inside, *(place.inside if place.loop else ()))
    return replace(place, loop=combining.loop, stages=stages, inside=inside, step=None, combining=True)


# --- one kernel ------------------------------------------------------------------------------------


def _kernel(sch: Schedule, place: Place, prefix: str) -> Loop | None:
    """Make one kernel; returns its loop over tiles."""
    place = _without_rows(sch, _fewer(sch, place))
    cut = _cut(sch, place)
    first = _anchor(sch, place)
    tiles, loop, end = _tiled(sch, place, first, cut, prefix)
    _replicated(sch, place, first, tiles)
    _grid(sch, first, [*tiles.values()], end)
    if loop is not None:
        before = _before(sch, place, first)
        for stage in place.inside:
            if stage in before or stage == first:
                continue
            if stage in sch.reductions:
                sch.rolling_update(stage, loop)
            else:
                sch.fuse_at(stage, loop)
        for stage in reversed([s for s in place.inside if s in before]):
            sch.compute_at(stage, loop)
    for stage in _behind(sch, place, first, loop):
        sch.fuse_at(stage, end)
    for stage in reversed(_around(sch, place, end)):
        sch.compute_at(stage, end)
    _cover(sch, place, end, prefix)
    return loop


def _fewer(sch: Schedule, place: Place) -> Place:
    """The kernel without axes of its grid for which folds that its first stage needs would be computed again.

    The tile of such an axis is all of it: exp(q k) v has one program for all columns of v.
    """
    inside = place.inside or place.stages
    first = max(inside, key=lambda s: len({*place.grid} & {*sch.definition(s).names}))
    folds = [s for s in inside if s in sch.reductions and first in reaches(sch, [s])]
    kept = [a for a in place.grid if all(a in sch.definition(s).names for s in (first, *folds))]
    return replace(place, grid=tuple(kept)) if kept else place


def _without_rows(sch: Schedule, place: Place) -> Place:
    """The kernel with its maps that lack an axis of the grid computed where they are read.

    What is rounded for a product stays a stage, so that the product is seen.
    """
    outputs = {b.name for b in sch.program.outputs}
    gone: set[str] = set()
    for stage in reversed(place.stages):
        lacks = set(place.grid) - set(sch.definition(stage).names)
        if lacks and not _narrow(sch, stage) and stage not in sch.reductions and stage not in outputs:
            sch.inline(stage)
            gone.add(stage)
    left, inside = (tuple(s for s in names if s not in gone) for names in (place.stages, place.inside))
    return replace(place, stages=left, inside=inside)


def _narrow(sch: Schedule, stage: str) -> bool:
    return all(sch.program.globals[b].dtype in NARROW for b in sch.definition(stage).action.buffers)


def _cut(sch: Schedule, place: Place) -> tuple[str, ...]:
    """The axes of the grid that are cut into tiles: all but the batches of products."""
    batches: set[str] = set()
    for d, product in _products(sch, place):
        batches |= set(d.names) - {*product.rows, *product.cols, *product.depth}
        for side in (product.rows, product.cols):
            # A tile has one row and one column axis: of heads beside a depth a program has one.
            batches |= set([a for a in d.names if a in side][:-1])
    if place.step is not None:
        batches |= {place.grid[0]}
    cut = [a for a in place.grid if a not in batches]
    if not _products(sch, place):
        # A tile has two axes where it can.
        axes = {a for s in place.stages if s in sch.stages for a in sch.definition(s).names}
        cut = cut[-1 if axes - {*place.grid, place.loop} else -2 :]
    return tuple(cut)


def _products(sch: Schedule, place: Place) -> list[tuple[Definition, Contraction]]:
    """The stages that are products of matrices."""
    every = [sch.definition(s) for s in place.stages if s in sch.stages]
    products = [(d, contraction(d.action, d.extents)) for d in every]
    return [(d, c) for d, c in products if c is not None and c.of_matrices]


def _depths(sch: Schedule, place: Place) -> tuple[int, ...]:
    """The candidates of a loop's tiles."""
    products = _products(sch, place)
    if not products:
        return VECTORS[2]
    given = {b.name for b in sch.program.inputs}
    read = {x.buffer for d, _ in products for e in d.action.values for x in walk(e) if isinstance(x, Load)}
    return STREAMED if read <= given else MATRICES[2]


def _anchor(sch: Schedule, place: Place) -> str:
    """The stage whose nest becomes the kernel's: the first that has all axes of the grid, and the loop's."""
    needed = {*place.grid, *([place.loop] if place.loop else [])}
    for stage in place.inside or place.stages:
        if needed <= set(sch.definition(stage).names):
            return stage
    raise ScheduleError(
        f"lower kernel `{place.name}`",
        f"no value in it varies along all of {', '.join(sorted(needed))}",
        hint="fewer axes in its grid",
    )


def _tiled(
    sch: Schedule, place: Place, first: str, cut: Sequence[str], prefix: str
) -> tuple[Mapping[str, Loop], Loop | None, Loop]:
    """The loops over tiles of the anchor: those of the grid by axis, the loop's, and the innermost of the grid."""
    outer: dict[str, Loop] = {}
    inner: list[Loop] = []
    rows, columns, _ = MATRICES if _products(sch, place) else VECTORS
    for k, axis in enumerate(place.grid):
        loop = sch.loop_of(first, axis)
        if axis in cut:
            size = _param(sch, prefix, axis, rows if k == 0 or len(cut) == 1 else columns)
            loop, within = sch.split(loop, size)
            inner.append(within)
        outer[axis] = loop
    steps: list[Loop] = []
    if place.loop is not None:
        tiles = PARTED if place.combining else _depths(sch, place)
        size = _param(sch, prefix, place.loop, tiles) if place.step is None else place.step
        step, within = sch.split(sch.loop_of(first, place.loop), size)
        steps.append(step)
        inner.append(within)
    known = [*outer.values(), *steps, *inner]
    rest = [f for f in sch.loops(first) if f not in known]
    sch.reorder(*outer.values(), *steps, *inner, *rest)
    return outer, (steps[0] if steps else None), outer[place.grid[-1]]


def _cover(sch: Schedule, place: Place, end: Loop, prefix: str) -> None:
    """Make tiles of the loops of a kernel that go through a whole axis; equal lengths have one tile size."""
    names: dict[Expr, str] = {}
    taken = {t.name for t in sch.program.tunables}
    least = SHORTEST_DOT if _products(sch, place) else 1
    for path, stage in paths(sch.program.body):
        loops = for_loops(path)
        if not any(f.var == end.var for f in loops):
            continue
        for f in loops:
            long = not isinstance(f.hi, Const) or f.hi.value > MAX_AXIS
            if f.kind == "serial" and long and f.hi in place.sizes:
                short = _named(prefix, f.var)
                # Axes p and p_1 have tiles of their own.
                name = names.setdefault(f.hi, fresh_name(taken | {*names.values()}, short))
                attempt(sch.cover, Loop(stage.name, f.var), name, least)


def _param(sch: Schedule, prefix: str, axis: str, tiles: tuple[int, ...]) -> Var:
    """The tile size of an axis. Axes p and p_1 have one size where they have the same candidates."""
    name = _named(prefix, axis)
    known = next((t.candidates for t in sch.program.tunables if t.name == name), tiles)
    return sch.param(name if {*tiles} <= {*known} else "_".join((name, *axis.upper().split("_")[1:])), tiles)


def _named(prefix: str, axis: str) -> str:
    return "_".join(x.upper() for x in ("BLOCK", prefix, axis.split("_")[0]) if x)


def _replicated(sch: Schedule, place: Place, first: str, tiles: Mapping[str, Loop]) -> None:
    """Compute folds anew for the tiles of the axes of the grid that they do not run over."""
    outputs = {b.name for b in sch.program.outputs}
    for stage in reversed(place.stages):
        for axis, loop in tiles.items():
            if stage not in outputs and axis not in sch.definition(stage).names:
                _check_own(sch, place, stage, axis)
                sch.replicate(stage, loop)


def _check_own(sch: Schedule, place: Place, stage: str, axis: str) -> None:
    """Raise ScheduleError for a part of a sum that programs along an axis have in common: none of them could store it.

    A graph may go on with its parts, since what follows is linear; in definitions they are one sum, and what follows
    reads that when it is complete, in the kernel behind.
    """
    origin = sch._state.path(stage)[1].made
    if place.step is not None and origin is not None and origin.kind == "part":
        raise ScheduleError(
            f"lower kernel `{place.name}`",
            f"the kernel behind adds up parts of `{origin.of}`, which does not vary along `{axis}`: the programs of "
            f"this kernel along `{axis}` would all store them",
            hint=f"`{origin.of}` in a kernel of its own, or a grid without `{axis}`",
        )


def _grid(sch: Schedule, first: str, loops: Sequence[Loop], end: Loop) -> None:
    """Bind the loops of the grid: the first tiles on x."""
    names = ["grid.z"] * (len(loops) - 2) + ["grid.y", "grid.x"][-len(loops) :]
    sch.bind([*loops], names)


def _before(sch: Schedule, place: Place, first: str) -> set[str]:
    """The stages in the loop from which the anchor is computed."""
    return {s for s in place.inside if first in reaches(sch, [s])}


def _behind(sch: Schedule, place: Place, first: str, loop: Loop | None) -> list[str]:
    """The stages that nothing in the loop (or the anchor, where there is none) is computed from, in order."""
    done = {*place.inside, first} if loop is not None else {first}
    rest = [s for s in place.stages if s in sch.stages and s not in done]
    return [s for s in rest if not done.intersection(reaches(sch, [s]))]


def _around(sch: Schedule, place: Place, end: Loop) -> list[str]:
    """The stages that stand outside of the kernel still, in order."""
    var = end.var
    return [s for s in place.stages if s in sch.stages and all(f.var != var for f in sch.loops(s))]
