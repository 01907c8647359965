"""rolling_update: fuse a reduction under a loop in which the reductions it reads are still changing.

Paper §4.2 and Fig. 10.  `rolling_update(xsum, j)` before → after::

    for i: for j: xmax: xmax[i] max= inp[i, j]     for i: for j:
    for i: for j: xexp: xexp[i, j] =                 xmax_prev: xmax_prev[i] = xmax[i]
                        exp(inp[i, j] - xmax[i])     xmax: xmax[i] max= inp[i, j]
    for i: for j: xsum: xsum[i] += xexp[i, j]        xexp: xexp[i, j] = exp(inp[i, j] - xmax[i])
                                                     xmax_rescale: … = exp(xmax_prev[i] - xmax[i])
                                                     xsum_repair: xsum[i] = xsum[i] * xmax_rescale[i]
                                                     xsum: xsum[i] += xexp[i, j]

The order of work: find the frontier, inline the maps in between into g, *solve and prove* the repair
(`fusion.repair`), and only then move anything.  What can be deferred (1/l, rsqrt, a scale) is taken out
of the accumulation and applied once behind the loop.  Maps in between that something outside the loop
still reads are duplicated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.errors import FusionError, InternalError
from neptune.fusion.frontier import Frontier, frontier
from neptune.fusion.repair import defer, solve
from neptune.fusion.roles import Predecessor, Query, Repair, Roles, previous
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    cast,
    conjuncts,
    loads,
    logical_and,
    op,
    rewrite,
    substitute,
    variables,
)
from neptune.ir.printer import print_expr
from neptune.ir.program import (
    Buffer,
    For,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    for_loops,
    map_action,
    paths,
    reduction_loops,
    rewrite_stmt,
    stages,
    writes,
)
from neptune.schedule.fuse_at import Nest, align, fuse_definition, nest_of
from neptune.schedule.inline import inline_loads
from neptune.schedule.state import (
    Decision,
    Definition,
    Loop,
    State,
    fresh_name,
    insert_after,
    insert_before,
    names_in_use,
)


@dataclass(frozen=True)
class Plan:
    """All that was decided before anything moves."""

    target: str
    ref: Loop
    frontier: Frontier
    query: Query
    repair: Repair


def _request(target: str, ref: Loop) -> str:
    return f"cannot fuse reduction `{target}` into loop `{ref.var}` of `{ref.stage}`"


def _predecessor(state: State, name: str, load: Load, d: Definition, nest: Nest) -> Predecessor:
    """Role r as the target reads it, with its contribution in the target's own variables."""
    other = state.definitions[name]
    action = other.action
    assert isinstance(action, Update)
    env: dict[str, Expr] = {v.name: i for v, i in zip(action.index, load.index, strict=True) if isinstance(v, Var)}
    # The fused axis of the predecessor is the target's axis that runs along with it.
    for axis, (host, theirs) in align(state, d, nest).items():
        for mine, where in state.axes[name].items():
            if mine not in env and state.axes[host][theirs] == where:
                env[mine] = Var(axis)
    known = set(other.extents) <= set(env)
    value = substitute(action.values[0], env) if known and len(action.values) == 1 else None
    return Predecessor(load, action.reducer, value)


def plan(state: State, target: str, ref: Loop) -> Plan:
    """Frontier, g, repair and proof; raises FusionError and changes nothing."""
    d = state.definitions[target]
    request = _request(target, ref)
    if not isinstance(d.action, Update):
        raise FusionError(request, f"`{target}` is a map, not a reduction", hint=f'fuse_at("{target}", …)')
    if len(d.action.values) != 1:
        raise FusionError(request, f"`{target}` is a reduction on tuples; these cannot be repaired yet")
    nest = nest_of(state, ref)
    if target in nest.hosts and any(f is state.loop(ref) for f in state.loops(target)):
        raise FusionError(request, f"`{target}` is inside `{ref.var}` already")
    front = frontier(state, target, nest)
    maps = [a for s in front.between if isinstance(a := state.definitions[s].action, Store)]
    g = inline_loads(d.action.values[0], {a.buffer: a for a in maps})
    wanted = {b: s for s in front.predecessors for b in writes(state.definitions[s].action)}
    found = {x: wanted[x.buffer] for x in loads(g) if x.buffer in wanted}
    seen = replace(d, action=replace(d.action, values=(g,)))
    query = Query(
        stage=target,
        reducer=d.action.reducer,
        dtype=state.program.globals[d.action.buffers[0]].dtype,
        value=g,
        predecessors=tuple(_predecessor(state, s, x, seen, nest) for x, s in found.items()),
        varying=frozenset(d.reduced),
    )
    return Plan(target, ref, front, query, solve(query))


