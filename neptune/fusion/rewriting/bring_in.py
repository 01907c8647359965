"""Bring the maps between a reduction and its predecessors into the loop, one by one, producers first.

e[i, j] = exp(x[i, j] - m[i])          moved into the loop as it is, or copied where something outside reads it
p[i, j] = e[i, j] / l[i]               1/l waits: inside the loop, e stands for it
r[i] = rsqrt(ss[i])                    does not run along the loop: written out where it is read
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.fusion.repairs.roles import Predecessor, Roles, scale_of
from neptune.fusion.repairs.starts import bounded, unclamped
from neptune.fusion.repairs.strategies import defer
from neptune.fusion.rewriting.frontier import sees_the_same
from neptune.fusion.rewriting.place import place_in
from neptune.fusion.rewriting.plan import Plan
from neptune.ir.expr import Expr, Load, Var, loads, rewrite, substitute, variables
from neptune.ir.program import Made, Store, stages, writes
from neptune.schedule.alignment import nest_of
from neptune.schedule.definition import Definition
from neptune.schedule.primitives.inline import inline_loads
from neptune.schedule.state import State, fresh_name, names_in_use

View = Mapping[str, Expr]


@dataclass(frozen=True)
class Chain:
    """The maps in between as they stand inside the loop.

    `alias`: buffer → the buffer that holds its value there, without the factor in `taken`, (axes, φ).
    `sizes`: buffer → a bound on that value. `written_out`: the maps that do not run along the loop.
    """

    state: State
    plan: Plan
    views: Mapping[str, View | None]
    alias: Mapping[str, str]
    taken: Mapping[str, tuple[tuple[str, ...], Expr]]
    sizes: Mapping[str, float]
    written_out: Mapping[str, Store]

    def split(self, e: Expr, roles: Roles) -> tuple[Expr | None, Expr, float]:
        """φ and ψ of `e`, ψ reading what is inside the loop, and a bound on |ψ|."""
        whole = unclamped(inline_loads(e, dict(self.written_out)), self.plan.clamped)[0]
        known: dict[str, Expr] = {}
        for x in loads(whole):
            if x.buffer in self.taken:
                axes, factor = self.taken[x.buffer]
                known[x.buffer] = substitute(factor, dict(zip(axes, x.index, strict=True)))
        sizes: dict[Expr, float] = {x: self.sizes[x.buffer] for x in loads(whole) if x.buffer in self.sizes}
        phi, psi, size = defer(whole, roles, known, sizes)
        return phi, bounded(rewrite(psi, self._inside), dict(self.plan.infinite)), size

    def _inside(self, x: Expr) -> Expr | None:
        if isinstance(x, Load) and x.buffer in self.alias:
            return Load(self.alias[x.buffer], x.index, x.dtype)
        return None


def bring_in(state: State, p: Plan) -> tuple[State, Expr]:
    """The maps of the plan inside the loop, and what the target folds there.

    Where the maps cannot hold it, the target folds what the proof is about with all maps written out.
    """
    action = state.definitions[p.target].action
    views = _views(p, action.values[0])
    # A shift, max(c + φ), or a function is taken out of the whole, not map by map.
    alone = p.repair.slots[0]
    scaled = not p.repair.deferred or (alone.start is None and scale_of(p.repair.finish) is not None)
    if not scaled or not all(_along_axes(v) for v in views.values()):
        return state, alone.value
    chain = Chain(state, p, views, {}, {}, {}, {})
    kept = _kept(state, p)
    for name in p.frontier.between:
        chain = _bring(chain, name, name in kept)
    folded = chain.split(action.values[0], p.query.roles)[1]
    return (chain.state, folded) if _same(chain.state, p, folded) else (state, alone.value)


def _along_axes(view: View | None) -> bool:
    """True where a map is read at one place, along distinct loops of the target."""
    if view is None or not all(isinstance(e, Var) for e in view.values()):
        return False
    return len(set(view.values())) == len(view)


def _views(p: Plan, value: Expr) -> dict[str, View | None]:
    """Return the views of the maps: map axis → expression in the target's variables (None if not read at one place)."""
    views: dict[str, View | None] = {}

    def visit(e: Expr) -> None:
        for x in loads(e):
            store = p.stores.get(x.buffer)
            if store is None:
                continue
            view = {v.name: i for v, i in zip(store.index, x.index, strict=True) if isinstance(v, Var)}
            views[x.buffer] = view if views.get(x.buffer, view) == view else None
            visit(substitute(store.value, view))

    visit(value)
    return views


