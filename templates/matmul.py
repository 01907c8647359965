"""matmul: one kernel for products of matrices and the maps behind them (bias, activation, gate, residual, cast).

Finds the products by their role: sums of products over one axis, with any batch axes and the dimensions of the
operands in any order; several of the same rows, columns and depth share their tiles and their loop (the two of a gated
layer). Factors that do not move in a sum are applied behind it. Maps before a product are computed where they are read;
maps behind it see the finished tiles.

Programs that run at one time make a block of GROUP_M tiles of rows and some of columns, so that what they read stays in
the L2 cache.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncover
from neptune.ir.expr import Var
from neptune.schedule.operands import product
from neptune.schedule.roles import spread
from neptune.schedule.template import template


@template(BLOCK_M=[128, 64, 32, 16, 256], BLOCK_N=[128, 64, 32, 16, 256], BLOCK_K=[64, 32, 16, 128], GROUP_M=[8, 1])
def matmul(sch: Schedule, block_m: Var, block_n: Var, block_k: Var, group_m: Var) -> None:
    """Tile rows, columns and depth, and fuse what follows under the tiles of rows and columns."""
    uncover(sch)
    parts = product(sch, "matmul")
    for stage in reversed(parts.before):
        sch.inline(stage)
    loops = [sch.loop_of(parts.stage, axis) for axis in (parts.row, parts.col, parts.depth)]
    i0, j0, k0, *_ = sch.tile(loops, [block_m, block_n, block_k])
    groups, i0 = sch.split(i0, group_m)
    sch.reorder(i0, j0, groups)
    spread(sch, parts.stage, j0, groups, first=i0)
    for stage in parts.others:
        sch.fuse_at(stage, k0)
    for stage in parts.epilogue:
        sch.fuse_at(stage, groups)
    sch.partition(k0)
