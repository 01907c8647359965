"""partition: cut a loop's range by the predicates under it (design §6, "Masks"; paper §5).

`partition(j0)` for causal attention, before → after (n keys, tiles of BN, N = n - m)::

    for j0 in [0, cdiv(n, BN)):              for j0 in [0, C):            fact j0*BN + BN <= n, …
      score: select(kv <= q + N, s, -inf)      score: s
      …  when kv < n                           …
                                             for j0 in [C, hi):
                                               score: select(kv <= q + N and kv < n, s, -inf)
                                               …  when kv < n

Each conjunct is solved for the loop variable twice: *somewhere true* on the tile bounds what is visited
(only where it is proved that everything downstream absorbs the masked value), *everywhere true* bounds
the clean piece, in which the predicates are gone. What was learned is attached to the piece as facts.
A masked piece of at most one iteration becomes an `if`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from math import inf

from neptune.errors import ScheduleError
from neptune.ir.absorb import NEG_INF, conjunct_false, unchanged
from neptune.ir.affine import (
    Poly,
    Scope,
    always,
    as_nonnegative,
    extreme,
    linear,
    nonnegative,
    number,
    poly,
    scope_of,
    to_expr,
)
from neptune.ir.decompose import decompose
from neptune.ir.expr import (
    Const,
    Expr,
    Op,
    Select,
    binary,
    ceildiv,
    conjuncts,
    logical_and,
    maximum,
    minimum,
    rewrite,
    select,
    substitute,
    variables,
    walk,
)
from neptune.ir.printer import print_expr
from neptune.ir.program import (
    ZERO,
    For,
    If,
    Stage,
    Stmt,
    Store,
    Update,
    for_loops,
    map_exprs,
    paths,
    seq,
    stages,
    sub_stmts,
    values,
    with_stmts,
    writes,
)
from neptune.schedule.state import Decision, Loop, State, check_whole, reads, replace_node


@dataclass(frozen=True)
class Bound:
    """One conjunct solved for the loop variable: the range where it holds somewhere / everywhere."""

    pred: Expr
    upper: bool
    somewhere: Expr  # exclusive upper (or inclusive lower) bound of tiles on which pred is true at all
    everywhere: Expr  # the same for tiles on which it is true throughout
    fact: Expr
    skips: bool  # a mask that is absorbed, as opposed to a guard


def _floor_div(numerator: Poly, divisor: Poly, scope: Scope) -> Expr:
    """max(0, numerator) // divisor; clamped first, since generated code divides towards zero."""
    top = to_expr(numerator)
    return binary("floordiv", top if nonnegative(numerator, scope) else maximum(ZERO, top), to_expr(divisor))


def _at_least_zero(p: Poly) -> Expr:
    """p ≥ 0 with every term on the side where it is positive."""
    left, right = (tuple((m, s * c) for m, c in p.terms if s * c > 0) for s in (-1, 1))
    return binary("le", to_expr(Poly(left)), to_expr(Poly(right)))


def _row_limited(p: Poly, name: str, guards: Iterable[Poly], scope: Scope) -> Poly | None:
    """max of p over `name`, when a guard g ≥ 0 (such as i < m) cuts the range of `name` short."""
    for g in guards:
        in_p, in_g = linear(p, name), linear(g, name)
        if in_p is None or in_g is None or in_g[0].terms != number(-1).terms or in_p[0].terms != number(1).terms:
            continue
        # p = (p + g) - g with p + g free of `name`: p is largest where g is smallest, g ≥ 0.
        free = p + g
        smallest = extreme(g, [name], scope, largest=False)
        if smallest is None:
            continue
        least = poly(maximum(ZERO, to_expr(smallest)))
        return free - least
    return None


