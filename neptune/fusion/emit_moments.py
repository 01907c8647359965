"""Write the repair of a vector of accumulators into the loop.

s_running_init: s_running[i] = 0                            before the loop
s_before: s_before[i] = s_running[i]
s_running: s_running[i] = s[i] / min(j0*BLOCK_N + BLOCK_N, n)
s_shift: s_shift[i] = s_running[i] - s_before[i]
v_repair: v[i] = v[i] + s_shift[i]*(v_1[i]*-2 + …)           each before any of them is folded
v_1: v_1[i] += x[i, j] - s_running[i]
v: v[i] += (x[i, j] - s_running[i])²
v_final: v[i] = …                                           behind the loop, where something was deferred
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, count

from neptune.errors import FusionError
from neptune.fusion.counts import folded
from neptune.fusion.emit import beside, epilogue, nested
from neptune.fusion.frontier import changing_loops, sees_the_same
from neptune.fusion.plan import KEPT, Plan, place_in, repair_name, without
from neptune.fusion.roles import ALL, COUNT, FOLDED, Moment, Moments, Rest, Shift, moment, step
from neptune.fusion.shifts import has_select
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    loads,
    ne,
    op,
    rewrite,
    select,
    substitute,
    variables,
)
from neptune.ir.printer import print_expr
from neptune.ir.program import Buffer, Stage, Store, Update, reduction_loops, stages
from neptune.ir.reducers import REDUCERS
from neptune.schedule.alignment import nest_of
from neptune.schedule.state import Definition, State, fresh_name, insert_before, names_in_use


@dataclass(frozen=True)
class _Names:
    """What stands for ρ, for ρ before this step, and for their difference."""

    running: Load
    before: Load
    step: Load


def emit_moments(state: State, p: Plan, found: Moments) -> State:
    """The target and its other accumulators under the loop, with their repairs; its obligations are met."""
    original = state.definitions[p.target]
    # The stages are made in the order in which they need each other's names, and put into that of the text above.
    state, at = _place_target(state, p, found, original)
    state, helpers = _place_helpers(state, p, found, original)
    counts = _counts(state, p, original)
    names: list[_Names] = []
    for shift in found.shifts:
        state, name = _shift(state, p, original, shift, counts, helpers)
        names.append(name)
    table: dict[Expr, Expr] = {s.load: n.running for s, n in zip(found.shifts, names, strict=True)}
    state = _rewritten(state, p, table)
    state = _repairs(state, p, found, at, names, counts)
    for k, part in enumerate(found.parts):
        if k in at and k > 0:
            state = _place_part(state, p, original, at[k], rewrite(part.value, table.get))
    owes = tuple(o for o in state.program.owes if not (o.stage == p.target and o.on in p.frontier.predecessors))
    state = replace(state, program=replace(state.program, owes=owes))
    if _deferred(found, p):
        env: dict[str, Expr] = {moment(k, p.query.dtype).name: x for k, x in at.items()}
        env[ALL.name] = counts[ALL.name]
        whole = rewrite(moved_total(found, p.query.dtype), table.get)
        state = epilogue(state, p, [substitute(whole, env)], original)
    return state


def _deferred(found: Moments, p: Plan) -> bool:
    return moved_total(found, p.query.dtype) != moment(0, p.query.dtype)


def moved_total(found: Moments, dtype: str) -> Expr:
    """The result over the accumulators, which are moved to what the means would be without rounding."""
    env: dict[str, Expr] = {step(r.shift, dtype).name: _rest(r, found, dtype) for r in found.rests}
    moved: dict[str, Expr] = {}
    for k, part in enumerate(found.parts):
        steps = {v for v in variables(part.repaired) if v.startswith("%d")} if part.repaired is not None else set()
        if part.repaired is not None and steps <= env.keys():
            moved[moment(k, dtype).name] = substitute(part.repaired, {**env, FOLDED.name: ALL})
    if found.least:
        # Its size, not max with 0: that would make 0 of the NaN which a row with a NaN or an inf has.
        first = moment(0, dtype)
        moved[first.name] = op("abs", moved.get(first.name, first))
    return rewrite(substitute(found.total, moved), _shorter)


def _rest(r: Rest, found: Moments, dtype: str) -> Expr:
    """How far off a mean is. Where all is masked there is no mean, and nothing that sees it."""
    off = binary("div", moment(r.part, dtype), r.divisor)
    if not loads(r.divisor) or not any(has_select(part.value) for part in found.parts):
        return off
    return select(ne(r.divisor, Const(0.0, r.divisor.dtype)), off, Const(0.0, dtype))


def _shorter(e: Expr) -> Expr | None:
    """x / n * n is x."""
    match e:
        case Op("mul", (Op("div", (a, b), _), c), _) if b == c:
            return a
        case _:
            return None


# --- accumulators ----------------------------------------------------------------------------------


def _place_target(state: State, p: Plan, found: Moments, d: Definition) -> tuple[State, dict[int, Load]]:
    """The first accumulator in the loop, as the target's own stage, and where each of them is."""
    assert isinstance(d.action, Update)
    (buffer,) = d.action.buffers
    dtype = p.query.dtype
    if _deferred(found, p):
        acc = fresh_name(names_in_use(state.program), f"{buffer}_acc")
        state = state.with_temporary(Buffer(acc, state.program.globals[buffer].shape, dtype))
        buffer = acc
    at = {0: Load(buffer, d.action.index, dtype)}
    action = replace(d.action, buffers=(buffer,), values=(found.parts[0].value,))
    state = place_in(state, p.target, replace(d, action=action), p.ref, p.request)
    outer = nest_of(state, p.ref).names
    for k, part in enumerate(found.parts):
        if k == 0 or part.counted:
            continue
        known = _apart(state, p, found, part)
        if known is not None:
            state = state.with_body(without(state.program.body, known))
            at[k] = Load(known, state.definitions[known].action.index, dtype)
            continue
        used = variables(part.value) | _axes_of(part, found)
        kept = [
            a for a, _ in d.axes if a not in d.reduced and (a in used or variables(state.axes[p.target][a]) & outer)
        ]
        name = fresh_name(names_in_use(state.program), f"{p.target}_{k}")
        state = state.with_temporary(Buffer(name, tuple(d.extents[a] for a in kept), dtype))
        at[k] = Load(name, tuple(map(Var, kept)), dtype)
    return state, at


