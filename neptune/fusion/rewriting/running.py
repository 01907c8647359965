"""Write running means into the loop: what stands for ρ, for ρ before this step, and for their difference δ.

s_running_init: s_running[i] = 0                            before the loop
s_before: s_before[i] = s_running[i]
s_running: s_running[i] = s[i] / min(j0*BLOCK_N + BLOCK_N, n)
s_shift: s_shift[i] = s_running[i] - s_before[i]

A mean divides by the number of elements of an axis that the loop has folded, if it takes them in order:

j ↦ j0*BLOCK_N + j1, j1 in [0, BLOCK_N):   j0*BLOCK_N before iteration j0, min(j0*BLOCK_N + BLOCK_N, n) after it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, count

from neptune.errors import FusionError
from neptune.fusion.repairs.roles import ALL, COUNT, FOLDED, Mean
from neptune.fusion.rewriting.frontier import changing_loops, sees_the_same
from neptune.fusion.rewriting.place import below, beside, nested
from neptune.fusion.rewriting.plan import Plan
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Load, Var, binary, cast, loads, rewrite, substitute, variables
from neptune.ir.indices.affine import extreme, linear, number, poly, scope_of, to_expr
from neptune.ir.program import (
    ZERO,
    Buffer,
    For,
    Made,
    Program,
    Stage,
    Store,
    Update,
    map_action,
    reduction_loops,
    values,
)
from neptune.ir.reducers import REDUCERS
from neptune.schedule.alignment import nest_of
from neptune.schedule.definition import Definition, define
from neptune.schedule.state import State, fresh_name, insert_before, names_in_use


@dataclass(frozen=True)
class Running:
    """The loads that stand for ρ, for ρ before this step, and for their difference."""

    now: Load
    before: Load
    change: Load


def counts(state: State, p: Plan, d: Definition) -> dict[str, Expr]:
    """The numbers of elements, by what stands for them; FusionError where they are not known in the loop."""
    loop, loops = state.loop(p.ref), state.loops(p.target)
    nest = nest_of(state, p.ref)
    changing = {f.var for s in p.frontier.predecessors for f in changing_loops(state, s, nest)}
    changing |= {f.var for f in reduction_loops(state.path(p.target)[1], loops) if f in nest.outer}
    numbers, every = None, p.query.count
    here = state.axes[p.target]
    every = None if every is None else substitute(every, {a: here[a] for a in d.names if a not in d.reduced})
    (axis, *more) = sorted(d.reduced, key=lambda a: loop.var not in variables(state.axes[p.target][a]))
    plain = every is not None and not loads(every) and not variables(every) & set(d.reduced)
    if changing == {loop.var} and plain and not any(loop.var in variables(state.axes[p.target][a]) for a in more):
        begin = substitute(d.axis(axis).lo, here)
        numbers = folded(state.program, loops, loop, here[axis], d.extents[axis], begin)
    if numbers is None:
        raise FusionError(
            p.request,
            f"its repair needs the number of elements folded so far, and `{loop.var}` does not take them in order, "
            "a tile at a time",
            hint="one reduction loop, cut once by split, and fuse into its outer part",
        )
    # All of the other axes is inside an iteration.
    before, now = (reduce(lambda x, a: binary("mul", x, d.extents[a]), more, n) for n in numbers)
    assert every is not None
    return {FOLDED.name: before, COUNT.name: now, ALL.name: every}


def further_sum(state: State, p: Plan, d: Definition, acc: Load, value: Expr, provenance: Made) -> State:
    """Another sum over what the target reduces over, in loops as the target's and in front of it."""
    spatial = {v.name for v in acc.index if isinstance(v, Var)}
    axes = tuple(a for a in d.axes if a.name in spatial or a.name in d.reduced)
    (start,) = REDUCERS["sum"].identity(acc.dtype)
    action = Update((acc.buffer,), acc.index, "sum", (value,), (start,))
    here = {a.name: state.axes[p.target][a.name] for a in axes}
    also = frozenset[str]().union(*(variables(here[a]) for a in d.reduced))
    state = beside(state, p.ref, p.target, p.target, Stage(acc.buffer, action, None, provenance), also=also)
    return state.define(acc.buffer, define(axes, action), here)


def write_means(state: State, p: Plan, d: Definition, numbers: Mapping[str, Expr]) -> tuple[State, list[Running]]:
    """The stages of the plan's means, and the sums that they are followed by."""
    state, helpers = _helpers(state, p, d)
    means: list[Running] = []
    for mean in p.repair.means:
        state, names = _mean(state, p, d, mean, numbers, helpers)
        means.append(names)
    return state, means


def _helpers(state: State, p: Plan, d: Definition) -> tuple[State, dict[Expr, Expr]]:
    """The sums that means are followed by, and what stands for them."""
    helpers: dict[Expr, Expr] = {}
    for mean in p.repair.means:
        index = _index(d, mean)
        for load, value in mean.helpers:
            if load in helpers:
                continue
            existing = _same_helper(state, p, value)
            name = existing or fresh_name(names_in_use(state.program), f"{load.buffer[1:]}_abs")
            helpers[load] = helper = Load(name, index, load.dtype)
            if existing is None:
                shape = tuple(d.extents[v.name] for v in index)
                state = state.with_temporary(Buffer(name, shape, load.dtype))
                state = further_sum(state, p, d, helper, value, Made("weight", load.buffer[1:]))
    return state, helpers


