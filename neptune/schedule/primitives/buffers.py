"""cache_read, cache_write, set_scope: copies of buffers that one stage reads or writes, and where a buffer lives.

`cache_read(y, x)` before → after::

    for i: y: y[i] = f(x[i], x[i + 1])        for i: x_read: x_read[i] = x[i]
                                              for i: y: y[i] = f(x_read[i], x_read[i + 1])

The copy is a stage like any other: `compute_at` brings it under a loop of its reader.

cache_write: a stage writes a buffer of its own, which a copy stage then copies.

`cache_write(y)` before → after::

    for i: for j: y: y[i] += x[i, j]          for i: for j: y: y_local[i] += x[i, j]
                                              for i: y_write: y[i] = y_local[i]

Who read `y` still does. `fuse_at` brings the copy under a loop of the stage.

set_scope: say where a temporary buffer lives.

`set_scope(e, "tile")` before → after::

    temp e: f32[m, n]                   temp e: f32[m, n] @tile

Tiles are found, not declared: what one kernel both writes and reads becomes a tile in any case. The scope
"tile" is a demand, which is held when the program is placed: where the buffer cannot stay within one program
of one kernel, compiling fails instead of going through memory. "global" takes the demand back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Load, Var
from neptune.ir.program import (
    Buffer,
    Stmt,
    Store,
    Update,
    nests,
    retarget,
    seq,
    stages,
    writes,
)
from neptune.ir.text.printer import print_stage
from neptune.schedule.definition import Definition, define, whole_axis
from neptune.schedule.primitives.bind import shared_by_programs
from neptune.schedule.state import State, fresh_name, insert_before, names_in_use, reads, replace_node


def cache_read(state: State, name: str, buffer: str) -> tuple[State, str]:
    """Let a stage read a copy of a buffer; returns the name of the copy stage (and of its buffer)."""
    request = f"cache_read(`{name}`, `{buffer}`)"
    d = state.definition(name)
    source = _source(state, name, buffer, request)
    nest = own_nest(state, name, request)
    writer = state.writer(buffer)
    if writer is not None and any(s.name == writer for s in stages(nest)):
        raise ScheduleError(
            request, f"`{writer}`, which computes `{buffer}`, is in the same nest", hint="do this before you fuse"
        )
    fresh = fresh_name(names_in_use(state.program), f"{buffer}_read")
    first = next(x for x in (*d.reads(), *reads(state.path(name)[1])) if x.buffer == buffer)
    copy, definition = copy_stage(source, fresh, fresh, buffer, first.index, state)
    state = state.redirected(name, {buffer: fresh}).with_temporary(Buffer(fresh, source.shape, source.dtype))
    state = state.with_body(insert_before(state.program.body, own_nest(state, name, request), copy))
    return state.define_beside(fresh, definition, name, after=False), fresh


def _source(state: State, name: str, buffer: str, request: str) -> Buffer:
    """The buffer to copy: a global one that the stage reads and does not write."""
    node = state.path(name)[1]
    read = tuple(dict.fromkeys(x.buffer for x in reads(node) if x.buffer in state.program.globals))
    if buffer not in read or buffer in writes(node.action):
        raise ScheduleError(request, f"`{name}` does not read `{buffer}`", legal=read, where=print_stage(node))
    return state.program.globals[buffer]


def own_nest(state: State, name: str, request: str) -> Stmt:
    """The top-level nest around a stage that is in one piece."""
    if sum(s.name == name for s in stages(state.program.body)) > 1:
        raise ScheduleError(request, f"`{name}` is in pieces", hint="do this before partition")
    return next(t for t in nests(state.program.body) if any(s.name == name for s in stages(t)))


def copy_stage(
    like: Buffer, stage: str, target: str, source: str, wish: Sequence[Expr], state: State
) -> tuple[Stmt, Definition]:
    """The nest `target[axes…] = source[axes…]` over all of a buffer, and its definition.

    Its axes are called like the variables of `wish`, an index of the buffer, where these are distinct.
    """
    used = set(state.program.buffers) | {s.name for s in state.program.scalars} | {stage, target}
    used |= {t.name for t in state.program.tunables} | {s.name for s in stages(state.program.body)}
    axes: list[str] = []
    for k, i in enumerate(wish):
        axes.append(fresh_name([*used, *axes], i.name if isinstance(i, Var) else f"i{k}"))
    index = tuple(Var(a) for a in axes)
    store = Store(target, index, Load(source, index, like.dtype))
    definition = define(tuple(map(whole_axis, axes, like.shape)), store)
    return definition.nest(stage), definition


# --- cache_write ------------------------------------------------------------------------------------


def cache_write(state: State, name: str) -> tuple[State, str]:
    """Give a stage a buffer of its own; returns the name of the copy stage."""
    request = f"cache_write(`{name}`)"
    d = state.definition(name)
    _check(state, name, d, request)
    (buffer,) = writes(d.action)
    nest = own_nest(state, name, request)
    reader = next((s for s in stages(nest) if any(x.buffer == buffer for x in reads(s))), None)
    if reader is not None:
        raise ScheduleError(
            request, f"`{reader.name}` reads `{buffer}` in the same nest", hint="do this before you fuse"
        )
    used = names_in_use(state.program)
    local, copied = fresh_name(used, f"{buffer}_local"), fresh_name(used, f"{buffer}_write")

    def to_local(action: Store | Update) -> Store | Update:
        return retarget(action, {buffer: local})

    target = state.program.globals[buffer]
    copy, definition = copy_stage(target, copied, buffer, local, d.action.index, state)
    node = state.path(name)[1]
    producer = replace_node(nest, node, replace(node, action=to_local(node.action)))
    state = state.with_body(replace_node(state.program.body, nest, seq(producer, copy)))
    state = state.with_temporary(Buffer(local, target.shape, target.dtype))
    state = state.define(name, replace(d, action=to_local(d.action)), state.axes[name])
    return state.define_beside(copied, definition, name, after=True), copied


def _check(state: State, name: str, d: Definition, request: str) -> None:
    """The stage alone writes every element of one buffer."""
    node = state.path(name)[1]
    if len(writes(d.action)) != 1:
        raise ScheduleError(request, f"`{name}` is a reduction on tuples", where=print_stage(node))
    if d.when is not None:
        raise ScheduleError(
            request,
            f"`{name}` writes only where its guard holds: there is nothing to copy elsewhere",
            where=print_stage(node),
        )
    written = set(writes(d.action))
    helper = next((s for s in stages(state.program.body) if s.name != name and written & set(writes(s.action))), None)
    if helper is not None:
        raise ScheduleError(
            request,
            f"`{helper.name}` works on the result of `{name}` as well",
            where=print_stage(helper),
            hint="do this before you decompose, partition or roll it",
        )


# --- set_scope --------------------------------------------------------------------------------------

SCOPES = ("global", "tile")


def set_scope(state: State, buffer: str, scope: str) -> State:
    """Set the scope of a temporary, one of `SCOPES`."""
    request = f"set_scope(`{buffer}`, {scope!r})"
    if scope not in SCOPES:
        raise ScheduleError(request, f"{scope!r} is no scope of this compiler", legal=SCOPES)
    temporaries = [b.name for b in state.program.temporaries]
    if buffer not in temporaries:
        argument = buffer in state.program.globals
        raise ScheduleError(
            request,
            "it is an argument of the kernel, and lives in memory" if argument else "there is no such buffer",
            legal=temporaries,
            hint="cache_read or cache_write gives it a copy" if argument else None,
        )
    writer = state.writer(buffer)
    grid = None if writer is None or scope != "global" else shared_by_programs(state, writer)
    if grid is not None:
        raise ScheduleError(
            request,
            f"every program of grid loop `{grid}` computes elements of it again: each needs its own",
            hint=f"leave it a tile, or compute it outside of `{grid}`",
        )
    fresh = (replace(b, scope=scope) if b.name == buffer else b for b in state.program.temporaries)
    return replace(state, program=replace(state.program, temporaries=tuple(fresh)))
