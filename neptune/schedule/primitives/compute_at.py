"""compute_at, reverse_compute_at: compute a producer or a consumer inside a loop of the other.

compute_at: compute a producer inside a loop of its consumers, over the region they read there.

`compute_at(t, i0)` before → after::

    for i: t: t[i] = f(x[i])                  for i0:
    for i0: for i1:                             for i in [0, 4): t: t[i0*4 + i] = f(x[i0*4 + i]) when …
      y: y[i0*4 + i1] = t[i0*4 + i1] + …        for i1: y: y[i0*4 + i1] = t[i0*4 + i1] + …

Per dimension the region is the interval that holds every index its readers have there, while the loops inside
run. Elements that several iterations read are computed in each of them: `decisions` says how many, and a
reduction, which would fold them again into what it has, is refused then.

reverse_compute_at: move a consumer under a loop of its producers, where all it reads is complete there.

`reverse_compute_at(d, i)` before → after::

    for i: for j: for k:                      for i:
      c: c[i, j] += a[i, k] * b[k, j]           for j: for k: c: c[i, j] += a[i, k] * b[k, j]
    for i: for j: d: d[i, j] = f(c[i, j])       for j: d: d[i, j] = f(c[i, j])

`fuse_at` without the debts: where that would record that the stage reads a reduction which the loop still
changes, this refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Var,
    binary,
    conjuncts,
    loads,
    logical_and,
    substitute,
    variables,
)
from neptune.ir.indices.affine import always, linear, poly, scope_of, simplify
from neptune.ir.program import (
    ZERO,
    For,
    Stage,
    Stmt,
    for_loops,
    map_action,
    paths,
    rewrite_stmt,
    seq,
    stages,
    sub_stmts,
    wrap,
    writes,
)
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.alignment import Nest, nest_of
from neptune.schedule.definition import Definition
from neptune.schedule.primitives.bind import shared_by_programs
from neptune.schedule.primitives.fuse_at import check_inits, check_read, fuse_at, obligations
from neptune.schedule.region import Interval, hull, interval
from neptune.schedule.state import Decision, Loop, State, check_whole, fresh_name, reads, replace_node


def compute_at(state: State, name: str, ref: Loop) -> State:
    """Move a producer to where a loop's body first reads it (see the module's text)."""
    request = f"compute_at(`{name}`, `{ref.var}` of `{ref.stage}`)"
    d = state.definition(name)
    loop = state.loop(ref)
    _check_stage(state, name, d, loop, request)
    nest = nest_of(state, ref)
    readers = list(_readers(state, name, d, loop, request))
    region = _region(state, readers, nest, d, request)
    placed, env = _place(state, name, d, region, nest, readers)
    stage = next(s for s in stages(placed))
    repeated = [f.var for f in nest.outer if not any(f.var in variables(i) for i in stage.action.index)]
    if stage.folds:
        _check_fold(name, stage, repeated, request)
    first = next(p for p in _parts(loop.body) if any(s is r for s in stages(p) for _, r, _ in readers))
    fresh = replace(loop, body=seq(*(x for p in _parts(loop.body) for x in ((placed, p) if p is first else (p,)))))
    with_it = replace_node(state.program.body, loop, fresh)
    old = state.path(name)[1]
    body = rewrite_stmt(with_it, lambda s: None if s is old else s)
    assert body is not None
    result = state.with_body(body).define(name, d, env)
    result = _in_order(result, name)
    _check_reads(result, name, request)
    result = _kept_on_chip(result, name)
    return result.note(_decision(d, name, ref, stage, region, repeated))


def _parts(body: Stmt) -> tuple[Stmt, ...]:
    return sub_stmts(body) if not isinstance(body, For | Stage) and len(sub_stmts(body)) > 1 else (body,)


# --- who reads it, and where -----------------------------------------------------------------------


Reader = tuple[tuple[For, ...], Stage, Load]
"""The loops inside the one in question, the stage, and its load."""


def _check_stage(state: State, name: str, d: Definition, loop: For, request: str) -> None:
    node = state.path(name)[1]
    check_whole(state, loop, request)
    if any(f is loop for f in state.loops(name)):
        raise ScheduleError(request, f"`{name}` is inside `{loop.var}` already")
    if sum(s.name == name for s in stages(state.program.body)) > 1:
        raise ScheduleError(request, f"`{name}` is in pieces", hint="do this before partition")
    if any(name in (o.stage, o.on) for o in state.program.owes):
        raise ScheduleError(
            request, f"`{name}` takes part in a fusion that owes a repair", hint="do this before you fuse"
        )
    written = set(writes(d.action))
    for s in stages(state.program.body):
        if s.name != name and written & set(writes(s.action)):
            raise ScheduleError(
                request,
                f"`{s.name}` works on the result of `{name}` where it is now",
                where=print_stage(s),
                hint="do this before you decompose, partition or roll it",
            )
    output = next((b for b in writes(d.action) if state.is_output(b)), None)
    if output is not None:
        raise ScheduleError(
            request,
            f"`{output}` is a result of the program: all of it is wanted, not the region that is read here",
            where=print_stage(node),
            hint=f"fuse_at on its readers, or a cache_read of `{output}`",
        )
    names = [i.name for i in d.action.index if isinstance(i, Var)]
    if len(set(names)) != len(d.action.index):
        raise ScheduleError(request, f"the index of `{name}` is not a plain list of its axes", where=print_stage(node))
    if set(d.names) - set(names) - set(d.reduced):
        raise ScheduleError(request, f"`{name}` has an axis that its index does not have", where=print_stage(node))


def _readers(state: State, name: str, d: Definition, loop: For, request: str) -> Iterator[Reader]:
    """Every read of what the stage writes; all of them must be inside the loop."""
    written = set(writes(d.action))
    inside = {id(s) for s in stages(loop)}
    for s in stages(state.program.body):
        if s.name != name and id(s) not in inside and any(x.buffer in written for x in reads(s)):
            raise ScheduleError(
                request,
                f"`{s.name}` reads `{name}` outside of `{loop.var}`",
                where=print_stage(s),
                hint="fuse its readers into one nest first, or cache_read for a copy of one's own",
            )
    readers = [
        (for_loops(path), s, x)
        for path, s in paths(loop.body)
        for x in reads(s)
        if x.buffer in written and s.name != name
    ]
    for f in (f for path, _ in paths(loop.body) for f in for_loops(path)):
        if any(x.buffer in written for e in (f.lo, f.hi) for x in loads(e)):
            raise ScheduleError(
                request,
                f"the range of loop `{f.var}` reads `{name}`",
                hint=f"a loop outside of `{loop.var}`, or leave the stage where it is",
            )
    if not readers:
        raise ScheduleError(
            request,
            f"no stage inside `{loop.var}` reads `{name}`",
            legal=[r for b in writes(d.action) for r in state.readers(b)],
            hint="a loop around one of its readers",
        )
    yield from readers


# --- regions ---------------------------------------------------------------------------------------


def _region(state: State, readers: Sequence[Reader], nest: Nest, d: Definition, request: str) -> dict[str, Interval]:
    """spatial axis of the producer → the interval of it that the readers touch in one iteration."""
    region: dict[str, Interval] = {}
    for dim, axis in enumerate(d.action.index):
        assert isinstance(axis, Var)
        parts: list[Interval] = []
        for inner, stage, load in readers:
            scope = scope_of(state.program, (*nest.outer, *inner))
            part = interval(load.index[dim], [f.var for f in reversed(inner)], scope)
            if part is None:
                raise ScheduleError(
                    request,
                    f"what `{stage.name}` reads in dimension {dim} has no bounds: "
                    f"{load.buffer}[…{print_expr(load.index[dim])}…]",
                    where=print_stage(stage),
                    hint="a loop outside of it, or leave the stage where it is",
                )
            parts.append(part)
        scope = scope_of(state.program, nest.outer)
        region[axis.name] = hull(parts, scope)
    return region


# --- the nest over a region -----------------------------------------------------------------------


def _place(
    state: State, name: str, d: Definition, region: dict[str, Interval], nest: Nest, readers: Sequence[Reader]
) -> tuple[Stmt, dict[str, Expr]]:
    """The nest of the stage over its region, and where its axes are then."""
    names = set(nest.names)
    env: dict[str, Expr] = {}
    loops: list[For] = []
    guards: list[Expr] = []
    for a in d.axes:
        axis, full = a.name, substitute(a.extent, env)
        part = region.get(axis)
        if part is not None and part.length == ONE:
            env[axis] = part.lo
            guards += [binary("ge", part.lo, 0), binary("lt", part.lo, full)]
            continue
        wish, where = (axis, None) if part is None else _along(axis, part, d, readers)
        var = fresh_name(names, wish)
        names.add(var)
        from_lo = Var(var) if part is None or part.lo == ZERO else binary("add", part.lo, Var(var))
        env[axis] = from_lo if where is None else substitute(where, {wish: Var(var)})
        if part is None or (part.lo == ZERO and part.length == full):
            loops.append(For(var, substitute(a.lo, env), substitute(a.hi, env), _HOLE))
            continue
        loops.append(For(var, ZERO, part.length, _HOLE))
        guards += [binary("ge", env[axis], 0), binary("lt", env[axis], full)]
    scope = scope_of(state.program, (*nest.outer, *loops))
    needed = [g for g in guards if not always(g, scope)]
    needed += [substitute(c, env) for c in conjuncts(d.when)]
    action = map_action(d.action, lambda e: substitute(e, env))
    body = replace(state.path(name)[1], action=action, when=logical_and(*needed) if needed else None)
    return wrap(loops, body), env


def _along(axis: str, part: Interval, d: Definition, readers: Sequence[Reader]) -> tuple[str, Expr | None]:
    """A loop name and the axis over it: those of a reader that runs over the very region, so that both have the
    same guards; else a name of the axis' own."""
    dim = next(k for k, i in enumerate(d.action.index) if i == Var(axis))
    for inner, _, load in readers:
        for f in inner:
            along = simplify(binary("add", part.lo, Var(f.var))) == simplify(load.index[dim])
            if along and f.lo == ZERO and simplify(f.hi) == part.length:
                return f.var, load.index[dim]
    return axis, None