def _apart(state: State, p: Plan, found: Moments, part: Moment) -> str | None:
    """The stage that folds an accumulator of this vector, where that has been written as a stage (`split_k`)."""
    means: dict[Expr, Expr] = {s.load: s.value for s in found.shifts}
    value, loop = rewrite(part.value, means.get), state.loop(p.ref)
    inside, everywhere = ({s.name for s in stages(x)} for x in (loop, state.program.body))
    for (kind, name), first in state.copies.items():
        if (kind, first) == (KEPT, p.target) and name != p.target and name in everywhere - inside:
            action = state.definitions[name].action
            if isinstance(action, Update) and action.values == (value,):
                return name
    return None


def _axes_of(part: Moment, found: Moments) -> frozenset[str]:
    """The axes of the means that an accumulator is about."""
    read = set(loads(part.value))
    return frozenset[str]().union(*(variables(s.value) for s in found.shifts if s.load in read))


def _rewritten(state: State, p: Plan, table: Mapping[Expr, Expr]) -> State:
    """The target with the names of its means."""
    d = state.definitions[p.target]
    assert isinstance(d.action, Update)
    action = replace(d.action, values=(rewrite(d.action.values[0], table.get),))
    state = place_in(state, p.target, replace(d, action=action), p.ref, p.request)
    return state


