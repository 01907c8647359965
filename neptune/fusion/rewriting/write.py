"""Write a proved repair into the loop: means, previous values, steps, accumulators, and behind the loop the finish.

m_prev: m_prev[i] = m[i]                      before the predecessor's update, once per iteration
m_rescale: m_rescale[i] = exp(m_prev[i] - m[i])
l_repair: l[i] = l[i] * m_rescale[i]          each step before anything is folded
v_repair: v[i] = v[i] + s_shift[i]*(v_1[i]*-2 + …)
v_1: v_1[i] += x[i, j] - s_running[i]         the further accumulators in front of the target's own
v: v[i] += (x[i, j] - s_running[i])²
o_final: o[i] = o_acc[i] / l[i]               behind the outermost loop that the stage reduces over
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from neptune.fusion.repairs.roles import Slot, change, previous, slot
from neptune.fusion.rewriting.bring_in import bring_in
from neptune.fusion.rewriting.frontier import sees_the_same
from neptune.fusion.rewriting.place import below, beside, nested, place_in, without
from neptune.fusion.rewriting.plan import Plan
from neptune.fusion.rewriting.running import Running, counts, further_sum, write_means
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    ceildiv,
    children,
    loads,
    ne,
    rewrite,
    select,
    substitute,
    variables,
)
from neptune.ir.program import Buffer, Made, Stage, Store, Update, map_action, reduction_loops, stages, writes
from neptune.ir.reducers import REDUCERS
from neptune.schedule.alignment import nest_of
from neptune.schedule.definition import Definition, ReductionDef, define
from neptune.schedule.state import State, fresh_name, insert_after, names_in_use

Accumulators = Mapping[int, Load]
ONE = Const(1, "int32")


def write(state: State, p: Plan) -> State:
    """The target and its accumulators under the loop, with their steps and the finish; its obligations are met."""
    original, origins = state.reduction(p.target), {s.name: s.made for s in stages(state.program.body)}
    slots, value = p.repair.slots, p.repair.slots[0].value
    if not p.repair.means:
        state, value = bring_in(state, p)
    # The stages are made in the order in which they need each other's names, and put into that of the text above.
    state, accumulators = _place_target(state, p, value, original)
    numbers, means = dict[str, Expr](), list[Running]()
    if p.repair.means:
        numbers = counts(state, p, original)
        state, means = write_means(state, p, original, numbers)
    present: dict[Expr, Expr] = {m.load: x.now for m, x in zip(p.repair.means, means, strict=True)}
    state = _with_means(state, p, present)
    state = _steps(state, p, accumulators, means, numbers)
    for k, accumulator in accumulators.items():
        if k > 0:
            origin = origins.get(accumulator.buffer) or Made("moment", p.target)
            state = further_sum(state, p, original, accumulator, rewrite(slots[k].value, present.get), origin)
    owes = tuple(o for o in state.program.owes if not (o.stage == p.target and o.on in p.frontier.predecessors))
    state = replace(state, program=replace(state.program, owes=owes))
    return _epilogue(state, p, accumulators, original) if p.repair.deferred else state


# --- accumulators ----------------------------------------------------------------------------------


def _place_target(state: State, p: Plan, value: Expr, d: ReductionDef) -> tuple[State, Accumulators]:
    """The first accumulator in the loop, as the target's own stage, and where each of them is."""
    alone, names = p.repair.slots[0], list(d.action.buffers)
    if p.repair.deferred:
        for k in range(len(d.elements)):
            shape = state.program.globals[names[k]].shape
            names[k] = fresh_name(names_in_use(state.program), f"{names[k]}_acc")
            state = state.with_temporary(Buffer(names[k], shape, alone.dtype))
    action = replace(d.action, buffers=tuple(names), values=(value, *d.action.values[1:]))
    state = place_in(state, p.target, replace(d, action=folding(action, alone)), p.ref, p.request)
    accumulators = {0: Load(names[0], d.action.index, alone.dtype)}
    for k, s in enumerate(p.repair.slots[1:], 1):
        existing = _written_already(state, p, s)
        if existing is not None:
            state = state.with_body(without(state.program.body, existing))
            accumulators[k] = Load(existing, state.definitions[existing].action.index, s.dtype)
            continue
        axes = _axes(state, p, s, d)
        name = fresh_name(names_in_use(state.program), f"{p.target}_{k}")
        state = state.with_temporary(Buffer(name, tuple(d.extents[a] for a in axes), s.dtype))
        accumulators[k] = Load(name, tuple(map(Var, axes)), s.dtype)
    return state, accumulators


