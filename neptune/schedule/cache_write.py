"""cache_write: a stage writes a buffer of its own, which a copy stage then copies.

`cache_write(y)` before → after::

    for i: for j: y: y[i] += x[i, j]          for i: for j: y: y_local[i] += x[i, j]
                                              for i: y_write: y[i] = y_local[i]

Who read `y` still does. `fuse_at` brings the copy under a loop of the stage.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.printer import print_stage
from neptune.ir.program import (
    Buffer,
    Store,
    Update,
    retarget,
    seq,
    stages,
    writes,
)
from neptune.schedule.cache_read import copy_stage, own_nest
from neptune.schedule.definition import Definition
from neptune.schedule.state import State, fresh_name, names_in_use, reads, replace_node


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
