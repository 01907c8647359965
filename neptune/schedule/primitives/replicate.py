"""replicate: compute a stage anew for every tile of an axis that it does not run over.

`replicate(ss, j0)`, where y runs over j = j0*BN + j1, before → after::

    for i: for k: ss: ss[i] += x[i, k]                for j0: for i: for k: ss: ss[j0, i] += x[i, k]
    for i: for j0: for j1: y: … ss[i] …               for i: for j0: for j1: y: … ss[j0, i] …

All copies are equal, since what the stage computes them from is the same for every tile: a stage is pure. Each has
elements of its own, so that no two programs of a grid write one, and must stay on chip (its scope is "tile"): the
stage is to be fused with those that read it, under the loop over tiles, with tiles of its own for its other axes.
In definitions readers take element j // BN, so that what is scheduled later may move them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Load, Var, binary, ceildiv, loads, rewrite, variables
from neptune.ir.indices.affine import linear, poly, scope_of, to_expr
from neptune.ir.indices.quotients import quotient
from neptune.ir.program import ZERO, For, If, Stage, Stmt, map_action, paths, stages, writes
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.alignment import Axes, counting
from neptune.schedule.definition import Definition, define, whole_axis
from neptune.schedule.primitives.buffers import own_nest
from neptune.schedule.state import Decision, Loop, State, fresh_name, names_in_use, reads, replace_node


@dataclass(frozen=True)
class _Tiles:
    """The tiles of an axis of a stage: `count` of them, of `width` elements each."""

    stage: str
    axis: str
    width: Expr
    count: Expr


def replicate(state: State, name: str, ref: Loop) -> tuple[State, str]:
    """Give every iteration of a loop of its readers a stage of its own; returns the stage's loop over them."""
    request = f"replicate(`{name}`, `{ref.var}` of `{ref.stage}`)"
    d = state.definition(name)
    tiles = _tiles(state, ref, request)
    nest = _nest(state, name, d, request)
    readers = _readers(state, name, d, tiles, request)
    avoid = names_in_use(state.program) - {f.var for p, _ in paths(state.program.body) for f in p if isinstance(f, For)}
    var = fresh_name(avoid | {f.var for f in state.loops(name)} | set(d.names), ref.var)
    state = _repeated(state, name, d, nest, var, tiles)
    for reader, tile in readers.items():
        state = _reading(state, reader, frozenset(writes(d.action)), tile)
    fresh = (
        replace(b, shape=(tiles.count, *b.shape), scope="tile") if b.name in writes(d.action) else b
        for b in state.program.temporaries
    )
    state = replace(state, program=replace(state.program, temporaries=tuple(fresh)))
    verdict = f"once for each tile of `{tiles.axis}` of `{ref.stage}`"
    reason = f"each of {print_expr(tiles.count)} tiles computes it anew and keeps it on chip"
    return state.note(Decision("replicate", name, verdict, reason)), var


# --- what is asked --------------------------------------------------------------------------------


def _tiles(state: State, ref: Loop, request: str) -> _Tiles:
    """The tiles that a loop runs over: those of the one axis in which it counts them."""
    loop = state.loop(ref)
    d = state.definition(ref.stage)
    scope = scope_of(state.program, state.loops(ref.stage))
    for a in d.axes:
        whole = poly(state.axes[ref.stage].get(a.name, ZERO))
        parts = linear(whole, loop.var)
        if parts is None or not parts[0].terms or variables(a.extent) & set(d.names):
            continue
        counted = quotient(whole, parts[0], scope)
        if counted is not None and counted[0] == poly(Var(loop.var)):
            width = to_expr(parts[0])
            return _Tiles(ref.stage, a.name, width, ceildiv(a.extent, width))
    raise ScheduleError(
        request,
        f"`{loop.var}` does not count the tiles of an axis of `{ref.stage}`",
        legal=[f.var for f in state.loops(ref.stage) if f is not loop],
        where=print_stage(state.path(ref.stage)[1]),
        hint="an axis that is whole or split once, into tiles of one length",
    )


