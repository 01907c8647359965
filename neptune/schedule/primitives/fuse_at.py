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
from neptune.ir.expr import Expr, Load, Var, binary, conjuncts, logical_and, substitute, variables
from neptune.ir.indices.affine import Poly, always, extreme, linear, number, poly, scope_of, split_by, within
from neptune.ir.indices.quotients import divided
from neptune.ir.program import (
    ZERO,
    For,
    Made,
    Owe,
    Stage,
    Stmt,
    Store,
    for_loops,
    map_action,
    paths,
    reduction_loops,
    rewrite_stmt,
    stages,
    walk,
    wrap,
    writes,
)
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.alignment import Nest, align, counted, nest_of, shared_in_part, tiled
from neptune.schedule.definition import Definition
from neptune.schedule.primitives.bind import shared_by_programs, writes_apart
from neptune.schedule.state import Loop, State, append_to, check_whole, fresh_name, init_loads, reads


def place(
    state: State, name: str, d: Definition, nest: Nest, provenance: Made | None
) -> tuple[Stmt, dict[str, Expr], str | None]:
    """The nest of a stage under `nest`, where its axes are then, and the first outer loop it does not
    run over (None where it runs over all of them)."""
    aligned = align(state, d, nest)
    tiles = tiled(state, name, d, nest, aligned)
    env: dict[str, Expr] = {}
    counts = counted(state, name, d, nest, aligned)
    loops: list[For] = []
    guards: list[Expr] = []
    names = set(nest.names)
    for axis in d.axes:
        if axis.name in counts:
            env[axis.name] = counts[axis.name]
        elif axis.name in tiles:
            host, width = tiles[axis.name]
            run = _along(state, *host, nest, names)
            var = fresh_name(names | {f.var for f in run.loops}, axis.name)
            loops += [*run.loops, For(var, ZERO, width, _HOLE)]
            env[axis.name] = binary("add", binary("mul", run.expr, width), Var(var))
            guards += [*run.guards, binary("lt", env[axis.name], substitute(axis.extent, env))]
        elif axis.name not in aligned:
            var = fresh_name(names, axis.name)
            loops.append(For(var, substitute(axis.lo, env), substitute(axis.hi, env), _HOLE))
            env[axis.name] = Var(var)
        else:
            run = _along(state, *aligned[axis.name], nest, names)
            loops += run.loops
            env[axis.name] = run.expr
            guards += [*run.guards, binary("lt", run.expr, substitute(axis.extent, env))]
        names |= {f.var for f in loops}
    missing = next((f.var for f in nest.outer if not any(f.var in variables(e) for e in env.values())), None)
    missing = missing or shared_in_part(state, aligned, nest)
    scope = scope_of(state.program, (*nest.outer, *loops))
    needed = [g for g in dict.fromkeys(guards) if not always(g, scope)]
    needed += [substitute(c, env) for c in conjuncts(d.when)]
    action = map_action(d.action, lambda e: divided(substitute(e, env), scope))
    body = Stage(name, action, logical_and(*needed) if needed else None, provenance)
    return wrap(loops, body), env, missing


@dataclass(frozen=True)
class _Run:
    """An axis that runs along with that of a host: its own copies of the host's loops below the nest, the
    expression over them, and the guards that keep tiles of tiles from overlapping."""

    loops: tuple[For, ...]
    expr: Expr
    guards: tuple[Expr, ...]


def _along(state: State, host: str, axis: str, nest: Nest, names: set[str]) -> _Run:
    expr = state.axes[host][axis]
    used = variables(expr)
    own = state.loops(host)
    below = [f for f in own if f.var in used - nest.names]
    avoid = {f.var for f in own}
    env: dict[str, Expr] = {}
    loops: list[For] = []
    for f in below:
        var = f.var if f.var not in names else fresh_name(names | avoid, f.var)
        env[f.var] = Var(var)
        avoid.add(var)
        loops.append(For(var, f.lo, f.hi, _HOLE))
    vars_of_loops = {f.var for f in own}
    pieces = [s for s in stages(state.program.body) if s.name == host]
    as_written = _own_guard(state, pieces[0])
    guards = dict.fromkeys(
        c
        for s in pieces
        for c in conjuncts(s.when)
        if c not in as_written and variables(c) & vars_of_loops and variables(c) & vars_of_loops <= used
    )
    return _Run(tuple(loops), substitute(expr, env), tuple(substitute(c, env) for c in guards))


_HOLE: Stmt = Stage("", Store("", (), Var("")))  # stands where `place` puts the body of a loop


def common_loops(path: Iterable[For], nest: Nest) -> list[For]:
    """The loops that a stage on `path` shares with `nest`."""
    ids = {id(f) for f in path}
    return [f for f in nest.outer if id(f) in ids]