def folding(action: Update, s: Slot) -> Update:
    """A fold as accumulator `s` makes it: with its reducer, in its dtype and from its start, if it has one."""
    if s.start is None:
        return action
    assert action.init is not None
    k = REDUCERS[action.reducer].elements
    values = (cast(action.values[0], s.dtype), *[s.start] * (k - 1), *action.values[k:])
    return replace(action, reducer=s.fold, values=values, init=(*[s.start] * k, *action.init[k:]))


def _axes(state: State, p: Plan, s: Slot, d: Definition) -> list[str]:
    """The axes of the target that a further accumulator has: those of its value and its means, and what is outside."""
    read = set(loads(s.value))
    used = variables(s.value).union(*(variables(m.value) for m in p.repair.means if m.load in read))
    outer = nest_of(state, p.ref).names
    spatial = (a.name for a in d.spatial)
    return [a for a in spatial if a in used or variables(state.axes[p.target][a]) & outer]


def _written_already(state: State, p: Plan, s: Slot) -> str | None:
    """The stage that folds an accumulator of this vector, where that has been written as a stage (`split_k`)."""
    means: dict[Expr, Expr] = {m.load: m.value for m in p.repair.means}
    value, loop = rewrite(s.value, means.get), state.loop(p.ref)
    inside = {x.name for x in stages(loop)}
    whole = state.path(p.target)[1].made
    folds = state.made("moment", whole.of) if whole is not None and whole.kind == "part" else []
    parts = (n for fold in folds for n in state.made("part", fold))
    for name in (*parts, *state.made("moment", p.target)):
        action = state.definitions[name].action
        if name not in inside and action.values == (value,):
            return name
    return None


def _with_means(state: State, p: Plan, present: Mapping[Expr, Expr]) -> State:
    """The target with the names of its means."""
    d = state.reduction(p.target)
    if not present:
        return state
    action = replace(d.action, values=(rewrite(d.action.values[0], present.get),))
    return place_in(state, p.target, replace(d, action=action), p.ref, p.request)


# --- steps -----------------------------------------------------------------------------------------


def _steps(
    state: State, p: Plan, accumulators: Accumulators, means: Sequence[Running], numbers: Mapping[str, Expr]
) -> State:
    """T' of every accumulator: those that the steps of others read come last."""
    dtype = p.query.dtype
    env: dict[str, Expr] = {slot(k, dtype).name: x for k, x in accumulators.items()}
    env |= {change(k, dtype).name: cast(x.change, dtype) for k, x in enumerate(means)}
    for k, s in enumerate(p.repair.slots):
        if s.step is None:
            continue
        state, step = _once_per_iteration(state, p, s.step)
        accumulator = accumulators[k]
        origin = p.target if k == 0 else accumulator.buffer
        name = fresh_name(names_in_use(state.program), f"{origin}_repair")
        stage = Stage(
            name, Store(accumulator.buffer, accumulator.index, substitute(step, env)), None, Made("repair", origin)
        )
        state = beside(state, p.ref, p.target, p.target, stage, numbers)
    return state


def _once_per_iteration(state: State, p: Plan, step: Expr) -> tuple[State, Expr]:
    """A step with stages for what it reads of previous values alone: T·exp(m_prev - m) → T·m_rescale."""
    names: dict[str, str] = {}
    for pre in p.rolled:
        state, names[previous(pre.load).buffer] = _previous(state, p, pre.load.buffer)
    slots = {slot(k, "").name for k in range(len(p.repair.slots))}
    factors: dict[Expr, Expr] = {}

    def factor(x: Expr) -> Expr | None:
        if variables(x) & slots or not any(y.buffer in names for y in loads(x)):
            return None
        return factors.setdefault(x, x)

    def named(x: Expr) -> Expr | None:
        return Load(names[x.buffer], x.index, x.dtype) if isinstance(x, Load) and x.buffer in names else None

    rewrite(step, factor)
    for x in factors:
        state, factors[x] = _factor(state, p, rewrite(x, named))
    return state, rewrite(step, factors.get)


def _previous(state: State, p: Plan, buffer: str) -> tuple[State, str]:
    """The value of a predecessor at the end of the previous iteration, and the buffer that holds it."""
    stage = p.stages[buffer]
    for name in state.made("previous", buffer):
        if sees_the_same(state, name, nest_of(state, p.ref), (stage,)):
            return state, name
    name = fresh_name(names_in_use(state.program), f"{buffer}_prev")
    declared = state.program.globals[buffer]
    state = state.with_temporary(replace(declared, name=name))
    index = state.definitions[stage].action.index
    # Its own repair changes the predecessor too: what counts is the value that the last fold has seen.
    first = next(s.name for s in stages(state.loop(p.ref)) if buffer in writes(s.action))
    store = Store(name, index, Load(buffer, index, declared.dtype))
    return beside(state, p.ref, stage, first, Stage(name, store, None, Made("previous", buffer))), name


