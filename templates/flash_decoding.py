"""flash_decoding: the fused axis in parts that run side by side, and a kernel that combines these (paper §4.3).

For few rows and a long axis, where rows alone leave a GPU idle. Works for a reduction and for any chain of reductions
over one axis; each part is what flash_attention makes of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ir.integers import constant_length
from neptune.schedule.checked import attempt
from neptune.schedule.roles import (
    Chain,
    before_the_chain,
    chain,
    elementwise_kernels,
    fuse_front,
    group_loop,
    only_axis,
    pack_rows,
    reaches,
    rows_inlined,
    spread,
    tiled,
)
from neptune.schedule.state import Loop
from neptune.schedule.template import template

NAME = "flash_decoding"
PARTS, ELEMENTS = 128, 4096
"""The most parts that are combined at a time, and the most elements of their results in a tile."""


@template(BLOCK_M=[16, 32, 64, 128], BLOCK_N=[64, 128, 32, 16], choices={"packed": [None, True, False]})
def flash_decoding(sch: Schedule, block_m: Var, block_n: Var, packed: bool | None) -> None:
    """Split the axis, fuse each part by rolling updates, roll over the parts, and write what is elementwise behind.

    `packed`: whether the heads that share keys become rows; None where there are few rows.
    """
    alone = only_axis(sch)
    if packed is not False and alone is None:
        pack_rows(sch, NAME, always=packed is True)
    whole = rows_inlined(sch, NAME, chain(sch, NAME, over=alone), alone)
    first = whole.all_reductions[0]
    axis = whole.axes.of(first, (whole.first, whole.fused_axis)) or ""
    part = sch.split_k(sch.loop_of(first, axis), "NUM_SPLITS", block_n)
    j0 = _parts(sch, chain(sch, NAME, over=(part.stage, axis)), block_m, block_n)
    _combine(sch, whole, part)
    elementwise_kernels(sch, whole, block_m, block_n)
    # A result that more than this must be computed for stays with the kernel that combines the parts.
    attempt(sch.write_directly, part)
    sch.partition(j0)


def _parts(sch: Schedule, local: Chain, block_m: Var, block_n: Var) -> Loop:
    """The kernel that folds the parts; returns the loop over the tiles of one."""
    first = local.first
    heads = group_loop(sch, local)
    i0, j0 = tiled(sch, local, block_m, block_n)
    spread(sch, first, i0, first=heads)
    before_the_chain(sch, local, i0, block_n)
    fuse_front(sch, local, j0)
    for stage in local.reductions:
        # One that belongs to the vector of another came with that.
        if not any(f.var == j0.var for f in sch.loops(stage)):
            sch.rolling_update(stage, j0)
    return j0


def _combine(sch: Schedule, whole: Chain, part: Loop) -> None:
    """Combine the parts, a row a program: in one kernel what repairs or shared results join, with the maps behind."""
    # Parts one after the other would wait for memory each time: most are one tile.
    folds = [s for s in sch.stages if part.var in sch.definition(s).reduced]
    width = min(len(_kept(sch, s)) for s in folds)
    columns = max(prod(constant_length(a.extent) for a in sch.definition(s).spatial[width:]) for s in folds)
    rows: list[Loop] = []
    over: list[Loop] = []
    for stage in folds:
        if any(attempt(sch.rolling_update, stage, loop) is None for loop in reversed(over)):
            continue
        # What is moved to the mean of the whole waits for that: parts are gone through twice.
        if not rows or attempt(sch.fuse_at, stage, rows[-1]) is not None:
            # Of what it keeps, the axes that every reduction has are rows; others are the columns of a tile.
            kept = [f for f in sch.loops(stage) if f.var != part.var]
            rows.append(kept[width - 1])
            spread(sch, stage, rows[-1])
        over.append(_together(sch, stage, part, columns, over))
    combined = {*folds}
    behind = reaches(sch, combined) | {*whole.epilogue}
    for stage in [s for s in sch.stages if s not in whole.elementwise and s in behind]:
        if stage not in combined and all(attempt(sch.fuse_at, stage, row) is not None for row in reversed(rows)):
            # One of fewer axes, such as a reduction of everything, has its own; of none, one program computes it.
            shared = sch.loops(stage)[: min(width, len(_kept(sch, stage)))]
            if shared:
                spread(sch, stage, shared[-1])


def _together(sch: Schedule, stage: str, part: Loop, columns: float, before: Sequence[Loop]) -> Loop:
    """The loop over tiles of parts; over single ones, where a tile of so many columns has no room for two.

    `before` are the loops that these are for the folds before, whose tiles come with a row that is shared.
    """
    names = [f.var for f in sch.loops(stage)]
    if part.var not in names:
        return sch.loop(stage, next(f.var for f in before if f.var in names))
    loop, parts = sch.loop(stage, part.var), min(PARTS, int(ELEMENTS / columns))
    return sch.split(loop, 1 << parts.bit_length() - 1)[0] if parts > 1 else loop


def _kept(sch: Schedule, stage: str) -> list[str]:
    return [a.name for a in sch.definition(stage).spatial]
