"""split_k: fold an axis in parts that run independently, and combine the parts with proved repairs.

Paper §4.3 and Algorithm 2.  `split_k(j, S, B)` of softmax's sums before → after, with C = B·⌈⌈n/B⌉/S⌉::

    for i: for j: m: m[i] max= x[i, j]      for z in [0, S): for i: for j in [z*C, min(z*C + C, n)):
    for i: for j: p: p[i, j] =                m_split: m_split[z, i] max= x[i, j]
                     exp(x[i, j] - m[i])    for z: for i: for j …: p: p[z, i, j] = exp(x[i, j] - m_split[z, i])
    for i: for j: l: l[i] += p[i, j]        for z: for i: for j …: l_split: l_split[z, i] += p[z, i, j]
                                            for i: for z: m: m[i] max= m_split[z, i]
                                            for i: for z: l: l[i] += l_split[z, i] * exp(m_split[z, i] - m[i])

It works on definitions, before anything else is scheduled. Whatever runs over the axis runs over a part of it for each
z; each reduction over it is a *local* one for each z, and a *global* one over z that repairs, on the right of ⊕, what
was folded with the local predecessors. All results are ordinary stages again: the local chain is fused by rolling
updates as the unsplit one would be, over the same tiles with the same masks, and the global one is a chain over z.

The repair h is that of a rolling update (`fusion.repairs.repair.solve`): ⊕ over all j of g(r, c_j) is ⊕ over z of
h(⊕ over j of z of g(r_z, c_j), r_z, r), by h's update law and since h commutes with ⊕.  A part without elements has
folded nothing: its r_z is the identity, and h of the identity is the identity (h is t times a factor).
Sums about a mean keep a vector per part, about the mean of that part (see `neptune.fusion.rewriting.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.errors import FusionError, ScheduleError
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair
from neptune.fusion.repairs.starts import starts_infinite, unclamped
from neptune.fusion.rewriting.frontier import Frontier
from neptune.fusion.rewriting.parts import Rewriter, Split, depends, start_of_part
from neptune.fusion.rewriting.plan import Plan, as_clamped, count, defined_when_empty, finite, leading, part_read, some
from neptune.fusion.rolling_update import assumed, details, finite_inputs
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    ceildiv,
    loads,
    substitute,
    variables,
    walk,
)
from neptune.ir.names import fits
from neptune.ir.program import Scalar, Store, Update, writes
from neptune.ir.text.printer import print_expr
from neptune.schedule.alignment import Axes
from neptune.schedule.definition import ReductionDef
from neptune.schedule.primitives.inline import inline_loads, inliner
from neptune.schedule.state import Decision, Loop, State, fresh_name, names_in_use


def split_k(state: State, ref: Loop, parts: str | int, step: Expr) -> tuple[State, Loop]:
    """Split the axis of a reduction, with what is computed for it, into `parts` of a multiple of `step`.

    Also the loop over the parts around the local stage of the reduction. Raises FusionError where no repair is proved.
    """
    request = f"split_k(`{ref.var}` of `{ref.stage}`, {parts})"
    _check_untouched(state, request)
    s = _split(state, ref, _parts(parts, request), step, request)
    state = _declared(state, s, step)
    reductions = [n for n in s.axis if s.axis[n] in state.definitions[n].reduced]
    _check_rows(state, s, reductions)
    plans: dict[str, Plan] = {}
    for name in reductions:
        plans[name] = _plan(state, s, name, reductions, plans)
    fresh = Rewriter(state, s, plans).state()
    notes = [_decision(s, plans[n], finite_inputs(state, plans[n].query, plans[n].repair)) for n in reductions]
    local = next(iter(fresh.made("part", ref.stage)), None)
    if local is None:
        # The place of the largest of exp(x - m) / l is that of the largest x: m and l are left for nobody.
        raise FusionError(request, f"no result needs `{ref.stage}` in parts", hint="leave the axis whole")
    return replace(fresh, decisions=(*state.decisions, *notes)), Loop(local, s.part.name)


# --- what is split -------------------------------------------------------------------------------


def _check_untouched(state: State, request: str) -> None:
    """Definitions are rewritten: nothing may have been scheduled by the old ones."""
    for name, d in state.definitions.items():
        loops = state.loops(name)
        same = [(f.var, f.hi) for f in loops] == list(d.extents.items())
        if not same or any(f.kind != "serial" for f in loops) or state.program.owes:
            raise ScheduleError(request, f"`{name}` has been scheduled already", hint="split_k before anything else")


def _parts(parts: str | int, request: str) -> Expr:
    if isinstance(parts, str):
        return Var(parts)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise ScheduleError(request, "this is no number of parts", legal=("a positive number", '"NUM_SPLITS"'))
    return Const(parts, "int32")


def _declared(state: State, s: Split, step: Expr) -> State:
    """The state with the number of parts as a scalar, where each call chooses that: no more than there are steps."""
    if not isinstance(s.parts, Var):
        return state
    axes = {a for d in state.definitions.values() for a in d.names}
    if not fits(s.parts.name) or s.parts.name in names_in_use(state.program) | axes:
        raise ScheduleError(s.request, f"`{s.parts.name}` is taken, is no plain identifier, or generated code uses it")
    scalar = Scalar(s.parts.name, lo=1, upto=ceildiv(s.extent, step))
    return replace(state, program=replace(state.program, scalars=(*state.program.scalars, scalar)))


def _split(state: State, ref: Loop, parts: Expr, step: Expr, request: str) -> Split:
    d = state.definition(ref.stage)
    state.loop(ref)
    if ref.var not in d.reduced:
        raise ScheduleError(request, f"`{ref.stage}` does not reduce over `{ref.var}`", legal=list(d.reduced))
    axis = _axis(state, ref, request)
    extent = d.extents[ref.var]
    if variables(extent) & set(d.names):
        wrong = f"the length of `{ref.var}`, {print_expr(extent)}, is another one in each row"
        hint = "an axis as long as a size, with select(j < length, …, the identity) in what is folded"
        raise FusionError(request, wrong, hint=hint)
    axis = _feeding(state, axis)
    for name in axis:
        _check_stage(state, name, axis, request)
    length = binary("mul", ceildiv(ceildiv(extent, step), parts), step)
    taken = names_in_use(state.program) | {a for x in state.definitions.values() for a in x.names}
    return Split(request, axis, Var(fresh_name(taken, "part")), parts, length, extent)


def _axis(state: State, ref: Loop, request: str) -> dict[str, str]:
    """The axis of each stage that is the axis of `ref`; through a common input where nothing else joins reductions."""
    axes = Axes(state.definitions)

    def found() -> dict[str, list[str]]:
        same = {
            n: [a for a in d.names if axes.same((n, a), (ref.stage, ref.var))] for n, d in state.definitions.items()
        }
        return {n: a for n, a in same.items() if a}

    if sum(bool(set(a) & set(state.definitions[n].reduced)) for n, a in found().items()) < 2:
        axes.join_through_inputs()
    twice = next((n for n, a in found().items() if len(a) > 1), None)
    if twice is not None:
        both = " and ".join(f"`{a}`" for a in found()[twice])
        raise FusionError(request, f"`{twice}` runs over the axis twice, by {both}")
    return {n: a for n, (a,) in found().items()}


def _feeding(state: State, axis: Mapping[str, str]) -> dict[str, str]:
    """The reductions over the axis, and what is computed per element for them; what is behind stays whole."""
    folding = {n for n, a in axis.items() if a in state.definitions[n].reduced}
    for name in reversed(list(axis)):
        readers = {r for b in writes(state.definitions[name].action) for r in state.readers(b)}
        if readers & folding:
            folding.add(name)
    return {n: a for n, a in axis.items() if n in folding}


def _check_stage(state: State, name: str, axis: Mapping[str, str], request: str) -> None:
    d = state.definitions[name]
    along = axis[name]
    if d.when is not None:
        raise FusionError(
            request, f"stage `{name}` is guarded", hint="move the condition into the value: select(cond, x, 0)"
        )
    if isinstance(d, ReductionDef) and along in d.reduced:
        if d.action.init != d.identity and (d.action.init is None or d.action.reducer == "lse"):
            raise _start(request, name, d.action, "each part would start from that")
    else:
        if Var(along) not in d.action.index or sum(along in variables(i) for i in d.action.index) != 1:
            raise FusionError(request, f"`{name}` does not write `{along}` as one dimension")
        position = d.action.index.index(Var(along))
        mine = writes(d.action)
        for reader in (r for r in axis if r != name):
            for x in state.definitions[reader].reads():
                if x.buffer in mine and x.index[position] != Var(axis[reader]):
                    raise FusionError(
                        request,
                        f"`{reader}` reads `{x.buffer}` at {print_expr(x.index[position])}, "
                        "which another part may compute",
                        hint=f'sch.inline("{name}") first',
                    )


def _start(request: str, name: str, action: Update, wrong: str) -> FusionError:
    return FusionError(
        request,
        f"`{name}` does not start from the identity of {action.reducer}: {wrong}",
        hint="start from the identity, and take the start in afterwards",
    )


def _check_rows(state: State, s: Split, reductions: list[str]) -> None:
    """Between the reductions nothing may stand that has no local form, or that no repair reaches through."""
    for name in s.axis:
        if name in state.reductions and name not in reductions and depends(state, name, reductions):
            wrong = f"`{name}` folds, for each element, what reads a reduction over the axis: no repair reaches through"
            raise FusionError(s.request, wrong)
        for x in state.definitions[name].reads():
            writer = state.writer(x.buffer)
            if writer is not None and writer not in s.axis and depends(state, writer, reductions):
                wrong = f"`{name}` reads `{writer}`, which makes something per row of what is split"
                raise FusionError(s.request, wrong, hint=f'sch.inline("{writer}") first')


# --- the repair of each reduction ------------------------------------------------------------------


def _plan(state: State, s: Split, name: str, reductions: list[str], known: Mapping[str, Plan]) -> Plan:
    """Return the plan of the global fold, as solved and proved for a rolling update over the axis."""
    d = state.reduction(name)
    stores: dict[str, Store] = {}
    for other in s.axis:
        if other in state.maps and depends(state, other, reductions):
            stores |= inliner(other, state.definitions[other])
    g, *others = (inline_loads(v, stores) for v in d.action.values)
    makers = {b: n for n in reductions for b in writes(state.definitions[n].action)}
    leads = leading(state, reductions)
    g, clamped = unclamped(g, leads)
    early = {x: makers[x.buffer] for x in loads(g) if x.buffer in makers}
    # What is repaired may be smaller in the whole than in a part, whatever it folds.
    roles = (_predecessor(state, s, n, x, s.axis[name], stores, known[n].repair.rolled) for x, n in early.items())
    clamped_roles = tuple(as_clamped(r, clamped, g) for r in roles)
    dtype = state.program.globals[d.action.buffers[0]].dtype
    query = Query(name, d.action.reducer, dtype, g, clamped_roles, frozenset(d.reduced), count(d))
    for x in (x for e in others for x in loads(e) if x.buffer in makers):
        raise FusionError(
            s.request, f"the index that `{name}` folds reads `{x.buffer}`, which each part has another of"
        )
    repair = defined_when_empty(state, query, solve(query), d, s.request)
    if d.places and repair.deferred and d.action.init != d.identity:
        raise _start(s.request, name, d.action, "what is applied behind the parts would change it")
    waiting = {b: n for b, n in makers.items() if n in known and _waits(known[n].repair)}
    _check_local(s, name, repair, waiting)
    read = {b: r for b, r in leads.items() if b in clamped}
    result = Plan(name, Loop(name, s.axis[name]), Frontier((), ()), stores, {}, query, repair, clamped=read)
    # A part may hold nothing but infinities, whatever the whole starts from.
    rolled = {pre.load.buffer for pre in result.rolled}
    infinite = {b: r for b, r in leads.items() if b in rolled and starts_infinite(r, _part_start(state, makers[b]))}
    return finite(replace(result, some=some(state, result, d)), read | infinite)


def _part_start(state: State, name: str) -> Expr:
    action = state.reduction(name).action
    return start_of_part(action, [v.dtype for v in action.values])[0]


def _waits(r: Repair) -> bool:
    """Return True if the result is complete only after all parts."""
    return r.deferred or bool(r.means)


def _check_local(s: Split, name: str, repair: Repair, late: Mapping[str, str]) -> None:
    """Check that the results a part reads of other reductions are complete with the part: none waits for the whole."""
    for m in repair.means:
        if m.helpers or any(isinstance(x, Select) for x in walk(m.running)):
            wrong = f"`{name}` is about {print_expr(m.value)}, and what that is divided by may be 0 in a part"
            raise FusionError(s.request, wrong, hint="leave the axis whole")
    read = [e for t in repair.slots for e in (t.value, t.step) if e is not None] + [m.value for m in repair.means]
    for x in (x for e in read for x in loads(e) if x.buffer in late):
        raise FusionError(
            s.request, f"`{name}` needs `{late[x.buffer]}` of each part, part of which is deferred to the whole"
        )


def _predecessor(
    state: State, s: Split, name: str, load: Load, axis: str, stores: Mapping[str, Store], repaired: bool
) -> Predecessor:
    d = state.reduction(name)
    env: dict[str, Expr] = {v.name: i for v, i in zip(d.action.index, load.index, strict=True) if isinstance(v, Var)}
    env[s.axis[name]] = Var(axis)
    known = set(d.names) <= set(env)
    value = inline_loads(substitute(d.action.values[0], env), dict(stores)) if known else None
    return part_read(d.action, load, value, repaired)


def _decision(s: Split, p: Plan, finite: tuple[str, ...]) -> Decision:
    verdict = "repaired on the right" if p.repair.rolled else "combined"
    what = f"folded in {print_expr(s.parts)} parts of {print_expr(s.length)} elements"
    lines, named = details(p.repair, finite), assumed(p.repair, p.target, finite)
    return Decision("split_k", p.target, verdict, what, lines, finite, p.repair.evidence.ranges, named)
