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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from neptune.base.boundary import public
from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Var, maximum
from neptune.ir.names import fits
from neptune.ir.program import Program, Tunable
from neptune.schedule.checked import checked, primitive
from neptune.schedule.definition import Definition
from neptune.schedule.primitives.bind import bind
from neptune.schedule.primitives.buffers import cache_read, cache_write, set_scope
from neptune.schedule.primitives.compute_at import compute_at, reverse_compute_at
from neptune.schedule.primitives.decompose_reduction import decompose_reduction
from neptune.schedule.primitives.fuse import fuse
from neptune.schedule.primitives.fuse_at import fuse_at
from neptune.schedule.primitives.inline import inline
from neptune.schedule.primitives.pack import pack
from neptune.schedule.primitives.partition import partition
from neptune.schedule.primitives.rename import rename
from neptune.schedule.primitives.reorder import reorder
from neptune.schedule.primitives.replicate import replicate
from neptune.schedule.primitives.reverse import reverse
from neptune.schedule.primitives.split import cover, split
from neptune.schedule.state import Decision, Loop, State, initial, names_in_use
from neptune.schedule.trace import OutOfFuel, Step, as_code, spend, tell

Factor: TypeAlias = "int | Var"


class ScheduleBase:
    """Structural primitives. `neptune.Schedule` adds those that need proofs.

    `fuel` is how many fusions are performed before the next one raises OutOfFuel; None for any number.
    """

    fuel: int | None = None
    spent: OutOfFuel | None = None
    """The fusion that there was no fuel for: nothing is performed behind it, whoever catches it."""

    @public
    def __init__(self, program: Program) -> None:
        if not isinstance(program, Program):
            wrong = f"this is {type(program).__name__}, not a Program"
            raise ScheduleError(f"Schedule({program!r:.40})", wrong, hint="neptune.driver.pipeline.as_program(tensors)")
        self._state = initial(program)
        self._trace: list[Step] = []

    # --- looking ---

    @property
    def program(self) -> Program:
        """The program as scheduled so far (an immutable value)."""
        return self._state.program

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions so far with their reasons, for explain()."""
        return self._state.decisions

    @property
    def trace(self) -> tuple[Step, ...]:
        """The calls that made this schedule, replayable."""
        return tuple(self._trace)

    def as_code(self, name: str = "schedule") -> str:
        """The text of a Python function over `sch` that makes the same calls."""
        return as_code(self._trace, name)

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
    def loop(self, stage: str, name: str) -> Loop:
        """The loop called `name` around a stage; ScheduleError lists the stage's loops otherwise."""
        self._state.loop(ref := Loop(stage, name))
        return ref

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

    @property
    def reductions(self) -> list[str]:
        """The stages that are reductions, in program order."""
        return list(self._state.reductions)

    @checked
    def producers(self, stage: str) -> list[str]:
        """The stages whose results this one reads."""
        d = self.definition(stage)
        names = [self._state.writer(x.buffer) for x in d.reads()]
        return [n for n in dict.fromkeys(names) if n is not None and n != stage]

    @checked
    def consumers(self, stage: str) -> list[str]:
        """The stages that read this one's result."""
        buffers = self.definition(stage).action.buffers
        return [r for r in dict.fromkeys(r for b in buffers for r in self._state.readers(b)) if r != stage]

    # --- parameters ---

    @primitive
    def param(self, name: str, candidates: Sequence[int]) -> Var:
        """Declare a tunable tile size: a positive power of two, chosen later among `candidates`.

        Of one that is declared already, `candidates` are those that are left. Raises ScheduleError for an empty list,
        a candidate that is not a power of two, or a taken name.
        """
        request = f"param({name!r}, {list(candidates)})"
        bad = [c for c in candidates if isinstance(c, bool) or not isinstance(c, int) or c < 1 or c & (c - 1)]
        if bad or not candidates:
            raise ScheduleError(
                request,
                "tile sizes are powers of two, at least one of them",
                legal=["16", "32", "64", "128"],
                kind="param",
            )
        tunable = Tunable(name, tuple(candidates))
        if tunable not in self.program.tunables:
            self._commit(declare(self._state, tunable, request), "param", name, tunable.candidates)
        return Var(name)

    # --- primitives ---

    @primitive
    def split(self, loop: Loop, factor: Factor) -> tuple[Loop, Loop]:
        """Cut a loop into tiles of `factor` iterations (a number or a param); returns (outer, inner).

        `for i in [0, m)` → `for i0 in [0, cdiv(m, F)): for i1 in [0, F)`, guarded by `i0*F + i1 < m`
        unless F divides m.
        """
        state, outer, inner = split(self._state, loop, as_factor(factor))
        self._commit(state, "split", loop, factor)
        return Loop(loop.stage, outer), Loop(loop.stage, inner)

    @primitive
    def cover(self, loop: Loop, name: str, least: int = 1) -> Loop:
        """Make a whole loop one tile of `name` iterations, the smallest power of two ≥ its extent and ≥ `least`.

        `for j in [0, n)` → `for j in [0, BLOCK_N)` guarded by `j < n`. The matrix unit sums over 16 elements at least.
        """
        extent = self._state.loop(loop).hi
        covered = extent if least == 1 else maximum(extent, least)
        # The step declares the tunable itself: it takes effect as a whole or not at all.
        state = declare(self._state, Tunable(name, (), covered), f"cover(`{loop.var}`, {name!r})")
        self._commit(cover(state, loop, name), "cover", loop, name, *([] if least == 1 else [least]))
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

    @primitive
    def reorder(self, *loops: Loop) -> None:
        """Permute loops of a perfect nest into the given order."""
        self._commit(reorder(self._state, loops), "reorder", *loops)

    @primitive
    def fuse(self, outer: Loop, inner: Loop) -> Loop:
        """Make one loop of two, of which one is directly inside the other; returns it.

        `for i in [0, m): for j in [0, n)` → `for i_j in [0, m * n)`, in which i is `i_j // n` and j `i_j % n`.
        """
        state, var = fuse(self._state, outer, inner)
        self._commit(state, "fuse", outer, inner)
        return Loop(inner.stage, var)

    @primitive
    def rename(self, loop: Loop, name: str) -> Loop:
        """Give a loop another name, as generated code and explain() show it; returns it.

        `for i0 in [0, n)` → `for row in [0, n)`
        """
        self._commit(rename(self._state, loop, name), "rename", loop, name)
        return Loop(loop.stage, name)

    @primitive
    def reverse(self, loop: Loop) -> None:
        """Let a loop over the grid begin with its last program: the longest ones first, where these are the last.

        `y[i0*64 + i1]` → `y[(cdiv(m, 64) - 1 - i0)*64 + i1]`
        """
        self._commit(reverse(self._state, loop), "reverse", loop)

    @primitive
    def pack(self, group: Loop, row: Loop | None = None) -> Loop:
        """Make rows of the heads of a group, in every stage that runs over both; returns the loop over them.

        `k[h // G, j]` → `k[h0, j]` for rows r in [0, m * G), in which h is `h0*G + r % G` and i `r // G`. Without a
        row axis, `pack(h)`, the heads are the rows: r in [0, G), in which h is `h0*G + r`.
        """
        state, var = pack(self._state, group, row)
        self._commit(state, "pack", group, *([] if row is None else [row]))
        return Loop(group.stage, var)

    @primitive
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

    @primitive
    def inline(self, stage: str) -> None:
        """Compute a map stage where it is read, and remove it."""
        self._commit(inline(self._state, stage), "inline", stage)

    @primitive
    def fuse_at(self, stage: str, loop: Loop) -> None:
        """Naive fusion: move a consumer to the end of a loop's body, recording what it then owes."""
        self._commit(fuse_at(self._state, stage, loop), "fuse_at", stage, loop)

    @primitive
    def compute_at(self, stage: str, loop: Loop) -> None:
        """Compute a producer inside a loop of its consumers, over the region that they read there."""
        self._commit(compute_at(self._state, stage, loop), "compute_at", stage, loop)

    @primitive
    def replicate(self, stage: str, loop: Loop) -> Loop:
        """Compute a stage anew for every tile of an axis that it does not run over; returns its loop over the tiles.

        `for i: for k: ss[i] += …` → `for j0: for i: for k: ss[j0, i] += …`, where `loop` counts the tiles in a stage
        that runs over the axis, and all readers run over it. The result must then stay on chip: fuse the stage with its
        readers under the loop over tiles (`compute_at`, `rolling_update`), with tiles of its own for its other axes.
        """
        state, var = replicate(self._state, stage, loop)
        self._commit(state, "replicate", stage, loop)
        return Loop(stage, var)

    @primitive
    def reverse_compute_at(self, stage: str, loop: Loop) -> None:
        """Move a consumer to the end of a loop's body, where all it reads must be complete."""
        self._commit(reverse_compute_at(self._state, stage, loop), "reverse_compute_at", stage, loop)

    @primitive
    def cache_read(self, stage: str, buffer: str) -> str:
        """Let a stage read a copy of a buffer; returns the copy stage, which is called like its buffer."""
        state, copy = cache_read(self._state, stage, buffer)
        self._commit(state, "cache_read", stage, buffer)
        return copy

    @primitive
    def cache_write(self, stage: str) -> str:
        """Let a stage write a buffer of its own, which a copy stage then copies; returns the copy stage."""
        state, copy = cache_write(self._state, stage)
        self._commit(state, "cache_write", stage)
        return copy

    @primitive
    def set_scope(self, buffer: str, scope: str) -> None:
        """Demand that a temporary lives on chip ("tile"), or take that back ("global")."""
        self._commit(set_scope(self._state, buffer, scope), "set_scope", buffer, scope)

    @primitive
    def decompose_reduction(self, stage: str, loop: Loop) -> None:
        """Make the init of a reduction a stage of its own, `<stage>_init`, in front of a loop."""
        self._commit(decompose_reduction(self._state, stage, loop), "decompose_reduction", stage, loop)

    @primitive
    def partition(self, loop: Loop) -> None:
        """Cut a loop's range by the predicates under it: skipped, masked and clean tiles."""
        self._commit(partition(self._state, loop), "partition", loop)

    # --- bookkeeping ---

    def _commit(self, state: State, primitive: str, *args: Any) -> None:
        """The only place where the schedule changes."""
        step = Step(primitive, args, state.program)
        if self.spent is None:
            self.spent = spend(self.fuel, (s.primitive for s in self._trace), primitive, step)
        if self.spent is not None:
            raise self.spent
        tell(primitive, step, state.decisions[len(self._state.decisions) :])
        self._state = state
        self._trace.append(step)


