"""rolling_update: fuse a reduction under a loop in which the reductions it reads are still changing.

Paper §4.2 and Fig. 10.  `rolling_update(xsum, j)` before → after::

    for i: for j: xmax: xmax[i] max= inp[i, j]     for i: for j:
    for i: for j: xexp: xexp[i, j] =                 xmax_prev: xmax_prev[i] = xmax[i]
                        exp(inp[i, j] - xmax[i])     xmax: xmax[i] max= inp[i, j]
    for i: for j: xsum: xsum[i] += xexp[i, j]        xexp: xexp[i, j] = exp(inp[i, j] - xmax[i])
                                                     xmax_rescale: … = exp(xmax_prev[i] - xmax[i])
                                                     xsum_repair: xsum[i] = xsum[i] * xmax_rescale[i]
                                                     xsum: xsum[i] += xexp[i, j]

In order: `plan` finds the frontier, inlines the maps in between into g, and has the repair *solved and
proved*; only then `bring_in` takes these maps into the loop and `emit` the reduction and its repair.
What can be deferred (1/l, rsqrt, a scale) is taken out of the accumulation and applied once behind the
loop.  Maps in between that something outside the loop still reads are duplicated.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import FusionError
from neptune.fusion.bring_in import bring_in, sweep
from neptune.fusion.emit import emit
from neptune.fusion.emit_moments import emit_moments
from neptune.fusion.infinite import left_finite
from neptune.fusion.monotone import shown
from neptune.fusion.plan import Plan, plan
from neptune.fusion.roles import Query, Repair
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Select, loads, walk
from neptune.ir.printer import print_expr
from neptune.ir.program import Owe, Store
from neptune.ir.reducers import REDUCERS
from neptune.schedule.state import Decision, Loop, State


def rolling_update(state: State, target: str, ref: Loop) -> State:
    """Fuse `target` under `ref` with a proved repair; raises FusionError with its reason otherwise."""
    state.path(target)
    p = plan(state, target, ref)
    finite = finite_inputs(state, p.query, p.repair)
    if p.repair.moments is not None:
        state = emit_moments(state, p, p.repair.moments)
    else:
        state, value = bring_in(state, p)
        state = emit(state, p, value)
    state = settle(sweep(state, p))
    left = [o for o in state.program.owes if o.stage == target]
    if left:
        raise FusionError(
            p.request,
            f"it reads what a reduction of its own inside `{left[0].loop}` makes of `{left[0].on}`: no repair reaches "
            "through that",
        )
    return state.note(_decision(p, finite))


def settle(state: State) -> State:
    """Drop the obligations of maps whose every reader is inside the loop and owes nothing itself."""
    owes = state.program.owes
    while True:
        rest = tuple(o for o in owes if not _met(state, o, owes))
        if rest == owes:
            return replace(state, program=replace(state.program, owes=owes))
        owes = rest


def _met(state: State, o: Owe, owes: tuple[Owe, ...]) -> bool:
    action = state.definitions[o.stage].action
    if not isinstance(action, Store) or state.is_output(action.buffer):
        return False
    # Loops of different nests may share a name: what counts is this very loop.
    loop = next((f for f in state.loops(o.stage) if f.var == o.loop), None)
    readers = state.readers(action.buffer)
    open_ones = {x.stage for x in owes if x.on == o.on and x.loop == o.loop}
    inside = all(any(f is loop for f in state.loops(r)) for r in readers)
    return bool(readers) and loop is not None and inside and not open_ones.intersection(readers)


def finite_inputs(state: State, query: Query, repair: Repair) -> tuple[str, ...]:
    """The inputs that steps of a mean are made of, or multiplied by: infinite, they would make NaN of what is inf.

    And those that the r of a choice is made of: where it is infinite, elements are equal that differ without it. And
    under a mask those of an r that is rolled: exp(r - r') of two infinities makes NaN of a fold that is left at 0.
    """
    if repair.moments is None:
        choice = repair.deferred is not None and bool(REDUCERS[query.reducer].best)
        masked = any(isinstance(x, Select) for x in walk(query.value))
        waiting, rolled = repair.deferred if choice else None, repair.factor if masked else None
        return tuple(sorted(_inputs(state, _infinite(query, waiting) | _infinite(query, rolled))))
    means = {pre.load.buffer for pre in query.predecessors}
    shifted = {x.buffer for s in repair.moments.shifts for x in loads(s.value) if x.buffer in means}
    multiplied = _inputs(state, {x.buffer for e in repair.moments.multiplied() for x in loads(e)})
    return tuple(sorted(multiplied | _inputs(state, shifted)))


def _infinite(query: Query, f: Expr | None) -> set[str]:
    """What f reads that infinite inputs may make infinite."""
    read = set() if f is None else {x.buffer for x in loads(f)}
    rs = (pre for pre in query.predecessors if pre.load.buffer in read)
    return {pre.load.buffer for pre in rs if not left_finite(pre, query.roles.buffers)}


def _inputs(state: State, buffers: set[str]) -> set[str]:
    """The inputs of floats that these are computed from."""
    floats = {b.name for b in state.program.inputs if is_float(b.dtype)}
    seen, todo = set[str](), list(buffers)
    for buffer in todo:
        writer = state.writer(buffer)
        if buffer not in seen and writer is not None:
            todo += [x.buffer for x in state.definitions[writer].reads()]
        seen.add(buffer)
    return seen & floats


def _decision(p: Plan, finite: tuple[str, ...]) -> Decision:
    r = p.repair
    verdict = "rolled" if r.rolled else "deferred" if r.deferred is not None else "fused"
    names = " and ".join(p.frontier.predecessors)
    reason = f"reads {names}, still changing in loop" if names else "reads nothing that changes in loop"
    return Decision("rolling_update", p.target, verdict, f"{reason} `{p.ref.var}`", details(r, finite), finite)


def details(r: Repair, finite: tuple[str, ...] = ()) -> tuple[str, ...]:
    """g, h, what waits, every proof, and what is assumed (inputs `finite` to be finite), for explain()."""
    lines = [r.g, r.h, *(f"{a} = {b}" for a, b in r.symbols)]
    if r.deferred is not None:
        what = (
            f"f(t) = {print_expr(shown(r.deferred))}"
            if r.deferred_op == "apply"
            else f"{r.deferred_op} {print_expr(r.deferred)}"
        )
        lines.append(f"deferred: {what}, applied once behind the loop")
    lines += [f"proved {o.name}: {o.statement}  [{o.how}]" for o in r.obligations]
    lines += [f"cast kept: {c}" for c in r.casts]
    assumed = [*r.assumptions, *([f"{', '.join(finite)}: finite numbers"] if finite else [])]
    lines += [f"assumed, not proved: {a}" for a in assumed]
    return tuple(lines)
