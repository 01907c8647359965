"""privatize: a local accumulator per iteration of a loop (paper §4.1 and Fig. 11).

`privatize(xmax, j0)` before → after::

    for j0: for j1:                              for j0:
      xmax: xmax[i] max= inp[i, j0*2 + j1]         for j1: xmax_local: xmax_p[i, j0] max= inp[i, j0*2 + j1]
                                                   xmax: xmax[i] max= xmax_p[i, j0]

Sound because reducers are associative and commutative, and start from their identity.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.affine import simplify
from neptune.ir.expr import Load, Op, Var, conjuncts, logical_and, variables
from neptune.ir.printer import print_expr, print_stage
from neptune.ir.program import Buffer, Stage, Stmt, Update, reduction_loops, seq
from neptune.ir.reducers import REDUCERS
from neptune.schedule.state import Loop, State, fresh_name, names_in_use, replace_node


def privatize(state: State, name: str, ref: Loop) -> State:
    """Split a reduction's fold into a private one inside `ref` and one of the private results."""
    request = f"privatize(`{name}`, `{ref.var}`)"
    path, stage = state.path(name)
    loop = state.loop(Loop(name, ref.var))
    loops = state.loops(name)
    action = stage.action
    if not isinstance(action, Update):
        raise ScheduleError(request, f"`{name}` is a map, not a reduction", where=print_stage(stage))
    if loop not in reduction_loops(stage, loops):
        raise ScheduleError(
            request,
            f"`{name}` does not reduce over `{loop.var}`",
            legal=[f.var for f in reduction_loops(stage, loops)],
            where=print_stage(stage),
        )
    identity = REDUCERS[action.reducer].identity(state.program.buffers[action.buffers[0]].dtype)
    if len(action.buffers) != 1 or action.init != identity:
        raise ScheduleError(
            request, "its accumulator does not start from the reducer's identity", where=print_stage(stage)
        )
    inner = loops[loops.index(loop) + 1 :]
    reduced = [f for f in inner if f in reduction_loops(stage, loops)]
    if not reduced:
        raise ScheduleError(
            request, f"`{name}` has no reduction loop inside `{loop.var}` to privatize", hint="split it first"
        )
    target = state.program.buffers[action.buffers[0]]
    local = fresh_name(names_in_use(state.program), f"{target.name}_p")
    trips = simplify(Op("sub", (loop.hi, loop.lo), "int32"))
    state = state.with_temporary(Buffer(local, (*target.shape, trips), target.dtype))
    index = (*action.index, simplify(Op("sub", (Var(loop.var), loop.lo), "int32")))
    private = Stage(f"{name}_local", replace(action, buffers=(local,), index=index), stage.when)
    spatial = [f for f in inner if f not in reduced]
    gone = {f.var for f in reduced}
    kept = [c for c in conjuncts(stage.when) if not variables(c) & gone]
    whole = replace(action, values=(Load(local, index, target.dtype),))
    fold: Stmt = Stage(name, whole, logical_and(*kept) if kept else None)
    for f in reversed(spatial):
        fold = replace(f, body=fold)
    nest: Stmt = private
    for f in reversed(inner):
        nest = replace(f, body=nest)
    # The stage's own nest begins below the innermost loop it shares with others.
    old = path[path.index(loop) + 1 :]
    top = next((s for s in old if s in inner and sum(1 for _ in _stages(s)) == 1), stage)
    if top is not stage and top is not inner[0]:
        raise ScheduleError(request, f"other stages stand between `{loop.var}` and the loops of `{name}`")
    note = print_expr(index[-1])
    del note
    return state.with_body(replace_node(state.program.body, top, seq(nest, fold)))


def _stages(s: Stmt) -> list[Stage]:
    from neptune.ir.program import stages

    return stages(s)
