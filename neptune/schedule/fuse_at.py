"""fuse_at: naive fusion of a consumer under a loop of its producers' nest (paper §3, Halide's compute-at).

`fuse_at(e, j0)` before → after::

    for i0 grid.x:                            for i0 grid.x:
      for j0: for i1: for j1:                   for j0:
        s: s[i0*BM+i1, j0*BN+j1] = …              for i1: for j1: s: …
    for i: for j: e: e[i, j] = f(s[i, j])         for i1: for j1: e: e[i0*BM+i1, j0*BN+j1] = f(…)

Dependences on *locations* are checked: what the stage reads must have been produced by the same
iteration. Dependences on *time* are not: where the stage reads a reduction that the loop is still
changing, that is recorded as an obligation (`owes`), which only a proved repair discharges.

Axes are aligned through shared intermediates, and where two stages meet only at an input by that
input's dimensions of equal extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neptune.errors import ScheduleError
from neptune.ir.affine import always, poly, scope_of, split_by
from neptune.ir.expr import Expr, Load, Op, Var, logical_and, substitute, variables
from neptune.ir.printer import print_expr, print_stage
from neptune.ir.program import (
    ZERO,
    For,
    Owe,
    Stage,
    Stmt,
    Store,
    Update,
    map_action,
    paths,
    reduction_loops,
    rewrite_stmt,
    stages,
    writes,
)
from neptune.schedule.state import Definition, Loop, State, append_to, fresh_name


@dataclass(frozen=True)
class Nest:
    """Where a stage is going: the loops around the end of `loop`'s body, and who lives in that nest."""

    outer: tuple[For, ...]
    hosts: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f.var for f in self.outer)


def nest_of(state: State, ref: Loop) -> Nest:
    loop = state.loop(ref)
    path = state.loops(ref.stage)
    outer = path[: path.index(loop) + 1]
    return Nest(outer, tuple(dict.fromkeys(s.name for s in stages(outer[0]))))


def _touches(d: Definition) -> list[tuple[str, tuple[Expr, ...]]]:
    return [(b, d.action.index) for b in writes(d.action)] + [(x.buffer, x.index) for x in d.reads()]


def align(state: State, d: Definition, nest: Nest) -> dict[str, tuple[str, str]]:
    """axis of `d` → (host stage, axis of that host) it runs along with."""
    result: dict[str, tuple[str, str]] = {}
    hosts = [h for h in nest.hosts if h in state.definitions]
    mine = _touches(d)
    made_here = {b for h in hosts for b in writes(state.definitions[h].action)}
    for through_inputs in (False, True):
        for host in hosts:
            other = state.definitions[host]
            for buffer, index in mine:
                if (buffer in made_here) == through_inputs:
                    continue
                theirs = [ix for b, ix in _touches(other) if b == buffer]
                if not through_inputs:
                    theirs = [other.action.index] if buffer in writes(other.action) else []
                for ix in theirs:
                    for a, b in zip(index, ix, strict=True):
                        if not (isinstance(a, Var) and isinstance(b, Var)) or a.name in result:
                            continue
                        same = d.extents.get(a.name) == other.extents.get(b.name) is not None
                        used = {state.axes[h][x] for h, x in result.values()}
                        if same and state.axes[host][b.name] not in used:
                            result[a.name] = (host, b.name)
    return result


def _inner_loops(state: State, host: str, expr: Expr, nest: Nest) -> list[For]:
    wanted = variables(expr) - nest.names
    return [f for f in state.loops(host) if f.var in wanted]


def place(state: State, name: str, d: Definition, nest: Nest) -> tuple[Stmt, dict[str, Expr], str | None]:
    """The nest of a stage under `nest`, where its axes are then, and the first outer loop it does not
    run over (None where it runs over all of them)."""
    aligned = align(state, d, nest)
    env: dict[str, Expr] = {}
    loops: list[For] = []
    guards: list[Expr] = []
    taken = set(nest.names)
    for axis, extent in d.axes:
        if axis not in aligned:
            var = fresh_name(taken, axis)
            loops.append(For(var, ZERO, extent, _HOLE))
            env[axis] = Var(var)
            taken.add(var)
            continue
        host, there = aligned[axis]
        expr = state.axes[host][there]
        for f in _inner_loops(state, host, expr, nest):
            var = fresh_name(taken, f.var)
            if var != f.var:
                expr = substitute(expr, {f.var: Var(var)})
            loops.append(For(var, f.lo, f.hi, _HOLE))
            taken.add(var)
        env[axis] = expr
        if not isinstance(expr, Var) or expr.name not in nest.names:
            guards.append(Op("lt", (expr, extent), "bool"))
    missing = next((f.var for f in nest.outer if not any(f.var in variables(e) for e in env.values())), None)
    scope = scope_of(state.program, (*nest.outer, *loops))
    needed = [g for g in guards if not always(g, scope)]
    action = map_action(d.action, lambda e: substitute(e, env))
    body: Stmt = Stage(name, action, logical_and(*needed) if needed else None)
    for f in reversed(loops):
        body = replace(f, body=body)
    return body, env, missing