def _solve(pred: Expr, var: str, inner: list[str], guards: list[Poly], scope: Scope, skips: bool) -> Bound | None:
    """Solve one affine conjunct for `var`; None where it is not linear in it with a known sign."""
    parts = as_nonnegative(pred, scope)
    if parts is None or len(parts) != 1:
        return None
    p = parts[0]
    most: Poly | None = p
    for name in inner:
        limited = _row_limited(most, name, guards, scope) if most is not None else None
        most = limited if limited is not None else extreme(most, [name], scope, largest=True) if most else None
    least = extreme(p, inner, scope, largest=False)
    if most is None or least is None:
        return None
    a, b = linear(most, var), linear(least, var)
    if a is None or b is None or a[0].terms != b[0].terms or not a[0].terms:
        return None
    step = a[0]
    fact = _at_least_zero(least)
    if nonnegative(step.scaled(-1) - number(1), scope):  # -step·var + rest ≥ 0: an upper bound
        width = step.scaled(-1)
        some, every = (_floor_div(rest + width, width, scope) for rest in (a[1], b[1]))
        return Bound(pred, True, some, every, fact, skips)
    if nonnegative(step - number(1), scope):  # step·var + rest ≥ 0: a lower bound
        some, every = (_floor_div(rest.scaled(-1) + step - number(1), step, scope) for rest in (a[1], b[1]))
        return Bound(pred, False, some, every, fact, skips)
    return None


def _masks(stage: Stage, var: str) -> list[Expr]:
    """Conjuncts on `var` of selects in `stage` whose other branch is -inf."""
    found: list[Expr] = []
    for v in values(stage.action):
        if isinstance(v, Select) and v.other == Const(-inf, v.dtype):
            found += [c for c in conjuncts(v.pred) if var in variables(c)]
    return found


def _carried(state: State, loop: For) -> frozenset[str]:
    """Buffers written under `loop` that outlive an iteration: used outside, or read where no stage of this
    iteration has certainly written the very element."""
    inside = list(paths(loop.body))
    inside_ids = {id(s) for _, s in inside}
    written = {b for _, s in inside for b in writes(s.action)}
    outside = [s for s in stages(state.program.body) if id(s) not in inside_ids]
    used = {x.buffer for s in outside for x in reads(s)} | {b for s in outside for b in writes(s.action)}
    used |= {b.name for b in state.program.outputs}
    seen: dict[str, list[Stage]] = {}
    for path, s in inside:
        touched = [(x.buffer, x.index) for x in reads(s)]
        if isinstance(s.action, Update):
            touched += [(b, s.action.index) for b in s.action.buffers]
        used |= {b for b, index in touched if not any(_provides(w, index, s) for w in seen.get(b, []))}
        if not any(isinstance(x, If) for x in path):
            for b in writes(s.action):
                seen.setdefault(b, []).append(s)
    return frozenset(used & written)


def _provides(writer: Stage, index: tuple[Expr, ...], reader: Stage) -> bool:
    """True if `writer` has written the element at `index` whenever `reader` runs."""
    return writer.action.index == index and set(conjuncts(writer.when)) <= set(conjuncts(reader.when))


def _attach(loop: For, guards: list[Expr], carried: frozenset[str], finite: frozenset[str]) -> For:
    """Turn tail guards into a -inf mask at the first map from which everything absorbs it."""
    order = stages(loop)
    for guard in guards:
        for stage in order:
            action = stage.action
            if (
                not isinstance(action, Store)
                or guard not in conjuncts(stage.when)
                or action.value.dtype
                not in (
                    "float32",
                    "float64",
                )
            ):
                continue
            if action.buffer in carried:
                continue
            if not unchanged(order, carried, conjunct_false(guard), {action.buffer: NEG_INF}, finite):
                continue
            loop = _with_mask(loop, stage, guard)
            order = stages(loop)
            break
    return loop


