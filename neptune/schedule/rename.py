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
from neptune.ir.program import map_exprs, stages
from neptune.schedule.state import Loop, State, check_whole, names_around, replace_node


def rename(state: State, ref: Loop, name: str) -> State:
    """Call a loop `name`, in all that stands in it and in what is owed there."""
    request = f"rename(`{ref.var}` of `{ref.stage}`, {name!r})"
    loop = state.loop(ref)
    check_whole(state, loop, request)
    if not fits(name) or name in names_around(state.program, loop):
        raise ScheduleError(
            request,
            "the name is taken around or within the loop, is no plain identifier, or generated code uses it",
            hint="names of loops beside it are free",
        )
    env: dict[str, Expr] = {loop.var: Var(name)}
    facts = tuple(substitute(f, env) for f in loop.facts)
    fresh = replace(loop, var=name, facts=facts, body=map_exprs(loop.body, lambda e: substitute(e, env)))
    inside = {s.name for s in stages(loop.body)}
    owes = tuple(replace(o, loop=name) if o.loop == loop.var and o.stage in inside else o for o in state.program.owes)
    program = replace(state.program, owes=owes).with_body(replace_node(state.program.body, loop, fresh))
    return replace(state, program=program).substitute_axes(inside, env)
