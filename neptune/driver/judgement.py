"""The judgement on a kernel, as the explanation keeps it: what makes it slow, and what the cost model predicts.

    judged(subject, rivals)  →  {"warnings": [{"code": …, "stage": …, "message": …, "remedy": …}], "prediction": {…}}

It is made when a kernel is compiled, and kept as data. A kernel whose parameters were changed has none until it is
asked for: then it follows from the texts that the kernel holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from neptune.base import logs
from neptune.driver.device import machine_for
from neptune.runtime.artifact import PREDICTION, WARNINGS, Artifact
from neptune.runtime.launch import parse_target
from neptune.tune.advice import advice
from neptune.tune.outlook import Rival, outlook
from neptune.tune.subject import Subject, subject_of

LOG = logging.getLogger("neptune.compiler")


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
    s = subject_of(artifact, machine_for(parse_target(artifact.target)))
    return {**e, **judged(s)}