def check_locations(state: State, name: str, request: str) -> None:
    """Check that all locations a stage reads are written before it, and those that others read of it."""
    order = list(paths(state.program.body))
    position = next(k for k, (_, s) in enumerate(order) if s.name == name)
    path, stage = order[position]
    check_inits(state, name, request)
    for load in (x for x in reads(stage) if state.writer(x.buffer) not in (None, name)):
        check_read(state, stage, load, for_loops(path), order[:position], request)
    for k, (around, reader) in enumerate(order):
        for load in (x for x in reads(reader) if reader.name != name and x.buffer in writes(stage.action)):
            if k < position:
                raise ScheduleError(
                    request,
                    f"`{reader.name}` reads `{load.buffer}` before that place",
                    where=print_stage(reader),
                    hint=f'fuse_at("{reader.name}", …) later, or choose another loop',
                )
            loops = for_loops(around)
            check_read(state, reader, load, loops, order[:k], request)
            changing = [f.var for f in reduction_loops(stage, for_loops(path)) if any(f is x for x in loops)]
            if changing:
                raise ScheduleError(
                    request,
                    f"`{reader.name}` would read `{load.buffer}` while loop `{changing[0]}` still changes it",
                    where=print_stage(reader),
                )


def check_inits(state: State, name: str, request: str) -> None:
    """No init that the stage has or feeds is read before its reduction loops while these still make it."""
    for path, stage in paths(state.program.body):
        reduced = reduction_loops(stage, for_loops(path))
        for load in init_loads(stage.action):
            host = state.writer(load.buffer)
            if host is None or name not in (stage.name, host):
                continue
            inside = next((f.var for f in reduced if any(f is x for x in state.loops(host))), None)
            if inside is not None:
                raise ScheduleError(
                    request,
                    f"`{stage.name}` starts from `{load.buffer}`, which is computed only inside loop `{inside}`",
                    where=print_stage(stage),
                    hint=f"a loop outside of `{inside}`",
                )


def check_read(
    state: State,
    reader: Stage,
    load: Load,
    loops: tuple[For, ...],
    before: list[tuple[tuple[Stmt, ...], Stage]],
    request: str,
) -> None:
    """One read by a stage inside `loops`: its writer is among the stages `before`, in the same iterations."""
    host = state.writer(load.buffer)
    pieces = [(for_loops(p), s) for p, s in paths(state.program.body) if s.name == host]
    done = {id(s) for _, s in before}
    if not all(id(s) in done for _, s in pieces):
        raise ScheduleError(
            request,
            f"`{reader.name}` reads `{load.buffer}`, which stage `{host}` computes only later",
            hint=f'fuse_at("{host}", …) first, or choose a loop outside',
        )
    own, writer = pieces[0]
    written = writer.action.index
    shared = [f for f in own if any(f is x for x in loops)]
    partial = [f.var for f in own if any(f not in other for other, _ in pieces)]
    if len(pieces) > 1 and any(set(partial) & variables(i) for i in written):
        # Tiles that were skipped have never been written.
        raise ScheduleError(
            request,
            f"`{reader.name}` reads `{load.buffer}`, which loop `{partial[0]}` computes in pieces",
            hint="fuse before you partition",
        )
    names = frozenset(f.var for f in shared)
    for a, b in zip(load.index, written, strict=True):
        if not _covered(state, poly(a), poly(b), (loops, reader), (own, writer), names):
            raise ScheduleError(
                request,
                f"`{reader.name}` reads {load.buffer}[{', '.join(map(print_expr, load.index))}], but this iteration of "
                f"`{shared[-1].var}` has written only {load.buffer}[{', '.join(map(print_expr, written))}]",
                where=print_stage(writer),
            )


def _own_guard(state: State, stage: Stage) -> set[Expr]:
    """The guard that the user gave a stage, over its present loops (the others come from tiling)."""
    d = state.definitions[stage.name]
    return {substitute(c, state.axes[stage.name]) for c in conjuncts(d.when)}


def _covered(
    state: State,
    read: Poly,
    written: Poly,
    reader: tuple[tuple[For, ...], Stage],
    writer: tuple[tuple[For, ...], Stage],
    shared: frozenset[str],
) -> bool:
    """True if what one iteration of the shared loops reads in a dimension is what it has written there."""
    (loops, stage), (own, other) = reader, writer
    (a_here, a_rest), (b_here, b_rest) = split_by(read, shared), split_by(written, shared)
    if a_here != b_here:
        return False
    if not b_here.terms:
        return True  # all of that dimension has been computed
    scope = scope_of(state.program, loops)
    ranges = {f.var: (f.lo, f.hi) for f in own}
    vars_of_rest = {v for atoms, _ in a_rest.terms for x in atoms for v in variables(x)}
    if a_rest == b_rest and all(ranges.get(f.var) == (f.lo, f.hi) for f in loops if f.var in vars_of_rest):
        # The very same elements, unless the writer leaves out some that the reader does not.
        left_out = [
            c for c in conjuncts(other.when) if variables(c) & vars_of_rest and c not in _own_guard(state, other)
        ]
        return all(c in conjuncts(stage.when) or always(c, scope) for c in left_out)
    # Tiles lie side by side: an iteration of the innermost shared loop owns as many elements as its stride.
    inner = next(f.var for f in reversed(own) if f.var in shared and any(_mentions(m, f.var) for m, _ in b_here.terms))
    stride = linear(b_here, inner)
    below = [f.var for f in reversed(own) if f.var not in shared]
    top = extreme(b_rest, below, scope_of(state.program, own), largest=True)
    moving = [f.var for f in reversed(loops) if f.var not in shared]
    limits = [None if stride is None else stride[0], None if top is None else top + number(1)]
    return all(w is not None and within(a_rest, moving, w, scope) for w in limits)


