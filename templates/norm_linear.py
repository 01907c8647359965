"""norm_linear: statistics of rows and the products of what they normalise, in one kernel that reads the rows twice.

RMSNorm → linear, LayerNorm → gated products, per-row quantisation → product. The normalised matrix is never in memory:
every program computes the statistics of its rows in a loop of their own, which leaves the rows in the cache, and then
each tile of an operand from what it reads. Operands may be rounded as the program says, so that they reach the matrix
unit in its dtype; a statistic that only scales a row is applied to the product. `norm_linear_rolling` reads the rows
once.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncover
from neptune.ir.expr import Var
from neptune.schedule.checked import attempt
from neptune.schedule.operands import product
from neptune.schedule.roles import spread
from neptune.schedule.template import template


@template(
    BLOCK_M=[128, 64, 32, 16],
    BLOCK_N=[128, 64, 32, 16, 256],
    BLOCK_K=[64, 32, 16, 128],
    BLOCK_S=[128, 256, 64, 512],
)
def norm_linear(sch: Schedule, block_m: Var, block_n: Var, block_k: Var, block_s: Var) -> None:
    """Tile the products, compute the statistics anew for each tile of columns, and fuse what follows."""
    uncover(sch)
    parts = product(sch, "norm_linear", statistics=True)
    for stage in reversed(parts.before):
        sch.inline(stage)
    loops = [sch.loop_of(parts.stage, axis) for axis in (parts.row, parts.col, parts.depth)]
    i0, j0, k0, *_ = sch.tile(loops, [block_m, block_n, block_k])
    for stage in parts.others:
        sch.fuse_at(stage, k0)
    for stage in reversed(parts.statistics):
        sch.replicate(stage, j0)
    spread(sch, parts.stage, i0, j0)
    for stage in parts.epilogue:
        sch.fuse_at(stage, j0)
    outside = sch.loops(parts.stage).index(j0) + 1
    for stage in reversed(parts.statistics):
        sch.compute_at(stage, j0)
        *rows, along = sch.loops(stage)[outside:]
        s0, s1 = sch.split(along, block_s)
        sch.reorder(s0, *rows, s1)
    attempt(sch.partition, k0)
