"""bind: spread a loop over a grid axis.

`bind(i0, "grid.x")` before → after::

    for i0 in [0, cdiv(m, BLOCK_M)):        for i0 in [0, cdiv(m, BLOCK_M)) grid.x:

Legal where iterations are independent: no stage below reduces over the loop, and what one iteration
writes no other one touches.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.affine import poly, split_by
from neptune.ir.expr import Expr, Load, variables, walk
from neptune.ir.printer import print_stage
from neptune.ir.program import For, Stage, Update, for_loops, paths, reduction_loops, values, writes
from neptune.schedule.state import Loop, State, replace_node

GRID = ("grid.x", "grid.y", "grid.z")


def _accesses(stage: Stage) -> list[tuple[str, tuple[Expr, ...]]]:
    found = [(b, stage.action.index) for b in writes(stage.action)]
    for v in values(stage.action):
        found += [(x.buffer, x.index) for x in walk(v) if isinstance(x, Load)]
    return found


def check_independent(loop: For, request: str) -> None:
    """Raise a ScheduleError unless the iterations of `loop` touch separate elements."""
    below = list(paths(loop.body))
    written = {b for _, s in below for b in writes(s.action)}
    seen: dict[str, set[object]] = {}
    for path, stage in below:
        if loop in reduction_loops(stage, (loop, *for_loops(path))) and isinstance(stage.action, Update):
            raise ScheduleError(
                request,
                f"stage `{stage.name}` reduces over `{loop.var}`: its iterations are not independent",
                where=print_stage(stage),
                hint="bind a loop over rows, or use split_k_update to reduce in parallel",
            )
        for buffer, index in _accesses(stage):
            if buffer in written:
                mine = tuple(split_by(poly(i), frozenset({loop.var}))[0] for i in index)
                if not any(loop.var in variables(i) for i in index):
                    raise ScheduleError(
                        request,
                        f"every iteration of `{loop.var}` touches the same elements of `{buffer}`",
                        where=print_stage(stage),
                    )
                seen.setdefault(buffer, set()).add(mine)
    for buffer, forms in seen.items():
        if len(forms) > 1:
            raise ScheduleError(request, f"an iteration of `{loop.var}` reads elements of `{buffer}` that others write")


def bind(state: State, ref: Loop, axis: str) -> State:
    """Bind a loop to "grid.x", "grid.y" or "grid.z"."""
    request = f"bind(`{ref.var}` of `{ref.stage}`, {axis!r})"
    loop = state.loop(ref)
    if axis not in GRID:
        raise ScheduleError(request, f"{axis!r} is not a grid axis", legal=GRID)
    path = state.loops(ref.stage)
    outside = path[: path.index(loop)]
    if loop.kind != "serial":
        raise ScheduleError(request, f"`{loop.var}` is bound to {loop.kind} already")
    serial = [f.var for f in outside if f.kind == "serial"]
    if serial:
        raise ScheduleError(
            request, f"loop `{serial[0]}` outside of it runs serially", hint=f"bind `{serial[0]}` first, or reorder"
        )
    check_independent(loop, request)
    return state.with_body(replace_node(state.program.body, loop, replace(loop, kind=axis)))
