"""cache_read: a stage reads a copy of a buffer.

`cache_read(y, x)` before → after::

    for i: y: y[i] = f(x[i], x[i + 1])        for i: x_read: x_read[i] = x[i]
                                              for i: y: y[i] = f(x_read[i], x_read[i + 1])

The copy is a stage like any other: `compute_at` brings it under a loop of its reader.
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Load, Var
from neptune.ir.printer import print_stage
from neptune.ir.program import Buffer, Stmt, Store, nests, stages, writes
from neptune.schedule.definition import Definition, define, whole_axis
from neptune.schedule.state import State, fresh_name, insert_before, names_in_use, reads


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