def _with_mask(loop: For, stage: Stage, guard: Expr) -> For:
    action = stage.action
    assert isinstance(action, Store)
    low = Const(-inf, action.value.dtype)
    v = action.value
    if isinstance(v, Select) and v.other == low:
        masked = select(logical_and(v.pred, guard), v.then, low)
    else:
        masked = select(guard, v, low)
    # The guard stays: nothing is stored where it is false. The mask says what a tile holds there.
    new = replace(stage, action=replace(action, value=masked))
    body = replace_node(loop.body, stage, new)
    return replace(loop, body=body)


def _drop(s: Stmt, var: str, scope: Scope, loops: tuple[For, ...]) -> Stmt:
    """The clean piece: every conjunct on the loop that provably holds is gone from guards and selects.

    Others stay even where the facts imply them: one guard on rows in all pieces shows that they work on the
    same elements.
    """

    def holds(c: Expr, inner: tuple[For, ...]) -> bool:
        if var not in variables(c):
            return False
        ranges = {f.var: (f.lo, binary("sub", f.hi, 1)) for f in inner}
        return always(c, Scope({**scope.ranges, **ranges}, scope.at_least, scope.facts))

    def clean(e: Expr, inner: tuple[For, ...]) -> Expr:
        def fn(x: Expr) -> Expr | None:
            if isinstance(x, Select):
                rest = [c for c in conjuncts(x.pred) if not holds(c, inner)]
                return select(logical_and(*rest), clean(x.then, inner), clean(x.other, inner))
            return None

        return rewrite(e, fn)

    def fix(x: Stmt, inner: tuple[For, ...]) -> Stmt:
        if isinstance(x, Stage):
            rest = [c for c in conjuncts(x.when) if not holds(c, inner)]
            stage = map_exprs(replace(x, when=None), lambda e: clean(e, inner))
            assert isinstance(stage, Stage)
            return replace(stage, when=logical_and(*rest) if rest else None)
        deeper = (*inner, x) if isinstance(x, For) else inner
        return with_stmts(x, tuple(fix(p, deeper) for p in sub_stmts(x)))

    return fix(s, loops)


def _finite(state: State) -> frozenset[str]:
    """Buffers of reductions that start from a finite value."""
    updates = [d.action for d in state.definitions.values() if isinstance(d.action, Update)]
    return frozenset(
        b
        for u in updates
        for b, start in zip(u.buffers, u.init or (), strict=True)
        if isinstance(start, Const) and abs(start.value) < inf
    )


def _bounds(state: State, loop: For, outer: tuple[For, ...], carried: frozenset[str]) -> list[Bound]:
    found: dict[Expr, list[Bound | None]] = {}
    masks = {pred for s in stages(loop.body) for pred in _masks(s, loop.var)}
    body = stages(loop)
    skipped = {p for p in masks if unchanged(body, carried, conjunct_false(p), {}, _finite(state))}
    for path, stage in paths(loop.body):
        inner = for_loops(path)
        scope = scope_of(state.program, (*outer, loop, *inner))
        names = [f.var for f in reversed(inner)]
        when = conjuncts(stage.when)
        row_guards = [p for c in when if loop.var not in variables(c) for p in as_nonnegative(c, scope) or []]
        tails = [c for c in when if loop.var in variables(c) and c not in skipped]
        # A mask counts as skipped for every stage that has it: all of them must see the same tiles.
        for pred in dict.fromkeys([*tails, *(c for c in _selected(stage) if c in skipped)]):
            found.setdefault(pred, []).append(_solve(pred, loop.var, names, row_guards, scope, pred in skipped))
    return [bound for (bound, *others) in found.values() if bound is not None and all(b == bound for b in others)]


def _selected(stage: Stage) -> list[Expr]:
    """Every conjunct that some select of the stage depends on."""
    selects = [x for v in values(stage.action) for x in walk(v) if isinstance(x, Select)]
    return [c for x in selects for c in conjuncts(x.pred)]


