"""softmax_row: a whole row is one tile, so every reduction over it is complete when it is read."""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.roles import chain, spread
from neptune.schedule.template import template


@template(BLOCK_M=[1, 2, 4, 8])
def softmax_row(sch: Schedule, block_m: Var) -> None:
    """One program per BLOCK_M rows; BLOCK_N is the smallest power of two that covers a row."""
    parts = chain(sch, "softmax_row")
    first = parts.first
    i0, _ = sch.split(sch.loop_of(first, parts.row_axis), block_m)
    sch.cover(sch.loop_of(first, parts.fused_axis), "BLOCK_N")
    spread(sch, first, i0)
    for stage in sch.stages:
        if stage != first:
            sch.fuse_at(stage, i0)
