"""The plan of a rolling update: everything that is decided, and proved, before anything moves.

Find the frontier, inline the maps in between into g, work out what each predecessor folds in at the same
position, and ask `fusion.repairs.repair` for a repair with its proofs.  Then check what the proofs rest on: where
the stage would stand, which loops the predecessors change in, and what the accumulators start from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from neptune.errors import FusionError, InternalError, ScheduleError
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair, scale_of, times
from neptune.fusion.repairs.starts import (
    START,
    bounded,
    contribution,
    guard,
    record,
    starts_infinite,
    unclamped,
    with_previous,
)
from neptune.fusion.rewriting.frontier import Frontier, changing_loops, frontier
from neptune.fusion.rewriting.place import place_in
from neptune.ir.expr import TRUE, Const, Expr, Load, Var, binary, loads, logical_and, maximum, substitute, variables
from neptune.ir.program import (
    Program,
    Store,
    Update,
    reduction_loops,
    stages,
    writes,
)
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.alignment import Nest, align, nest_of
from neptune.schedule.definition import Definition, ReductionDef
from neptune.schedule.primitives.inline import inline_loads, inlined_stores, inliner
from neptune.schedule.state import Loop, State


@dataclass(frozen=True)
class Plan:
    """`stores`: the maps in between, by buffer. `stages`: the predecessors' stages, by buffer. `some`: where the
    target folds anything at all. `infinite`: rolled maxima and minima that start from an infinity, by buffer, and those
    that the target reads as a finite number anyway (`clamped`)."""

    target: str
    ref: Loop
    frontier: Frontier
    stores: Mapping[str, Store]
    stages: Mapping[str, str]
    query: Query
    repair: Repair
    some: Expr = TRUE
    infinite: Mapping[str, str] = field(default_factory=dict)
    clamped: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> str:
        return request(self.target, self.ref)

    @property
    def rolled(self) -> tuple[Predecessor, ...]:
        """The predecessors whose previous value the repair reads."""
        return tuple(p for p in self.query.predecessors if p.load in self.repair.followed)


def request(target: str, ref: Loop) -> str:
    """Return the request as errors repeat it."""
    return f"cannot fuse reduction `{target}` into loop `{ref.var}` of `{ref.stage}`"


def plan(state: State, target: str, ref: Loop) -> Plan:
    """Frontier, g, repair and proof; raises FusionError and changes nothing."""
    what = request(target, ref)
    d = _reduction(state, target, ref, what)
    nest = nest_of(state, ref)
    front = frontier(state, target, nest)
    guarded = [s for s in (target, *front.between, *front.predecessors) if state.definitions[s].when is not None]
    if guarded:
        # The elements a guard leaves out would have to be followed through the repair.
        raise FusionError(
            what, f"stage `{guarded[0]}` is guarded", hint="move the condition into the value: select(cond, x, 0)"
        )
    stores = _stores(state, front.between, what)
    g, *others = (inline_loads(v, stores) for v in d.action.values)
    seen = replace(d, action=replace(d.action, values=(g, *others)))
    stages_of = {b: s for s in front.predecessors for b in writes(state.definitions[s].action)}
    g, clamped = unclamped(g, leading(state, front.predecessors))
    _check_place(state, target, seen, ref, front, what)
    found = {x: stages_of[x.buffer] for x in loads(g) if x.buffer in stages_of}
    known = {**_copied(state), **stores}
    roles = (_predecessor(state, s, x, seen, nest, known) for x, s in found.items())
    query = Query(
        stage=target,
        reducer=d.action.reducer,
        dtype=state.program.globals[d.action.buffers[0]].dtype,
        value=g,
        predecessors=tuple(as_clamped(r, clamped, g) for r in roles),
        varying=frozenset(d.reduced),
        count=count(d),
        # What the parts of an axis fold is moved from the mean of its part.
        fixed=target in state.made("part"),
    )
    for e in others:
        if query.roles.reads(e):
            raise FusionError(what, f"the index that it folds, {print_expr(e)}, reads what this loop still changes")
    result = Plan(target, ref, front, stores, stages_of, query, solve(query))
    read = {b: r for b, r in leading(state, front.predecessors).items() if b in clamped}
    result = replace(result, some=some(state, result, d), clamped=read)
    _check_starts(state, result, d)
    result = _finite(state, result)
    _check_rolled(state, result)
    return _defined_when_empty(state, result, d)


# --- what is asked ---------------------------------------------------------------------------------


def _reduction(state: State, target: str, ref: Loop, request: str) -> ReductionDef:
    d = state.definition(target)
    if not isinstance(d, ReductionDef):
        raise FusionError(request, f"`{target}` is a map, not a reduction", hint=f'fuse_at("{target}", …)')
    loop = state.loop(ref)
    if any(f is loop for f in state.loops(target)):
        raise FusionError(request, f"`{target}` is inside `{ref.var}` already")
    mine = set(writes(d.action))
    for s in stages(state.program.body):
        if s.name != target and mine.intersection(writes(s.action)):
            wrong = f"`{s.name}` works on the result of `{target}` where it is now"
            raise FusionError(request, wrong, where=print_stage(s), hint="fuse before you partition")
    return d


def _stores(state: State, between: Iterable[str], request: str) -> dict[str, Store]:
    stores: dict[str, Store] = {}
    try:
        for name in between:
            stores |= inliner(name, state.definitions[name])
    except ScheduleError as e:
        raise FusionError(request, f"it reads a map that cannot be inlined: {e.asked}: {e.wrong}") from None
    return stores


def leading(state: State, names: Iterable[str]) -> dict[str, str]:
    """The accumulators of these reductions that move like a maximum or minimum, and which of the two."""
    leaders: dict[str, str] = {}
    for name in names:
        action = state.definitions[name].action
        leaders[action.buffers[0]] = REDUCERS[action.reducer].leads or action.reducer
    return {b: r for b, r in leaders.items() if r in START}


def _copied(state: State) -> dict[str, Store]:
    """The maps that earlier fusions copied into loops: contributions of predecessors are written with them."""
    return {a.buffer: a for a in (state.map(c).action for c in state.made("copy"))}


def _predecessor(
    state: State, name: str, load: Load, d: Definition, nest: Nest, known: Mapping[str, Store]
) -> Predecessor:
    """Role r as the target reads it, with its contribution in the target's own variables."""
    other = state.reduction(name)
    action = other.action
    env: dict[str, Expr] = {v.name: i for v, i in zip(action.index, load.index, strict=True) if isinstance(v, Var)}
    # The fused axis of the predecessor is the target's axis that runs along with it.
    for axis, (host, theirs) in align(state, d, nest).items():
        for mine, where in state.axes[name].items():
            if mine not in env and state.axes[host][theirs] == where:
                env[mine] = Var(axis)
    complete = set(other.names) <= set(env)
    for between in frontier(state, name, nest).between:
        stores = inlined_stores(state.definitions[between])
        known = known if isinstance(stores, str) else {**stores, **known}
    value = inline_loads(substitute(action.values[0], env), dict(known)) if complete else None
    return part_read(action, load, value, bool(state.made("repair", name)))