# --- carrying it out ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """The maps in between as they stand inside the loop while they are brought in one by one."""

    state: State
    alias: Mapping[str, str]  # buffer → the buffer that holds its (deferred) value inside the loop
    taken: Mapping[str, tuple[tuple[str, ...], Expr]]  # buffer → (its axes, φ that was taken out of it)

    def rewritten(self, e: Expr, roles: Roles) -> Expr:
        """`e` without the deferrable factors, reading the copies inside the loop."""
        known: dict[str, Expr] = {}
        for x in loads(e):
            if x.buffer in self.taken:
                axes, phi = self.taken[x.buffer]
                known[x.buffer] = substitute(phi, dict(zip(axes, x.index, strict=True)))
        return self.renamed(defer(e, roles, known)[1])

    def renamed(self, e: Expr) -> Expr:
        def fn(x: Expr) -> Expr | None:
            if isinstance(x, Load) and self.alias.get(x.buffer, x.buffer) != x.buffer:
                return Load(self.alias[x.buffer], x.index, x.dtype)
            return None

        return rewrite(e, fn)


def _roles(state: State, p: Plan, d: Definition) -> Roles:
    """The roles seen from the definition of a map in between (in its own variables)."""
    nest = nest_of(state, p.ref)
    wanted = {b: s for s in p.frontier.predecessors for b in writes(state.definitions[s].action)}
    found = {x: wanted[x.buffer] for x in d.reads() if x.buffer in wanted}
    aligned = align(state, d, nest)
    loops = {f.var for s in p.frontier.predecessors for f in reduction_loops(state.path(s)[1], state.loops(s))}
    varying = frozenset(a for a, (h, x) in aligned.items() if loops & variables(state.axes[h][x]))
    return Roles(tuple(_predecessor(state, s, x, d, nest) for x, s in found.items()), varying)


def _bring_in(chain: Chain, p: Plan, name: str) -> Chain:
    """Fuse one map in between under the loop: moved if all its readers go there, else as a copy."""
    state = chain.state
    d = state.definitions[name]
    assert isinstance(d.action, Store)
    store = d.action
    axes = tuple(i.name for i in store.index if isinstance(i, Var))
    roles = _roles(state, p, d)
    psi = chain.rewritten(store.value, roles)
    phi = defer(store.value, roles, _known(chain, store.value))[0]
    taken = dict(chain.taken) if phi is None else {**chain.taken, store.buffer: (axes, phi)}
    if isinstance(psi, Load) and psi.index == store.index:
        return Chain(state, {**chain.alias, store.buffer: psi.buffer}, taken)
    here = {s.name for s in stages(state.loop(p.ref))}
    if name in here and psi == store.value:
        return Chain(state, chain.alias, taken)
    key = (name, print_expr(psi))
    if key in state.copies:
        copy = state.definitions[state.copies[key]].action
        assert isinstance(copy, Store)
        return Chain(state, {**chain.alias, store.buffer: copy.buffer}, taken)
    inside = here | set(p.frontier.between) | {p.target}
    elsewhere = [r for r in state.readers(store.buffer) if r not in inside]
    if phi is None and not elsewhere and not state.is_output(store.buffer):
        moved = replace(d, action=replace(store, value=psi))
        return Chain(_refuse(state, name, moved, p.ref), chain.alias, taken)
    fresh = fresh_name(names_in_use(state.program), f"{name}_in_{p.ref.var}")
    buffer = replace(state.program.globals[store.buffer], name=fresh)
    copied = replace(d, action=Store(fresh, store.index, psi))
    state = fuse_definition(state.with_temporary(buffer), fresh, copied, p.ref, f"fuse_at(`{name}`)")
    state = replace(state, copies={**state.copies, key: fresh})
    return Chain(state, {**chain.alias, store.buffer: fresh}, taken)


