"""packed_decoding: flash_decoding where the heads that share keys are rows of one tile, for queries of any number.

How many queries there are is known at the call: one, and the keys are read once for a whole group, in parts that run
side by side.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.schedule.roles import pack_many_rows
from neptune.schedule.template import template
from neptune.templates.flash_decoding import flash_decoding


@template(BLOCK_M=[16, 32, 64], BLOCK_N=[64, 128, 32, 16])
def packed_decoding(sch: Schedule, block_m: Var, block_n: Var) -> None:
    """Pack heads and queries, then as flash_decoding."""
    pack_many_rows(sch, "packed_decoding")
    flash_decoding.schedule(sch, block_m, block_n, packed=False)
