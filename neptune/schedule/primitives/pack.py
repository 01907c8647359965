"""pack: the heads of a group and the query rows become the rows of one axis.

`pack(h, i)` where four heads share a row of k, before → after::

    for h in [0, 8): for i in [0, m):        for h0 in [0, 2): for i_h in [0, m * 4):
      for j: for d:                            for j: for d:
        s: s[h, i, j] += q[h, i, d] *            s: s[h0, i_h, j] += q[h0 * 4 + i_h % 4, i_h // 4, d] *
                         k[h // 4, j, d]                             k[h0, j, d]

Row r of a group is query r // 4 of its head r % 4: all rows of a tile read one tile of k, and what is known of a query,
such as the last key that it sees, does not decrease along the rows. A loop that is divided by G nowhere is one group.

`pack(h)` is for programs without a query axis: h becomes the loops over groups and over the heads of one, which are its
rows::

    for h in [0, 8):                           for h0 in [0, 2): for h_r in [0, 4):
      for j: for d:                              for j: for d:
        s: s[h, j] += q[h, d] *                    s: s[h0, h_r, j] += q[h0 * 4 + h_r, d] *
                      k[h // 4, j, d]                                  k[h0, j, d]

Everything between is laid out anew: this is a rewrite of definitions, before anything is scheduled. All stages that
run over all packed axes are packed, and temporaries that they share get the new axes; inputs and results stay as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from neptune.errors import ScheduleError
from neptune.ir.contraction import contraction
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, binary, ceildiv, rewrite, substitute, variables, walk
from neptune.ir.indices.affine import poly, scope_of
from neptune.ir.indices.quotients import divided, quotient
from neptune.ir.program import ZERO, Buffer, For, Program, Stmt, map_action, paths, writes
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.alignment import Axes
from neptune.schedule.definition import Definition, define, whole_axis
from neptune.schedule.primitives.buffers import cache_write, own_nest
from neptune.schedule.state import Decision, Loop, State, fresh_name, names_in_use, replace_node

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class _Packing:
    """The packed axes: in each stage its group and row axis (or the group's alone), and what they have become.

    `outer` is the loop over groups, None where there is one; `row` the packed one, of `rows` iterations. `when` says
    which rows exist, where the last group may be shorter than the others.
    """

    members: Mapping[str, tuple[str, ...]]
    outer: str | None
    groups: Expr
    row: str
    rows: Expr
    size: Expr
    head: Expr
    query: Expr
    when: Expr | None

    def env(self, stage: str) -> dict[str, Expr]:
        """Return the present expressions of a stage's axes."""
        return dict(zip(self.members[stage], (self.head, self.query), strict=False))

    def loops(self, stage: str) -> dict[str, list[tuple[str, Expr]]]:
        """Return the loops in the place of a stage's axes, with their extents."""
        outer = [] if self.outer is None else [(self.outer, self.groups)]
        return in_place(self.members[stage], outer, (self.row, self.rows))

    def index(self, index: tuple[Expr, ...], dims: tuple[int, ...]) -> tuple[Expr, ...]:
        """Return an index of a temporary whose dimensions `dims` are the packed axes."""
        new = in_place(dims, [] if self.outer is None else [Var(self.outer)], Var(self.row))
        return tuple(x for k, i in enumerate(index) for x in new.get(k, [i]))

    def laid_out(self, b: Buffer, dims: tuple[int, ...]) -> Buffer:
        """Return such a temporary in its new shape."""
        rows = binary("mul", b.shape[dims[1]], self.size) if dims[1:] else self.size
        new = in_place(dims, [] if self.outer is None else [self.groups], rows)
        return replace(b, shape=tuple(x for k, n in enumerate(b.shape) for x in new.get(k, [n])))


def in_place(axes: tuple[K, ...], outer: list[T], row: T) -> dict[K, list[T]]:
    """What stands in the place of packed axes: the group for the head; for the row, else behind the group, the row."""
    new = {axes[0]: outer}
    return new | {axes[-1]: [*new.get(axes[-1], []), row]}


def pack(state: State, group: Loop, row: Loop | None = None) -> tuple[State, str]:
    """Make rows of the heads of a group; returns the name of the loop over them."""
    loops = (group,) if row is None else (group, row)
    request = f"pack({', '.join(f'`{f.var}`' for f in loops)} of `{loops[-1].stage}`)"
    for name, axes in _members(state, loops, request).items():
        _check_stage(state, name, axes, request)
        state = _own_result(state, name)
    members = _members(state, loops, request)
    size = _group_size(state, members, request)
    packing = _packing(state, loops, members, size)
    shared = _shared(state, packing, request)
    for name in members:
        state = _packed(state, name, packing, shared, request)
    buffers = tuple(packing.laid_out(b, shared[b.name]) if b.name in shared else b for b in state.program.temporaries)
    state = replace(state, program=replace(state.program, temporaries=buffers))
    several = f"{print_expr(packing.groups)} groups of {print_expr(size)}"
    note = Decision(
        "pack",
        packing.row,
        f"{print_expr(packing.rows)} rows",
        f"`{group.var}` is {several if packing.outer else 'one group'}, whose rows share what does not depend on them",
        tuple(f"{f.var} = {print_expr(e)}" for f, e in zip(loops, (packing.head, packing.query), strict=False)),
    )
    return state.note(note), packing.row


# --- what is packed ------------------------------------------------------------------------------


def _members(state: State, loops: tuple[Loop, ...], request: str) -> dict[str, tuple[str, ...]]:
    """The stages that run over all packed axes, each with what it calls them."""
    stage = loops[0].stage
    if any(f.stage != stage for f in loops):
        raise ScheduleError(request, "the loops are named through different stages", hint="use loops of one stage")
    state.definition(stage)
    packed = tuple(_axis(state, ref, request) for ref in loops)
    if len(set(packed)) < len(packed):
        raise ScheduleError(request, "a loop is packed with another one", legal=[f.var for f in state.loops(stage)])
    axes = Axes(state.definitions)
    axes_of = {n: tuple(a for p in packed if (a := axes.of(n, (stage, p))) is not None) for n in state.definitions}
    return {n: axes_of[n] for n in axes_of if len(axes_of[n]) == len(packed)}


def _axis(state: State, ref: Loop, request: str) -> str:
    """The axis that a loop runs over in full."""
    state.loop(ref)
    axes = state.axes[ref.stage]
    axis = next((a for a, e in axes.items() if e == Var(ref.var)), None)
    if axis is None:
        whole = [e.name for e in axes.values() if isinstance(e, Var)]
        raise ScheduleError(
            request, f"`{ref.var}` is not an axis of `{ref.stage}` in full", legal=whole, hint="pack before you tile"
        )
    return axis


def _check_stage(state: State, name: str, packed: tuple[str, ...], request: str) -> None:
    """A stage on its own, as the user wrote it, that keeps an element for each head and row."""
    d = state.definitions[name]
    path, node = next(paths(own_nest(state, name, request)))
    plain = all(isinstance(s, For) and s.kind == "serial" and s.lo == ZERO and not s.facts for s in path)
    whole = all(e == Var(a) for a, e in state.axes[name].items())
    # A reduction whose init is a stage of its own has another action than its definition.
    written = node.name == name and node.action == d.action and node.when == d.when
    if not (plain and whole and written and len(path) == len(d.axes)):
        raise ScheduleError(
            request,
            f"`{name}`, which runs over {_them(packed)}, has been scheduled already",
            where=print_stage(node),
            hint="pack first, before anything is tiled, fused or bound",
        )
    for axis in packed:
        if axis in d.reduced:
            raise ScheduleError(
                request,
                f"`{name}` reduces over `{axis}`: its result has no such rows",
                where=print_stage(node),
                hint="pack loops that all stages between keep",
            )
    if variables(d.extents[packed[-1]]) & {packed[0]} or variables(d.extents[packed[0]]) & set(d.extents):
        ranges = " and ".join(f"`{a}` in [0, {print_expr(d.extents[a])})" for a in reversed(packed))
        their = "their lengths depend" if packed[1:] else "its length depends"
        raise ScheduleError(request, f"`{name}` runs over {ranges}: {their} on other loops", where=print_stage(node))


def _them(packed: tuple[str, ...]) -> str:
    return "both" if packed[1:] else f"`{packed[0]}`"


def _own_result(state: State, name: str) -> State:
    """A stage whose result others read, and the caller wants: they read a buffer of its own, whose layout is free.

    A reduction on tuples, and what is not written everywhere, has no such copy: that is read where it is.
    """
    d = state.definitions[name]
    result, *others = writes(d.action)
    readers = [r for r in state.readers(result) if r != name]
    if not (state.is_output(result) and readers) or others or d.when is not None:
        return state
    state, _ = cache_write(state, name)
    own = dict(zip([result], writes(state.definitions[name].action), strict=True))

    for r in readers:
        state = state.redirected(r, own)
    return state


def group_sizes(d: Definition, group: str) -> tuple[Expr, ...]:
    """Return the divisors of an axis in the reads of a stage: 4 for `k[h // 4, j]`."""
    nodes = (x for load in d.reads() for i in load.index for x in walk(i) if isinstance(x, Op) and x.name == "floordiv")
    return tuple(dict.fromkeys(x.args[1] for x in nodes if x.args[0] == Var(group)))


def row_shared(d: Definition, row: str) -> list[Expr]:
    """The operands of products that a reduction sums up which all its rows share."""
    product = contraction(d.action, d.extents)
    operands = (product.a, product.b) if product is not None else ()
    return [x for x in operands if row not in variables(x) and variables(x) & set(d.reduced)]


def group_matrices(d: Definition, group: str, sizes: Iterable[Expr]) -> tuple[list[Expr], Expr | None]:
    """The matrices of products that the heads of a group share, and one that each head has for itself instead.

    An operand is a matrix where it alone has another axis that is kept. Products of vectors, as in a norm, have none.
    """
    product = contraction(d.action, d.extents)
    operands = ((product.a, product.rows), (product.b, product.cols)) if product is not None else ()
    matrices = [x for x, own in operands if {*own} - {group}]
    shared = [x for x in matrices if not reads_each(x, group, sizes)]
    return shared, None if shared else next(iter(matrices), None)


def reads_each(operand: Expr, group: str, sizes: Iterable[Expr]) -> bool:
    """Return True if an operand differs from head to head of a group."""
    same: dict[Expr, Expr] = {Op("floordiv", (Var(group), s), "int32"): ZERO for s in sizes}
    return group in variables(rewrite(operand, same.get))


def _group_size(state: State, members: Mapping[str, tuple[str, ...]], request: str) -> Expr:
    """Return the number of heads that share what is read: the divisor of the axis in reads, or all of it."""
    sizes = {s: n for n, (group, *_) in members.items() for s in group_sizes(state.definitions[n], group)}
    if len(sizes) > 1:
        listed = ", ".join(f"{print_expr(s)} in `{n}`" for s, n in sizes.items())
        raise ScheduleError(
            request,
            f"the groups are of several sizes: {listed}",
            hint="write the heads as two axes, and pack the inner one",
        )
    for name, (group, *row) in members.items():
        d = state.definitions[name]
        if row:
            own = next((x for x in row_shared(d, row[0]) if reads_each(x, group, sizes)), None)
        elif not sizes:
            raise ScheduleError(
                request,
                f"nothing is read at `{group} // G`: there are no groups of it",
                where=print_stage(state.path(name)[1]),
                hint="what all heads share needs no packing; `pack(group, row)` joins heads and rows",
            )
        else:
            _, own = group_matrices(d, group, sizes)
        if own is not None:
            text = print_expr(own.arg if isinstance(own, Cast) else own)
            raise ScheduleError(
                request,
                f"the rows would differ in {text}, which `{name}` reads for each `{group}` anew",
                where=print_stage(state.path(name)[1]),
                hint=f"pack an axis that all rows share {text} along: it has no such index, or `{group} // G`",
            )
        heads = d.extents[group]
    return next(iter(sizes), heads)


def _packing(state: State, loops: tuple[Loop, ...], members: Mapping[str, tuple[str, ...]], size: Expr) -> _Packing:
    """Names and expressions of the new axes."""
    group, *row = loops
    d, axes = state.definitions[group.stage], members[group.stage]
    heads, queries = d.extents[axes[0]], d.extents[axes[1]] if row else Const(1, "int32")
    used = names_in_use(state.program) | {a for x in state.definitions.values() for a in x.extents}
    outer = None if size == heads else fresh_name(used, f"{group.var}0")
    name = fresh_name(used | {outer or ""}, f"{row[0].var}_{group.var}" if row else f"{group.var}_r")
    inner, query = binary("mod", Var(name), size), binary("floordiv", Var(name), size)
    if queries == Const(1, "int32"):
        inner, query = Var(name), ZERO
    head = inner if outer is None else binary("add", binary("mul", Var(outer), size), inner)
    even = whole_groups(state.program, heads, size)
    return _Packing(
        members,
        outer,
        Const(1, "int32") if outer is None else _divide(heads, size, state) if even else ceildiv(heads, size),
        name,
        binary("mul", queries, size),
        size,
        head,
        query,
        None if even else binary("lt", head, heads),
    )


def whole_groups(program: Program, heads: Expr, size: Expr) -> bool:
    """Return True where the last group is as large as the others for all sizes."""
    exact = quotient(poly(heads), poly(size), scope_of(program, ()))
    return size == heads or (exact is not None and not exact[1].terms)


def _divide(heads: Expr, size: Expr, state: State) -> Expr:
    return divided(binary("floordiv", heads, size), scope_of(state.program, ()))


# --- what it becomes -----------------------------------------------------------------------------


def _shared(state: State, packing: _Packing, request: str) -> dict[str, tuple[int, ...]]:
    """The temporaries that are laid out anew, with their dimensions of the packed axes."""
    dimensions: dict[str, tuple[int, ...]] = {}
    for name, packed in packing.members.items():
        action = state.definitions[name].action
        if any(map(state.is_output, writes(action))):
            continue
        for b in writes(action):
            readers = state.readers(b)
            outside = next((r for r in readers if r not in packing.members), None)
            if outside is not None:
                raise ScheduleError(
                    request,
                    f"`{outside}` reads `{b}`, and does not run over {_them(packed)}",
                    where=print_stage(state.path(outside)[1]),
                    hint="pack loops that all readers have",
                )
            dims = tuple(k for a in packed for k, i in enumerate(action.index) if i == Var(a))
            used = [k for k, i in enumerate(action.index) if variables(i) & {*packed}]
            if len(dims) != len(packed) or {*dims} != {*used}:
                shown, axes = ", ".join(map(print_expr, action.index)), " and ".join(f"`{a}`" for a in packed)
                no = "are no dimensions" if packed[1:] else "is no dimension"
                raise ScheduleError(request, f"`{name}` writes {b}[{shown}]: {axes} {no} of it")
            dimensions[b] = dims
    return dimensions


def _packed(state: State, name: str, packing: _Packing, shared: Mapping[str, tuple[int, ...]], request: str) -> State:
    """One stage over the new axes."""
    d, (path, node) = state.definitions[name], state.path(name)
    own, env, new = tuple(map(Var, packing.members[name])), packing.env(name), packing.loops(name)
    extents = [x for a, e in d.extents.items() for x in new.get(a, [(a, e)])]
    axes = tuple(whole_axis(a, substitute(e, env)) for a, e in extents)
    loops = tuple(For(a.name, a.lo, a.hi, node) for a in axes)
    scope = scope_of(state.program, loops)

    def fix(e: Expr) -> Expr:
        return divided(substitute(rewrite(e, laid_out), env), scope)

    def laid_out(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x.buffer not in shared:
            return None
        dims = shared[x.buffer]
        if tuple(x.index[k] for k in dims) != own:
            raise ScheduleError(
                request,
                f"`{name}` reads {print_expr(x)}: another head or row than its own",
                where=print_stage(node),
            )
        return Load(x.buffer, packing.index(tuple(rewrite(i, laid_out) for i in x.index), dims), x.dtype)

    action = map_action(d.action, fix)
    targets = [b for b in writes(d.action) if b in shared]
    if targets:
        fresh = map_action(d.action, lambda e: e).index
        action = replace(action, index=packing.index(fresh, shared[targets[0]]))
    when = None if d.when is None else fix(d.when)
    if packing.when is not None:
        when = packing.when if when is None else Op("and", (when, packing.when), "bool")
    order = {a.name: a for a in axes}
    stmt: Stmt = replace(node, action=action, when=when)
    names = [x for f in path if isinstance(f, For) for x, _ in new.get(f.var, [(f.var, f.hi)])]
    for var in reversed(names):
        stmt = For(var, order[var].lo, order[var].hi, stmt)
    body = replace_node(state.program.body, own_nest(state, name, request), stmt)
    return state.with_body(body).define(name, define(axes, action, when), {a.name: Var(a.name) for a in axes})