def _known(chain: Chain, e: Expr) -> dict[str, Expr]:
    return {
        x.buffer: substitute(chain.taken[x.buffer][1], dict(zip(chain.taken[x.buffer][0], x.index, strict=True)))
        for x in loads(e)
        if x.buffer in chain.taken
    }


def _refuse(state: State, name: str, d: Definition, ref: Loop) -> State:
    """Take a stage out of where it stands and put definition `d` of it at the end of the loop."""
    body = rewrite_stmt(state.program.body, lambda s: None if isinstance(s, Stage) and s.name == name else s)
    assert body is not None
    return fuse_definition(state.with_body(body), name, d, ref, f"fuse_at(`{name}`, `{ref.var}`)")


def rolling_update(state: State, target: str, ref: Loop) -> State:
    """Fuse `target` under `ref` with a proved repair; raises FusionError with its reason otherwise."""
    state.path(target)
    p = plan(state, target, ref)
    d = state.definitions[target]
    assert isinstance(d.action, Update)
    chain = Chain(state, {}, {})
    for name in p.frontier.between:
        chain = _bring_in(chain, p, name)
    value = chain.rewritten(d.action.values[0], Roles(p.query.predecessors, p.query.varying))
    _check_same(chain.state, p, value)
    state, fused = _fuse_target(chain.state, p, value)
    state = _discharge(state, p)
    if p.repair.factor is not None:
        state = _insert_repair(state, p, fused)
    if p.repair.deferred is not None:
        state = _insert_epilogue(state, p, d)
    state = _sweep(state, p)
    return settle(state).note(_decision(p))


def _check_same(state: State, p: Plan, value: Expr) -> None:
    """What is folded, with its maps inlined again, must be exactly what the repair was proved for."""
    stores = {
        d.action.buffer: d.action
        for s, d in state.definitions.items()
        if isinstance(d.action, Store) and s in {x.name for x in stages(state.loop(p.ref))}
    }
    found = inline_loads(value, stores)
    expected = inline_loads(p.repair.body, stores)
    if found != expected:
        raise InternalError(
            f"fusing `{p.target}`: the loop would fold {print_expr(found)}, the proof is about {print_expr(expected)}"
        )


def _fuse_target(state: State, p: Plan, value: Expr) -> tuple[State, Definition]:
    """The reduction itself under the loop; with something deferred, into an accumulator of its own."""
    d = state.definitions[p.target]
    assert isinstance(d.action, Update)
    buffer = d.action.buffers[0]
    if p.repair.deferred is not None:
        accumulator = fresh_name(names_in_use(state.program), f"{buffer}_acc")
        state = state.with_temporary(Buffer(accumulator, state.program.globals[buffer].shape, p.query.dtype))
        buffer = accumulator
    fused = replace(d, action=replace(d.action, buffers=(buffer,), values=(value,)))
    return _refuse(state, p.target, fused, p.ref), fused


def _discharge(state: State, p: Plan) -> State:
    """The target's obligations towards the predecessors of the repair are met."""
    owes = tuple(o for o in state.program.owes if not (o.stage == p.target and o.on in p.frontier.predecessors))
    return replace(state, program=replace(state.program, owes=owes))


