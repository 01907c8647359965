"""The schedule a template works on: stages and loops by name, primitives that are atomic and recorded.

    sch = Schedule(program)
    b, h, i, j, d = sch.loops("s")
    i0, j0, i1, j1 = sch.tile([i, j], [sch.param("BLOCK_M", [64, 128]), sch.param("BLOCK_N", [64])])
    sch.bind([b, h, i0], ["grid.z", "grid.y", "grid.x"])
    sch.fuse_at("score", j0)

Every call either succeeds and is appended to `trace`, or raises a NeptuneError and leaves the schedule
as it was. `replay(program, trace)` gives an equal program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.names import fits
from neptune.ir.program import Program, Store, Tunable
from neptune.schedule.bind import bind
from neptune.schedule.checked import checked
from neptune.schedule.fuel import spend, tell
from neptune.schedule.fuse_at import fuse_at
from neptune.schedule.inline import inline
from neptune.schedule.partition import partition
from neptune.schedule.reorder import reorder
from neptune.schedule.split import cover, split
from neptune.schedule.state import Decision, Definition, Loop, State, initial, names_in_use

Factor: TypeAlias = "int | Var"


@dataclass(frozen=True)
class Step:
    """One recorded call: the primitive's name and its arguments (loops as (stage, variable) pairs).

    `program` is what the call left behind; steps are equal where they ask for the same.
    """

    primitive: str
    args: tuple[Any, ...]
    program: Program | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"sch.{self.primitive}({', '.join(map(_show, self.args))})"


def _show(arg: Any) -> str:
    if isinstance(arg, Loop):
        return f"Loop({arg.stage!r}, {arg.var!r})"
    if isinstance(arg, Var):
        return arg.name
    if isinstance(arg, tuple | list):
        return f"[{', '.join(map(_show, arg))}]"
    return repr(arg)


class ScheduleBase:
    """Structural primitives. `neptune.Schedule` adds those that need proofs.

    `fuel` is how many fusions are performed before the next one raises OutOfFuel; None for any number.
    """

    fuel: int | None = None

    def __init__(self, program: Program) -> None:
        self._state = initial(program)
        self._trace: list[Step] = []

    # --- looking ---

    @property
    def program(self) -> Program:
        """The program as scheduled so far (an immutable value)."""
        return self._state.program

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided and why, for explain()."""
        return self._state.decisions

    @property
    def trace(self) -> tuple[Step, ...]:
        """The calls that made this schedule, replayable."""
        return tuple(self._trace)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of all stages, producers first."""
        return tuple(self._state.definitions)

    @checked
    def stage(self, name: str) -> str:
        """Check that a stage exists and return its name; ScheduleError lists the stages otherwise."""
        self._state.path(name)
        return name

    @checked
    def definition(self, name: str) -> Definition:
        """The stage as the user wrote it: axes and action."""
        return self._state.definition(name)

    @checked
    def loops(self, stage: str) -> list[Loop]:
        """The loops around a stage, outermost first."""
        return [Loop(stage, f.var) for f in self._state.loops(stage)]

    @checked
    def loop_of(self, stage: str, axis: str) -> Loop:
        """The loop that still runs one original axis of a stage."""
        self._state.definition(stage)
        for f in self._state.loops(stage):
            if self._state.axes[stage].get(axis) == Var(f.var):
                return Loop(stage, f.var)
        raise ScheduleError(
            f"axis `{axis}` of stage `{stage}`",
            "no single loop runs it (it was split, or there is no such axis)",
            legal=list(self._state.axes[stage]),
        )

    @checked
    def producers(self, stage: str) -> list[str]:
        """The stages whose results this one reads."""
        d = self.definition(stage)
        names = [self._state.writer(x.buffer) for x in d.reads()]
        return [n for n in dict.fromkeys(names) if n is not None and n != stage]

    @checked
    def consumers(self, stage: str) -> list[str]:
        """The stages that read this one's result."""
        action = self.definition(stage).action
        buffers = (action.buffer,) if isinstance(action, Store) else action.buffers
        return [r for r in dict.fromkeys(r for b in buffers for r in self._state.readers(b)) if r != stage]

    # --- parameters ---

    @checked
    def param(self, name: str, candidates: Sequence[int]) -> Var:
        """Declare a tunable tile size: a positive power of two, chosen later among `candidates`.

        Raises ScheduleError for an empty list, a candidate that is not a power of two, or a taken name.
        """
        request = f"param({name!r}, {list(candidates)})"
        bad = [c for c in candidates if isinstance(c, bool) or not isinstance(c, int) or c < 1 or c & (c - 1)]
        if bad or not candidates:
            raise ScheduleError(
                request, "tile sizes are powers of two, at least one of them", legal=["16", "32", "64", "128"]
            )
        return self._declare(request, Tunable(name, tuple(candidates)))

    def _declare(self, request: str, tunable: Tunable) -> Var:
        if tunable not in self.program.tunables:
            self._commit(declare(self._state, tunable, request), "_tunable", tunable)
        return Var(tunable.name)

    # --- primitives ---

    @checked
    def split(self, loop: Loop, factor: Factor) -> tuple[Loop, Loop]:
        """Cut a loop into tiles of `factor` iterations (a number or a param); returns (outer, inner).

        `for i in [0, m)` → `for i0 in [0, cdiv(m, F)): for i1 in [0, F)`, guarded by `i0*F + i1 < m`
        unless F divides m.
        """
        state, outer, inner = split(self._state, loop, _factor(factor))
        self._commit(state, "split", loop, factor)
        return Loop(loop.stage, outer), Loop(loop.stage, inner)

    @checked
    def cover(self, loop: Loop, name: str) -> Loop:
        """Make a whole loop one tile of `name` iterations, the smallest power of two ≥ its extent.

        `for j in [0, n)` → `for j in [0, BLOCK_N)` guarded by `j < n`.
        """
        extent = self._state.loop(loop).hi
        # The step declares the tunable itself: it takes effect as a whole or not at all.
        state = declare(self._state, Tunable(name, (), extent), f"cover(`{loop.var}`, {name!r})")
        self._commit(cover(state, loop, name), "cover", loop, name)
        return loop

    @checked
    def tile(self, loops: Sequence[Loop], factors: Sequence[Factor]) -> list[Loop]:
        """Split several loops of one nest and bring the outer parts outside: [i, j] → [i0, j0, i1, j1]."""
        before = self._state
        mark = len(self._trace)
        request = f"tile([{', '.join(f.var for f in loops)}], …)"
        if len(loops) != len(factors) or not loops:
            raise ScheduleError(request, f"{len(loops)} loops and {len(factors)} factors: give one factor per loop")
        if len({f.stage for f in loops}) > 1:
            raise ScheduleError(request, "the loops are named through different stages", hint="use loops of one stage")
        try:
            pairs = [self.split(f, n) for f, n in zip(loops, factors, strict=True)]
            order = [*(o for o, _ in pairs), *(i for _, i in pairs)]
            # Between the tiled loops nothing else may come: the others follow the tile.
            path = self.loops(order[0].stage)
            first = min(path.index(o) for o in order)
            rest = [f for f in path[first:] if f not in order]
            self.reorder(*order, *rest)
        except Exception:
            self._state = before
            del self._trace[mark:]
            raise
        return order

    @checked
    def reorder(self, *loops: Loop) -> None:
        """Permute loops of a perfect nest into the given order."""
        self._commit(reorder(self._state, loops), "reorder", *loops)

    @checked
    def bind(self, where: Loop | Sequence[Loop], axis: str | Sequence[str]) -> None:
        """Spread loops over grid axes: `bind(i0, "grid.x")`, or a list of each (outermost first)."""
        loops = (where,) if isinstance(where, Loop) else tuple(where)
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        if len(loops) != len(axes):
            raise ScheduleError(
                f"bind({', '.join(f.var for f in loops)})", f"it has {len(axes)} grid axes, not {len(loops)}"
            )
        state = self._state
        for f, a in zip(loops, axes, strict=True):
            state = bind(state, f, a)
        self._commit(state, "bind", loops, axes)

    @checked
    def inline(self, stage: str) -> None:
        """Compute a map stage where it is read, and remove it."""
        self._commit(inline(self._state, stage), "inline", stage)

    @checked
    def fuse_at(self, stage: str, loop: Loop) -> None:
        """Naive fusion: move a consumer to the end of a loop's body, recording what it then owes."""
        self._commit(fuse_at(self._state, stage, loop), "fuse_at", stage, loop)

    @checked
    def partition(self, loop: Loop) -> None:
        """Cut a loop's range by the predicates under it: skipped, masked and clean tiles."""
        self._commit(partition(self._state, loop), "partition", loop)

    # --- bookkeeping ---

    def _commit(self, state: State, primitive: str, *args: Any) -> None:
        """The only place where the schedule changes."""
        step = Step(primitive, args, state.program)
        spend(self.fuel, (s.primitive for s in self._trace), primitive, step)
        tell(primitive, step, state.decisions[len(self._state.decisions) :])
        self._state = state
        self._trace.append(step)

    def apply(self, step: Step) -> None:
        """Carry out one recorded step."""
        if step.primitive == "_tunable":
            (tunable,) = step.args
            self._declare("replay", tunable)
            return
        getattr(self, step.primitive)(*step.args)


def declare(state: State, tunable: Tunable, request: str) -> State:
    """The state with one more tunable; ScheduleError where its name means something else."""
    program = state.program
    if tunable in program.tunables:
        return state
    axes = {a for d in state.definitions.values() for a in d.extents}
    if not fits(tunable.name) or tunable.name in names_in_use(program) | axes:
        raise ScheduleError(request, f"`{tunable.name}` is taken, is no plain identifier, or generated code uses it")
    return replace(state, program=replace(program, tunables=(*program.tunables, tunable)))


def _factor(factor: Factor) -> Expr:
    if isinstance(factor, Var):
        return factor
    if isinstance(factor, bool) or not isinstance(factor, int):
        raise ScheduleError(
            f"a factor of {factor!r}",
            "a tile size is a number or a param",
            legal=["64", 'sch.param("BLOCK_M", [64, 128])'],
        )
    return Const(factor, "int32")


Template: TypeAlias = Callable[[Any], None]
