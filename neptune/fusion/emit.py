"""Write a proved repair into the loop: previous values, the factor, the repair itself, and what was deferred.

m_prev: m_prev[i] = m[i]                      before the predecessor's update, once per iteration
m_rescale: m_rescale[i] = exp(m_prev[i] - m[i])
l_repair: l[i] = l[i] * m_rescale[i]          before the fold; both in front of the stage's own nest
o_final: o[i] = o_acc[i] / l[i]               behind the outermost loop that the stage reduces over
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from neptune.fusion.frontier import sees_the_same
from neptune.fusion.monotone import fill
from neptune.fusion.plan import Plan, place_in, repair_name
from neptune.fusion.roles import previous
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    conjuncts,
    logical_and,
    ne,
    op,
    rewrite,
    select,
    substitute,
    variables,
    walk,
)
from neptune.ir.program import (
    Buffer,
    For,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    map_action,
    reduction_loops,
    stages,
    writes,
)
from neptune.ir.reducers import REDUCERS
from neptune.schedule.alignment import nest_of
from neptune.schedule.state import Definition, State, fresh_name, insert_after, insert_before, names_in_use


def emit(state: State, p: Plan, value: Expr) -> State:
    """The target under the loop, folding `value`, with its repair; its obligations are met."""
    original = state.definitions[p.target]
    assert isinstance(original.action, Update)
    state, fused = _fuse_target(state, p, original.action, value)
    owes = tuple(o for o in state.program.owes if not (o.stage == p.target and o.on in p.frontier.predecessors))
    state = replace(state, program=replace(state.program, owes=owes))
    if p.repair.factor is not None:
        state = _insert_repair(state, p, p.repair.factor, fused)
    if p.repair.deferred is not None:
        state = _insert_epilogue(state, p, p.repair.deferred, original)
    return state


def _fuse_target(state: State, p: Plan, action: Update, value: Expr) -> tuple[State, Update]:
    """The reduction itself; with something deferred, into an accumulator of its own."""
    fused = replace(action, values=(value, *action.values[1:]))
    if p.repair.deferred is not None:
        names, dtype = list(action.buffers), accumulated(p)
        for k in range(valued(action)):
            accumulator = fresh_name(names_in_use(state.program), f"{names[k]}_acc")
            state = state.with_temporary(Buffer(accumulator, state.program.globals[names[k]].shape, dtype))
            names[k] = accumulator
        fused = replace(fused, buffers=tuple(names))
        if p.repair.deferred_op == "apply":
            fused = from_nothing(replace(fused, reducer=p.repair.fold or fused.reducer), dtype)
    d = replace(state.definitions[p.target], action=fused)
    return place_in(state, p.target, d, p.ref, p.request), fused


# --- the repair --------------------------------------------------------------------------------------


def _insert_repair(state: State, p: Plan, factor: Expr, fused: Update) -> State:
    names: dict[str, str] = {}
    for pre in p.rolled:
        state, name = _keep_previous(state, p, pre.load.buffer)
        names[previous(pre.load).buffer] = name

    def renamed(x: Expr) -> Expr | None:
        return Load(names[x.buffer], x.index, x.dtype) if isinstance(x, Load) and x.buffer in names else None

    state, scale = _factor(state, p, rewrite(factor, renamed))
    old = Load(fused.buffers[0], fused.index, p.query.dtype)
    value = op("mul", old, cast(scale, p.query.dtype))
    repair = Stage(repair_name(p.target), Store(old.buffer, fused.index, value))
    state = replace(state, copies={**state.copies, ("repair", p.target): repair.name})
    return beside(state, p, p.target, p.target, repair)


def _keep_previous(state: State, p: Plan, buffer: str) -> tuple[State, str]:
    """The value of a predecessor at the end of the previous iteration, and the buffer that holds it."""
    kind, stage = f"previous {buffer}", p.stages[buffer]
    for (what, _), name in state.copies.items():
        if what == kind and sees_the_same(state, name, nest_of(state, p.ref), (stage,)):
            return state, name
    name = fresh_name(names_in_use(state.program), previous(Load(buffer, (), "float32")).buffer)
    declared = state.program.globals[buffer]
    state = state.with_temporary(replace(declared, name=name))
    index = state.definitions[stage].action.index
    # Its own repair changes the predecessor too: what counts is the value that the last fold has seen.
    first = next(s.name for s in stages(state.loop(p.ref)) if buffer in writes(s.action))
    state = beside(state, p, stage, first, Stage(name, Store(name, index, Load(buffer, index, declared.dtype))))
    return replace(state, copies={**state.copies, (kind, name): name}), name


def _factor(state: State, p: Plan, factor: Expr) -> tuple[State, Load]:
    """The factor, computed once per iteration and shared by equal repairs, as the target reads it."""
    here = state.axes[p.target]
    spatial = {v for i in state.definitions[p.target].action.index for v in variables(i)}
    # In order of appearance, so that targets with other axes find the same layout.
    axes = [v for v in dict.fromkeys(x.name for x in walk(factor) if isinstance(x, Var)) if v in spatial]
    index = tuple(Var(a) for a in axes)
    extents = state.definitions[p.target].extents
    present = substitute(factor, here)
    nest, followed = nest_of(state, p.ref), [p.stages[pre.load.buffer] for pre in p.rolled]
    for (kind, _), name in state.copies.items():
        if kind == "factor" and _computes(state, name, present) and sees_the_same(state, name, nest, followed):
            return state, Load(name, index, factor.dtype)
    name = fresh_name(names_in_use(state.program), f"{p.rolled[0].load.buffer}_rescale")
    state = state.with_temporary(Buffer(name, tuple(extents[a] for a in axes), factor.dtype))
    state = beside(state, p, p.target, p.target, Stage(name, Store(name, index, factor)))
    return replace(state, copies={**state.copies, ("factor", name): name}), Load(name, index, factor.dtype)


def _computes(state: State, stage: str, value: Expr) -> bool:
    action = state.path(stage)[1].action
    return isinstance(action, Store) and action.value == value


def beside(
    state: State,
    p: Plan,
    like: str,
    before: str,
    stage: Stage,
    counts: Mapping[str, Expr] | None = None,
    also: frozenset[str] = frozenset(),
) -> State:
    """Insert a stage, written over the axes of `like`, into the loop in front of the nest of stage `before`.

    It gets the inner loops of `like` that its index uses, and the parts of the guard about these. `counts` stand
    for other names in it; `also` is as in `nested`.
    """
    loop = state.loop(p.ref)
    path, node = state.path(before)
    at = next(k for k, s in enumerate(path) if s is loop) + 1
    inside = [*path[at:], node]
    anchor = inside[1] if isinstance(inside[0], Seq) else inside[0]
    loops = state.loops(like)
    inner = loops[next(k for k, f in enumerate(loops) if f is loop) + 1 :]
    action = map_action(stage.action, lambda e: substitute(e, {**state.axes[like], **(counts or {})}))
    nest = nested(state, Stage(stage.name, action, state.path(like)[1].when), inner, also)
    return state.with_body(insert_before(state.program.body, anchor, nest))


def nested(state: State, stage: Stage, loops: tuple[For, ...], also: frozenset[str] = frozenset()) -> Stmt:
    """Those of `loops` that the stage's index uses around it, and of its guard what is about the index.

    `also`: what else counts as used, the loops that it reduces over.
    """
    used = also.union(*(variables(i) for i in stage.action.index))
    sizes = {s.name for s in state.program.scalars} | {t.name for t in state.program.tunables}
    # What says when the fold runs must not stop a repair, nor the copy of the value before it.
    guards = [c for c in conjuncts(stage.when) if variables(c) <= used | sizes]
    nest: Stmt = replace(stage, when=logical_and(*guards) if guards else None)
    for f in reversed(loops):
        if f.var in used:
            nest = replace(f, body=nest)
    return nest


# --- what was deferred -------------------------------------------------------------------------------


def _insert_epilogue(state: State, p: Plan, phi: Expr, original: Definition) -> State:
    """X = acc · φ(r)."""
    assert isinstance(original.action, Update)
    accumulators = writes(state.definitions[p.target].action)
    values = [
        applied(p, Load(accumulators[k], original.action.index, accumulated(p)), phi, original, k)
        for k in range(valued(original.action))
    ]
    return epilogue(state, p, values, original)


def epilogue(state: State, p: Plan, values: list[Expr], original: Definition) -> State:
    """X = these values, once, behind the outermost loop the target reduces over."""
    assert isinstance(original.action, Update)
    node = state.path(p.target)[1]
    loops = state.loops(p.target)
    anchor = reduction_loops(node, loops)[0]
    index = original.action.index
    axes = tuple((a, n) for a, n in original.axes if a not in original.reduced)
    env = _only(state.axes[p.target], dict(axes))
    inside = loops[next(k for k, f in enumerate(loops) if f is anchor) + 1 :]
    for k, value in reversed(list(enumerate(values))):
        definition = Definition(axes, Store(original.action.buffers[k], index, value))
        name = fresh_name(names_in_use(state.program), f"{p.target}_final{k or ''}")
        action = map_action(definition.action, lambda e: substitute(e, env))
        nest = nested(state, Stage(name, action, node.when), inside)
        state = state.with_body(insert_after(state.program.body, anchor, nest)).define(name, definition, env)
    return state


def valued(action: Update) -> int:
    """How many parts of what is folded are values, the others being their indices."""
    width = len(action.values)
    return width // 2 if REDUCERS[action.reducer].best else width


def _only(env: Mapping[str, Expr], names: Mapping[str, Expr]) -> dict[str, Expr]:
    return {a: e for a, e in env.items() if a in names}


def accumulated(p: Plan) -> str:
    """The dtype of the accumulator: one that an f is applied to holds ψ as it is."""
    dtypes = (p.query.dtype, p.repair.body.dtype) if p.repair.deferred_op == "apply" else (p.query.dtype,)
    return max(dtypes, key=lambda d: DTYPES[d].bits)


def nothing(reducer: str, dtype: str) -> Const:
    """What a reduction of nothing is: of max and min behind every element, -inf included."""
    if REDUCERS[reducer].word in ("sum", "product"):
        return REDUCERS[reducer].identity(dtype)[0]
    return Const(-math.inf if reducer == "max" or REDUCERS[reducer].best == "gt" else math.inf, dtype)


def from_nothing(action: Update, dtype: str) -> Update:
    """The fold with its values in `dtype`, from what comes behind every element."""
    assert action.init is not None
    k, start = valued(action), nothing(action.reducer, dtype)
    values = (cast(action.values[0], dtype), *[start] * (k - 1), *action.values[k:])
    return replace(action, values=values, init=(*[start] * k, *action.init[k:]))


def _chosen(p: Plan, acc: Load, f: Expr, original: Definition, k: int) -> Expr:
    """f(acc), folded into what the target starts from; that alone where there was no element."""
    assert isinstance(original.action, Update) and original.action.init is not None
    start, parts = original.action.init[k], original.action.buffers
    value = cast(fill(f, cast(acc, p.repair.body.dtype)), p.query.dtype)
    if REDUCERS[p.query.reducer].best:
        nowhere = original.action.init[len(parts) // 2 + k]
        index = Load(parts[len(parts) // 2 + k], acc.index, nowhere.dtype)
        return select(ne(index, nowhere), value, start)
    if start != nothing(p.query.reducer, p.query.dtype):
        value = binary(REDUCERS[p.query.reducer].op, start, value)
    return select(p.some, value, start)


def applied(p: Plan, acc: Load, phi: Expr, original: Definition, k: int) -> Expr:
    """acc · φ or acc + φ; 1/x is applied as a division. A max or min of nothing stays the identity."""
    if p.repair.deferred_op == "apply":
        return _chosen(p, acc, phi, original, k)
    inverse = isinstance(phi, Op) and phi.name == "div" and phi.args[0] == Const(1.0, phi.dtype)
    if p.repair.deferred_op == "mul" and inverse and isinstance(phi, Op):
        value = binary("div", acc, cast(phi.args[1], acc.dtype))
    else:
        value = binary(p.repair.deferred_op, acc, cast(phi, acc.dtype))
    if p.query.reducer == "sum":
        return value
    (start,) = REDUCERS[p.query.reducer].identity(acc.dtype)
    return select(ne(acc, start), value, start)
