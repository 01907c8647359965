"""set_scope: say where a temporary buffer lives.

`set_scope(e, "tile")` before → after::

    temp e: f32[m, n]                   temp e: f32[m, n] @tile

Tiles are found, not declared: what one kernel both writes and reads becomes a tile in any case. The scope
"tile" is a demand, which is held when the program is placed: where the buffer cannot stay within one program
of one kernel, compiling fails instead of going through memory. "global" takes the demand back.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.schedule.bind import shared_by_programs
from neptune.schedule.state import State

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
