"""`neptune.Schedule`: the structural primitives plus those that solve and prove."""

from __future__ import annotations

from collections.abc import Sequence

from neptune.base.boundary import public
from neptune.errors import NeptuneError, RecordError
from neptune.fusion.privatize import privatize
from neptune.ir.program import Program
from neptune.schedule.checked import is_primitive, primitive
from neptune.schedule.schedule import Factor, ScheduleBase, as_factor
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
    def split_k(self, loop: Loop, parts: str | int, multiple_of: Factor = 1) -> Loop:
        """Fold a reduction's axis, with everything that is computed for it per element, in independent parts, and
        combine these with proved repairs (paper §4.3).

        `for i: for j in [0, n): l: l[i] += …` → `for z: for i: for j in [z*C, min(z*C + C, n)): l_split: l_split[z, i]
        += …` and `for i: for z: l: l[i] += l_split[z, i] * exp(m_split[z, i] - m[i])`. Comes before anything else;
        returns the loop over the parts. `parts` is a number, or the name of a parameter that each call chooses; a part
        holds a multiple of `multiple_of` elements (C). Raises FusionError, with the reason, where no repair is proved.
        """
        from neptune.fusion.split_k import split_k

        state, over = split_k(self._state, loop, parts, as_factor(multiple_of))
        self._commit(state, "split_k", loop, parts, multiple_of)
        return over

    @primitive
    def hoist_factor(self, stage: str) -> str:
        """Take the factors that do not move out of a sum; returns the map that applies them to what is summed.

        `for i: for j: for k: y[i, j] += x[i, k] * r[i] * w[k, j]` → `for i: for j: for k: y_acc[i, j] += x[i, k] *
        w[k, j]` and `for i: for j: y[i, j] = y_acc[i, j] * r[i]`. Maps that the sum reads are looked through where that
        is needed, and dropped where nothing else reads them. Comes before the stage is scheduled. Raises FusionError,
        with the reason, where there is no such factor, it is rounded with what moves, or the sum may leave its range
        without it.
        """
        from neptune.fusion.hoist_factor import hoist_factor

        state, final = hoist_factor(self._state, stage)
        self._commit(state, "hoist_factor", stage)
        return final

    @primitive
    def write_directly(self, loop: Loop) -> None:
        """Let the kernel that folds the parts of `split_k` write the results itself where there is one part.

        `loop` is the loop over the parts, bound to the grid. The test is made on the device; the kernels that combine
        parts have nothing to do then. Raises FusionError where a result needs more than the part's own.
        """
        from neptune.fusion.direct import write_directly

        self._commit(write_directly(self._state, loop), "write_directly", loop)

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
    perform(sch, trace)
    return sch


def perform(sch: Schedule, trace: Sequence[Step]) -> None:
    """`replay` on a schedule."""
    if not isinstance(trace, list | tuple) or not all(isinstance(s, Step) for s in trace):
        raise RecordError(f"replay({trace!r:.40})", "this is no trace", legal=("sch.trace", "trace_from_json(text)"))
    for k, step in enumerate(trace, 1):
        where = f"step {k} of {len(trace)}, {step}"
        if step.primitive not in PRIMITIVES:
            raise RecordError(where, f"`{step.primitive}` is no primitive of a schedule", legal=PRIMITIVES)
        try:
            getattr(sch, step.primitive)(*step.args)
        except NeptuneError as error:
            request = f"{where}: {error.asked}"
            raise type(error)(
                request, error.wrong, where=error.where, legal=error.legal, hint=error.hint, kind=error.kind
            ) from None


PRIMITIVES = tuple(name for name in dir(Schedule) if is_primitive(getattr(Schedule, name)))
"""The methods whose calls a trace records, by name."""
