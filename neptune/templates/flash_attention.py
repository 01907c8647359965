"""flash_attention: one kernel by rolling update (paper §4.2 and Fig. 9).

Finds its stages by their role in the dataflow: the score product, a running maximum over the keys, the
sums that follow it, and the maps in between and behind. Works for any chain of that shape.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.template import template
from neptune.templates.roles import chain, spread


@template(BLOCK_M=[128, 64, 32, 16], BLOCK_N=[64, 128, 32, 16])
def flash_attention(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Tile queries and keys, fuse everything into the key loop, cut the loop by its masks."""
    parts = chain(sch, "flash_attention")
    query, key = parts.row_axis, parts.fused_axis
    first = parts.first
    i, j = sch.loop_of(first, query), sch.loop_of(first, key)
    i0, j0, *_ = sch.tile([i, j], [block_m, block_n])
    spread(sch, first, i0)
    for stage in parts.maps_before:
        sch.fuse_at(stage, j0)
    for stage in parts.reductions:
        sch.rolling_update(stage, j0)
    # What only the reductions read may be written out in them by now.
    for stage in parts.epilogue:
        if stage in sch.stages:
            sch.fuse_at(stage, i0)
    sch.partition(j0)
