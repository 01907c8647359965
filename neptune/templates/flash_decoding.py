"""flash_decoding: the fused axis in parts that run side by side, and a kernel that combines these (paper §4.3).

For few rows and a long axis, where rows alone leave a GPU idle. Works for any chain of reductions over one axis; each
part is what flash_attention makes of the whole.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.template import template
from neptune.templates.roles import chain, spread


@template(BLOCK_M=[16, 32, 64, 128], BLOCK_N=[64, 128, 32, 16])
def flash_decoding(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Split the axis, fuse each part by rolling updates, and roll over the parts of a row."""
    whole = chain(sch, "flash_decoding")
    ends = whole.all_reductions
    axis = whole.axes.of(ends[0], (whole.first, whole.fused_axis))
    part = sch.split_k(sch.loop_of(ends[0], axis or ""), "NUM_SPLITS", block_n)
    local = chain(sch, "flash_decoding")
    first = local.first
    i, j = sch.loop_of(first, local.row_axis), sch.loop_of(first, local.fused_axis)
    i0, j0, *_ = sch.tile([i, j], [block_m, block_n])
    spread(sch, first, i0)
    for stage in local.maps_before:
        sch.fuse_at(stage, j0)
    for stage in local.reductions:
        sch.rolling_update(stage, j0)
    combine = chain(sch, "flash_decoding", over=(ends[0], part.var))
    rows, *others = combine.all_reductions
    k = sch.loop_of(rows, part.var)
    r0, k, *_ = sch.loops(rows)[-2:]
    spread(sch, rows, r0)
    for stage in others:
        sch.rolling_update(stage, k)
    for stage in combine.epilogue:
        sch.fuse_at(stage, r0)
    sch.write_directly(sch.loop(first, part.var))
    sch.partition(j0)