def partition(state: State, ref: Loop) -> State:
    """Cut one loop into pieces (see the module's text); a loop without predicates is an error."""
    request = f"partition(`{ref.var}` of `{ref.stage}`)"
    check_whole(state, state.loop(ref), request)
    if state.loop(ref).kind != "serial":
        raise ScheduleError(request, f"`{ref.var}` is spread over the grid: only serial loops have pieces")
    state = replace(state, program=decompose(state.program))
    loop = state.loop(ref)
    path = state.loops(ref.stage)
    outer = path[: path.index(loop)]
    carried = _carried(state, loop)
    bounds = _bounds(state, loop, outer, carried)
    if not bounds:
        raise ScheduleError(
            request,
            f"no predicate under `{loop.var}` bounds it",
            hint="leave the loop whole: it has nothing to cut",
        )
    return _cut(state, loop, outer, bounds, carried)


def _one_tile(bound: Bound, hi: Expr) -> bool:
    """True for the tail of a tiled range: all tiles but the last hold, at most one is left."""
    e = bound.everywhere
    if not isinstance(e, Op) or e.name != "floordiv" or bound.skips:
        return False
    return hi == ceildiv(*e.args)


def _clean_range(loop: For, lo: Expr, hi: Expr, uppers: list[Bound], lowers: list[Bound], scope: Scope) -> list[Expr]:
    """[begin, end) where every predicate holds, with lo ≤ begin ≤ end ≤ hi wherever the range is not empty."""
    begin = reduce(maximum, [b.everywhere for b in lowers], lo)
    end = reduce(minimum, [b.everywhere for b in uppers]) if uppers else hi
    if lowers or loop.lo != ZERO:
        begin = maximum(lo, minimum(begin, hi))
        end = maximum(begin, minimum(end, hi))
    # The whole tiles of a tiled range lie within it; any other bound is cut off at its end.
    elif not any(_one_tile(b, loop.hi) or always(binary("le", b.everywhere, loop.hi), scope) for b in uppers):
        end = minimum(end, hi)
    return [begin, end]


def _cut(state: State, loop: For, outer: tuple[For, ...], bounds: list[Bound], carried: frozenset[str]) -> State:
    uppers, lowers = [b for b in bounds if b.upper], [b for b in bounds if not b.upper]
    hi = reduce(minimum, [b.somewhere for b in uppers if b.skips], loop.hi)
    # Every lower bound is at least 0, where most loops start.
    starts = [b.somewhere for b in lowers if b.skips]
    lo = reduce(maximum, starts if starts and loop.lo == ZERO else [loop.lo, *starts])
    begin, end = _clean_range(loop, lo, hi, uppers, lowers, scope_of(state.program, outer))
    whole = _attach(loop, [b.pred for b in bounds if not b.skips], carried, _finite(state))
    clean_loop = replace(loop, lo=begin, hi=end, facts=(*loop.facts, *(b.fact for b in bounds)))
    clean_scope = scope_of(state.program, (*outer, clean_loop))
    clean = replace(clean_loop, body=_drop(loop.body, loop.var, clean_scope, ()))
    pieces: list[Stmt] = [clean]
    if lowers:
        pieces.insert(0, replace(whole, lo=lo, hi=begin))
    if uppers:
        if len(uppers) == 1 and not lowers and loop.lo == ZERO and _one_tile(uppers[0], loop.hi):
            body = map_exprs(whole.body, lambda e: substitute(e, {loop.var: end}))
            pieces.append(If(binary("lt", end, hi), body))
        else:
            pieces.append(replace(whole, lo=end, hi=hi))
    texts = tuple(f"{print_expr(b.pred)}: {'mask, skipped where false' if b.skips else 'tail'}" for b in bounds)
    verdict = f"{len(pieces)} pieces: clean [{print_expr(begin)}, {print_expr(end)})"
    note = Decision("partition", loop.var, verdict, "predicates solved for the loop", texts)
    return state.with_body(replace_node(state.program.body, loop, seq(*pieces))).note(note)
