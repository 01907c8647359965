"""Find the stages of a chain of reductions by their role in the dataflow, never by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Var, variables
from neptune.ir.integers import constant_length
from neptune.schedule.alignment import Axes, StageAxis
from neptune.schedule.checked import attempt
from neptune.schedule.primitives.pack import group_matrices, group_sizes, reads_each, row_shared, whole_groups
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.state import Loop

LONG = 256
"""The longest depth of a product that is one tile."""


@dataclass(frozen=True)
class Chain:
    """A chain of reductions over one axis.

    `first`: the first stage that runs over the rows and the fused axis; `row_axis`, `fused_axis`: its axes.
    `apart`: what it is computed from that does not run over the rows, `per_row`: what does not run over the fused axis
    and the chain needs;
    `maps_before`: what else is computed per element before the first reduction; `reductions`: those over
    the fused axis, in order (without `first`); `elementwise`: maps behind the reductions that run over
    the fused axis again and are not only a step towards another reduction; `epilogue`: what follows, per row, or is
    needed by that alone.
    """

    first: str
    row_axis: str
    fused_axis: str
    apart: tuple[str, ...]
    per_row: tuple[str, ...]
    maps_before: tuple[str, ...]
    reductions: tuple[str, ...]
    elementwise: tuple[str, ...]
    epilogue: tuple[str, ...]
    all_reductions: tuple[str, ...]
    axes: Axes


def chain(sch: ScheduleBase, template: str, over: StageAxis | None = None) -> Chain:
    """The chain of a program, over one axis if that is given; ScheduleError where it has none (`template` is named
    in the message)."""
    request = f"template `{template}` on program `{sch.program.name}`"
    joint = _fused_axis(sch, over)
    if joint is None:
        raise ScheduleError(
            request,
            "it needs a reduction over an axis that another reduction runs over",
            hint="another template, or a schedule of your own",
        )
    axes, fused = joint
    reductions = [s for s in sch.stages if _reduces(sch, axes, s, fused)]
    after = reaches(sch, reductions)
    front = [s for s in sch.stages if s not in after and s not in reductions]
    row = _row_axis(sch, axes, reductions, [s for s in front if axes.of(s, fused) is not None])
    if row is None:
        raise ScheduleError(
            request,
            "the reductions have no rows to spread over the grid",
            hint="another template, or none: then one is chosen",
        )
    before = [s for s in front if axes.of(s, fused) is not None and axes.of(s, row) is not None]
    first = (before or reductions)[0]
    row_axis, fused_axis = axes.of(first, row), axes.of(first, fused)
    assert row_axis is not None and fused_axis is not None
    steps = _leads_to(sch, reductions)
    behind = [s for s in sch.stages if s in after and s not in reductions]
    rows = [s for s in front if axes.of(s, fused) is None and axes.of(s, row) is not None]
    # What the chain does not need, such as the score of a class, may wait for what needs it.
    early = {s for s in rows if reaches(sch, [s]).intersection([*before, *reductions])}
    follows = {s for s in behind if axes.of(s, fused) is None} | ({*rows} - early)
    return Chain(
        first,
        row_axis,
        fused_axis,
        tuple(s for s in front if axes.of(s, row) is None),
        tuple(s for s in rows if s in early),
        tuple(s for s in before if s != first),
        tuple(r for r in reductions if r != first),
        tuple(s for s in behind if axes.of(s, fused) is not None and s not in steps),
        tuple(s for s in sch.stages if s in follows),
        tuple(reductions),
        axes,
    )


def tiled(sch: ScheduleBase, parts: Chain, block_m: Var, block_n: Var) -> tuple[Loop, Loop]:
    """The loops over tiles of rows and of the fused axis of a chain's first stage.

    A product in front whose depth is long, or not known, is summed in blocks of BLOCK_K: a tile of whole rows would not
    fit on chip, as in front of a loss over a vocabulary.
    """
    first = parts.first
    blocks = {parts.row_axis: block_m, parts.fused_axis: block_n}
    if first not in parts.all_reductions:
        blocks |= _blocks(sch, parts, first)
    i0, j0, *_ = sch.tile([sch.loop_of(first, a) for a in blocks], list(blocks.values()))
    return i0, j0


def fuse_front(sch: ScheduleBase, parts: Chain, j0: Loop) -> None:
    """Fuse what else stands before a chain under the loop over tiles of its fused axis; of a sum of products, such as
    q·k + r·p, each that is long has blocks of its own, whichever comes first."""
    for stage in parts.maps_before:
        sch.fuse_at(stage, j0)
        for depth, block in _blocks(sch, parts, stage).items():
            k0, _ = sch.split(sch.loop_of(stage, depth), block)
            loops = sch.loops(stage)
            sch.reorder(k0, *[f for f in loops[[f.var for f in loops].index(j0.var) + 1 :] if f != k0])


def _blocks(sch: ScheduleBase, parts: Chain, stage: str) -> dict[str, Var]:
    """The axis that a stage in front of a chain sums in blocks, with their size; nothing where its rows are whole in a
    tile, or where it takes over the blocks of one before it, with which it has an operand in common.

    Whole are those that the chain has on chip anyway: keys that are the values, too, are then read once.
    """
    d, front = sch.definition(stage), [parts.first, *parts.maps_before]
    depth = next(iter(d.reduced), "")
    if len(d.reduced) != 1 or (length := constant_length(d.extents[depth])) <= LONG:
        return {}
    axes = Axes({s: sch.definition(s) for s in sch.stages})
    axes.join_through_inputs()
    taken = any(axes.of(s, (stage, depth)) is not None for s in front[: front.index(stage)])
    kept = (axes.of(s, (stage, depth)) in {a.name for a in sch.definition(s).spatial} for s in parts.reductions)
    return {} if taken or (length < inf and any(kept)) else {depth: sch.param("BLOCK_K", [64, 32, 128, 16])}


def _reduces(sch: ScheduleBase, axes: Axes, stage: str, fused: StageAxis) -> bool:
    d = sch.definition(stage)
    return any(axes.same((stage, a), fused) for a in d.reduced)


def _fused_axis(sch: ScheduleBase, given: StageAxis | None = None) -> tuple[Axes, StageAxis] | None:
    """The axis that the chain is fused along, if it is not `given`: where one reduction over it reads another, else
    where several reduce over it, else one that a reduction before or a map behind runs over. Axes that meet at an
    input alone count as one where that brings in more reductions."""
    joined, separate = (Axes({s: sch.definition(s) for s in sch.stages}) for _ in range(2))
    joined.join_through_inputs()
    folds = sch.reductions
    best: tuple[tuple[int, int], Axes, StageAxis] | None = None
    for axes in (separate, joined):
        for early in folds:
            later = reaches(sch, [early])
            # Of several axes the last: it is the one that lies densely in memory.
            for a in (a for a in reversed(sch.definition(early).reduced) if given in (None, (early, a))):
                shared = [s for s in folds if _reduces(sch, axes, s, (early, a))]
                over = [s for s in folds if axes.of(s, (early, a)) is not None]
                # A map along the axis that reads the reduction goes through the same rows once more: a norm.
                again = any(s in later and s not in folds and axes.of(s, (early, a)) is not None for s in sch.stages)
                kind = 2 if any(s in later for s in shared) else 1 if len(over) > 1 or again else 0
                if (kind or given) and (best is None or (kind, len(shared)) > best[0]):
                    best = (kind, len(shared)), axes, (early, a)
    return None if best is None else best[1:]


def _row_axis(sch: ScheduleBase, axes: Axes, reductions: list[str], front: list[str]) -> StageAxis | None:
    """The last axis of the first reduction that all others have as well, and some stage in front if any has."""
    d = sch.definition(reductions[0])
    rows = [(reductions[0], a.name) for a in d.spatial]
    common = [r for r in rows if all(axes.of(s, r) is not None for s in reductions)]
    shared = [r for r in common if any(axes.of(s, r) is not None for s in front)]
    ordered = shared or common or rows
    return ordered[-1] if ordered else None


def reaches(sch: ScheduleBase, starts: Iterable[str]) -> set[str]:
    """Every stage that depends on one of `starts` (not themselves, unless they depend on each other)."""
    reached: set[str] = set()
    todo = [c for s in starts for c in sch.consumers(s)]
    while todo:
        stage = todo.pop()
        if stage not in reached:
            reached.add(stage)
            todo += sch.consumers(stage)
    return reached


def _leads_to(sch: ScheduleBase, ends: Iterable[str]) -> set[str]:
    """Maps all of whose consumers are reductions of `ends` or such maps themselves."""
    inside = set(ends)
    for stage in reversed(sch.stages):
        users = sch.consumers(stage)
        if users and all(u in inside for u in users) and stage not in sch.reductions:
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
    # Parts of an axis (`split_k`) read different elements of it.
    for axis in reversed(d.names):
        if axis in d.reduced or axis in (parts.row_axis, parts.fused_axis, *d.choosing):
            continue
        sharing = _sharing(sch, parts, axis, parts.row_axis)
        if sharing is not None:
            return sharing
    return None


def _sharing(sch: ScheduleBase, parts: Chain, axis: str, rows: str) -> Heads | None:
    """`axis` as Heads, where products that run over it and `rows` have operands without either but for axis // G."""
    first, sizes, products = parts.first, set[Expr](), 0
    for stage in sch.stages:
        head, row = (parts.axes.of(stage, (first, a)) for a in (axis, rows))
        if head is None or row is None:
            continue
        d = sch.definition(stage)
        sizes.update(group_sizes(d, head))
        for factor in row_shared(d, row):
            if len(sizes) > 1 or reads_each(factor, head, sizes):
                return None
            products += 1
    return Heads(axis, next(iter(sizes), None)) if products else None


