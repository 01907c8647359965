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

from collections.abc import Mapping
from dataclasses import replace

from neptune.errors import FusionError
from neptune.fusion.repairs.monotone import shown
from neptune.fusion.repairs.roles import Query, Repair, scale_of, slot
from neptune.fusion.repairs.starts import left_finite
from neptune.fusion.rewriting.bring_in import sweep
from neptune.fusion.rewriting.plan import Plan, plan
from neptune.fusion.rewriting.write import write
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Select, children, loads, variables, walk
from neptune.ir.program import Owe
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr
from neptune.schedule.definition import MapDef
from neptune.schedule.state import Assumption, Decision, Loop, State


def rolling_update(state: State, target: str, ref: Loop) -> State:
    """Fuse `target` under `ref` with a proved repair; raises FusionError with its reason otherwise."""
    state.path(target)
    p = _stated(state, plan(state, target, ref))
    finite = finite_inputs(state, p.query, p.repair)
    state = settle(sweep(write(state, p), p))
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
    if o.stage in state.reductions or state.is_output(buffer := state.map(o.stage).action.buffer):
        return False
    # Loops of different nests may share a name: what counts is this very loop.
    loop = next((f for f in state.loops(o.stage) if f.var == o.loop), None)
    readers = state.readers(buffer)
    open_ones = {x.stage for x in owes if x.on == o.on and x.loop == o.loop}
    inside = all(any(f is loop for f in state.loops(r)) for r in readers)
    return bool(readers) and loop is not None and inside and not open_ones.intersection(readers)


def finite_inputs(state: State, query: Query, repair: Repair) -> tuple[str, ...]:
    """Return the inputs that the kernel takes to be finite.

    1. The inputs of a running mean, and those that its steps multiply, since inf - inf is NaN.
    2. Where f(t) waits that orders elements, the inputs of r: at an infinite r all of f may be equal, which argmax and
       top-k see, and f of the winner may be NaN, which the maximum of all f passes over.
    3. Under a mask the inputs of a rolled r, since exp(r - r') of two infinities is NaN.
    """
    if not repair.means:
        row = REDUCERS[query.reducer]
        orders = repair.deferred and bool(row.best or row.moves)
        masked = any(isinstance(x, Select) for x in walk(query.value))
        waiting, rolled = repair.finish if orders else None, repair.slots[0].step if masked else None
        written = {d.action.buffer: d.action.value for d in state.definitions.values() if isinstance(d, MapDef)}
        buffers = _infinite(query, waiting, written) | _infinite(query, rolled, written)
        return tuple(sorted(_inputs(state, buffers)))
    sums = {pre.load.buffer for pre in query.predecessors}
    averaged = {x.buffer for m in repair.means for x in loads(m.value) if x.buffer in sums}
    read = frozenset[str]().union(*(variables(s.step) for s in repair.slots if s.step is not None))
    # What is folded into the accumulators that the steps of others multiply.
    further = (s.value for k, s in enumerate(repair.slots) if k > 0 and slot(k, s.dtype).name in read)
    return tuple(sorted(_inputs(state, averaged | {x.buffer for e in further for x in loads(e)})))


def _infinite(query: Query, f: Expr | None, written: Mapping[str, Expr]) -> set[str]:
    """Return the buffers f reads that infinite inputs may make infinite."""
    read = set() if f is None else {x.buffer for x in loads(f)}
    rs = (pre for pre in query.predecessors if pre.load.buffer in read)
    return {pre.load.buffer for pre in rs if not left_finite(pre, query.roles.buffers, written)}


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


def _stated(state: State, p: Plan) -> Plan:
    """The plan without the bounds on a part of an axis, and on all parts: split_k has stated them for the whole."""
    is_part = p.target in state.made("part") or bool(state.made("part", p.target))
    return replace(p, repair=replace(p.repair, evidence=replace(p.repair.evidence, ranges=()))) if is_part else p


def _decision(p: Plan, finite: tuple[str, ...]) -> Decision:
    r = p.repair
    verdict = "rolled" if r.rolled else "deferred" if r.deferred else "fused"
    names = " and ".join(p.frontier.predecessors)
    reason = f"reads {names}, still changing in loop" if names else "reads nothing that changes in loop"
    lines = details(r, finite)
    named = assumed(r, p.target, finite)
    return Decision(
        "rolling_update", p.target, verdict, f"{reason} `{p.ref.var}`", lines, finite, r.evidence.ranges, named
    )


def assumed(r: Repair, stage: str, finite: tuple[str, ...]) -> tuple[Assumption, ...]:
    """What the repair of a stage takes for granted, by name."""
    of_stage = (*r.evidence.assumptions, *(Assumption("range", p.text) for p in r.evidence.ranges))
    return (
        *(a.about(stage) for a in of_stage),
        *(Assumption("finite", f"{x}: finite numbers").about(x) for x in finite),
    )


def details(r: Repair, finite: tuple[str, ...] = ()) -> tuple[str, ...]:
    """g, h, what waits, every proof, and what is assumed (inputs `finite` to be finite), for explain()."""
    e = r.evidence
    lines = [e.g, e.h, *(f"{a} = {b}" for a, b in e.symbols)]
    if r.deferred and not r.means:
        lines.append(f"deferred: {_waits(r)}, applied once behind the loop")
    lines += [f"proved {o.name}: {o.statement}  [{o.how}]" for o in e.obligations]
    lines += [f"cast kept: {c}" for c in e.casts]
    unproved = [
        *(a.text for a in e.assumptions),
        *(p.text for p in e.ranges),
        *([f"{', '.join(finite)}: finite numbers"] if finite else []),
    ]
    lines += [f"assumed, not proved: {a}" for a in unproved]
    return tuple(lines)


def _waits(r: Repair) -> str:
    """Return in words what is applied after the loop: a factor, a shift or a function."""
    phi = scale_of(r.finish)
    if r.slots[0].start is not None:
        return f"f(t) = {print_expr(shown(r.finish))}"
    return f"add {print_expr(children(r.finish)[1])}" if phi is None else f"mul {print_expr(phi)}"