def _nest(state: State, name: str, d: Definition, request: str) -> Stmt:
    """The nest of the stage, in which it is alone, with serial loops and an init of its own."""
    nest = own_nest(state, name, request)
    path, node = state.path(name)
    output = next((b for b in writes(d.action) if state.is_output(b)), None)
    if output is not None:
        raise ScheduleError(
            request,
            f"`{output}` is a result of the program, which is stored once",
            where=print_stage(node),
            hint=f'cache_write("{name}"), and replicate what that copies',
        )
    other = next((s for s in stages(nest) if s.name != name), None)
    busy = next((s.var for s in path if isinstance(s, For) and s.kind != "serial"), None)
    if other is not None or busy is not None:
        raise ScheduleError(
            request,
            f"`{name}` is in a nest with `{other.name}`" if other else f"its loop `{busy}` is bound to the grid",
            where=print_stage(node),
            hint="do this before you fuse or bind it",
        )
    return nest


def _readers(state: State, name: str, d: Definition, tiles: _Tiles, request: str) -> Mapping[str, Expr]:
    """Every stage that reads the result, with the tile that it reads, over its axes."""
    written = frozenset(writes(d.action))
    axes = Axes(state.definitions)
    own = axes.of(name, (tiles.stage, tiles.axis))
    if own is not None:
        raise ScheduleError(
            request,
            f"`{name}` runs over `{own}`, which is that axis: nothing is to be computed again",
            hint=f'fuse_at("{name}", …) or compute_at("{name}", …)',
        )
    readers: dict[str, Expr] = {}
    for path, s in paths(state.program.body):
        touched = {x.buffer for x in reads(s)} | set(writes(s.action)) | _bounding(path)
        if s.name == name or not touched & written:
            continue
        if s.name in readers or s.name not in state.definitions or _bounding(path) & written:
            raise ScheduleError(
                request,
                f"`{s.name}` is a piece or a helper of another stage, or the range of its loops depends on `{name}`",
                where=print_stage(s),
                hint="do this before anything is fused or partitioned; what bounds loops is computed once",
            )
        tile = _tile(state, axes, s.name, tiles)
        if tile is None:
            raise ScheduleError(
                request,
                f"`{s.name}` reads `{name}` and does not run over `{tiles.axis}` of `{tiles.stage}`",
                where=print_stage(s),
                hint=f'inline("{s.name}"), or replicate that first',
            )
        readers[s.name] = tile
    return readers


def _bounding(path: tuple[Stmt, ...]) -> set[str]:
    """The buffers that decide over which iterations, or whether, a stage runs."""
    loops = [e for x in path if isinstance(x, For) for e in (x.lo, x.hi)]
    return {x.buffer for e in (*loops, *(x.pred for x in path if isinstance(x, If))) for x in loads(e)}


def _tile(state: State, axes: Axes, reader: str, tiles: _Tiles) -> Expr | None:
    """The tile that a stage works in: of its axis that is the one in question, or that it has been replicated for."""
    like = (tiles.stage, tiles.axis)
    axis = axes.of(reader, like)
    if axis is not None:
        return binary("floordiv", Var(axis), tiles.width)
    for own in state.definitions[reader].names:
        counter = counting(state, reader, own)
        if counter is not None and counter[1] == tiles.width and axes.same(counter[0], like):
            return Var(own)
    return None


# --- what it becomes ------------------------------------------------------------------------------


def _repeated(state: State, name: str, d: Definition, nest: Stmt, var: str, tiles: _Tiles) -> State:
    """The stage over one more loop, the outermost, which is the first dimension of what it writes."""
    node = state.path(name)[1]
    inner = replace(node, action=replace(node.action, index=(Var(var), *node.action.index)))
    body = For(var, ZERO, tiles.count, replace_node(nest, node, inner))
    action = replace(d.action, index=(Var(var), *d.action.index))
    definition = define((whole_axis(var, tiles.count), *d.axes), action, d.when)
    state = state.with_body(replace_node(state.program.body, nest, body))
    return state.define(name, definition, {var: Var(var), **state.axes[name]})


def _reading(state: State, name: str, buffers: frozenset[str], tile: Expr) -> State:
    """A stage that reads element `tile`, over its axes, of buffers with one more dimension."""
    d, node = state.definitions[name], state.path(name)[1]
    now = state.present(name, tile)

    def within(stage: Stage | Definition, place: Expr) -> Stage | Definition:
        def other(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in buffers:
                return None
            return Load(x.buffer, (place, *(rewrite(i, other) for i in x.index)), x.dtype)

        when = None if stage.when is None else rewrite(stage.when, other)
        return replace(stage, action=map_action(stage.action, lambda e: rewrite(e, other)), when=when)

    fresh, definition = within(node, now), within(d, tile)
    assert isinstance(fresh, Stage) and isinstance(definition, Definition)
    state = state.with_body(replace_node(state.program.body, node, fresh))
    return state.define(name, definition, state.axes[name])
