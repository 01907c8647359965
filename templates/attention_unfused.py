"""attention_unfused: three kernels (scores, row reductions, values): the ablation baseline of the paper."""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.roles import chain, spread
from neptune.schedule.template import template


@template(BLOCK_M=[64, 128, 32, 16], BLOCK_N=[64, 128, 32, 16])
def attention_unfused(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Scores to memory, softmax over whole rows, then the product with the values."""
    parts = chain(sch, "attention_unfused")
    first = parts.first
    *row_wise, last = parts.all_reductions
    top = (*row_wise, last)[0]
    fused, rows = (top, sch.definition(top).reduced[0]), sch.definition(top).names[-2]
    axis, k_axis = parts.axes.of(last, (top, rows)), parts.axes.of(last, fused)
    if not row_wise or axis is None or k_axis is None:
        raise ScheduleError(
            f"template `attention_unfused` on program `{sch.program.name}`",
            "it needs reductions over rows of scores, and behind them one with the same rows; "
            f"there are: {', '.join(parts.all_reductions)}",
            hint="another template, or none: then one is chosen",
        )
    i, j = sch.loop_of(first, parts.row_axis), sch.loop_of(first, parts.fused_axis)
    i0, j0, *_ = sch.tile([i, j], [block_m, block_n])
    spread(sch, first, i0)
    sch.bind(j0, "grid.x")
    for stage in parts.maps_before:
        sch.fuse_at(stage, j0)
    # Kernel 2: the reductions without an axis of their own, and the maps between, on whole rows.
    r0, _ = sch.split(sch.loop_of(top, rows), 1)
    sch.cover(sch.loop_of(top, fused[1]), "BLOCK_ROW")
    spread(sch, top, r0)
    for stage in sch.stages:
        if stage in (first, top, last, *parts.maps_before, *parts.epilogue):
            continue
        sch.fuse_at(stage, r0)
    # Kernel 3: the product with the values.
    a, k = sch.loop_of(last, axis), sch.loop_of(last, k_axis)
    a0, k0, *_ = sch.tile([a, k], [block_m, block_n])
    spread(sch, last, a0)
    for stage in parts.epilogue:
        sch.fuse_at(stage, a0)
    sch.partition(k0)