ONE = Const(1, "int32")
_HOLE: Stmt = seq()  # stands where the body of a loop is put


def _check_fold(name: str, stage: Stage, repeated: list[str], request: str) -> None:
    if repeated:
        raise ScheduleError(
            request,
            f"every iteration of `{repeated[0]}` reads the same elements of `{name}`, and would fold them again",
            where=print_stage(stage),
            hint=f"a loop outside of `{repeated[0]}`",
        )


def _in_order(state: State, name: str) -> State:
    """Definitions follow the program: producers first (the stage may now stand behind others)."""
    order: dict[str, int] = {}
    for k, s in enumerate(stages(state.program.body)):
        order.setdefault(s.name, k)
    ranked = sorted(state.definitions, key=lambda n: order[n])
    return replace(state, definitions={n: state.definitions[n] for n in ranked})


def _check_reads(state: State, name: str, request: str) -> None:
    """Check that what the stage itself reads is complete at its present place."""
    order = list(paths(state.program.body))
    position = next(k for k, (_, s) in enumerate(order) if s.name == name)
    path, stage = order[position]
    loops = for_loops(path)
    check_inits(state, name, request)
    for load in (x for x in reads(stage) if state.writer(x.buffer) not in (None, name)):
        check_read(state, stage, load, loops, order[:position], request)
    owed = obligations(state, name, reads(stage), Nest(loops, ()))
    if owed:
        raise ScheduleError(
            request,
            f"`{name}` reads `{owed[0].on}`, which is not complete there: loop `{owed[0].loop}` still changes it",
            where=print_stage(stage),
        )