def pack_heads(sch: ScheduleBase, template: str) -> bool:
    """Make rows of the heads of a group, where heads are the rows of a chain and only those of a group share a matrix
    of its products; whether it was done. Else a tile of rows would read as many matrices as rows.

    To be called before anything else is scheduled. Groups are of one size: chains of guarded stages are not fused.
    """
    parts = chain(sch, template)
    head, sizes, shared = parts.row_axis, set[Expr](), 0
    for stage in sch.stages:
        own = parts.axes.of(stage, (parts.first, head))
        if own is None:
            continue
        d = sch.definition(stage)
        sizes.update(group_sizes(d, own))
        matrices, other = group_matrices(d, own, sizes)
        if len(sizes) > 1 or other is not None:
            return False
        shared += any(own in variables(x) for x in matrices)
    d = sch.definition(parts.first)
    if not shared or not whole_groups(sch.program, d.extents[head], *sizes):
        return False
    # Where queries are the axis before, they are rows as well.
    beside = [a for a in d.names if a not in (head, parts.fused_axis, *d.reduced, *d.choosing)]
    row = next((a for a in reversed(beside) if _sharing(sch, parts, head, a) is not None), None)
    packed = [head] if row is None else [head, row]
    return attempt(lambda: sch.pack(*(sch.loop_of(parts.first, a) for a in packed))) is None


