"""flash_attention: one kernel by rolling update (paper §4.2 and Fig. 9).

Finds its stages by their role in the dataflow: the score product, a running maximum over the keys, the
sums that follow it, and the maps in between and behind. Works for any chain of that shape.

Heads that share keys and values are neighbours in the grid; where there are few rows, they become rows of one tile.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const, Var
from neptune.schedule.roles import (
    FEW_ROWS,
    before_the_chain,
    behind_the_chain,
    chain,
    elementwise_kernels,
    fuse_front,
    group_loop,
    pack_rows,
    spread,
    tiled,
)
from neptune.schedule.template import template


@template(BLOCK_M=[128, 64, 32, 16], BLOCK_N=[64, 128, 32, 16], choices={"packed": [None, True, False]})
def flash_attention(sch: Schedule, block_m: Var, block_n: Var, packed: bool | None) -> None:
    """Tile queries and keys, fuse everything into the key loop, cut the loop by its masks.

    `packed`: whether the heads that share keys become rows; None where there are few rows.
    """
    if packed is not False:
        pack_rows(sch, "flash_attention", always=packed is True)
    parts = chain(sch, "flash_attention")
    first = parts.first
    rows = sch.definition(first).extents[parts.row_axis]
    if isinstance(rows, Const):
        # A tile that is much larger than all rows would compute with nothing.
        enough = max(FEW_ROWS, min(int(rows.value), 128))
        block_m = sch.param("BLOCK_M", [n for n in (128, 64, 32, 16) if n < 2 * enough])
    heads = group_loop(sch, parts)
    i0, j0 = tiled(sch, parts, block_m, block_n)
    spread(sch, first, i0, first=heads)
    before_the_chain(sch, parts, i0, block_n)
    fuse_front(sch, parts, j0)
    for stage in parts.reductions:
        sch.rolling_update(stage, j0)
    behind_the_chain(sch, parts, i0)
    elementwise_kernels(sch, parts, block_m, block_n)
    sch.partition(j0)
