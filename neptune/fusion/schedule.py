"""`neptune.Schedule`: the structural primitives plus those that solve and prove."""

from __future__ import annotations

from collections.abc import Sequence

from neptune.fusion.privatize import privatize
from neptune.ir.program import Program
from neptune.schedule.checked import checked
from neptune.schedule.schedule import ScheduleBase, Step
from neptune.schedule.state import Loop


class Schedule(ScheduleBase):
    """A schedule of one program; see `neptune.schedule.schedule` for the structural primitives."""

    @checked
    def rolling_update(self, stage: str, loop: Loop) -> None:
        """Fuse a reduction under a loop in which its predecessors still change, with a proved repair.

        `loop` is a reduction loop in the nest of one of the predecessors. Raises FusionError, with the
        reason, where no repair can be proved; the schedule is then as before (paper §4.2).
        """
        # SymPy, which the proof needs, is slow to import: only where a repair is asked for.
        from neptune.fusion.rolling_update import rolling_update

        self._commit(rolling_update(self._state, stage, loop), "rolling_update", stage, loop)

    @checked
    def privatize(self, stage: str, loop: Loop) -> None:
        """Give a reduction a local accumulator per iteration of `loop` (paper §4.1, Fig. 11)."""
        self._commit(privatize(self._state, stage, loop), "privatize", stage, loop)


def replay(program: Program, trace: Sequence[Step]) -> Schedule:
    """Apply a recorded trace to a fresh program."""
    sch = Schedule(program)
    for step in trace:
        sch.apply(step)
    return sch
