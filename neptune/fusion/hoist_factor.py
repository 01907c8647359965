"""hoist_factor: take a factor that does not move out of a sum, and apply it once to what is summed.

`hoist_factor(y)` before → after::

    for i: for j: for k: y[i, j] += x[i, k] * r[i] * w[k, j]     for i: for j: for k: y_acc[i, j] += x[i, k] * w[k, j]
                                                                 for i: for j: y[i, j] = y_acc[i, j] * r[i]

A factor, or what a product is divided by, is an expression that no reduced axis occurs in; it may read other stages,
sizes and the axes that are kept. What is left is a product of two operands where its factors can be grouped so, which
is what a matrix unit takes. Where the sum itself has no such factor, maps that it reads are opened for one: z of
z[i, k] = x[i, k] * r[i]; those that nothing else reads are gone then.

It is the deferral of a rolling update (`fusion.strategies.separated`) of what does not change at all, with the same
proofs and the same obligation on ranges (docs/design/repairs.md, "Range is one obligation"). Casts keep their place:
what is rounded behind a factor, or multiplied in fewer bits than are summed, holds it fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from neptune.errors import FusionError, ScheduleError
from neptune.fusion.prove import Unproved
from neptune.fusion.repairs.factor import Splitter, product
from neptune.fusion.repairs.obligations import prove
from neptune.fusion.repairs.range import owed
from neptune.fusion.repairs.roles import (
    Evidence,
    ObligationRecord,
    Predecessor,
    Query,
    Repair,
    Roles,
    Slot,
    slot,
    times,
)
from neptune.fusion.repairs.symbols import numbered, pretty
from neptune.fusion.rewriting.plan import count, never_empty
from neptune.fusion.rolling_update import assumed, details
from neptune.ir.contraction import factors, grouped
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, loads, rewrite, substitute, variables, walk
from neptune.ir.program import Buffer, Made, Store, seq, stages, writes
from neptune.ir.text.printer import print_expr
from neptune.schedule.definition import Definition, MapDef, ReductionDef, define
from neptune.schedule.primitives.buffers import own_nest
from neptune.schedule.primitives.inline import inline_loads, inlined_stores
from neptune.schedule.state import Decision, State, fresh_name, names_in_use, replace_node

NARROWEST = 32
"""Bits of an accumulator that may do without a factor."""
OPENED = ("mul", "div", "neg")
"""The operators between factors."""
LEGAL = "a sum of products with a factor in which no reduced axis occurs"
NOT_FINITE = ObligationRecord(
    "defined",
    "a factor that is infinite or NaN makes no finite result",
    "of neither form: at least one element is folded",
)


@dataclass(frozen=True)
class Hoisted:
    """A value as φ·ψ: `names` stand for the factors in `whole`, which is the value, and in `phis`; `psi` is what is
    left to be summed, and `steps` say which factors were taken out of each part of it. `through`: opened maps."""

    whole: Expr
    names: Mapping[Expr, Load]
    phis: tuple[Expr, ...]
    psi: Expr
    steps: Mapping[Expr, tuple[Expr, ...]]
    through: tuple[str, ...]


def hoist_factor(state: State, name: str) -> tuple[State, str]:
    """Take the factors that do not move out of a sum; returns the name of the map that applies them.

    Raises ScheduleError where the stage is no sum that this can be done to, and FusionError, with the reason, where it
    has no such factor or where the result may leave a range that the expression stays in.
    """
    request = f"hoist_factor(`{name}`)"
    d = _sum(state, name, request)
    stores = hoisted(state.definitions, name)
    if stores is None:
        wrong, hint = _nothing(d)
        raise FusionError(request, wrong, legal=(LEGAL,), hint=hint)
    repair = _proved(state, d, stores, name, request)
    state = _written(state, d, stores, repair, name, request)
    (final,) = state.made("final", name)
    reason = f"no axis that `{name}` reduces over moves it"
    named, ranges = assumed(repair, name, ()), repair.evidence.ranges
    return state.note(Decision("hoist_factor", name, "hoisted", reason, details(repair), (), ranges, named)), final


# --- what is asked --------------------------------------------------------------------------------


def _sum(state: State, name: str, request: str) -> ReductionDef:
    """The definition of a stage that is a sum of floats, as it was written."""
    d = state.definition(name)
    if not isinstance(d, ReductionDef) or d.action.reducer != "sum":
        what = f"a {d.action.reducer}" if isinstance(d, ReductionDef) else "a map"
        sums = [n for n, x in state.reductions.items() if x.action.reducer == "sum"]
        raise ScheduleError(request, f"`{name}` is {what}: a factor is taken out of a sum", legal=sums)
    same = [(f.var, f.lo, f.hi, f.kind) for f in state.loops(name)]
    if same != [(a.name, a.lo, a.hi, "serial") for a in d.axes] or state.program.owes:
        raise ScheduleError(request, f"`{name}` has been scheduled already", hint="do this before anything else")
    other = next((x.name for x in stages(own_nest(state, name, request)) if x.name != name), None)
    if other is not None:
        raise ScheduleError(request, f"`{name}` is in a nest with `{other}`", hint="do this before you fuse")
    dtype = state.program.globals[d.action.buffers[0]].dtype
    if not is_float(dtype) or DTYPES[dtype].bits < NARROWEST or d.action.values[0].dtype != dtype:
        wrong = f"`{name}` is summed in {dtype}: without the factor that may overflow, or round otherwise"
        raise FusionError(request, wrong, hint='sum in float32: .astype("float32") within the sum')
    if d.when is not None or d.action.init != d.identity:
        wrong = f"`{name}` is guarded" if d.when is not None else f"`{name}` does not start from 0"
        hint = "a condition in the value: select(cond, x, 0); and add what it starts from behind the sum"
        raise FusionError(request, wrong, hint=hint)
    if not never_empty(state, d):
        wrong = f"`{name}` may fold nothing, and a factor that is not finite would make NaN of that 0"
        raise FusionError(request, wrong, hint="an axis as long as a size")
    return d


def _nothing(d: ReductionDef) -> tuple[str, str]:
    """Why a sum has no factor to take out, and a remedy."""
    value, reduced = d.action.values[0], frozenset(d.reduced)
    fast = next(_held(value, reduced), None)
    axes = ", ".join(f"`{a}`" for a in d.reduced)
    if fast is None:
        return f"every factor of {print_expr(value)} moves with {axes}", "a factor over the kept axes alone"
    wrong = f"{print_expr(fast)} does not move with {axes}, and is part of what is rounded to another dtype"
    return wrong, "multiply in the dtype of the sum, or behind it, where that rounding may be left out"


def _held(e: Expr, reduced: frozenset[str]) -> Iterator[Expr]:
    """The factors within casts, which hold them."""
    for f in factors(e):
        if isinstance(f, Cast) and variables(f) & reduced:
            inside = list(factors(f.arg))
            yield from (x for x in inside if len(inside) > 1 and not variables(x) & reduced)
            yield from _held(f.arg, reduced)


# --- the factors ----------------------------------------------------------------------------------


def hoisted(definitions: Mapping[str, Definition], name: str) -> Hoisted | None:
    """The value of a sum as φ·ψ; None where it has no factor that does not move.

    Maps are looked through only where they are needed for that. Nothing is proved yet.
    """
    d = definitions[name]
    assert isinstance(d, ReductionDef)
    alone = _separated(d, d.action.values[0], ())
    if alone is not None:
        return alone
    stores = _moving_maps(definitions, d)
    value = inline_loads(d.action.values[0], {b: a for a in (m.action for m in stores.values()) for b in writes(a)})
    return _separated(d, value, tuple(stores)) if stores else None


def _moving_maps(definitions: Mapping[str, Definition], d: ReductionDef) -> dict[str, MapDef]:
    """The maps that a sum reads, directly or through such maps, at indices that move."""
    maps = {m.action.buffer: (n, m) for n, m in definitions.items() if isinstance(m, MapDef) and m.when is None}
    moving: dict[str, MapDef] = {}
    todo = [x for x in d.reads() if any(variables(i) & set(d.reduced) for i in x.index)]
    for x in todo:
        name, m = maps.get(x.buffer, ("", None))
        if m is not None and name not in moving and not isinstance(inlined_stores(m), str):
            moving[name] = m
            todo += m.reads()
    return moving


def _separated(d: ReductionDef, value: Expr, through: tuple[str, ...]) -> Hoisted | None:
    names: dict[Expr, Load] = {}
    whole = _named(value, frozenset(d.reduced), value.dtype, names)
    if not names:
        return None
    roles = Roles(tuple(Predecessor(x, "max", e) for e, x in names.items()), frozenset(d.reduced))
    splitter = Splitter(roles)
    split = splitter.split(whole)
    if splitter.problems or splitter.casts or not split.phis:
        return None
    steps = dict(splitter.steps)
    psi = grouped(split.psi, [a.name for a in d.spatial])
    if psi is None:
        psi = split.psi
    elif psi != split.psi:
        # In another order the products on the way are new, with or without the factor.
        steps = {x: () for x in walk(psi) if isinstance(x, Op) and x != psi} | {psi: split.phis}
    return Hoisted(whole, names, split.phis, psi, steps, through)


def _named(e: Expr, reduced: frozenset[str], dtype: str, names: dict[Expr, Load]) -> Expr:
    """A product with a name for each of its factors that does not move; nothing but products in `dtype` is opened."""
    if not variables(e) & reduced:
        if not is_float(e.dtype) or (isinstance(e, Const) and e.value in (0, 1)):
            return e
        return names.setdefault(e, Load(f"%f{len(names)}", (), e.dtype))
    match e:
        case Op(name, args, dtype_of_op) if name in OPENED and dtype_of_op == dtype:
            return Op(name, tuple(_named(a, reduced, dtype, names) for a in args), dtype_of_op)
    return e


# --- the proof ------------------------------------------------------------------------------------


def _proved(state: State, d: ReductionDef, h: Hoisted, name: str, request: str) -> Repair:
    """The deferral of the factors, with its proofs; FusionError where something is not proved."""
    dtype, known = h.psi.dtype, _known(state, h)
    whole, phis = known.put(h.whole), tuple(map(known.put, h.phis))
    query = Query(name, "sum", dtype, whole, known.predecessors, frozenset(d.reduced), count(d))
    found = dict.fromkeys(known.factors.values(), "r") | dict.fromkeys(_leaves(h), "c")
    symbols = numbered({x: found[x] for x in walk(whole) if x in found})
    steps = {x: tuple(map(known.put, taken)) for x, taken in h.steps.items()}
    ranges = owed(query, h.psi, phis, steps, {})
    for p in ranges.problems:
        wrong = f"`{print_expr(known.back(p.part))}`: {known.told(p.reason)}"
        raise FusionError(request, wrong, hint=p.hint, kind="range")
    evidence = Evidence(obligations=(*ranges.records, NOT_FINITE))
    repair = Repair((Slot("sum", h.psi, dtype),), times(product(phis, dtype), dtype), evidence=evidence)
    obligations = prove(query, symbols, repair)
    if isinstance(obligations, Unproved):
        raise FusionError(request, f"{obligations.record.statement} was not proved ({obligations.record.how})")
    evidence = Evidence(
        g=f"g = {pretty(symbols.apply(whole))}",
        h=f"sum of g = φ * sum of {pretty(symbols.apply(h.psi))}",
        symbols=tuple((n, print_expr(known.back(e))) for e, n in symbols.names),
        obligations=obligations,
        ranges=tuple(replace(p, value=known.back(p.value)) for p in ranges.predicates),
    )
    return replace(repair, finish=known.back(repair.finish), evidence=evidence)


def _leaves(h: Hoisted) -> Iterator[Expr]:
    """What the value is a product and a quotient of, beside the factors."""
    todo = [h.whole]
    for x in todo:
        if isinstance(x, Op) and x.name in OPENED:
            todo += x.args
        elif x not in h.names.values() and not isinstance(x, Const):
            yield x


@dataclass(frozen=True)
class _Known:
    """What is known of the factors: each, by its name, over reads of reductions and inputs (`predecessors`)."""

    names: Mapping[Expr, Load]
    factors: Mapping[Load, Expr]
    predecessors: tuple[Predecessor, ...]
    reads: Mapping[Load, Load]

    def put(self, e: Expr) -> Expr:
        """An expression over the names with what they stand for."""
        return rewrite(e, lambda x: self.factors.get(x) if isinstance(x, Load) else None)

    def back(self, e: Expr) -> Expr:
        """Such an expression with the factors as they are written."""
        read: dict[Expr, Expr] = {load: x for x, load in self.reads.items()}
        return rewrite(e, {**read, **{self.factors[load]: x for x, load in self.names.items()}}.get)

    def told(self, text: str) -> str:
        """A text with the factors as they are written."""
        for e in self.factors.values():
            text = text.replace(print_expr(e), print_expr(self.back(e)))
        return text


def _known(state: State, h: Hoisted) -> _Known:
    """The factors over what they are computed from: what reductions fold bounds them, and says how they grow."""
    maps = (inlined_stores(m) for m in state.maps.values() if m.when is None)
    stores = {b: a for made in maps if not isinstance(made, str) for b, a in made.items()}
    reads: dict[Load, Load] = {}
    predecessors: list[Predecessor] = []

    def named(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x in reads:
            return reads.get(x) if isinstance(x, Load) else None
        # Under a name of its own: the sum may read the same buffer elsewhere.
        reads[x] = here = Load(f"%r{len(reads)}", (), x.dtype)
        fold = state.reductions.get(state.writer(x.buffer) or "")
        if fold is None or len(fold.action.values) != 1 or fold.action.init != fold.identity or fold.when is not None:
            predecessors.append(Predecessor(here, "sum", None))
        else:
            env = {v.name: i for v, i in zip(fold.action.index, x.index, strict=True) if isinstance(v, Var)}
            value = inline_loads(substitute(fold.action.values[0], env), stores)
            predecessors.append(Predecessor(here, fold.action.reducer, value))
        return here

    factors = {}
    for e, load in h.names.items():
        of = rewrite(inline_loads(e, stores), named)
        if any(isinstance(x, Load) for x in walk(of)):
            factors[load] = of
        else:
            factors[load] = load
            predecessors.append(Predecessor(load, "max", of))
    return _Known(h.names, factors, tuple(predecessors), reads)


# --- what it becomes ------------------------------------------------------------------------------


def _written(state: State, d: ReductionDef, h: Hoisted, repair: Repair, name: str, request: str) -> State:
    """The sum of what moves into an accumulator, and a map behind it that applies the rest."""
    (buffer,) = writes(d.action)
    target, used = state.program.globals[buffer], names_in_use(state.program)
    acc = fresh_name(used, f"{buffer}_acc")
    final = fresh_name({*used, acc}, f"{name}_final")
    action = replace(d.action, buffers=(acc,), values=(h.psi,))
    accumulator = Load(acc, d.action.index, target.dtype)
    value = substitute(repair.finish, {slot(0, target.dtype).name: accumulator})
    behind = define(d.spatial, Store(buffer, d.action.index, value))
    nest, node = own_nest(state, name, request), state.path(name)[1]
    summed = replace_node(nest, node, replace(node, action=action))
    state = state.with_body(
        replace_node(state.program.body, nest, seq(summed, behind.nest(final, Made("final", name))))
    )
    state = state.with_temporary(Buffer(acc, target.shape, target.dtype))
    state = state.define(name, replace(d, action=action), state.axes[name])
    state = state.define_beside(final, behind, name, after=True)
    return _without_unread(state, h.through)


def _without_unread(state: State, maps: tuple[str, ...]) -> State:
    """The state without those of the maps that nothing reads any more."""
    left = list(maps)
    while True:
        bounds = {x.buffer for d in state.definitions.values() for a in d.axes for e in (a.lo, a.hi) for x in loads(e)}
        buffers = {n: state.map(n).action.buffer for n in left}
        dead = [n for n, b in buffers.items() if not (state.is_output(b) or state.readers(b) or b in bounds)]
        if not dead:
            return state
        state = state.drop_stage(dead[0])
        left.remove(dead[0])
