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
from neptune.ir.expr import Load, Var, binary, conjuncts, logical_and, variables
from neptune.ir.indices.affine import simplify
from neptune.ir.program import (
    Buffer,
    For,
    Made,
    Stage,
    Stmt,
    Update,
    for_loops,
    paths,
    reduction_loops,
    seq,
    stages,
    sub_stmts,
    wrap,
)
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_stage
from neptune.schedule.state import Loop, State, check_whole, fresh_name, names_in_use, replace_node


def privatize(state: State, name: str, ref: Loop) -> State:
    """Split a reduction's fold into a private one inside `ref` and one of the private results."""
    request = f"privatize(`{name}`, `{ref.var}`)"
    state.definition(name)
    stage = state.path(name)[1]
    loop = state.loop(Loop(name, ref.var))
    check_whole(state, loop, request)
    loops = state.loops(name)
    action = _check_action(state, stage, loop, loops, request)
    inner = loops[next(k for k, f in enumerate(loops) if f is loop) + 1 :]
    reduced = [f for f in inner if f in reduction_loops(stage, loops)]
    if not reduced:
        raise ScheduleError(
            request, f"`{name}` has no reduction loop inside `{loop.var}` to privatize", hint="split it first"
        )
    outermost = reduction_loops(stage, loops)[0]
    if outermost is not loop:
        raise ScheduleError(
            request, f"`{name}` reduces over `{outermost.var}` outside of it as well", legal=[outermost.var]
        )
    _check_bounds(state, loop, inner, reduced, request)
    target = state.program.buffers[action.buffers[0]]
    local = fresh_name(names_in_use(state.program), f"{target.name}_p")
    trips = simplify(binary("sub", loop.hi, loop.lo))
    state = state.with_temporary(Buffer(local, (*target.shape, trips), target.dtype))
    index = (*action.index, simplify(binary("sub", Var(loop.var), loop.lo)))
    private_name = fresh_name(names_in_use(state.program), f"{name}_local")
    private = Stage(private_name, replace(action, buffers=(local,), index=index), stage.when, Made("part", name))
    gone = {f.var for f in reduced}
    kept = [c for c in conjuncts(stage.when) if not variables(c) & gone]
    whole = replace(action, values=(Load(local, index, target.dtype),))
    fold = replace(stage, action=whole, when=logical_and(*kept) if kept else None)
    nests = seq(wrap(inner, private), wrap([f for f in inner if f.var not in gone], fold))
    top = _own_nest(loop, inner, stage, request)
    return state.with_body(replace_node(state.program.body, top, nests))


def _check_action(state: State, stage: Stage, loop: For, loops: tuple[For, ...], request: str) -> Update:
    """The stage as a reduction over `loop` that starts from its identity."""
    name, action = stage.name, stage.action
    if not isinstance(action, Update):
        raise ScheduleError(request, f"`{name}` is a map, not a reduction", where=print_stage(stage))
    if loop not in reduction_loops(stage, loops):
        raise ScheduleError(
            request,
            f"`{name}` does not reduce over `{loop.var}`",
            legal=[f.var for f in reduction_loops(stage, loops)],
            where=print_stage(stage),
        )
    if len(action.buffers) != 1:
        raise ScheduleError(
            request,
            f"`{name}` is a reduction on tuples ({action.reducer}): these have no private accumulators yet",
            where=print_stage(stage),
        )
    if action.init != REDUCERS[action.reducer].identity(state.program.buffers[action.buffers[0]].dtype):
        raise ScheduleError(
            request, "its accumulator does not start from the reducer's identity", where=print_stage(stage)
        )
    return action


def _check_bounds(state: State, loop: For, inner: tuple[For, ...], reduced: list[For], request: str) -> None:
    """The private buffer is declared outside, and the second fold runs without the reduced loops."""
    loops = {f.var for path, _ in paths(state.program.body) for f in for_loops(path)}
    if (variables(loop.lo) | variables(loop.hi)) & loops:
        raise ScheduleError(request, f"the range of `{loop.var}` is known only inside other loops")
    gone = {f.var for f in reduced}
    odd = next((f.var for f in inner if f.var not in gone and (variables(f.lo) | variables(f.hi)) & gone), None)
    if odd is not None:
        raise ScheduleError(request, f"the range of `{odd}` depends on what is reduced")


def _own_nest(loop: For, inner: tuple[For, ...], stage: Stage, request: str) -> Stmt:
    """The nest of the stage directly below `loop`, which it must share with no other stage."""
    if stages(inner[0]) != [stage] or not any(s is inner[0] for s in (loop.body, *sub_stmts(loop.body))):
        raise ScheduleError(request, f"other stages stand between `{loop.var}` and the loops of `{stage.name}`")
    return inner[0]