def _same_helper(state: State, p: Plan, value: Expr) -> str | None:
    """The same sum in the same loop, made for another target."""
    nest, present = nest_of(state, p.ref), (substitute(value, state.axes[p.target]),)
    same = (n for n in state.made("weight") if values(state.path(n)[1].action) == present)
    return next((n for n in same if sees_the_same(state, n, nest, p.frontier.predecessors)), None)


def _index(d: Definition, mean: Mean) -> tuple[Var, ...]:
    """The axes of the target that a mean runs over."""
    read = frozenset[str]().union(*(variables(x) for x in loads(mean.value)))
    return tuple(Var(a.name) for a in d.spatial if a.name in read)


def _mean(
    state: State, p: Plan, d: Definition, mean: Mean, numbers: Mapping[str, Expr], helpers: Mapping[Expr, Expr]
) -> tuple[State, Running]:
    """The stages of one mean, made once for all targets that share it."""
    index, dtype, acc = _index(d, mean), mean.value.dtype, p.query.dtype
    here = {**state.axes[p.target], **numbers}
    nest, followed = nest_of(state, p.ref), [p.stages[x.buffer] for x in loads(mean.value) if x.buffer in p.stages]
    base = next(x.buffer for x in loads(mean.value) if x.buffer in p.stages)

    def running(names: Running) -> Store:
        value = rewrite(mean.running, {mean.load: names.before, **helpers}.get)
        return Store(names.now.buffer, index, value)

    for stage in state.made("mean", base):
        (before,), (step,) = state.made("previous", stage), state.made("factor", stage)
        names = _named((stage, before, step), index, dtype, acc)
        same = state.path(stage)[1].action == map_action(running(names), lambda e: substitute(e, here))
        same = same and names.change.dtype == state.program.globals[step].dtype
        if same and sees_the_same(state, stage, nest, followed):
            return state, names
    free = _free(state, base)
    names = _named((f"{free}_running", f"{free}_before", f"{free}_shift"), index, dtype, acc)
    shape = tuple(d.extents[v.name] for v in index)
    for x in (names.now, names.before, names.change):
        state = state.with_temporary(Buffer(x.buffer, shape, dtype))
    moved = binary("sub", cast(names.now, names.change.dtype), cast(names.before, names.change.dtype))
    follow = names.now.buffer
    for store, provenance in (
        (Store(names.before.buffer, index, names.now), Made("previous", follow)),
        (running(names), Made("mean", base)),
        (Store(names.change.buffer, index, moved), Made("factor", follow)),
    ):
        state = beside(state, p.ref, p.target, p.target, Stage(store.buffer, store, None, provenance), numbers)
    return _start(state, p, names.now), names


def _free(state: State, base: str) -> str:
    """A name all of whose forms are free."""
    used = names_in_use(state.program)
    wishes = chain((base,), (f"{base}_{k}" for k in count(1)))
    return next(
        b for b in wishes if not any(f"{b}_{x}" in used for x in ("running", "running_init", "before", "shift"))
    )


def _named(names: tuple[str, str, str], index: tuple[Var, ...], dtype: str, acc: str) -> Running:
    now, before = (Load(x, index, dtype) for x in names[:2])
    # A difference of two narrow numbers is a wide one.
    return Running(now, before, Load(names[2], index, acc if DTYPES[acc].bits > DTYPES[dtype].bits else dtype))


def _start(state: State, p: Plan, now: Load) -> State:
    """ρ = 0 before the loop: nothing is about it."""
    anchor = state.loop(p.ref)
    index = tuple(substitute(i, state.axes[p.target]) for i in now.index)
    store = Store(now.buffer, index, Const(0.0, now.dtype))
    stage = Stage(f"{now.buffer}_init", store, state.path(p.target)[1].when, Made("init", now.buffer))
    return state.with_body(
        insert_before(state.program.body, anchor, nested(state, stage, below(state, p.target, anchor)))
    )


# --- how many elements were folded ------------------------------------------------------------------


def folded(
    program: Program, loops: Sequence[For], loop: For, axis: Expr, extent: Expr, begin: Expr = ZERO
) -> tuple[Expr, Expr] | None:
    """The elements of `axis`, an expression over `loops`, before and after an iteration of `loop`, or None.

    The axis ends at `extent`, and begins at `begin`: where a part of it does, which ends behind a whole tile.
    """
    parts = linear(poly(axis), loop.var)
    inside = loops[next(k for k, f in enumerate(loops) if f is loop) + 1 :]
    below = [f.var for f in reversed(inside) if f.var in variables(axis)]
    around = {f.var for f in loops} - {f.var for f in inside} - {loop.var}
    if variables(axis) & around:
        return None
    if parts is None or any(loop.var in variables(e) for f in loops for e in (f.lo, f.hi)):
        return None
    stride, rest = parts
    scope = scope_of(program, loops)
    low, high = (extreme(rest, below, scope, largest=largest) for largest in (False, True))
    if low != number(0) or high is None or high + number(1) != stride:
        return None
    start = binary("mul", Var(loop.var), to_expr(stride))
    if poly(binary("mul", loop.lo, to_expr(stride))) != poly(begin):
        return None
    end = binary("min", binary("add", start, to_expr(stride)), extent)
    return (start, end) if begin == ZERO else (binary("sub", start, begin), binary("sub", end, begin))