def pack_rows(sch: ScheduleBase, template: str, always: bool = False) -> bool:
    """Make rows of the heads that share keys, where there are few rows (or `always`); whether it was done.

    To be called before anything else is scheduled. `few` is a constant of at most FEW_ROWS.
    """
    if pack_heads(sch, template):
        return True
    parts = chain(sch, template)
    heads, rows = shared_heads(sch, parts), sch.definition(parts.first).extents[parts.row_axis]
    few = isinstance(rows, Const) and rows.value <= FEW_ROWS
    if heads is None or not (few or always):
        return False
    extent = sch.definition(parts.first).extents[heads.axis]
    if not always and not _whole(sch, extent, heads):
        return False
    sch.pack(sch.loop_of(parts.first, heads.axis), sch.loop_of(parts.first, parts.row_axis))
    return True


def pack_many_rows(sch: ScheduleBase, template: str) -> None:
    """Make rows of the heads that share keys, where the length of the query axis is one of the call: with few queries,
    a tile is full of a group's heads, and keys are read once for all of them. ScheduleError elsewhere: `pack_rows` does
    it there unasked, or nothing is shared.

    To be called before anything else is scheduled.
    """
    parts = chain(sch, template)
    d, heads = sch.definition(parts.first), shared_heads(sch, parts)
    few = isinstance(d.extents[parts.row_axis], Const)
    if heads is None or few or not _whole(sch, d.extents[heads.axis], heads):
        request = f"template `{template}` on program `{sch.program.name}`"
        wrong = "it needs groups of heads that share keys, and an axis of queries whose length is one of the call"
        raise ScheduleError(request, wrong, hint="`flash_attention` or `flash_decoding`")
    sch.pack(sch.loop_of(parts.first, heads.axis), sch.loop_of(parts.first, parts.row_axis))


