"""norm_linear_rolling: statistics of rows and the products of what they normalise, in one loop by rolling update.

Where a statistic scales what is summed, its repair moves behind the sum: the operands stay what was loaded, and each
row is read once. Where operands are rounded behind the normalisation nothing moves, and `norm_linear` serves.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncovered
from neptune.ir.expr import Var
from neptune.schedule.operands import product
from neptune.schedule.template import template


@template(BLOCK_M=[128, 64, 32, 16], BLOCK_N=[128, 64, 32, 16], BLOCK_K=[64, 32, 16])
def norm_linear_rolling(sch: Schedule, block_m: Var, block_n: Var, block_k: Var) -> None:
    """Compute the statistics anew for each tile of columns, beside the products, and fuse what follows."""
    parts = product(sch, "norm_linear_rolling", statistics=True, form=uncovered)
    for stage in reversed(parts.before):
        sch.inline(stage)
    j0, _ = sch.split(sch.loop_of(parts.stage, parts.col), block_n)
    for stage in reversed(parts.statistics):
        tile = sch.replicate(stage, j0)
    first, *others = parts.statistics
    i0, k0, *_ = sch.tile(sch.loops(first)[-2:], [block_m, block_k])
    outside = sch.loops(first)[: sch.loops(first).index(i0) + 1]
    sch.bind(outside, [{tile.var: "grid.y", i0.var: "grid.x"}.get(f.var, "grid.z") for f in outside])
    for stage in (*others, parts.stage, *parts.others):
        sch.rolling_update(stage, k0)
    for stage in parts.epilogue:
        if stage in sch.stages:
            sch.fuse_at(stage, i0)
    sch.partition(k0)
