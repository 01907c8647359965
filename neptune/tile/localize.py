"""localize: buffers that live inside one program of a kernel become tiles of their own.

Before → after (i0 is a grid loop)::

    temp m: f32[s_q]                          for i0 grid.x:
    for i0 grid.x:                              alloc m: f32[BLOCK_M] @tile
      for i1: m_init: m[i0*BM + i1] = …         for i1: m_init: m[i1] = …
      …                                         …

The part of each index that comes from loops outside the allocation must be the same in every access:
it drops out.  What other kernels or the caller need is written back behind the last use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Load, Var, conjuncts, loads, logical_and, rewrite, variables
from neptune.ir.indices.affine import (
    Poly,
    Scope,
    extreme,
    nonnegative,
    number,
    poly,
    scope_of,
    simplify,
    split_by,
    to_expr,
)
from neptune.ir.program import (
    ZERO,
    Alloc,
    Buffer,
    For,
    If,
    Made,
    Program,
    Seq,
    Stage,
    Stmt,
    Store,
    map_exprs,
    paths,
    retarget,
    seq,
    stages,
    sub_stmts,
    values,
    with_stmts,
    wrap,
    writes,
)
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.state import fresh_name, names_in_use
from neptune.tile.accesses import Access, Accesses, Index

# A constant loop up to this length becomes a tile axis; longer ones stay loops.
MAX_AXIS = 1024
# The kind of a serial loop that shall not become a tile axis; only within the translation to tiles.
LOOP = "loop"


def kernels_of(body: Stmt) -> tuple[Stmt, ...]:
    """The top-level nests: each becomes one kernel."""
    return body.stmts if isinstance(body, Seq) else (body,)


def grid_of(nest: Stmt) -> tuple[tuple[For, ...], Stmt]:
    """The grid loops of a nest and what is inside them."""
    grid: list[For] = []
    while isinstance(nest, For) and nest.kind not in ("serial", LOOP):
        grid.append(nest)
        nest = nest.body
    return tuple(grid), nest


def is_axis(program: Program, f: For) -> bool:
    """True for a loop that becomes a tile axis: from 0, to a moderate constant or a tunable."""
    if f.kind != "serial" or f.lo != ZERO:
        return False
    if isinstance(f.hi, Const):
        return int(f.hi.value) <= MAX_AXIS
    return isinstance(f.hi, Var) and f.hi.name in {t.name for t in program.tunables}


def localize(program: Program, *, strict: bool = True) -> Program:
    """Allocate every buffer that one kernel both writes and reads inside that kernel.

    Where that is not possible for a kernel: ScheduleError, or, without `strict`, its buffers stay global.
    """
    try:
        return _localized(program, strict=True)
    except ScheduleError:
        if strict:
            raise
        return _localized(program, strict=False)


@lru_cache(maxsize=16)
def _localized(program: Program, *, strict: bool) -> Program:
    """`localize`, once of what is lowered and then placed."""
    nests: list[Stmt] = []
    uses = Accesses()
    for k, nest in enumerate(kernels_of(program.body)):
        try:
            nests.append(localize_nest(program, k, nest, uses))
        except ScheduleError:
            if strict:
                raise
            nests.append(nest)
    return with_kernels(program, nests)


def with_kernels(program: Program, nests: Sequence[Stmt]) -> Program:
    """The program with these nests as its kernels, and the temporaries that they still use."""
    result = seq(*nests)
    used = {b for s in stages(result) for b in writes(s.action)}
    used |= {x.buffer for s in stages(result) for v in values(s.action) for x in loads(v)}
    allocated = {s.buffer.name for s in _allocs(result)}
    temporaries = tuple(b for b in program.temporaries if b.name in used and b.name not in allocated)
    _check_scopes(temporaries, result)
    return replace(program, body=result, temporaries=temporaries)


def localize_nest(program: Program, k: int, nest: Stmt, uses: Accesses | None = None) -> Stmt:
    """`nest`, which is the program's kernel `k` or another form of it, with its buffers local to it."""
    uses = uses or Accesses()
    nests = kernels_of(program.body)
    others = [*nests[:k], *nests[k + 1 :]]
    inputs = {b.name for b in program.inputs}
    outputs = {b.name for b in program.outputs}
    grid, body = grid_of(nest)
    for group in _groups(nest, [b for b in program.globals.values() if b.name not in inputs]):
        accesses = [a for b in group for a in uses.of(nest, b.name)]
        if not accesses or not any(a.writes for a in accesses) or all(a.writes for a in accesses):
            continue
        if not all(_self_contained(uses, nest, b.name) for b in group):
            continue  # another kernel has written it before this one reads it
        outside = {b.name for b in group if any(_reads_older(uses, o, b.name) for o in others)}
        wanted = frozenset(b.name for b in group if b.name in outside or b.name in outputs)
        names = _tile_names(uses, program, group, wanted, others)
        body = _allocate(uses, program, grid, body, group, wanted, names)
        unread = {b.name: _read_under(program, others, b.name) for b in group if b.name in outside - outputs}
        body = _stored_under(body, {f"{b}_store": preds for b, preds in unread.items() if preds})
    return wrap(grid, body)


