"""reverse_compute_at: move a consumer under a loop of its producers, where all it reads is complete there.

`reverse_compute_at(d, i)` before → after::

    for i: for j: for k:                      for i:
      c: c[i, j] += a[i, k] * b[k, j]           for j: for k: c: c[i, j] += a[i, k] * b[k, j]
    for i: for j: d: d[i, j] = f(c[i, j])       for j: d: d[i, j] = f(c[i, j])

`fuse_at` without the debts: where that would record that the stage reads a reduction which the loop still
changes, this refuses.
"""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.ir.printer import print_stage
from neptune.schedule.fuse_at import fuse_at
from neptune.schedule.state import Loop, State


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