def _place_part(state: State, p: Plan, d: Definition, acc: Load, value: Expr) -> State:
    """Another sum over what the target reduces over, in loops as the target's."""
    kept = {v.name for v in acc.index if isinstance(v, Var)}
    axes = tuple((a, n) for a, n in d.axes if a in kept or a in d.reduced)
    (start,) = REDUCERS["sum"].identity(acc.dtype)
    action = Update((acc.buffer,), acc.index, "sum", (value,), (start,))
    here = {a: state.axes[p.target][a] for a, _ in axes}
    also = frozenset[str]().union(*(variables(here[a]) for a in d.reduced))
    state = beside(state, p, p.target, p.target, Stage(acc.buffer, action), also=also)
    return state.define(acc.buffer, Definition(axes, action), here)


def _place_helpers(state: State, p: Plan, found: Moments, d: Definition) -> tuple[State, dict[Expr, Expr]]:
    """The sums that means are followed by, and what stands for them."""
    there: dict[Expr, Expr] = {}
    for shift in found.shifts:
        index = _index(d, shift)
        for load, value in shift.helpers:
            if load in there:
                continue
            known = _helper(state, p, value)
            name = known or fresh_name(names_in_use(state.program), f"{load.buffer[1:]}_abs")
            there[load] = helper = Load(name, index, load.dtype)
            if known is None:
                shape = tuple(d.extents[v.name] for v in index)
                state = state.with_temporary(Buffer(name, shape, load.dtype))
                state = _place_part(state, p, d, helper, value)
                state = replace(state, copies={**state.copies, (f"helper {value}", name): name})
    return state, there


def _helper(state: State, p: Plan, value: Expr) -> str | None:
    """The same sum in the same loop, made for another target."""
    nest = nest_of(state, p.ref)
    same = (name for (kind, _), name in state.copies.items() if kind == f"helper {value}")
    return next((n for n in same if sees_the_same(state, n, nest, p.frontier.predecessors)), None)


# --- means -----------------------------------------------------------------------------------------


def _counts(state: State, p: Plan, d: Definition) -> dict[str, Expr]:
    """The numbers of elements, by what stands for them; FusionError where they are not known in the loop."""
    loop, loops = state.loop(p.ref), state.loops(p.target)
    nest = nest_of(state, p.ref)
    changing = {f.var for s in p.frontier.predecessors for f in changing_loops(state, s, nest)}
    changing |= {f.var for f in reduction_loops(state.path(p.target)[1], loops) if f in nest.outer}
    found, every = None, p.query.count
    here = state.axes[p.target]
    every = None if every is None else substitute(every, {a: here[a] for a in d.extents if a not in d.reduced})
    (axis, *more) = sorted(d.reduced, key=lambda a: loop.var not in variables(state.axes[p.target][a]))
    plain = every is not None and not loads(every) and not variables(every) & set(d.reduced)
    if changing == {loop.var} and plain and not any(loop.var in variables(state.axes[p.target][a]) for a in more):
        begin = substitute(d.range_of(axis)[0], here)
        found = folded(state.program, loops, loop, here[axis], d.extents[axis], begin)
    if found is None:
        raise FusionError(
            p.request,
            f"its repair needs the number of elements folded so far, and `{loop.var}` does not take them in order, "
            "a tile at a time",
            hint="one reduction loop, cut once by split, and fuse into its outer part",
        )
    # All of the other axes is inside an iteration.
    before, now = (reduce(lambda x, a: binary("mul", x, d.extents[a]), more, n) for n in found)
    assert every is not None
    return {FOLDED.name: before, COUNT.name: now, ALL.name: every}


def _index(d: Definition, shift: Shift) -> tuple[Var, ...]:
    """The axes of the target that a mean runs over."""
    read = frozenset[str]().union(*(variables(x) for x in loads(shift.value)))
    return tuple(Var(a) for a, _ in d.axes if a not in d.reduced and a in read)