def as_clamped(r: Predecessor, clamped: frozenset[str], g: Expr) -> Predecessor:
    """Role r as the target reads it, where it reads it as a finite number."""
    if r.value is None or r.load.buffer not in clamped:
        return r
    return replace(r, value=contribution(r.value, r.reducer, g))


def part_read(action: Update, load: Load, value: Expr | None, repaired: bool) -> Predecessor:
    """Role r that reads one part of what `action` folds; `value` is what its first one folds in."""
    part = action.buffers.index(load.buffer)
    # The first part of a tuple moves like a maximum or minimum; nothing is known of the others.
    best = REDUCERS[action.reducer].leads if part == 0 else ""
    reducer = best or action.reducer
    start = None if action.init is None else action.init[part]
    if REDUCERS[reducer].width == 1 and (start,) == REDUCERS[reducer].identity(load.dtype):
        start = None
    return Predecessor(load, reducer, value if best or len(action.values) == 1 else None, repaired, start)


# --- what the proofs rest on -------------------------------------------------------------------------


def _check_place(state: State, target: str, seen: Definition, ref: Loop, front: Frontier, request: str) -> None:
    """A trial: the stage with all it reads, deferred or not, must find that computed where it would stand."""
    trial = place_in(state, target, seen, ref, request)
    node = trial.path(target)[1]
    mine = {f.var for f in reduction_loops(node, trial.loops(target))}
    nest = nest_of(state, ref)
    for name in front.predecessors:
        kept = [f.var for f in changing_loops(state, name, nest) if f.var not in mine]
        if kept:
            raise FusionError(
                request,
                f"`{name}` changes over loop `{kept[0]}`, and `{target}` keeps an element for each of its "
                f"iterations:\nthose of earlier iterations would not be repaired",
                hint=f"fuse outside of `{kept[0]}`",
            )
    order = [s.name for s in stages(trial.program.body)]
    here = order.index(target)
    for buffer in writes(node.action):
        early = [r for r in state.readers(buffer) if r in order and order.index(r) < here]
        if early:
            raise InternalError(
                f"{request}: `{early[0]}` reads `{buffer}` before the end of the loop, and was let pass"
            )


def _check_starts(state: State, p: Plan, d: ReductionDef) -> None:
    """A repair scales what the accumulator starts from, and exp of a difference needs finite numbers."""
    if not p.repair.rolled and not p.repair.deferred:
        return
    # What waits as a function is folded into whatever the target starts from.
    init = d.action.init
    apart = p.repair.slots[0].start is not None and init is not None and not d.places
    if init != d.identity and not apart:
        start = "what another stage wrote" if init is None else print_expr(init[0])
        raise FusionError(
            p.request,
            f"`{p.target}` starts from {start}, which the repair would change: only the identity of "
            f"{d.action.reducer} stays what it is",
            hint=f"start from the identity, and take {start} in afterwards",
        )
    for pre in p.rolled:
        update = state.reduction(p.stages[pre.load.buffer]).action
        first = _init(update, pre)
        if pre.load.buffer in p.clamped or (first is not None and starts_infinite(pre.reducer, first)):
            continue
        if not (isinstance(first, Const) and math.isfinite(first.value)):
            start = "what another stage wrote" if first is None else print_expr(first)
            raise FusionError(
                p.request,
                f"`{pre.load.buffer}` starts from {start}: the difference of two such values is "
                "undefined,\nas long as nothing else was folded in",
                hint=f"leave out the init: {update.reducer} starts from the finite extreme",
            )