def _read_under(program: Program, nests: Sequence[Stmt], buffer: str) -> list[Expr]:
    """The predicates on sizes that hold wherever other kernels read a buffer."""
    sizes = {s.name for s in program.scalars}
    predicates: list[list[Expr]] = []
    for nest in nests:
        for path, stage in paths(nest):
            if any(x.buffer == buffer for v in values(stage.action) for x in loads(v)):
                around = [c for x in path if isinstance(x, If) for c in conjuncts(x.pred)]
                predicates.append([c for c in around if variables(c) <= sizes and not loads(c)])
    return [c for c in predicates[0] if all(c in other for other in predicates)] if predicates else []


def _stored_under(s: Stmt, preds: Mapping[str, list[Expr]]) -> Stmt:
    """The statement with its write-backs (stages of these names) under what their readers are under."""
    if not preds:
        return s
    inside = {x.name for x in stages(s)}
    parts = sub_stmts(s)
    written = inside & preds.keys()
    if written == inside and len({tuple(preds[n]) for n in written}) == 1:
        return If(logical_and(*preds[min(written)]), s)
    return with_stmts(s, tuple(_stored_under(p, preds) for p in parts)) if written else s


def _check_scopes(temporaries: tuple[Buffer, ...], body: Stmt) -> None:
    """Raise a ScheduleError for a buffer that must be a tile (`set_scope`) and is not."""
    uses = Accesses()
    for b in (b for b in temporaries if b.scope == "tile"):
        users = [[s.name for s in stages(k) if uses.of(s, b.name)] for k in kernels_of(body)]
        used = [u for u in users if u]
        raise ScheduleError(
            f"keep `{b.name}` on chip",
            f"its scope is tile, and its stages are in {len(used)} kernels: {' | '.join(map(', '.join, used))}"
            if len(used) > 1
            else "its scope is tile, and what a stage reads of it another iteration or program has written",
            hint=f'fuse them into one kernel, or set_scope("{b.name}", "global")',
        )


def _allocs(s: Stmt) -> Iterator[Alloc]:
    if isinstance(s, Alloc):
        yield s
    for p in sub_stmts(s):
        yield from _allocs(p)


def _self_contained(uses: Accesses, s: Stmt, buffer: str) -> bool:
    """True if whatever is read under `s` has been written there: the first access writes, whenever any other
    runs, or each part has a life of the buffer of its own (the pieces of a loop)."""
    first, *others = uses.of(s, buffer)
    guards = set(conjuncts(first.stage.when))
    if first.writes and all(guards <= set(conjuncts(a.stage.when)) for a in others):
        return True
    users = [p for p in sub_stmts(s) if uses.of(p, buffer)]
    return bool(users) and all(_self_contained(uses, p, buffer) for p in users)


