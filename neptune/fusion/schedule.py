"""`neptune.Schedule`: the structural primitives plus those that solve and prove."""

from __future__ import annotations

from collections.abc import Sequence

from neptune.boundary import public
from neptune.errors import NeptuneError, RecordError
from neptune.fusion.privatize import privatize
from neptune.ir.program import Program
from neptune.schedule.checked import is_primitive, primitive
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.state import Loop
from neptune.schedule.trace import Step


class Schedule(ScheduleBase):
    """A schedule of one program; see `neptune.schedule.schedule` for the structural primitives."""

    @primitive
    def rolling_update(self, stage: str, loop: Loop) -> None:
        """Fuse a reduction under a loop in which its predecessors still change, with a proved repair.

        `loop` is a reduction loop in the nest of one of the predecessors. Raises FusionError, with the
        reason, where no repair can be proved; the schedule is then as before (paper §4.2).
        """
        # SymPy, which the proof needs, is slow to import: only where a repair is asked for.
        from neptune.fusion.rolling_update import rolling_update

        self._commit(rolling_update(self._state, stage, loop), "rolling_update", stage, loop)

    @primitive
    def privatize(self, stage: str, loop: Loop) -> None:
        """Give a reduction a local accumulator per iteration of `loop` (paper §4.1, Fig. 11)."""
        self._commit(privatize(self._state, stage, loop), "privatize", stage, loop)


@public
def replay(program: Program, trace: Sequence[Step]) -> Schedule:
    """Apply a recorded trace to a fresh program.

    Raises RecordError for a step that is no call of a primitive, and where a primitive refuses (the trace is
    of another program), its error with the number of the step.
    """
    sch = Schedule(program)
    for k, step in enumerate(trace, 1):
        at = f"step {k} of {len(trace)}, {step}"
        if step.primitive not in PRIMITIVES:
            raise RecordError(at, f"`{step.primitive}` is no primitive of a schedule", legal=PRIMITIVES)
        try:
            getattr(sch, step.primitive)(*step.args)
        except NeptuneError as error:
            asked = f"{at}: {error.asked}"
            raise type(error)(asked, error.wrong, where=error.where, legal=error.legal, hint=error.hint) from None
    return sch


PRIMITIVES = tuple(name for name in dir(Schedule) if is_primitive(getattr(Schedule, name)))
"""The methods whose calls a trace records, by name."""
