"""Everything that a compilation made, and the Artifact that is kept of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neptune.base import logs
from neptune.base.choice import Choice
from neptune.codegen.for_cpu import in_partial_sums
from neptune.codegen.modules import all_modules
from neptune.driver.device import machine_for
from neptune.driver.explanation import explanation, judged
from neptune.driver.stages import Lowered
from neptune.forms import Made
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.report.snapshots import Snapshot
from neptune.runtime.artifact import WIDER, Artifact
from neptune.runtime.launching.launch import Target
from neptune.runtime.parts import Parts
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tile.printer import declarations
from neptune.tune.chooser import counts_of
from neptune.tune.defaults import defaults
from neptune.tune.family import Family
from neptune.tune.model.facts import read_facts
from neptune.tune.outlook import Rival, of_family, of_ranking
from neptune.tune.parts import invariant, parts_of, repeatable
from neptune.tune.subject import Subject, looked_at
from neptune.verify.exact import ExactReport

REJECTED = "rejected by the check"
"""The verdict on a template whose program differs from the expression."""
REPAIRS = frozenset({"rolling_update", "split_k", "privatize"})
LOG = logging.getLogger("neptune.compiler")


@dataclass(frozen=True)
class Build:
    """The result of a compilation, with the forms of the program on the way.

    `loops` is the expression as imported, `scheduled` the program before its first repair, `fused` the
    executable fused program (inits explicit, tiles local), `tiles` what Triton is generated from, under `header`.
    `params` are the values of all free tunables, num_warps and num_stages; `trace` is what the template
    did, call by call, and `decisions` what came of it. `checks` are the exact checks by
    the name of what was checked; `bounds` and `shapes` are the caller's. `trail` is what each step of the
    schedule and each pass left behind, for reports. `family` has the choices for all sizes where they were automatic,
    the first of which this is; `rivals` are other choices with their predicted times. `at` are the sizes that a
    variant is for. `deterministic`, `deciding` (with `batch_invariant`, the sizes that may decide) and `assume` (what
    assumptions are granted) are the caller's, and
    `form` is the form that was made beside tiles. `wider` is `fused` and `tiles` for sizes at which index arithmetic
    leaves int32, `pinned` the names of the parameters that the caller gave.
    """

    loops: Program
    scheduled: Program
    fused: Program
    tiles: TileProgram
    header: str
    target: Target
    template: str
    params: Mapping[str, int]
    trace: tuple[str, ...]
    decisions: tuple[Decision, ...]
    checks: Mapping[str, ExactReport]
    bounds: Mapping[str, int]
    shapes: Mapping[str, int]
    trail: tuple[Snapshot, ...] = ()
    family: Family | None = None
    rivals: tuple[Rival, ...] = ()
    at: Mapping[str, int] | None = None
    deterministic: bool = False
    deciding: frozenset[str] | None = None
    assume: tuple[str, ...] = ()
    form: Made | None = None
    wider: tuple[Program, TileProgram] | None = None
    pinned: tuple[str, ...] = ()

    @cached_property
    def subject(self) -> Subject:
        """The kernel as it is judged."""
        sizes, given = looked_at(self.loops, self.shapes, self.bounds, self.at)
        return Subject(self.loops, self.tiles, self.params, sizes, given, self.bounds, machine_for(self.target))

    @property
    def parts(self) -> tuple[Parts, ...]:
        """How launches choose numbers of parts."""
        return self._allowed(parts_of(self.tiles))

    def _allowed(self, rules: tuple[Parts, ...]) -> tuple[Parts, ...]:
        """Rules of either form, with no more to decide than the caller allows."""
        if self.deciding is not None:
            rules = invariant(rules, self.deciding, self.subject.sizes)
        return repeatable(rules, self.subject.machine.processors) if self.promises else rules

    @property
    def promises(self) -> tuple[str, ...]:
        """What was asked for of bits, for people."""
        same = "the same sizes and layouts give the same bits" if self.deterministic else ""
        sizes = sorted(self.deciding or ())
        follow = f"follow from {', '.join(sizes)} alone" if sizes else "are the same for all sizes"
        rows = "" if self.deciding is None else f"the variant, its tiles and the number of parts {follow}"
        named = (f"deterministic: {same}" if same else "", f"batch_invariant: {rows}" if rows else "")
        return tuple(filter(None, named))

    @cached_property
    def judgement(self) -> Mapping[str, Any]:
        """What makes the kernel slow, and what the cost model predicts."""
        return judged(self.subject, self.rivals)

    @property
    def rejections(self) -> tuple[Decision, ...]:
        """The templates of the automatic choice that a check rejected, each with its counterexample."""
        return tuple(d for d in self.decisions if d.verdict == REJECTED)

    def artifact(self) -> Artifact:
        """Return the part that a kernel needs to run and to describe itself, as plain data."""
        form = None if self.form is None else self.form.data
        stages = {"loops": self.loops, "scheduled": self.scheduled, "fused": self.fused, "tile": self.tiles}
        wide, tiles = (None, self.tiles) if self.wider is None else self.wider
        stages |= {} if wide is None else {WIDER: wide}
        return Artifact(
            explanation=explanation(self, read_facts(self.tiles)),
            programs={name: str(program) for name, program in stages.items()},
            declarations=declarations(self.tiles),
            modules=all_modules(self.tiles, tiles, defaults(self.tiles), self.header),
            parts=self.parts,
            form=None if form is None else replace(form, parts=self._allowed(form.parts)),
            counts=self._counts(),
        ).pinning(self.pinned)

    def _counts(self) -> str:
        """What tells variants apart at a call's own sizes."""
        family = self.family
        if family is None or len(family.choices) < 2:
            return ""
        decides = family.points[0].keys() if self.deciding is None else self.deciding
        return counts_of(family, {n: v for n, v in family.points[0].items() if n not in decides})


