"""Find the stages of a chain of reductions by their role in the dataflow, never by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr
from neptune.ir.program import Update
from neptune.schedule.alignment import Axes, Axis
from neptune.schedule.pack import group_sizes, reads_each, row_shared
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.state import Loop


@dataclass(frozen=True)
class Chain:
    """A chain of reductions over one axis.

    `first`: the first stage that runs over the fused axis; `row_axis`, `fused_axis`: its axes;
    `maps_before`: what else is computed per element before the first reduction; `reductions`: those over
    the fused axis, in order (without `first`); `elementwise`: maps behind the reductions that run over
    the fused axis again and are not only a step towards another reduction; `epilogue`: what follows, per row.
    """

    first: str
    row_axis: str
    fused_axis: str
    maps_before: tuple[str, ...]
    reductions: tuple[str, ...]
    elementwise: tuple[str, ...]
    epilogue: tuple[str, ...]
    all_reductions: tuple[str, ...]
    axes: Axes


def chain(sch: ScheduleBase, template: str) -> Chain:
    """The chain of a program; ScheduleError where it has none (`template` is named in the message)."""
    axes = Axes({s: sch.definition(s) for s in sch.stages})
    fused = _fused_axis(sch, axes)
    if fused is None:
        axes.join_through_inputs()
        fused = _fused_axis(sch, axes)
    asked = f"template `{template}` on program `{sch.program.name}`"
    if fused is None:
        raise ScheduleError(
            asked,
            "it needs two or more reductions over one axis, of which a later one reads an earlier one",
            hint="another template, or a schedule of your own",
        )
    reductions = [s for s in sch.stages if _reduces(sch, axes, s, fused)]
    after = reaches(sch, reductions)
    before = [s for s in sch.stages if s not in after and s not in reductions and axes.of(s, fused) is not None]
    first = (before or reductions)[0]
    rows = [n for n, _ in sch.definition(reductions[0]).axes if n not in sch.definition(reductions[0]).reduced]
    if not rows:
        raise ScheduleError(
            asked,
            "the reductions have no rows to spread over the grid",
            hint="another template, or none: then one is chosen",
        )
    row = (reductions[0], rows[-1])
    row_axis, fused_axis = axes.of(first, row), axes.of(first, fused)
    if row_axis is None or fused_axis is None:
        raise ScheduleError(
            asked,
            f"stage `{first}` does not run over the rows of `{reductions[0]}`",
            hint="another template, or none: then one is chosen",
        )
    steps = _leads_to(sch, reductions)
    behind = [s for s in sch.stages if s in after and s not in reductions]
    return Chain(
        first,
        row_axis,
        fused_axis,
        tuple(s for s in before if s != first),
        tuple(r for r in reductions if r != first),
        tuple(s for s in behind if axes.of(s, fused) is not None and s not in steps),
        tuple(s for s in behind if axes.of(s, fused) is None),
        tuple(reductions),
        axes,
    )


def _reduces(sch: ScheduleBase, axes: Axes, stage: str, fused: Axis) -> bool:
    d = sch.definition(stage)
    return any(axes.same((stage, a), fused) for a in d.reduced)


def _fused_axis(sch: ScheduleBase, axes: Axes) -> Axis | None:
    """The axis over which some reduction and one that depends on it both reduce."""
    reductions = [s for s in sch.stages if isinstance(sch.definition(s).action, Update)]
    for early in reductions:
        later = reaches(sch, [early])
        for a in sch.definition(early).reduced:
            if any(_reduces(sch, axes, s, (early, a)) for s in reductions if s in later):
                return (early, a)
    return None


def reaches(sch: ScheduleBase, starts: Iterable[str]) -> set[str]:
    """Every stage that depends on one of `starts` (not themselves, unless they depend on each other)."""
    found: set[str] = set()
    todo = [c for s in starts for c in sch.consumers(s)]
    while todo:
        stage = todo.pop()
        if stage not in found:
            found.add(stage)
            todo += sch.consumers(stage)
    return found


def _leads_to(sch: ScheduleBase, ends: Iterable[str]) -> set[str]:
    """Maps all of whose consumers are reductions of `ends` or such maps themselves."""
    inside = set(ends)
    for stage in reversed(sch.stages):
        users = sch.consumers(stage)
        if users and all(u in inside for u in users) and not isinstance(sch.definition(stage).action, Update):
            inside.add(stage)
    return inside


FEW_ROWS = 16
"""The matrix unit takes that many rows at least: up to here, rows of packed heads cost nothing."""


@dataclass(frozen=True)
class Heads:
    """Heads that share what every row of a product reads (keys and values): `size` of them in a row on `axis` of the
    stage `first`; all of them where `size` is None."""

    axis: str
    size: Expr | None


def shared_heads(sch: ScheduleBase, parts: Chain) -> Heads | None:
    """The innermost axis, beside the rows, whose elements share the operand of every product that the rows share."""
    d = sch.definition(parts.first)
    for axis, _ in reversed(d.axes):
        if axis in d.reduced or axis in (parts.row_axis, parts.fused_axis):
            continue
        found = _sharing(sch, parts, axis)
        if found is not None:
            return found
    return None


def _sharing(sch: ScheduleBase, parts: Chain, axis: str) -> Heads | None:
    """`axis` as Heads, where products that run over it and the rows have operands without either but for axis // G."""
    first, sizes, products = parts.first, set[Expr](), 0
    for stage in sch.stages:
        head, row = (parts.axes.of(stage, (first, a)) for a in (axis, parts.row_axis))
        if head is None or row is None:
            continue
        d = sch.definition(stage)
        sizes |= group_sizes(d, head)
        for factor in row_shared(d, row):
            if len(sizes) > 1 or reads_each(factor, head, sizes):
                return None
            products += 1
    return Heads(axis, next(iter(sizes), None)) if products else None


