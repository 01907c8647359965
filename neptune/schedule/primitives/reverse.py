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

from neptune.errors import ScheduleError, answered
from neptune.ir.analysis.facts import slope
from neptune.ir.expr import Expr, Var, binary, substitute
from neptune.ir.ops import SIGNS
from neptune.ir.program import Program, for_loops, map_exprs, paths
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


def longest_last(program: Program) -> Loop | None:
    """The loop over the grid whose later programs have longer loops, by the ends of these; None where there is none.

    for i0 grid.x: for j0 in [0, min(cdiv(n, 64), i0 + 1))   →   i0, and none where j0 begins at i0 - 4
    """
    positive = {s.name for s in program.scalars if s.lo} | {t.name for t in program.tunables}

    def way(e: Expr, var: str) -> object:
        return answered(slope, e, var, lambda x: SIGNS["+"] if isinstance(x, Var) and x.name in positive else None)

    for path, stage in paths(program.body):
        grid = [f for f in for_loops(path) if f.kind != "serial"]
        inside = [f for f in for_loops(path) if f.kind == "serial"]
        for g in grid:
            if any(way(f.lo, g.var) == "0" and way(f.hi, g.var) in ("+", "0+") for f in inside):
                return Loop(stage.name, g.var)
    return None
