"""decompose_reduction: the init of a reduction becomes a stage of its own in front of a loop.

`decompose_reduction(s, i)` before → after::

    for i in [0, m):                          for i in [0, m):
      for j in [0, n):                          s_init: y[i] = 0.0
        s: y[i] += x[i, j] init 0.0           for i in [0, m):
                                                for j in [0, n):
                                                  s: y[i] += x[i, j]

In front of `j`, the outermost loop it reduces over, it stands where it is run anyway.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import InternalError, ScheduleError
from neptune.ir.decompose import init_nest
from neptune.ir.expr import loads, variables
from neptune.ir.program import For, Stage, Update, reduction_loops, seq, stages, writes
from neptune.ir.text.printer import print_stage
from neptune.schedule.state import Loop, State, check_whole, init_loads, replace_node


def decompose_reduction(state: State, name: str, ref: Loop) -> State:
    """Put the init of a reduction before a loop that is around all that it reduces over."""
    request = f"decompose_reduction(`{name}`, `{ref.var}`)"
    path, stage = state.path(name)
    action = _reduction(stage, request)
    state.definition(name)
    loops = state.loops(name)
    loop = state.loop(Loop(name, ref.var))
    if loop is not state.loop(ref):
        raise ScheduleError(
            request, f"`{ref.var}` of `{ref.stage}` is not around `{name}`", legal=[f.var for f in loops]
        )
    check_whole(state, loop, request)
    _check_place(stage, loops, loop, request)
    nest = init_nest(path, stage, {s.name for s in stages(state.program.body)}, loop)
    if isinstance(nest, str):
        raise InternalError(nest)
    folding = replace_node(loop, stage, replace(stage, action=replace(action, init=None)))
    return state.with_body(replace_node(state.program.body, loop, seq(nest, folding)))


def _reduction(stage: Stage, request: str) -> Update:
    if not isinstance(stage.action, Update):
        raise ScheduleError(request, f"`{stage.name}` is a map: it has no init", where=print_stage(stage))
    if stage.action.init is None:
        raise ScheduleError(request, f"the init of `{stage.name}` is a stage already", where=print_stage(stage))
    return stage.action


def _check_place(stage: Stage, loops: tuple[For, ...], loop: For, request: str) -> None:
    """No reduction loop outside, and ranges that are known in front of the loop."""
    reduced = reduction_loops(stage, loops)
    place = next(k for k, f in enumerate(loops) if f is loop)
    outside = [f.var for f in loops[:place] if f in reduced]
    legal = [f.var for f in loops[: next((k for k, f in enumerate(loops) if f in reduced), len(loops)) + 1]]
    if outside:
        raise ScheduleError(
            request,
            f"`{stage.name}` reduces over `{outside[0]}` outside of it: the init would come again in each iteration",
            legal=legal,
            where=print_stage(stage),
        )
    gone = {f.var for f in loops[place:] if f in reduced}
    written = {b for s in stages(loop) for b in writes(s.action)}
    for f in loops[place:]:
        known = not any((variables(e) & gone) or any(x.buffer in written for x in loads(e)) for e in (f.lo, f.hi))
        if f not in reduced and not known:
            raise ScheduleError(request, f"the range of `{f.var}` is known only inside `{loop.var}`", legal=legal)
    late = next((x.buffer for x in init_loads(stage.action) if x.buffer in written), None)
    if late is not None:
        raise ScheduleError(
            request,
            f"`{stage.name}` starts from `{late}`, which is computed only inside `{loop.var}`",
            legal=legal[place + 1 :],
            where=print_stage(stage),
        )
    if loop.kind != "serial" or any(f.kind != "serial" for f in loops[place:]):
        raise ScheduleError(
            request,
            f"loops from `{loop.var}` on are bound to the grid: the init would be a kernel of its own",
            legal=[f.var for f in loops if f.kind == "serial" and f.var in legal],
        )
