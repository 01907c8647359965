"""rename: another name for a loop.

`rename(i0, "row")` before → after::

    for i0 in [0, cdiv(m, 64)):         for row in [0, cdiv(m, 64)):
      for i1 in [0, 64):                  for i1 in [0, 64):
        s: y[i0*64 + i1] = …                s: y[row*64 + i1] = …

Generated code and `explain()` call the loop so, and stages that are brought in later must avoid the name.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Var, substitute
from neptune.ir.names import fits
from neptune.ir.program import map_exprs
from neptune.schedule.state import Loop, State, check_whole, names_in_use


def rename(state: State, ref: Loop, name: str) -> State:
    """Call a loop `name`, in all that stands in it and in what is owed there."""
    request = f"rename(`{ref.var}` of `{ref.stage}`, {name!r})"
    loop = state.loop(ref)
    check_whole(state, loop, request)
    if not fits(name) or name in names_in_use(state.program, loop):
        raise ScheduleError(
            request,
            "the name is taken around or within the loop, is no plain identifier, or generated code uses it",
            hint="names of loops beside it are free",
        )

    def renamed(e: Expr) -> Expr:
        return substitute(e, {loop.var: Var(name)})

    facts = tuple(map(renamed, loop.facts))
    fresh = replace(loop, var=name, facts=facts, body=map_exprs(loop.body, renamed))
    return state.reindexed(loop, fresh, {loop.var: (name,)}, renamed)