def _insert_repair(state: State, p: Plan, fused: Definition) -> State:
    """Previous values, the factor (one stage, shared by equal repairs) and the repair of the accumulator."""
    assert p.repair.factor is not None and isinstance(fused.action, Update)
    for pre in p.query.predecessors:
        if any(x == previous(pre.load) for x in loads(p.repair.factor)):
            writer = state.writer(pre.load.buffer)
            assert writer is not None
            state = _keep_previous(state, p, writer, pre.load.buffer)
    used = variables(p.repair.factor)
    axes = [(a, n) for a, n in fused.axes if a in used and a not in fused.reduced]
    index = tuple(Var(a) for a, _ in axes)
    env = state.axes[p.target]
    key = (f"rescale in {p.ref.var}", print_expr(substitute(p.repair.factor, env)))
    dtype = p.repair.factor.dtype
    if key in state.copies:
        factor = state.copies[key]
    else:
        factor = fresh_name(names_in_use(state.program), f"{p.query.predecessors[0].load.buffer}_rescale")
        state = state.with_temporary(Buffer(factor, tuple(n for _, n in axes), dtype))
        stage = Stage(factor, Store(factor, index, p.repair.factor))
        state = _beside(state, p.target, p.target, stage, env)
        state = replace(state, copies={**state.copies, key: factor})
    action = fused.action
    old = Load(action.buffers[0], action.index, p.query.dtype)
    scale = cast(Load(factor, index, dtype), p.query.dtype)
    combined = op("add" if p.repair.kind == "shift" else "mul", old, scale)
    repair = Stage(f"{p.target}_repair", Store(old.buffer, action.index, combined))
    return _beside(state, p.target, p.target, repair, env)


def _keep_previous(state: State, p: Plan, writer: str, buffer: str) -> State:
    name = previous(Load(buffer, (), "float32")).buffer
    if state.copies.get(("previous", buffer)) == name:
        return state
    if name in names_in_use(state.program):
        raise FusionError(
            _request(p.target, p.ref), f"the name `{name}`, for the previous value of `{buffer}`, is taken"
        )
    declared = state.program.globals[buffer]
    state = state.with_temporary(replace(declared, name=name))
    action = state.definitions[writer].action
    stage = Stage(name, Store(name, action.index, Load(buffer, action.index, declared.dtype)))
    first = next(s.name for s in stages(state.loop(p.ref)) if buffer in writes(s.action))
    state = replace(state, copies={**state.copies, ("previous", buffer): name})
    return _beside(state, writer, first, stage, state.axes[writer])


def _beside(state: State, like: str, before: str, stage: Stage, env: Mapping[str, Expr]) -> State:
    """Insert a stage, written over the axes of `like`, in front of the nest of stage `before`.

    It gets the loops of `like` that its index uses, and the parts of the guard that concern these.
    """
    loops = state.loops(like)
    anchor_path, node = state.path(before)
    depth = max(k for k, s in enumerate(anchor_path) if isinstance(s, For) and _shared(state, s, like))
    anchor = anchor_path[depth + 1] if depth + 1 < len(anchor_path) else node
    if isinstance(anchor, Seq):
        anchor = anchor_path[depth + 2] if depth + 2 < len(anchor_path) else node
    outside = {id(s) for s in anchor_path[: depth + 1]}
    action = map_action(stage.action, lambda e: substitute(e, env))
    used = frozenset[str]().union(*(variables(i) for i in action.index))
    inner = [f for f in loops if id(f) not in outside and f.var in used]
    known = {f.var for f in loops if id(f) in outside} | used
    sizes = {s.name for s in state.program.scalars} | {t.name for t in state.program.tunables}
    guards = [c for c in conjuncts(state.path(like)[1].when) if variables(c) <= known | sizes]
    nest: Stmt = Stage(stage.name, action, logical_and(*guards) if guards else None)
    for f in reversed(inner):
        nest = replace(f, body=nest)
    return state.with_body(insert_before(state.program.body, anchor, nest))


def _shared(state: State, loop: For, stage: str) -> bool:
    """True if `loop` encloses more than the nest of one stage: a place where nests stand side by side."""
    return any(f is loop for f in state.loops(stage)) and isinstance(loop.body, Seq)