def _tile_names(
    uses: Accesses, program: Program, group: tuple[Buffer, ...], wanted: frozenset[str], others: Sequence[Stmt]
) -> dict[str, str]:
    """Map buffers to names of tiles: a name of its own if another kernel or the caller uses the buffer."""
    used = names_in_use(program)
    taken = wanted | {b.name for b in group if any(uses.of(o, b.name) for o in others)}
    return {b.name: fresh_name(used, f"{b.name}_tile") if b.name in taken else b.name for b in group}


def _reads_older(uses: Accesses, s: Stmt, buffer: str) -> bool:
    """True if something under `s` reads what was written elsewhere."""
    return bool(uses.of(s, buffer)) and not _self_contained(uses, s, buffer)


def _groups(s: Stmt, buffers: list[Buffer]) -> list[tuple[Buffer, ...]]:
    """The buffers; those that one reduction on tuples folds into share an index, and so must be placed as one."""
    groups: dict[str, frozenset[str]] = {b.name: frozenset({b.name}) for b in buffers}
    for stage in stages(s):
        joined = frozenset[str]().union(*(groups.get(b, frozenset()) for b in writes(stage.action)))
        groups |= dict.fromkeys(joined, joined)
    return [tuple(b for b in buffers if b.name in names) for names in dict.fromkeys(groups.values())]


def _allocate(
    uses: Accesses,
    program: Program,
    outer: tuple[For, ...],
    s: Stmt,
    group: tuple[Buffer, ...],
    wanted: frozenset[str],
    renamed: Mapping[str, str],
) -> Stmt:
    """Put the allocations around the smallest statement that holds a whole life of the buffers."""
    parts = sub_stmts(s)
    used = {id(p): [b.name for b in group if uses.of(p, b.name)] for p in parts}
    users = [p for p in parts if used[id(p)]]
    separate = all(_self_contained(uses, p, b) for p in users for b in used[id(p)])
    descend = not isinstance(s, Stage) and users and (len(users) == 1 or separate)
    if isinstance(s, For) and users and not separate:
        descend = False  # an iteration reads what an earlier one wrote
    if isinstance(s, For) and is_axis(program, s):
        descend = False  # it becomes an axis of the tile
    if isinstance(s, For) and wanted:
        descend = descend and all(s.var in _used(a.index) for b in group for a in uses.of(s, b.name))
    if descend:
        inner = (*outer, s) if isinstance(s, For) else outer
        chosen = tuple(_allocate(uses, program, inner, p, group, wanted, renamed) if p in users else p for p in parts)
        return with_stmts(s, chosen)
    return _shrink(uses, program, outer, s, group, wanted, renamed)


def _used(index: Index) -> frozenset[str]:
    return frozenset[str]().union(*(variables(i) for i in index))


def _shrink(
    uses: Accesses,
    program: Program,
    outer: tuple[For, ...],
    s: Stmt,
    group: tuple[Buffer, ...],
    wanted: frozenset[str],
    renamed: Mapping[str, str],
) -> Stmt:
    """Allocate here: indices relative to the outer loops, the shape from what remains."""
    buffer = group[0]
    accesses = list(_distinct(a for b in group for a in uses.of(s, b.name)))
    # What does not move inside the allocation is its place in the buffer: the same for every access.
    names = frozenset(f.var for a in accesses for f in a.loops)
    common = [tuple(split_by(poly(i), names)[1] for i in a.index) for a in accesses]
    odd = next((a for a, c in zip(accesses, common, strict=True) if c != common[0]), None)
    if odd is not None:
        raise ScheduleError(
            f"keep `{buffer.name}` on chip",
            f"stage `{odd.stage.name}` reads elements of `{buffer.name}` that another program of the grid computes",
            where=print_stage(odd.stage),
            hint="leave that stage in a kernel of its own",
        )
    inner = [[split_by(poly(i), names)[0] for i in a.index] for a in accesses]
    kept = [d for d in range(len(buffer.shape)) if any(row[d].constant is None for row in inner)]
    shape = tuple(_extent(program, outer, accesses, [row[d] for row in inner], d) for d in kept)

    def relative(index: Index) -> Index:
        return tuple(to_expr(split_by(poly(index[d]), names)[0]) for d in kept)

    body = _rename_accesses(uses, s, renamed, relative)
    back = [_write_back(program, uses.of(s, b.name), b, renamed[b.name], relative) for b in group if b.name in wanted]
    body = seq(body, *back)
    for b in reversed(group):
        body = Alloc(Buffer(renamed[b.name], shape, b.dtype, "tile"), body)
    return body


