"""pack: the heads of a group and the query rows become the rows of one axis.

`pack(h, i)` where four heads share a row of k, before → after::

    for h in [0, 8): for i in [0, m):        for h0 in [0, 2): for i_h in [0, m * 4):
      for j: for d:                            for j: for d:
        s: s[h, i, j] += q[h, i, d] *            s: s[h0, i_h, j] += q[h0 * 4 + i_h % 4, i_h // 4, d] *
                         k[h // 4, j, d]                             k[h0, j, d]

Row r of a group is query r // 4 of its head r % 4: all rows of a tile read one tile of k, and what is known of a query,
such as the last key that it sees, does not decrease along the rows. A loop that is divided by G nowhere is one group.

Everything between is laid out anew: this is a rewrite of definitions, before anything is scheduled. All stages that
run over both axes are packed, and temporaries that they share get the new axes; inputs and results stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neptune.errors import ScheduleError
from neptune.ir.affine import poly, scope_of
from neptune.ir.contraction import contraction
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, binary, ceildiv, rewrite, substitute, variables, walk
from neptune.ir.printer import print_expr, print_stage
from neptune.ir.program import ZERO, Buffer, For, Stmt, map_action, paths, writes
from neptune.ir.quotients import divided, quotient
from neptune.schedule.alignment import Axes
from neptune.schedule.cache_read import own_nest
from neptune.schedule.cache_write import cache_write
from neptune.schedule.definition import Definition, define, whole_axis
from neptune.schedule.state import Decision, Loop, State, fresh_name, names_in_use, replace_node


@dataclass(frozen=True)
class _Packing:
    """The packed axes: in each stage its group and row axis, and what the two have become.

    `outer` is the loop over groups, None where there is one; `row` the packed one, of `rows` iterations. `when` says
    which rows exist, where the last group may be shorter than the others.
    """

    members: Mapping[str, tuple[str, str]]
    outer: str | None
    groups: Expr
    row: str
    rows: Expr
    size: Expr
    head: Expr
    query: Expr
    when: Expr | None

    def env(self, stage: str) -> dict[str, Expr]:
        """Return the present expressions of a stage's two axes."""
        group, row = self.members[stage]
        return {group: self.head, row: self.query}

    def axis(self, stage: str, name: str) -> str | None:
        """Return the present name of a loop; None for one that is gone."""
        group, row = self.members[stage]
        return self.outer if name == group else self.row if name == row else name


def pack(state: State, group: Loop, row: Loop) -> tuple[State, str]:
    """Make rows of the heads of a group; returns the name of the loop over them."""
    request = f"pack(`{group.var}`, `{row.var}` of `{row.stage}`)"
    for name, (g, r) in _members(state, group, row, request).items():
        _check_stage(state, name, g, r, request)
        state = _own_result(state, name)
    members = _members(state, group, row, request)
    size = _group_size(state, members, request)
    packing = _packing(state, group, row, members, size)
    shared = _shared(state, packing, request)
    for name in members:
        state = _packed(state, name, packing, shared, request)
    buffers = tuple(_laid_out(b, shared[b.name], packing) if b.name in shared else b for b in state.program.temporaries)
    state = replace(state, program=replace(state.program, temporaries=buffers))
    several = f"{print_expr(packing.groups)} groups of {print_expr(size)}"
    note = Decision(
        "pack",
        packing.row,
        f"{print_expr(packing.rows)} rows",
        f"`{group.var}` is {several if packing.outer else 'one group'}, whose rows share what does not depend on them",
        (f"{group.var} = {print_expr(packing.head)}", f"{row.var} = {print_expr(packing.query)}"),
    )
    return state.note(note), packing.row


# --- what is packed ------------------------------------------------------------------------------


