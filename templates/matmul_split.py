"""matmul_split: a product of matrices whose depth is shared out among programs, for few rows and columns.

Where the result has few tiles, they leave a GPU idle: each program sums a part of the depth, and a second kernel adds
the parts up, a row and some columns a program, with the maps behind it (bias, activation, residual, cast). Each call
chooses the number of parts.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncover
from neptune.ir.expr import Var
from neptune.schedule.operands import product
from neptune.schedule.roles import spread
from neptune.schedule.template import template

PARTS, COLUMNS = 4, 512
"""What is added at a time: some parts of a column in a thread, so that no warp waits for another."""


@template(BLOCK_M=[16, 32, 64, 128], BLOCK_N=[64, 32, 16, 128], BLOCK_K=[64, 32, 16, 128])
def matmul_split(sch: Schedule, block_m: Var, block_n: Var, block_k: Var) -> None:
    """Cut the depth in parts, tile each part as `matmul` tiles the whole, and add the parts tile by tile."""
    uncover(sch)
    parts = product(sch, "matmul_split", several=False)
    for stage in reversed(parts.before):
        sch.inline(stage)
    part = sch.split_k(sch.loop_of(parts.stage, parts.depth), "NUM_SPLITS", block_k)
    axes = (parts.row, parts.col, parts.depth)
    i0, j0, k0, *_ = sch.tile([sch.loop_of(part.stage, axis) for axis in axes], [block_m, block_n, block_k])
    spread(sch, part.stage, i0, j0)
    # The kernel that adds them: one after the other they would wait for memory each time.
    i, (j0, j1) = sch.loop_of(parts.stage, parts.row), sch.split(sch.loop_of(parts.stage, parts.col), COLUMNS)
    over, some = sch.split(sch.loop(parts.stage, part.var), PARTS)
    sch.reorder(j0, over, some, j1)
    spread(sch, parts.stage, i, j0)
    for stage in parts.epilogue:
        sch.fuse_at(stage, j0)
    sch.partition(k0)