def pack_rows(sch: ScheduleBase, template: str, always: bool = False) -> bool:
    """Make rows of the heads that share keys, where there are few rows (or `always`); whether it was done.

    To be called before anything else is scheduled. `few` is a constant of at most FEW_ROWS.
    """
    parts = chain(sch, template)
    heads, rows = shared_heads(sch, parts), sch.definition(parts.first).extents[parts.row_axis]
    few = isinstance(rows, Const) and rows.value <= FEW_ROWS
    if heads is None or not (few or always):
        return False
    sch.pack(sch.loop_of(parts.first, heads.axis), sch.loop_of(parts.first, parts.row_axis))
    return True


def group_loop(sch: ScheduleBase, parts: Chain) -> Loop | None:
    """The loop over the heads that share keys, cut out of the loop over all heads; None where there is none."""
    heads = shared_heads(sch, parts)
    if heads is None:
        return None
    loop = sch.loop_of(parts.first, heads.axis)
    size, extent = heads.size, sch.definition(parts.first).extents[heads.axis]
    if size is None or size == extent:
        return loop
    if not isinstance(size, Const) or not isinstance(extent, Const) or extent.value % size.value:
        return None
    return sch.split(loop, int(size.value))[1]


def spread(sch: ScheduleBase, stage: str, *tile: Loop, first: Loop | None = None) -> None:
    """Bind the loops around a tile to the grid: those of the tile, which come last, on x (and y), the nearest of
    the others on the next axis, the rest on z.

    Programs that differ only in `first`, a loop around the tile, start one after the other: it shares x with the tile.
    """
    outside: list[Loop] = []
    for loop in sch.loops(stage):
        if loop == tile[0]:
            break
        if loop != first:
            outside.append(loop)
    if first is not None:
        sch.reorder(*outside, first, *tile)
    free = ["grid.x", "grid.y", "grid.z"][len(tile) :]
    names = [free[0], *["grid.z"] * len(outside)][: len(outside)]
    fastest = [] if first is None else [first]
    sch.bind([*outside, *fastest, *tile], [*reversed(names), *["grid.x"] * len(fastest), *["grid.x", "grid.y"][: len(tile)]])