def _shift(
    state: State, p: Plan, d: Definition, shift: Shift, counts: Mapping[str, Expr], helpers: Mapping[Expr, Expr]
) -> tuple[State, _Names]:
    """The stages of one mean, made once for all targets that share it."""
    index = _index(d, shift)
    dtype = shift.value.dtype
    here = {**state.axes[p.target], **counts}
    key = f"mean {print_expr(substitute(shift.running, here))} for {p.query.dtype}"
    nest, followed = nest_of(state, p.ref), [p.stages[x.buffer] for x in loads(shift.value) if x.buffer in p.stages]
    base = next(x.buffer for x in loads(shift.value) if x.buffer in p.stages)
    for (kind, name), there in state.copies.items():
        if kind == key and sees_the_same(state, there, nest, followed):
            return state, _named(name, index, dtype, p.query.dtype)
    base = _free(state, base)
    names = _named(base, index, dtype, p.query.dtype)
    shape = tuple(d.extents[v.name] for v in index)
    for x in (names.running, names.before, names.step):
        state = state.with_temporary(Buffer(x.buffer, shape, dtype))
    running = rewrite(shift.running, {shift.load: names.before, **helpers}.get)
    step = binary("sub", cast(names.running, names.step.dtype), cast(names.before, names.step.dtype))
    for x, value in ((names.before, names.running), (names.running, running), (names.step, step)):
        state = beside(state, p, p.target, p.target, Stage(x.buffer, Store(x.buffer, index, value)), counts)
    state = _start(state, p, names.running)
    return replace(state, copies={**state.copies, (key, base): names.running.buffer}), names


def _free(state: State, base: str) -> str:
    """A name all of whose forms are free."""
    used = names_in_use(state.program)
    wishes = chain((base,), (f"{base}_{k}" for k in count(1)))
    return next(
        b for b in wishes if not any(f"{b}_{x}" in used for x in ("running", "running_init", "before", "shift"))
    )


def _named(base: str, index: tuple[Var, ...], dtype: str, acc: str) -> _Names:
    running, before = (Load(f"{base}_{x}", index, dtype) for x in ("running", "before"))
    # A difference of two narrow numbers is a wide one.
    return _Names(running, before, Load(f"{base}_shift", index, acc if _bits(acc) > _bits(dtype) else dtype))


def _bits(dtype: str) -> int:
    return DTYPES[dtype].bits


def _start(state: State, p: Plan, running: Load) -> State:
    """ρ = 0 before the loop: nothing is about it."""
    anchor = state.loop(p.ref)
    loops = state.loops(p.target)
    inside = loops[next(k for k, f in enumerate(loops) if f is anchor) + 1 :]
    index = tuple(substitute(i, state.axes[p.target]) for i in running.index)
    store = Store(running.buffer, index, Const(0.0, running.dtype))
    stage = Stage(f"{running.buffer}_init", store, state.path(p.target)[1].when)
    return state.with_body(insert_before(state.program.body, anchor, nested(state, stage, inside)))


# --- repairs ---------------------------------------------------------------------------------------


def _repairs(
    state: State, p: Plan, found: Moments, at: Mapping[int, Load], names: list[_Names], counts: Mapping[str, Expr]
) -> State:
    """T' of every accumulator: those that others are repaired with come last."""
    dtype = p.query.dtype
    env: dict[str, Expr] = {moment(k, dtype).name: x for k, x in at.items()}
    env |= {step(k, dtype).name: cast(n.step, dtype) for k, n in enumerate(names)}
    before: dict[Expr, Expr] = {s.load: n.before for s, n in zip(found.shifts, names, strict=True)}
    for k, part in enumerate(found.parts):
        if part.repaired is None or k not in at:
            continue
        value = substitute(rewrite(part.repaired, before.get), env)
        name = fresh_name(names_in_use(state.program), repair_name(p.target if k == 0 else at[k].buffer))
        stage = Stage(name, Store(at[k].buffer, at[k].index, value))
        state = beside(state, p, p.target, p.target, stage, counts)
        if k == 0:
            state = replace(state, copies={**state.copies, ("repair", p.target): name})
    return state