def declare(state: State, tunable: Tunable, request: str) -> State:
    """The state with one more tunable; ScheduleError where its name means something else."""
    program = state.program
    if tunable in program.tunables:
        return state
    known = next((t for t in program.tunables if t.name == tunable.name), None)
    if known is not None and known.covers is None and len(tunable.candidates) > 0 and tunable.covers is None:
        left = [c for c in tunable.candidates if c not in known.candidates]
        if left:
            raise ScheduleError(
                request,
                f"`{tunable.name}` is declared, without {left[0]}",
                legal=[str(c) for c in known.candidates],
                kind="param",
            )
        narrowed = (tunable if t == known else t for t in program.tunables)
        return replace(state, program=replace(program, tunables=tuple(narrowed)))
    axes = {a for d in state.definitions.values() for a in d.extents}
    if not fits(tunable.name) or tunable.name in names_in_use(program) | axes:
        raise ScheduleError(request, f"`{tunable.name}` is taken, is no plain identifier, or generated code uses it")
    return replace(state, program=replace(program, tunables=(*program.tunables, tunable)))


def as_factor(factor: Factor) -> Expr:
    """A tile size as an expression; raises ScheduleError for anything but a number or a param."""
    if isinstance(factor, Var):
        return factor
    if isinstance(factor, bool) or not isinstance(factor, int):
        raise ScheduleError(
            f"a factor of {factor!r}",
            "a tile size is a number or a param",
            legal=["64", 'sch.param("BLOCK_M", [64, 128])'],
            kind="param",
        )
    return Const(factor, "int32")