def _distinct(accesses: Iterable[Access]) -> Iterable[Access]:
    """The first access of those at one index in the same loops, by what they are loops of."""
    first: dict[tuple[object, ...], Access] = {}
    for a in accesses:
        first.setdefault((a.index, *map(id, a.loops)), a)
    return first.values()


def _extent(program: Program, outer: tuple[For, ...], uses: list[Access], parts: list[Poly], dim: int) -> Expr:
    sizes: list[Expr] = []
    scopes: dict[tuple[int, ...], Scope] = {}
    for a, p in zip(uses, parts, strict=True):
        key = tuple(map(id, a.loops))
        scope = scopes[key] = scopes.get(key) or scope_of(program, (*outer, *a.loops))
        high = extreme(p, [f.var for f in reversed(a.loops)], scope, largest=True)
        low = extreme(p, [f.var for f in reversed(a.loops)], scope, largest=False)
        if high is None or low is None or not nonnegative(low, scope):
            raise ScheduleError(
                f"keep the result of `{a.stage.name}` on chip",
                f"dimension {dim} of its tile has no known extent",
                where=print_stage(a.stage),
            )
        sizes.append(to_expr(high + number(1)))
    distinct = list(dict.fromkeys(sizes))
    if len(distinct) > 1:
        spans = {
            e: f"`{a.stage.name}` {'writes' if a.writes else 'reads'} {print_expr(e)}"
            for e, a in reversed(list(zip(sizes, uses, strict=True)))
        }
        raise ScheduleError(
            f"keep the result of `{uses[0].stage.name}` on chip",
            f"of dimension {dim} of its tile, {' and '.join(spans[e] for e in distinct)} elements",
            where=print_stage(uses[0].stage),
            hint="tile both in the same way, or leave the reader in a kernel of its own",
        )
    return simplify(distinct[0])


def _rename_accesses(uses: Accesses, s: Stmt, names: Mapping[str, str], relative: object) -> Stmt:
    assert callable(relative)

    def fix(e: Expr) -> Expr:
        if not any(buffer in names for buffer, _ in uses.loads(e)):
            return e

        def fn(x: Expr) -> Expr | None:
            if isinstance(x, Load) and x.buffer in names:
                return Load(names[x.buffer], tuple(fix(i) for i in relative(x.index)), x.dtype)
            return None

        return rewrite(e, fn)

    def targets(x: Stmt) -> Stmt:
        if isinstance(x, Stage) and set(writes(x.action)) <= names.keys():
            return replace(x, action=replace(retarget(x.action, names), index=relative(x.action.index)))
        return with_stmts(x, tuple(targets(p) for p in sub_stmts(x)))

    return targets(map_exprs(s, fix))


def _write_back(program: Program, accesses: Sequence[Access], buffer: Buffer, name: str, relative: object) -> Stmt:
    """Store the tile to the global buffer, over the loops of its first write, under what guards all writes."""
    assert callable(relative)
    writers = [a for a in accesses if a.writes]
    first = writers[0]
    used = _used(first.index)
    free = [f for f in first.loops if f.var in used]
    gone = {f.var for f in first.loops} - used
    common = [set(conjuncts(a.stage.when)) for a in writers if a.index == first.index]
    guards = [c for c in conjuncts(first.stage.when) if not variables(c) & gone and all(c in g for g in common)]
    store = Store(buffer.name, first.index, Load(name, relative(first.index), buffer.dtype))
    provenance = Made("store", buffer.name)
    stage = fresh_name({s.name for s in stages(program.body) if s.made != provenance}, f"{buffer.name}_store")
    nest: Stmt = Stage(stage, store, logical_and(*guards) if guards else None, provenance)
    return wrap(free, nest)
