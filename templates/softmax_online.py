"""softmax_online: row reductions in one pass by rolling update, then one pass that writes the rows."""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.roles import before_the_chain, behind_the_chain, chain, pack_heads, spread
from neptune.schedule.template import template


@template(BLOCK_M=[16, 32, 8, 4, 1], BLOCK_N=[128, 256, 64, 512, 2048, 8192])
def softmax_online(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Tile rows and columns, roll the reductions over the columns, and write what is elementwise behind."""
    pack_heads(sch, "softmax_online")
    parts = chain(sch, "softmax_online")
    first = parts.first
    i, j = sch.loop_of(first, parts.row_axis), sch.loop_of(first, parts.fused_axis)
    i0, j0, i1, j1 = sch.tile([i, j], [block_m, block_n])
    # Of what a reduction over the columns folds besides, the loops go outside; a product in front keeps its own.
    further = [f for f in sch.loops(first) if f.var in sch.definition(first).reduced]
    if further and first in parts.all_reductions:
        sch.reorder(*further, j0, i1, j1)
    spread(sch, first, i0)
    before_the_chain(sch, parts, i0, block_n)
    for stage in parts.maps_before:
        sch.fuse_at(stage, j0)
    for stage in parts.reductions:
        sch.rolling_update(stage, j0)
    behind_the_chain(sch, parts, i0)
    # What only feeds other elementwise maps is computed again where it is read: it would not fit on chip.
    outputs = {b.name for b in sch.program.outputs}
    for stage in parts.elementwise[:-1]:
        if stage not in outputs:
            sch.inline(stage)
    pieces = [j0]
    for stage in parts.elementwise:
        if stage in sch.stages:
            sch.fuse_at(stage, i0)
            # Its columns run along with those of the reductions: columns outside, rows inside.
            loops = sch.loops(stage)
            inner = loops[[f.var for f in loops].index(i0.var) + 1 :]
            k0 = next(f for f in inner if f.var == j0.var)
            sch.reorder(k0, *[f for f in inner if f != k0])
            pieces.append(k0)
    for loop in pieces:
        sch.partition(loop)