def _kept_on_chip(state: State, name: str) -> State:
    """Give each program of the grid a tile of its own if several compute the same elements."""
    written = writes(state.definitions[name].action)
    if not shared_by_programs(state, name):
        return state
    fresh = (replace(b, scope="tile") if b.name in written else b for b in state.program.temporaries)
    return replace(state, program=replace(state.program, temporaries=tuple(fresh)))


def _decision(
    d: Definition, name: str, ref: Loop, stage: Stage, region: dict[str, Interval], repeated: list[str]
) -> Decision:
    """Return the decision: the part that one iteration computes, and what of it other iterations compute too."""
    parts = tuple(f"{a}: {print_expr(p.length)} of {print_expr(d.extents[a])}" for a, p in region.items())
    again = f"computed again in every iteration of {', '.join(repeated)}" if repeated else "regions may overlap"
    exact = not repeated and all(_strides(p, ref) for p in region.values())
    verdict = f"inside `{ref.var}` of `{ref.stage}`"
    return Decision("compute_at", name, verdict, "each element once" if exact else again, parts)


def _strides(p: Interval, ref: Loop) -> bool:
    """True where the regions of neighbouring iterations certainly do not overlap."""
    parts = linear(poly(p.lo), ref.var)
    return parts is not None and (not parts[0].terms or parts[0] == poly(p.length))


# --- reverse_compute_at -----------------------------------------------------------------------------


def reverse_compute_at(state: State, name: str, ref: Loop) -> State:
    """Move a stage to the end of the body of a loop, owing nothing."""
    request = f"reverse_compute_at(`{name}`, `{ref.var}` of `{ref.stage}`)"
    try:
        moved = fuse_at(state, name, ref)
    except ScheduleError as error:
        raise ScheduleError(
            request, error.wrong, where=error.where, legal=error.legal, hint=error.hint, kind=error.kind
        ) from None
    owed = next((o for o in moved.program.owes if o.stage == name), None)
    if owed is not None:
        raise ScheduleError(
            request,
            f"`{name}` reads `{owed.on}`, which is not complete there: loop `{owed.loop}` still changes it",
            where=print_stage(moved.path(name)[1]),
            hint=f'a loop outside of `{owed.loop}`, or rolling_update("{name}", {ref.var})',
        )
    return moved