def _insert_epilogue(state: State, p: Plan, original: Definition) -> State:
    """X = acc · φ(r), once, behind the outermost loop the target reduces over."""
    assert p.repair.deferred is not None and isinstance(original.action, Update)
    path, node = state.path(p.target)
    loops = state.loops(p.target)
    anchor = reduction_loops(node, loops)[0]
    accumulator = state.definitions[p.target].action
    assert isinstance(accumulator, Update)
    index = original.action.index
    acc = Load(accumulator.buffers[0], index, p.query.dtype)
    phi = p.repair.deferred
    if (
        p.repair.deferred_op == "mul"
        and isinstance(phi, Op)
        and phi.name == "div"
        and phi.args[0] == Const(1.0, phi.dtype)
    ):
        value = op("div", acc, cast(phi.args[1], acc.dtype))
    else:
        value = op(p.repair.deferred_op, acc, cast(phi, acc.dtype))
    axes = tuple((a, n) for a, n in original.axes if a not in original.reduced)
    name = fresh_name(names_in_use(state.program), f"{p.target}_final")
    definition = Definition(axes, Store(original.action.buffers[0], index, value))
    env = {a: e for a, e in state.axes[p.target].items() if a in dict(axes)}
    action = map_action(definition.action, lambda e: substitute(e, env))
    inside = loops[loops.index(anchor) :]
    used = frozenset[str]().union(*(variables(i) for i in action.index))
    outer = {f.var for f in loops[: loops.index(anchor)]}
    sizes = {s.name for s in state.program.scalars} | {t.name for t in state.program.tunables}
    guards = [c for c in conjuncts(node.when) if variables(c) <= used | outer | sizes]
    nest: Stmt = Stage(name, action, logical_and(*guards) if guards else None)
    for f in reversed([f for f in inside if f.var in used]):
        nest = replace(f, body=nest)
    del path
    return state.with_body(insert_after(state.program.body, anchor, nest)).define(name, definition, env)


def _sweep(state: State, p: Plan) -> State:
    """Originals that nothing reads any more go; their copies in the loop take over the name."""
    for name in reversed(p.frontier.between):
        buffers = writes(state.definitions[name].action)
        if any(state.readers(b) or state.is_output(b) for b in buffers):
            continue
        copies = [c for (original, _), c in state.copies.items() if original == name]
        state = state.drop_stage(name)
        if len(copies) == 1:
            state = state.rename(copies[0], name)
    return state


def settle(state: State) -> State:
    """Drop the obligations of maps whose every reader is inside the loop and owes nothing itself."""
    owes = list(state.program.owes)
    changed = True
    while changed:
        changed = False
        for o in list(owes):
            d = state.definitions[o.stage]
            if not isinstance(d.action, Store) or state.is_output(d.action.buffer):
                continue
            inside = {s.name for path, s in paths(state.program.body) if o.loop in {f.var for f in for_loops(path)}}
            readers = state.readers(d.action.buffer)
            open_ones = {x.stage for x in owes if x.on == o.on and x.loop == o.loop}
            if readers and set(readers) <= inside and not set(readers) & open_ones:
                owes.remove(o)
                changed = True
    return replace(state, program=replace(state.program, owes=tuple(owes)))


def _decision(p: Plan) -> Decision:
    r = p.repair
    details = [r.g, r.h, *(f"{a} = {b}" for a, b in r.symbols)]
    if r.deferred is not None:
        details.append(f"deferred: {r.deferred_op} {print_expr(r.deferred)}, applied once behind the loop")
    details += [f"proved {o.name}: {o.statement}  [{o.how}]" for o in r.obligations]
    details += [f"cast kept: {c}" for c in r.casts]
    verdict = "rolled" if r.factor is not None else "deferred" if r.deferred is not None else "fused"
    reason = f"reads {', '.join(p.frontier.predecessors) or 'nothing that'} still changes in loop `{p.ref.var}`"
    return Decision("rolling_update", p.target, verdict, reason, tuple(details))