def _mentions(atoms: Iterable[Expr], var: str) -> bool:
    return any(var in variables(a) for a in atoms)


def obligations(state: State, name: str, reads: Iterable[Load], nest: Nest) -> list[Owe]:
    """Return the reads of a stage at the end of `nest` of incomplete results: directly, or through a map stage."""
    owed: list[Owe] = []
    for load in reads:
        host = state.writer(load.buffer)
        if host is None or host == name:
            continue
        shared = common_loops(state.loops(host), nest)
        changing = [f for f in reduction_loops(state.path(host)[1], state.loops(host)) if f in shared]
        owed += [Owe(name, host, f.var) for f in changing]
        names = {f.var for f in shared}
        owed += [Owe(name, o.on, o.loop) for o in state.program.owes if o.stage == host and o.loop in names]
    return list(dict.fromkeys(owed))


def fuse_definition(
    state: State, name: str, d: Definition, ref: Loop, request: str, provenance: Made | None = None
) -> State:
    """Put a stage with definition `d`, `made` for another or not, at the end of a loop's body."""
    loop = state.loop(ref)
    nest = nest_of(state, ref)
    check_whole(state, loop, request)
    body, env, missing = place(state, name, d, nest, provenance)
    stage = next(s for s in stages(body))
    if missing is not None:
        raise ScheduleError(
            request,
            f"`{name}` does not run over loop `{missing}`: it shares no axis with the stages of that nest",
            legal=[f.var for f in nest.outer[: [f.var for f in nest.outer].index(missing)]],
            where=print_stage(stage),
        )
    indexing = frozenset[str]().union(*(variables(i) for i in stage.action.index))
    for axis in d.reduced:
        both = sorted(variables(env[axis]) & indexing & nest.names)
        if both:
            raise ScheduleError(
                request,
                f"`{name}` reduces over `{axis}` and keeps other axes, and the fused loop `{both[0]}` runs over both",
                where=print_stage(stage),
                hint="fuse its loops after this",
            )
        grid = [f.var for f in nest.outer if f.kind != "serial" and f.var in variables(env[axis])]
        if grid:
            raise ScheduleError(
                request,
                f"`{name}` reduces over `{axis}`, which is spread over the grid (loop `{grid[0]}`)",
                where=print_stage(stage),
            )
    owed = obligations(state, name, d.reads(), nest)
    others = (o for o in state.program.owes if o.stage != name)
    program = replace(state.program, owes=tuple(dict.fromkeys((*others, *owed))))
    program = program.with_body(append_to(program.body, loop, body))
    result = replace(state, program=program).define(name, d, env)
    check_locations(result, name, request)
    if provenance is None or provenance.kind != "direct":  # of all parts, one runs
        _check_apart(result, name, request)
    return result


def _check_apart(state: State, name: str, request: str) -> None:
    """Check that the programs of a grid around a stage write apart: `bind` has looked only at what was there."""
    d, stage = state.definitions[name], state.path(name)[1]
    own = [f for f in walk(d.nest(name)) if isinstance(f, For)]
    if all(writes_apart(f, d.action, state.program) for f in own if f.var not in d.reduced):
        return  # no element twice, however its axes are divided among programs
    grid = shared_by_programs(state, name)
    if grid is not None:
        raise ScheduleError(
            request,
            f"the programs of `{grid}` would write elements of `{writes(stage.action)[0]}` that others write",
            where=print_stage(stage),
            hint="a kernel of its own, in which one program writes in order",
        )


def _shares_target(s: Stage, d: Definition) -> bool:
    return bool(set(writes(s.action)) & set(writes(d.action)))


def fuse_at(state: State, name: str, ref: Loop) -> State:
    """Move a stage to the end of the body of a loop (see the module's text)."""
    request = f"fuse_at(`{name}`, `{ref.var}` of `{ref.stage}`)"
    d, provenance = state.definition(name), state.path(name)[1].made
    helper = next((s for s in stages(state.program.body) if s.name != name and _shares_target(s, d)), None)
    if helper is not None:
        raise ScheduleError(
            request, f"`{helper.name}` works on the result of `{name}` where it is now", where=print_stage(helper)
        )
    if any(f is state.loop(ref) for f in state.loops(name)):
        raise ScheduleError(request, f"`{name}` is inside `{ref.var}` already")
    without = rewrite_stmt(state.program.body, lambda s: None if isinstance(s, Stage) and s.name == name else s)
    assert without is not None  # the loop is not around this stage, so that another one is in it
    removed = state.with_body(without)
    return fuse_definition(removed, name, d, ref, request, provenance)