def _members(state: State, group: Loop, row: Loop, request: str) -> dict[str, tuple[str, str]]:
    """The stages that run over both axes, each with what it calls them."""
    if group.stage != row.stage:
        raise ScheduleError(request, "the loops are named through different stages", hint="use loops of one stage")
    stage = row.stage
    state.definition(stage)
    g, r = (_axis(state, ref, request) for ref in (group, row))
    if g == r:
        raise ScheduleError(request, "a loop is packed with another one", legal=[f.var for f in state.loops(stage)])
    axes = Axes(state.definitions)
    members = {n: (axes.of(n, (stage, g)), axes.of(n, (stage, r))) for n in state.definitions}
    return {n: (a, b) for n, (a, b) in members.items() if a is not None and b is not None}


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


def _check_stage(state: State, name: str, group: str, row: str, request: str) -> None:
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
            f"`{name}`, which runs over both, has been scheduled already",
            where=print_stage(node),
            hint="pack first, before anything is tiled, fused or bound",
        )
    for axis in (group, row):
        if axis in d.reduced:
            raise ScheduleError(
                request,
                f"`{name}` reduces over `{axis}`: its result has no such rows",
                where=print_stage(node),
                hint="pack loops that all stages between keep",
            )
    if variables(d.extents[row]) & {group} or variables(d.extents[group]) & set(d.extents):
        raise ScheduleError(
            request,
            f"`{name}` runs over `{row}` in [0, {print_expr(d.extents[row])}) and `{group}` in "
            f"[0, {print_expr(d.extents[group])}): their lengths depend on other loops",
            where=print_stage(node),
        )


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


def reads_each(operand: Expr, group: str, sizes: Iterable[Expr]) -> bool:
    """Return True if an operand differs from head to head of a group."""
    same: dict[Expr, Expr] = {Op("floordiv", (Var(group), s), "int32"): ZERO for s in sizes}
    return group in variables(rewrite(operand, same.get))


def _group_size(state: State, members: Mapping[str, tuple[str, str]], request: str) -> Expr:
    """Return the number of heads that share what is read: the divisor of the axis in reads, or all of it."""
    sizes = {s: n for n, (group, _) in members.items() for s in group_sizes(state.definitions[n], group)}
    if len(sizes) > 1:
        listed = ", ".join(f"{print_expr(s)} in `{n}`" for s, n in sizes.items())
        raise ScheduleError(
            request,
            f"the groups are of several sizes: {listed}",
            hint="write the heads as two axes, and pack the inner one",
        )
    for name, (group, row) in members.items():
        d = state.definitions[name]
        own = next((x for x in row_shared(d, row) if reads_each(x, group, sizes)), None)
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


def _packing(state: State, group: Loop, row: Loop, members: Mapping[str, tuple[str, str]], size: Expr) -> _Packing:
    """Names and expressions of the new axes."""
    d = state.definitions[row.stage]
    g, r = members[row.stage]
    heads, queries = d.extents[g], d.extents[r]
    used = names_in_use(state.program) | {a for x in state.definitions.values() for a in x.extents}
    outer = None if size == heads else fresh_name(used, f"{group.var}0")
    name = fresh_name(used | {outer or ""}, f"{row.var}_{group.var}")
    inner, query = binary("mod", Var(name), size), binary("floordiv", Var(name), size)
    if queries == Const(1, "int32"):
        inner, query = Var(name), ZERO
    head = inner if outer is None else binary("add", binary("mul", Var(outer), size), inner)
    exact = quotient(poly(heads), poly(size), scope_of(state.program, ()))
    even = outer is None or (exact is not None and not exact[1].terms)
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


def _divide(heads: Expr, size: Expr, state: State) -> Expr:
    return divided(binary("floordiv", heads, size), scope_of(state.program, ()))


# --- what it becomes -----------------------------------------------------------------------------


