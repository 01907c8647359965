"""causal_attention: flash_attention whose longest programs start first, where later rows see more keys.

A GPU starts programs in the order of the grid. Rows of causal attention see the more keys the later they are, so that
the last programs are the longest, and some of them run alone at the end; begun with the last one, the short ones fill
that up. Where the warp-specialised form runs, the host shares out groups by their weight, and `flash_attention` serves.
"""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.primitives.reverse import longest_last
from neptune.schedule.template import template
from neptune.templates.flash_attention import flash_attention


@template(BLOCK_M=[128, 64, 32, 16], BLOCK_N=[64, 128, 32, 16])
def causal_attention(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Schedule as flash_attention, and begin with the last rows."""
    flash_attention.schedule(sch, block_m, block_n, packed=None)
    rows = longest_last(sch.program)
    if rows is None:
        raise ScheduleError(
            f"template `causal_attention` on program `{sch.program.name}`",
            "no mask lets later rows see more keys: all programs have as much to do",
            hint="flash_attention",
        )
    sch.reverse(rows)
