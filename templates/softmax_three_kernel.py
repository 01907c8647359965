"""softmax_three_kernel: the ablation baseline, in which nothing is rolled and everything goes through memory.

Kernel 1 finds the maximum of each row, kernel 2 writes the exponentials and sums them, kernel 3 divides. Works
for any two reductions over one axis, of which the second reads the first through maps, and maps behind them.
"""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.roles import chain, reaches, spread
from neptune.schedule.template import template


@template(BLOCK_M=[16, 32, 8, 4, 1], BLOCK_N=[128, 256, 64, 512])
def softmax_three_kernel(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """One kernel per reduction, with the maps in front of it, and one for the maps behind."""
    parts = chain(sch, "softmax_three_kernel")
    asked = f"template `softmax_three_kernel` on program `{sch.program.name}`"
    if len(parts.all_reductions) != 2:
        found = ", ".join(parts.all_reductions)
        raise ScheduleError(
            asked,
            f"it needs two reductions over one axis; there are: {found}",
            hint="another template, or none: then one is chosen",
        )
    second = parts.all_reductions[1]
    fused = (parts.first, parts.fused_axis)
    rows = (parts.first, parts.row_axis)
    kernels: list[list[str]] = [[], [], []]
    for stage in sch.stages:
        kernels[_kernel(sch, stage, parts.all_reductions)].append(stage)
    if not all(kernels):
        raise ScheduleError(
            asked,
            f"nothing is computed from `{second}`: there is no third kernel"
            if kernels[1]
            else f"`{second}` does not read `{parts.all_reductions[0]}`: there is no second kernel",
            hint="another template, or none: then one is chosen",
        )
    columns = []
    for stages in kernels:
        wide = [s for s in stages if parts.axes.of(s, fused) is not None]
        if not wide:
            raise ScheduleError(
                asked,
                f"`{stages[0]}` does not run over `{parts.fused_axis}`",
                hint="another template, or none: then one is chosen",
            )
        first = wide[0]
        loops = [sch.loop_of(first, a) for a in (parts.axes.of(first, rows), parts.axes.of(first, fused)) if a]
        if len(loops) != 2:
            raise ScheduleError(
                asked,
                f"`{first}` does not run over the rows of `{parts.first}`",
                hint="another template, or none: then one is chosen",
            )
        i0, j0, *_ = sch.tile(loops, [block_m, block_n])
        spread(sch, first, i0)
        for stage in stages:
            if stage != first:
                sch.fuse_at(stage, j0 if stage in wide else i0)
        columns.append(j0)
    for j0 in columns:
        sch.partition(j0)


def _kernel(sch: Schedule, stage: str, reductions: tuple[str, ...]) -> int:
    """0 up to the first reduction, 1 up to the second, 2 behind it."""
    behind = [r for r in reductions if stage != r and stage in reaches(sch, [r])]
    return len(behind)
