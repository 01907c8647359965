"""Everything that a compilation made, and the Artifact that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neptune.codegen.modules import all_modules, declarations
from neptune.driver.device import machine_for
from neptune.driver.explain import explanation
from neptune.driver.judgement import judged, subject_of
from neptune.driver.snapshots import Snapshot
from neptune.ir.program import Program
from neptune.runtime.artifact import Artifact
from neptune.runtime.launch import Target
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tune.defaults import defaults
from neptune.tune.facts import read_facts
from neptune.tune.family import Family
from neptune.tune.outlook import Rival
from neptune.tune.parts import parts_of
from neptune.verify.exact import ExactReport

REJECTED = "rejected by the check"
"""The verdict on a template whose program differs from the expression."""


@dataclass(frozen=True)
class Build:
    """The result of a compilation, with the forms of the program on the way.

    `loops` is the expression as imported, `scheduled` the program before its first repair, `fused` the
    executable fused program (inits explicit, tiles local), `tiles` what Triton is generated from, under `header`.
    `params` are the values of all free tunables, num_warps and num_stages; `trace` is what the template
    did, call by call, and `decisions` what came of it. `checks` are the exact checks by
    the name of what was checked; `bounds` and `shapes` are the caller's. `trail` is what each step of the
    schedule and each pass left behind, for reports. `family` has the choices for all sizes where they were automatic,
    of which this is the number `own`; `rivals` are other choices with their predicted times. `at` are the sizes that a
    variant is for.
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
    own: int = 0
    rivals: tuple[Rival, ...] = ()
    at: Mapping[str, int] | None = None

    @cached_property
    def judgement(self) -> Mapping[str, Any]:
        """What makes the kernel slow, and what the cost model predicts."""
        machine = machine_for(self.target)
        s = subject_of(self.loops, self.tiles, self.params, self.shapes, self.bounds, machine, self.at)
        return judged(s, self.rivals)

    @property
    def rejections(self) -> tuple[Decision, ...]:
        """The templates of the automatic choice that a check rejected, each with its counterexample."""
        return tuple(d for d in self.decisions if d.verdict == REJECTED)

    def artifact(self) -> Artifact:
        """Return the part that a kernel needs to run and to describe itself, as plain data."""
        stages = {"loops": self.loops, "scheduled": self.scheduled, "fused": self.fused, "tile": self.tiles}
        return Artifact(
            explanation=explanation(self, read_facts(self.tiles)),
            programs={name: str(program) for name, program in stages.items()},
            declarations=declarations(self.tiles),
            modules=all_modules(self.tiles, defaults(self.tiles), self.header),
            parts=parts_of(self.tiles),
        )