def built(lowered: Lowered, trail: Sequence[Snapshot]) -> Build:
    """The Build of a compilation that has run all of its passes."""
    prepared, request, scheduled = lowered.prepared, lowered.prepared.request, lowered.scheduled
    target = prepared.target
    before = (*prepared.rejections, *prepared.notes, *scheduled.decisions)
    return Build(
        loops=request.loops,
        scheduled=_before_repairs(prepared.definitions, scheduled.schedule),
        # Tiles are summed in trees; loops, which run as they are on a CPU, are not.
        fused=in_partial_sums(lowered.program) if target.kind == "llvm" else lowered.program,
        tiles=lowered.tiles,
        header=lowered.header,
        target=target,
        template=scheduled.template,
        params=lowered.params,
        trace=tuple(str(s) for s in scheduled.schedule.trace),
        decisions=(*before, *lowered.notes, *scheduled.schedule.decisions),
        checks=lowered.checks,
        bounds=request.bounds,
        shapes=request.shapes,
        trail=tuple(trail),
        family=scheduled.family,
        rivals=_rivals(lowered),
        at=request.at,
        deterministic=request.deterministic,
        deciding=prepared.wishes.deciding,
        assume=request.assume,
        form=lowered.form,
        wider=lowered.wider,
        pinned=tuple(request.params),
    )


def _rivals(lowered: Lowered) -> tuple[Rival, ...]:
    """What else was compared when the template or its parameters were chosen."""
    request, scheduled = lowered.prepared.request, lowered.scheduled
    if scheduled.family is not None:
        return of_family(scheduled.family)
    try:
        choice = Choice(scheduled.template, lowered.params)
        return of_ranking(choice, lowered.tiles, request.params, request.shapes, lowered.prepared.machine)
    except Exception as error:
        logs.defect(LOG, f"the cost model on `{request.loops.name}`", error)
        return ()


def _before_repairs(program: Program, sch: Schedule) -> Program:
    """The program as tiled and fused by the template up to its first repair."""
    before = program
    for step in sch.trace:
        if step.primitive in REPAIRS:
            return before
        before = step.program or before
    return before