def _whole(sch: ScheduleBase, every: Expr, heads: Heads) -> bool:
    return heads.size is None or whole_groups(sch.program, every, heads.size)


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
    sch.bind(
        [*outside, *fastest, *tile], [*reversed(names), *["grid.x"] * len(fastest), *["grid.x", "grid.y"][: len(tile)]]
    )


def only_axis(sch: ScheduleBase) -> StageAxis | None:
    """The axis of the only reduction that there is: no other one says which axis is split."""
    folds = sch.reductions
    return (folds[0], sch.definition(folds[0]).reduced[-1]) if len(folds) == 1 else None


def rows_inlined(sch: ScheduleBase, template: str, whole: Chain, alone: StageAxis | None) -> Chain:
    """The chain without maps per row between its reductions, a mean or a scale: each part has one of its own."""
    between = [s for s in whole.epilogue if reaches(sch, [s]).intersection(whole.all_reductions)]
    for stage in between:
        attempt(sch.inline, stage)
    return chain(sch, template, over=alone) if between else whole


def before_the_chain(sch: ScheduleBase, parts: Chain, tile: Loop, sizes: Var) -> None:
    """Place what the first stage of a chain is computed from: what does not run over the rows in kernels of its own,
    computed once for all of them; the rest once for each tile of rows."""
    ends: list[Loop] = []
    for stage in parts.apart:
        axis = parts.axes.of(stage, (parts.first, parts.fused_axis))
        if axis is None or any(attempt(sch.fuse_at, stage, end) is None for end in ends):
            continue
        outer, _ = sch.split(sch.loop_of(stage, axis), sizes)
        spread(sch, stage, outer)
        ends.append(outer)
    for stage in reversed(parts.per_row):
        sch.compute_at(stage, tile)


def behind_the_chain(sch: ScheduleBase, parts: Chain, tile: Loop) -> None:
    """Fuse what follows the chain per row under its rows; what a repair has written out is gone already."""
    for stage in parts.epilogue:
        if stage in sch.stages:
            sch.fuse_at(stage, tile)


def elementwise_kernels(sch: ScheduleBase, parts: Chain, block_m: Var, block_n: Var) -> None:
    """A kernel for each result that runs over the fused axis again; the steps towards it are computed there as well."""
    outputs = {b.name for b in sch.program.outputs}
    for stage in (s for s in parts.elementwise if s not in outputs):
        sch.inline(stage)
    for stage in (s for s in parts.elementwise if s in outputs):
        fused, row = (parts.first, parts.fused_axis), (parts.first, parts.row_axis)
        axes = [parts.axes.of(stage, a) for a in (row, fused)]
        i0, j0, *_ = sch.tile([sch.loop_of(stage, a or "") for a in axes], [block_m, block_n])
        spread(sch, stage, i0, j0)