def _shared(state: State, packing: _Packing, request: str) -> dict[str, tuple[int, int]]:
    """The temporaries that are laid out anew, with their dimensions of heads and of rows."""
    dimensions: dict[str, tuple[int, int]] = {}
    for name, (group, row) in packing.members.items():
        action = state.definitions[name].action
        if any(map(state.is_output, writes(action))):
            continue
        for b in writes(action):
            readers = state.readers(b)
            outside = next((r for r in readers if r not in packing.members), None)
            if outside is not None:
                raise ScheduleError(
                    request,
                    f"`{outside}` reads `{b}`, and does not run over both axes",
                    where=print_stage(state.path(outside)[1]),
                    hint="pack loops that all readers have",
                )
            dims = [[k for k, i in enumerate(action.index) if i == Var(a)] for a in (group, row)]
            others = [k for k, i in enumerate(action.index) if variables(i) & {group, row}]
            if [len(d) for d in dims] != [1, 1] or len(others) != 2:
                shown = ", ".join(map(print_expr, action.index))
                raise ScheduleError(
                    request, f"`{name}` writes {b}[{shown}]: `{group}` and `{row}` are no dimensions of it"
                )
            dimensions[b] = (dims[0][0], dims[1][0])
    return dimensions


def _packed(state: State, name: str, packing: _Packing, shared: Mapping[str, tuple[int, int]], request: str) -> State:
    """One stage over the new axes."""
    d, (path, node) = state.definitions[name], state.path(name)
    group, row = packing.members[name]
    env = packing.env(name)
    extents = {a: _packed_extent(e, a, name, packing) for a, e in d.extents.items() if packing.axis(name, a)}
    axes = tuple(whole_axis(packing.axis(name, a) or "", substitute(e, env)) for a, e in extents.items())
    loops = tuple(For(a.name, a.lo, a.hi, node) for a in axes)
    scope = scope_of(state.program, loops)

    def fix(e: Expr) -> Expr:
        return divided(substitute(rewrite(e, laid_out), env), scope)

    def laid_out(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x.buffer not in shared:
            return None
        heads, rows = shared[x.buffer]
        if (x.index[heads], x.index[rows]) != (Var(group), Var(row)):
            raise ScheduleError(
                request,
                f"`{name}` reads {print_expr(x)}: another head or row than its own",
                where=print_stage(node),
            )
        return Load(x.buffer, _index(tuple(rewrite(i, laid_out) for i in x.index), shared[x.buffer], packing), x.dtype)

    action = map_action(d.action, fix)
    targets = [b for b in writes(d.action) if b in shared]
    if targets:
        fresh = map_action(d.action, lambda e: e).index
        action = replace(action, index=_index(fresh, shared[targets[0]], packing))
    when = None if d.when is None else fix(d.when)
    if packing.when is not None:
        when = packing.when if when is None else Op("and", (when, packing.when), "bool")
    order = {a.name: a for a in axes}
    stmt: Stmt = replace(node, action=action, when=when)
    for f in reversed([s for s in path if isinstance(s, For)]):
        var = packing.axis(name, f.var)
        if var is not None:
            stmt = For(var, order[var].lo, order[var].hi, stmt)
    body = replace_node(state.program.body, own_nest(state, name, request), stmt)
    return state.with_body(body).define(name, define(axes, action, when), {a.name: Var(a.name) for a in axes})


def _packed_extent(e: Expr, axis: str, stage: str, packing: _Packing) -> Expr:
    group, row = packing.members[stage]
    return packing.groups if axis == group else packing.rows if axis == row else e


def _index(index: tuple[Expr, ...], dims: tuple[int, int], packing: _Packing) -> tuple[Expr, ...]:
    """An index of a temporary: the group in place of the head, the packed row in place of the row."""
    heads, rows = dims
    new: dict[int, list[Expr]] = {heads: [Var(packing.outer)] if packing.outer else [], rows: [Var(packing.row)]}
    return tuple(x for k, i in enumerate(index) for x in new.get(k, [i]))


def _laid_out(b: Buffer, dims: tuple[int, int], packing: _Packing) -> Buffer:
    heads, rows = dims
    shape = {heads: [packing.groups] if packing.outer else [], rows: [binary("mul", b.shape[rows], packing.size)]}
    return replace(b, shape=tuple(x for k, n in enumerate(b.shape) for x in shape.get(k, [n])))
