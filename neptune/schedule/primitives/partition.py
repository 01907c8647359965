"""partition: cut a loop's range by the predicates under it (paper §5).

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
A masked piece of at most one iteration becomes an `if`. A mask that is a union of sets lying apart makes several such
ranges (`neptune.schedule.visited`); what tensors hold bounds the loop by extremes over the tile
(`neptune.schedule.data_bounds`), or by the first and last tile that a scan finds (`neptune.schedule.data_bounds`).
See docs/design/loops.md, "Masks are predicates with a proof of absorption".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import inf

from neptune.errors import ScheduleError
from neptune.ir.analysis.absorb import NEG_INF, conjunct_false, unchanged
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
from neptune.ir.indices.affine import Scope, always, scope_of
from neptune.ir.indices.extremes import Extremes
from neptune.ir.indices.normal import one_mask
from neptune.ir.program import (
    ZERO,
    For,
    If,
    Stage,
    Stmt,
    Store,
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
from neptune.ir.text.printer import print_expr
from neptune.schedule.data_bounds import DataBounds, Scanned, at_once, bounded, kept_in, scan, scanned
from neptune.schedule.solve_bounds import Solved, affine_guards, solve
from neptune.schedule.state import Decision, Loop, State, check_whole, reads, replace_node
from neptune.schedule.visited import Range, ranges, usable


def _masks(stage: Stage) -> list[Expr]:
    """Conjuncts of selects in `stage` whose other branch is -inf."""
    masks: list[Expr] = []
    for v in values(stage.action):
        if isinstance(v, Select) and v.other == Const(-inf, v.dtype):
            masks += conjuncts(v.pred)
    return masks


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
        if s.folds:
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
            (buffer, *_), (value, *_) = stage.action.buffers, stage.action.values
            if stage.folds or guard not in conjuncts(stage.when) or value.dtype not in ("float32", "float64"):
                continue
            if buffer in carried:
                continue
            if not unchanged(order, carried, conjunct_false(guard), {buffer: NEG_INF}, finite):
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


def _drop(s: Stmt, var: str, solved: frozenset[Expr], scope: Scope, loops: tuple[For, ...]) -> Stmt:
    """The clean piece: conjuncts that were `solved`, or on the loop provably hold, are gone from guards and selects.

    Others stay even where the facts imply them: one guard on rows in all pieces shows that they work on the
    same elements.
    """

    def holds(c: Expr, inner: tuple[For, ...]) -> bool:
        if c in solved:
            return True
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
    terms = (t for d in state.reductions.values() for t in d.terms)
    return frozenset(t.buffer for t in terms if isinstance(t.start, Const) and abs(t.start.value) < inf)


@dataclass(frozen=True)
class _Found:
    """The bounds of a loop: predicates solved for it, and what its keys are scanned for, of the predicates `left`."""

    solved: tuple[Solved, ...]
    scanned: Scanned | None = None
    left: tuple[Expr, ...] = ()


def _found(state: State, loop: For, outer: tuple[For, ...], carried: frozenset[str], data: DataBounds) -> _Found:
    """The predicates under `loop` that bound it, in the order in which they stand."""
    body = stages(loop.body)
    masks = dict.fromkeys(pred for s in body for pred in _masks(s))
    skipped = {p for p in masks if unchanged(body, carried, conjunct_false(p), {}, _finite(state))}
    tails = {c for s in body for c in conjuncts(s.when) if loop.var in variables(c)} - skipped
    solutions: dict[Expr, list[Solved | None]] = {}
    scans: dict[Expr, list[Scanned | None]] = {}
    for path, stage in paths(loop.body):
        inner = for_loops(path)
        scope = scope_of(state.program, (*outer, loop, *inner))
        extremes = Extremes(scope, affine_guards(stage.when, loop.var), data.within(inner, stage.when))
        names = [f.var for f in reversed(inner)]
        # Every stage that has a predicate must see the same tiles.
        for pred in dict.fromkeys([*conjuncts(stage.when), *_selected(stage)]):
            if pred in tails or pred in skipped:
                solutions.setdefault(pred, []).append(solve(pred, loop, names, extremes, pred in skipped))
            if pred in skipped:
                scans.setdefault(pred, []).append(scanned(pred, stage.when, inner, data))
    agreed = [first for (first, *others) in solutions.values() if first is not None and all(s == first for s in others)]
    agreed = usable([s for s in agreed if all(data.known(e) for a in s.alternatives for b in a.bounds for e in b.ends)])
    solved = {s.pred for s in agreed}
    left = {p: c for p, (c, *others) in scans.items() if p not in solved and all(c == o for o in others)}
    each = {p: c for p, c in left.items() if c is not None and data.known(c.condition)}
    return _Found(tuple(agreed), at_once(list(each.values())), tuple(each))


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
    state = state.with_body(replace_node(state.program.body, loop, map_exprs(loop, one_mask)))
    loop = state.loop(ref)
    path = state.loops(ref.stage)
    outer = path[: path.index(loop)]
    carried = _carried(state, loop)
    data = DataBounds(state.program, outer, loop)
    bounds = _found(state, loop, outer, carried, data)
    if not bounds.solved and bounds.scanned is None:
        raise ScheduleError(
            request,
            f"no predicate under `{loop.var}` bounds it",
            hint="leave the loop whole: it has nothing to cut",
        )
    return _cut(state, loop, outer, bounds, carried, data)


def _one_tile(end: Expr, hi: Expr) -> bool:
    """True for the end of the whole tiles in a tiled range: at most one tile is left."""
    return isinstance(end, Op) and end.name == "floordiv" and hi == ceildiv(*end.args)


def _last_tile(r: Range) -> tuple[Expr, Expr] | None:
    """The tile of a range that alone is not whole, where there is such, and the end of those before it.

    A part [z*T, min(z*T + T, cdiv(n, B))) of the tiles of n elements need not reach the one at n // B.
    """
    if r.begins or r.ends is None or len(r.ends) != 1:
        return None
    (last,) = r.ends
    if r.lo == ZERO or not isinstance(last, Op) or last.name != "floordiv":
        return (last, last) if r.lo == ZERO and _one_tile(last, r.hi) else None
    ends = r.hi.args if isinstance(r.hi, Op) and r.hi.name == "min" else (r.hi,)
    others = [e for e in ends if e != ceildiv(*last.args)]
    return None if len(others) == len(ends) else (last, reduce(minimum, [last, *others]))


def _clean_range(loop: For, r: Range, scope: Scope) -> tuple[Expr, Expr]:
    """[begin, end) where every predicate holds, with lo ≤ begin ≤ end ≤ hi wherever the range is not empty."""
    assert r.begins is not None and r.ends is not None
    begin, end = r.lo, reduce(minimum, r.ends) if r.ends else r.hi
    if r.begins or r.lo != ZERO:
        begin = maximum(r.lo, minimum(reduce(maximum, r.begins), r.hi)) if r.begins else r.lo
        end = maximum(begin, minimum(end, r.hi))
    # The whole tiles of a tiled range lie within it; any other bound is cut off at its end.
    elif r.cut or not any(_one_tile(e, loop.hi) or always(binary("le", e, loop.hi), scope) for e in r.ends):
        end = minimum(end, r.hi)
    return begin, end


def _iteration(loop: For, value: Expr) -> Stmt:
    return map_exprs(loop.body, lambda e: substitute(e, {loop.var: value}))


def _cut(
    state: State, loop: For, outer: tuple[For, ...], bounds: _Found, carried: frozenset[str], data: DataBounds
) -> State:
    solved = list(bounds.solved)
    whole = _attach(loop, [s.pred for s in solved if not s.skips], carried, _finite(state))
    visited = ranges(solved, loop)
    dropped = frozenset(s.pred for s in solved)
    ends: tuple[str, ...] = ()
    before: list[Stmt] = []
    if bounds.scanned is not None:
        ends = (data.fresh(f"{loop.var}_first"), data.fresh(f"{loop.var}_last"))
        spread = (data.fresh(f"{loop.var}_firsts"), data.fresh(f"{loop.var}_lasts"))
        # Of several ranges the last need not end last, as a prefix may reach further than a window: scan all keys.
        lo, hi = (visited[0].lo, visited[0].hi) if len(visited) == 1 else (loop.lo, loop.hi)
        before.append(scan(bounds.scanned, lo, hi, ends, spread))
        visited = ranges(usable([*solved, bounded(ends, bounds.scanned.keys)]), loop)
    pieces: list[Stmt] = []
    verdict: list[str] = []
    for r in visited:
        if r.begins is None or r.ends is None:
            pieces.append(replace(whole, lo=r.lo, hi=r.hi))
            continue
        last = _last_tile(r) if len(visited) == 1 else None
        begin, end = (r.lo, last[1]) if last else _clean_range(loop, r, scope_of(state.program, outer))
        clean_loop = replace(loop, lo=begin, hi=end, facts=(*loop.facts, *r.facts))
        clean_scope = scope_of(state.program, (*outer, clean_loop))
        clean = replace(clean_loop, body=_drop(loop.body, loop.var, dropped, clean_scope, ()))
        if r.begins:
            pieces.append(replace(whole, lo=r.lo, hi=begin))
        pieces.append(clean)
        if last is not None:
            runs = binary("lt", last[0], r.hi)
            runs = runs if r.lo == ZERO else logical_and(binary("le", r.lo, last[0]), runs)
            pieces.append(If(runs, _iteration(whole, last[0])))
        elif r.ends:
            pieces.append(replace(whole, lo=end, hi=r.hi))
        verdict.append(f"clean [{print_expr(begin)}, {print_expr(end)})")
    used = [e for p in pieces for e in ((p.lo, p.hi) if isinstance(p, For) else (p.pred,) if isinstance(p, If) else ())]
    texts = tuple(f"{print_expr(s.pred)}: {'mask, skipped where false' if s.skips else 'tail'}" for s in solved)
    summary = f"{len(pieces)} pieces: {', '.join(verdict) or 'all masked'}"
    texts += tuple(f"{print_expr(p)}: mask, scanned for the first and the last key" for p in bounds.left)
    note = Decision("partition", loop.var, summary, "predicates solved for the loop", texts)
    scanned = () if bounds.scanned is None else (bounds.scanned.condition,)
    body = data.of_rows(seq(*before, *pieces), [*used, *scanned])
    body = kept_in(dict.fromkeys(ends, "int32"), body)
    return state.with_body(replace_node(state.program.body, loop, body)).note(note)