def _factor(state: State, p: Plan, factor: Expr) -> tuple[State, Load]:
    """The factor, computed once per iteration and shared by equal repairs, as the target reads it."""
    d = state.definitions[p.target]
    # In order of appearance, so that targets with other axes find the same layout.
    places = tuple(dict.fromkeys(_places(factor, {v for i in d.action.index for v in variables(i)})))
    load = (places, factor.dtype)
    present, index = state.present(p.target, factor), tuple(state.present(p.target, i) for i in places)
    nest, followed = nest_of(state, p.ref), [p.stages[pre.load.buffer] for pre in p.rolled]
    for name in state.made("factor"):
        action = state.path(name)[1].action
        same = action.values == (present,) and action.index == index
        if same and sees_the_same(state, name, nest, followed):
            return state, Load(name, *load)
    buffer = p.rolled[0].load.buffer
    name = fresh_name(names_in_use(state.program), f"{buffer}_rescale")
    shape = (ceildiv(d.extents[a], w) for a, w in map(_tiles, places))
    state = state.with_temporary(Buffer(name, tuple(shape), factor.dtype))
    stage = Stage(name, Store(name, places, factor), None, Made("factor", buffer))
    return beside(state, p.ref, p.target, p.target, stage), Load(name, *load)


def _places(e: Expr, axes: Set[str]) -> Iterator[Expr]:
    """The axes, or their tiles j // BN, that an expression differs along."""
    if isinstance(e, Var):
        yield from (e,) if e.name in axes else ()
    elif _tiles(e)[0] in axes:
        yield e
    else:
        for x in children(e):
            yield from _places(x, axes)


def _tiles(e: Expr) -> tuple[str, Expr]:
    """The axis, and the number of its elements, of which an expression says one: an axis, or a tile j // BN of one."""
    match e:
        case Var(axis):
            return axis, ONE
        case Op("floordiv", (Var(axis), width), _):
            return axis, width
    return "", ONE


# --- behind the loop -------------------------------------------------------------------------------


def finished(p: Plan, accumulators: Accumulators, d: ReductionDef, k: int = 0) -> Expr:
    """Part k of the result, over the accumulators; where nothing was folded, what the target starts from.

    `accumulators[0]` is the accumulator of that part.
    """
    env = {slot(i, "").name: accumulator for i, accumulator in accumulators.items()}
    accumulator, alone, reducer = accumulators[0], p.repair.slots[0], p.query.reducer

    def put(x: Expr) -> Expr | None:
        return cast(env[x.name], x.dtype) if isinstance(x, Var) and x.name in env else None

    value = cast(rewrite(p.repair.finish, put), p.query.dtype)
    if reducer == "sum":
        # The steps and the finish make 0 of 0, by their guards.
        return value
    if alone.start is None:
        (identity,) = REDUCERS[reducer].identity(accumulator.dtype)
        if REDUCERS[reducer].moves:
            # What is infinite is folded into a finite start, as in the original: min(3.4e38, inf).
            value = binary(REDUCERS[reducer].op, identity, value)
        return select(ne(accumulator, identity), value, identity)
    start = d.terms[k].start
    assert start is not None
    if d.places:
        # A choice says by its index where it found nothing.
        place, nowhere = d.places[k].buffer, d.places[k].start
        assert nowhere is not None
        return select(ne(Load(place, accumulator.index, nowhere.dtype), nowhere), value, start)
    if start != REDUCERS[reducer].nothing(p.query.dtype):
        value = binary(REDUCERS[reducer].op, start, value)
    return select(p.some, value, start)


def _epilogue(state: State, p: Plan, accumulators: Accumulators, d: ReductionDef) -> State:
    """The results, once, behind the outermost loop the target reduces over."""
    node = state.path(p.target)[1]
    anchor = reduction_loops(node, state.loops(p.target))[0]
    inside = below(state, p.target, anchor)
    env = {a.name: state.axes[p.target][a.name] for a in d.spatial}
    buffers = writes(state.definitions[p.target].action)
    for k in reversed(range(len(d.elements))):
        value = finished(p, {**accumulators, 0: replace(accumulators[0], buffer=buffers[k])}, d, k)
        definition = define(d.spatial, Store(d.action.buffers[k], d.action.index, value))
        name = fresh_name(names_in_use(state.program), f"{p.target}_final{k or ''}")
        action = map_action(definition.action, partial(state.present, p.target))
        nest = nested(state, Stage(name, action, node.when, Made("final", p.target)), inside)
        state = state.with_body(insert_after(state.program.body, anchor, nest)).define(name, definition, env)
    return state
