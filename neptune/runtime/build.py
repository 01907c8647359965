"""Everything that a compilation made, and the Artifact that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.ir.program import Program
from neptune.runtime.artifact import Artifact
from neptune.runtime.explain import explanation
from neptune.runtime.facts import read_facts
from neptune.runtime.launch import Target
from neptune.runtime.modules import all_modules, declarations
from neptune.runtime.trail import Snapshot
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.verify.exact import ExactReport


@dataclass(frozen=True)
class Build:
    """What a compilation made.

    `loops` is the expression as imported, `scheduled` the program before its first repair, `fused` the
    executable fused program (inits explicit, tiles local), `tiles` what Triton is generated from, under `header`.
    `params` are the values of all free tunables, num_warps and num_stages; `trace` is what the template
    did, call by call, and `decisions` what came of it. `checks` are the exact checks by
    the name of what was checked; `bounds` and `shapes` are the caller's. `trail` is what each step of the
    schedule and each pass left behind, for reports.
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

    def artifact(self) -> Artifact:
        """What a kernel needs of it to run and to show itself, as plain data."""
        stages = {"loops": self.loops, "scheduled": self.scheduled, "fused": self.fused, "tile": self.tiles}
        return Artifact(
            explanation=explanation(self, read_facts(self.tiles)),
            programs={name: str(program) for name, program in stages.items()},
            declarations=declarations(self.tiles),
            modules=all_modules(self.tiles, self.header),
        )
