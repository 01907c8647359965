"""The judgement on a kernel, as the explanation keeps it: what makes it slow, and what the cost model predicts.

    judged(subject, rivals)  →  {"warnings": [{"code": …, "stage": …, "message": …, "remedy": …}], "prediction": {…}}

It is made when a kernel is compiled, and kept as data. A kernel whose parameters were changed has none until it is
asked for: then it follows from the texts that the kernel holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from neptune import logs
from neptune.driver.device import machine_for
from neptune.ir.parser import parse_program
from neptune.ir.program import Program
from neptune.runtime.artifact import AT, PREDICTION, WARNINGS, Artifact
from neptune.runtime.launch import parse_target
from neptune.tile.ir import TileProgram
from neptune.tile.parser import parse_tiles
from neptune.tune.advice import advice
from neptune.tune.machine import Machine
from neptune.tune.outlook import Rival, outlook
from neptune.tune.points import reference, sizes_of
from neptune.tune.subject import Subject

LOG = logging.getLogger("neptune.compiler")


def subject_of(
    loops: Program,
    tiles: TileProgram,
    params: Mapping[str, int],
    typical: Mapping[str, int],
    bounds: Mapping[str, int],
    machine: Machine,
    others: Mapping[str, int] | None = None,
) -> Subject:
    """A kernel at the sizes that its caller named; where some are missing, `at` others, or at usual ones."""
    sizes = dict(others) if others else reference(loops, typical, bounds)
    given = set(typical) >= set(sizes_of(loops))
    return Subject(loops, tiles, params, sizes, given, bounds, machine)


def judged(s: Subject, rivals: Iterable[Rival] = ()) -> dict[str, Any]:
    """The two entries of an explanation; without a prediction where the cost model fails."""
    try:
        return {WARNINGS: [asdict(r) for r in advice(s)], PREDICTION: outlook(s, rivals)}
    except Exception as error:
        logs.defect(LOG, f"the judgement on `{s.loops.name}`", error)
        return {WARNINGS: [], PREDICTION: None}


def with_judgement(artifact: Artifact) -> dict[str, Any]:
    """The explanation of a kernel with a judgement: its own, or one that follows from its texts."""
    e = artifact.explanation
    if WARNINGS in e and PREDICTION in e:
        return e
    loops = parse_program(artifact.programs["loops"])
    tiles = parse_tiles(artifact.programs["tile"], parse_program(artifact.declarations))
    machine = machine_for(parse_target(artifact.target))
    s = subject_of(loops, tiles, artifact.params, artifact.shapes, artifact.bounds, machine, e.get(AT))
    return {**e, **judged(s)}