def _init(update: Update, pre: Predecessor) -> Expr | None:
    """Return the init of the accumulator that the target reads."""
    return None if update.init is None else update.init[update.buffers.index(pre.load.buffer)]


def _finite(state: State, p: Plan) -> Plan:
    """The repair with what starts from an infinity read as a finite number."""
    clamped = dict(p.clamped)
    for pre in p.rolled:
        init = _init(state.reduction(p.stages[pre.load.buffer]).action, pre)
        if init is not None and starts_infinite(pre.reducer, init):
            clamped[pre.load.buffer] = pre.reducer
    return finite(p, clamped)


def finite(p: Plan, clamped: Mapping[str, str]) -> Plan:
    """The plan with these accumulators, maxima and minima, read as finite numbers in what is folded and rolled."""
    if not clamped:
        return p
    rolled = [b for b in clamped if b in {pre.load.buffer for pre in p.rolled}]
    slots = tuple(
        replace(
            s, value=bounded(s.value, clamped), step=None if s.step is None else bounded(s.step, with_previous(clamped))
        )
        for s in p.repair.slots
    )
    repair = replace(p.repair, slots=slots, finish=bounded(p.repair.finish, p.clamped))
    if rolled:
        repair = replace(repair, evidence=repair.evidence.proved(record(rolled)))
    return replace(p, repair=repair, infinite=clamped)


def _check_rolled(state: State, p: Plan) -> None:
    """The previous value is kept inside the loop: the predecessor must be updated there."""
    loop = state.loop(p.ref)
    for pre in p.rolled:
        name = p.stages[pre.load.buffer]
        if not any(f is loop for f in state.loops(name)):
            legal = [f.var for f in changing_loops(state, name, nest_of(state, p.ref))]
            raise FusionError(p.request, f"`{name}`, which it has to follow, is not inside `{p.ref.var}`", legal=legal)


def _defined_when_empty(state: State, p: Plan, d: Definition) -> Plan:
    repair = defined_when_empty(state, p.query, p.repair, d, p.request)
    return p if repair is p.repair else replace(p, repair=repair)


def defined_when_empty(state: State, query: Query, repair: Repair, d: Definition, request: str) -> Repair:
    """Guard a repair: after an empty loop the result is the identity, though φ, say 1/0, may be undefined."""
    phi = None if repair.means else scale_of(repair.finish)
    if phi is None or query.reducer != "sum" or never_empty(state, d):
        return repair
    guarded = guard(phi, query.roles)
    if guarded is None:
        raise FusionError(
            request, f"`{print_expr(phi)}`, applied behind the loop, may overflow where the loop is empty"
        )
    return replace(repair, finish=times(guarded, query.dtype))


def some(state: State, p: Plan, d: Definition) -> Expr:
    """The condition under which the target's loops run, for a function that is applied behind them."""
    # A choice says by its index where it found nothing.
    if p.repair.slots[0].start is None or REDUCERS[p.query.reducer].best:
        return TRUE
    lengths = [n for n in _lengths(d) if not _positive(state.program, n)]
    for e in lengths:
        if variables(e) & set(d.reduced):
            raise FusionError(
                p.request, f"whether it folds anything, {print_expr(e)} > 0, is known inside the loop only"
            )
    return logical_and(*(binary("gt", e, 0) for e in lengths))


def never_empty(state: State, d: Definition) -> bool:
    """True where a reduction is known to fold something into every element."""
    return all(_positive(state.program, n) for n in _lengths(d))


def _lengths(d: Definition) -> list[Expr]:
    """Return the lengths in elements of a reduction's folded axes; a part has no elements if one is not above 0."""
    return [d.axis(a).length for a in d.reduced]


def count(d: Definition) -> Expr | None:
    """Return the number of elements that a reduction folds into one; 1 if a part of an axis has none."""
    axes = [d.axis(a) for a in d.reduced]
    lengths = [a.length if a.whole else maximum(a.length, 1) for a in axes]
    if any(variables(e) & set(d.reduced) for e in lengths):
        return None
    return reduce(lambda a, b: binary("mul", a, b), lengths)


def _positive(program: Program, extent: Expr) -> bool:
    if isinstance(extent, Const):
        return extent.value >= 1
    lows = {s.name: s.lo for s in program.scalars}
    low = lows.get(extent.name) if isinstance(extent, Var) else None
    return low is not None and low >= 1
