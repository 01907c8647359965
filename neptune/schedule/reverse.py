"""reverse: the programs of a grid from the last one to the first.

`reverse(i0)` before → after::

    for i0 in [0, cdiv(m, 64)) grid.x:       for i0 in [0, cdiv(m, 64)) grid.x:
      for i1 in [0, 64):                       for i1 in [0, 64):
        s: y[i0*64 + i1] = …                     s: y[(cdiv(m, 64) - 1 - i0)*64 + i1] = …

A GPU starts programs in the order of the grid. Where the last ones have most to do, as rows of causal attention do, a
few of them run alone at the end; in reverse the short ones come last and fill that up. What is bound has no order that
a result could depend on (`bind.py`), so nothing is left to prove.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Var, binary, substitute
from neptune.ir.program import map_exprs
from neptune.schedule.state import Loop, State, check_whole


def reverse(state: State, ref: Loop) -> State:
    """Take `hi - 1 - i` for `i` in all that stands in a loop over the grid: it begins with its last iteration."""
    request = f"reverse(`{ref.var}` of `{ref.stage}`)"
    loop = state.loop(ref)
    check_whole(state, loop, request)
    if loop.kind == "serial":
        legal = [f.var for f in state.loops(ref.stage) if f.kind != "serial"]
        wrong = f"`{loop.var}` runs one iteration after the other: their order changes no time"
        raise ScheduleError(request, wrong, legal=legal, hint=f"bind `{loop.var}` to the grid first")
    mirrored = {loop.var: binary("sub", binary("sub", loop.hi, 1), Var(loop.var))}

    def turned(e: Expr) -> Expr:
        return substitute(e, mirrored)

    fresh = replace(loop, facts=tuple(map(turned, loop.facts)), body=map_exprs(loop.body, turned))
    return state.reindexed(loop, fresh, {}, turned)