_HOLE: Stmt = Stage("", Store("", (), Var("")))  # stands where `place` puts the body of a loop


def common_loops(path: Iterable[For], nest: Nest) -> list[For]:
    """The loops that a stage on `path` shares with `nest`."""
    ids = {id(f) for f in path}
    return [f for f in nest.outer if id(f) in ids]


def check_locations(state: State, name: str, action: Store | Update, nest: Nest, request: str) -> None:
    """Every intermediate read must be complete in location: produced before, by the same iterations."""
    order = [s.name for s in stages(state.program.body)]
    last_here = max(i for i, n in enumerate(order) if n in {s.name for s in stages(nest.outer[-1])})
    first_here = min(i for i, n in enumerate(order) if n in nest.hosts)
    from neptune.ir.expr import loads
    from neptune.ir.program import values

    for load in (x for v in values(action) for x in loads(v)):
        host = state.writer(load.buffer)
        if host is None or host == name:
            continue
        shared = common_loops(state.loops(host), nest)
        position = order.index(host)
        if position > last_here or (not shared and position > first_here):
            raise ScheduleError(
                request,
                f"it reads `{load.buffer}`, which stage `{host}` computes only later",
                hint=f'fuse_at("{host}", …) first, or choose a loop outside',
            )
        names = frozenset(f.var for f in shared)
        written = state.path(host)[1].action.index
        for a, b in zip(load.index, written, strict=True):
            if split_by(poly(a), names)[0] != split_by(poly(b), names)[0]:
                raise ScheduleError(
                    request,
                    f"it reads {load.buffer}[{', '.join(map(print_expr, load.index))}], but this iteration of "
                    f"`{shared[-1].var}` has written only {load.buffer}[{', '.join(map(print_expr, written))}]",
                    where=print_stage(state.path(host)[1]),
                )


def obligations(state: State, name: str, reads: Iterable[Load], nest: Nest) -> list[Owe]:
    """What a stage at the end of `nest` reads before it is complete: directly, or through a map stage."""
    found: list[Owe] = []
    for load in reads:
        host = state.writer(load.buffer)
        if host is None or host == name:
            continue
        shared = common_loops(state.loops(host), nest)
        changing = [f for f in reduction_loops(state.path(host)[1], state.loops(host)) if f in shared]
        found += [Owe(name, host, f.var) for f in changing]
        names = {f.var for f in shared}
        found += [Owe(name, o.on, o.loop) for o in state.program.owes if o.stage == host and o.loop in names]
    return list(dict.fromkeys(found))


def fuse_definition(state: State, name: str, d: Definition, ref: Loop, request: str) -> State:
    """Put a stage with definition `d` at the end of a loop's body (removing where it was)."""
    loop = state.loop(ref)
    nest = nest_of(state, ref)
    if sum(1 for _, s in paths(state.program.body) if s.name == ref.stage) > 1:
        raise ScheduleError(request, f"`{ref.stage}` is in pieces", hint="fuse before you partition")
    if name in nest.hosts and any(f is loop for f in state.loops(name)):
        raise ScheduleError(request, f"`{name}` is inside `{loop.var}` already")
    body, env, missing = place(state, name, d, nest)
    stage = next(s for s in stages(body))
    if missing is not None:
        raise ScheduleError(
            request,
            f"`{name}` does not run over loop `{missing}`: it shares no axis with the stages of that nest",
            legal=[f.var for f in nest.outer[: [f.var for f in nest.outer].index(missing)]],
            where=print_stage(stage),
        )
    for axis in d.reduced:
        grid = [f.var for f in nest.outer if f.kind != "serial" and f.var in variables(env[axis])]
        if grid:
            raise ScheduleError(
                request,
                f"`{name}` reduces over `{axis}`, which is spread over the grid (loop `{grid[0]}`)",
                where=print_stage(stage),
            )
    check_locations(state, name, stage.action, nest, request)
    owed = obligations(state, name, d.reads(), nest)
    body_of_all = append_to(state.program.body, loop, body)
    result = state.with_body(body_of_all).define(name, d, env)
    program = replace(result.program, owes=tuple(dict.fromkeys((*result.program.owes, *owed))))
    return replace(result, program=program)


def fuse_at(state: State, name: str, ref: Loop) -> State:
    """Move a stage to the end of the body of a loop (see the module's text)."""
    request = f"fuse_at(`{name}`, `{ref.var}` of `{ref.stage}`)"
    state.path(name)
    d = state.definitions[name]
    if any(f is state.loop(ref) for f in state.loops(name)):
        raise ScheduleError(request, f"`{name}` is inside `{ref.var}` already")
    without = rewrite_stmt(state.program.body, lambda s: None if isinstance(s, Stage) and s.name == name else s)
    if without is None:
        raise ScheduleError(request, "it is the only stage of the program")
    removed = state.with_body(without)
    return fuse_definition(removed, name, d, ref, request)