def _kept(state: State, p: Plan) -> frozenset[str]:
    """The maps whose originals stay where they are, since something that stays reads them."""
    kept: set[str] = set()
    for name in reversed(p.frontier.between):
        for buffer in writes(state.definitions[name].action):
            leaving = set(p.frontier.between) - kept | {p.target}
            if state.is_output(buffer) or not leaving.issuperset(state.readers(buffer)):
                kept.add(name)
    return frozenset(kept)


def _roles(chain: Chain, store: Store) -> Roles:
    """The plan's roles in the variables of one map."""
    view = chain.views[store.buffer] or {}
    query = chain.plan.query
    back: dict[str, Expr] = {e.name: Var(axis) for axis, e in view.items() if isinstance(e, Var)}

    def seen(pre: Predecessor) -> Predecessor:
        known = pre.value is not None and variables(pre.value) <= set(back)
        value = substitute(pre.value, back) if known and pre.value is not None else None
        load = substitute(pre.load, back)
        assert isinstance(load, Load)
        return replace(pre, load=load, value=value)

    varying = frozenset(axis for axis, e in view.items() if variables(e) & query.varying)
    return Roles(tuple(map(seen, query.predecessors)), varying)


def _bring(chain: Chain, name: str, kept: bool) -> Chain:
    """One map: inside the loop already, moved there, copied there, or not needed there."""
    state, p = chain.state, chain.plan
    d = state.definitions[name]
    store = p.stores[writes(d.action)[0]]
    roles = _roles(chain, store)
    if not roles.varying:
        whole = replace(store, value=inline_loads(store.value, dict(chain.written_out)))
        return replace(chain, written_out={**chain.written_out, store.buffer: whole})
    phi, psi, size = chain.split(store.value, roles)
    if size < math.inf:
        chain = replace(chain, sizes={**chain.sizes, store.buffer: size})
    if phi is not None:
        axes = tuple(i.name for i in store.index if isinstance(i, Var))
        chain = replace(chain, taken={**chain.taken, store.buffer: (axes, phi)})
    if isinstance(psi, Load) and psi.index == store.index:
        return _as(chain, store, psi.buffer)
    inside = name in {s.name for s in stages(state.loop(p.ref))}
    if inside and psi == store.value and _in_place(state, p, name):
        return chain
    copy = _existing(state, p, name, psi)
    if copy is not None:
        return _as(chain, store, copy)
    if phi is None and not kept and not inside:
        moved = replace(d, action=replace(store, value=psi))
        return replace(chain, state=place_in(state, name, moved, p.ref, p.request))
    return _copy(chain, name, d, replace(store, value=psi))


def _as(chain: Chain, store: Store, buffer: str) -> Chain:
    return replace(chain, alias={**chain.alias, store.buffer: buffer})


def _copy(chain: Chain, name: str, d: Definition, store: Store) -> Chain:
    state, p = chain.state, chain.plan
    fresh = fresh_name(names_in_use(state.program), f"{name}_in_{p.ref.var}")
    state = state.with_temporary(replace(state.program.globals[store.buffer], name=fresh))
    copied = replace(d, action=replace(store, buffer=fresh))
    state = place_in(state, fresh, copied, p.ref, p.request, Made("copy", name))
    return _as(replace(chain, state=state), store, fresh)


def _existing(state: State, p: Plan, name: str, psi: Expr) -> str | None:
    """A copy that an earlier fusion made of the same map, where it still says the same."""
    for copy in state.made("copy", name):
        action = state.map(copy).action
        if action.value == psi and _in_place(state, p, copy):
            return action.buffer
    return None


def _in_place(state: State, p: Plan, name: str) -> bool:
    return sees_the_same(state, name, nest_of(state, p.ref), p.frontier.predecessors)


def _same(state: State, p: Plan, value: Expr) -> bool:
    """Return True if the folded value, its maps inlined again, is exactly what the repair was proved for."""
    here = {s.name for s in stages(state.loop(p.ref))}
    stores = {d.action.buffer: d.action for s, d in state.maps.items() if s in here}
    return inline_loads(value, stores) == inline_loads(p.repair.slots[0].value, stores)


def sweep(state: State, p: Plan) -> State:
    """Originals that nothing reads any more go; the copy in the loop, if there is one, takes over the name."""
    for name in reversed(p.frontier.between):
        buffers = writes(state.definitions[name].action)
        if any(state.readers(b) or state.is_output(b) for b in buffers):
            continue
        copies = state.made("copy", name)
        state = state.drop_stage(name)
        if len(copies) == 1 and buffers == (name,):
            state = state.rename(copies[0], name)
    return state
