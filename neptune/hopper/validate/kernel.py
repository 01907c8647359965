"""The verdict on a kernel's asynchronous form, where the GPU that it is for is here: then it may run.

Made where a kernel is compiled, or a variant of it at its first call; kept in the cache (`validate.verdicts`), so that
it is made once for a text and a compiler; both forms are timed once more for other sizes. Without the GPU the form is
text that other forms run in place of. Whatever runs first runs in a process of its own (`validate.beside`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from neptune.errors import TargetError
from neptune.hopper.explain import kernels_of
from neptune.hopper.validate.beside import Beside, device
from neptune.hopper.validate.verdicts import judged, known, timed
from neptune.ir.check import nearest_size, with_room
from neptune.ir.dtypes import is_float
from neptune.ir.program import Program
from neptune.runtime.artifact import AT, PREDICTION, Artifact
from neptune.runtime.calls.addressing import LOADS
from neptune.runtime.executable import Executable
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.accepted import Compared, Verdict
from neptune.runtime.hopper.data import ASYNCHRONOUS, Asynchronous
from neptune.runtime.launching import launch

LARGE, ODD, LONG, SHORT = 200, 70, 515, 33
"""Sizes of what both forms are compared on, no multiples of a tile: some tiles, of few sizes or of many; many tiles,
less than one."""
FEW = 3
PARTS = (1, 4)
"""Numbers of parts beside those that launches choose: of nine tiles all, and three each, but for one that is empty."""
LOG = logging.getLogger("neptune.codegen")


def record_of(kernel: Executable) -> Mapping[str, Any] | None:
    """The record of the asynchronous form of a kernel: whole, where the GPU that it is for is here."""
    form = form_of(kernel.artifact)
    verdict = known(form)
    if form.architecture == str(launch.gpu_target()):
        split = split_of(kernel.artifact)
        beside = Beside(on_trial(kernel.artifact, split), replace(kernel.artifact, form=None).alone())
        # A form whose protocol is refused is never made.
        at_all = sizes(kernel.loops, kernel.artifact.chosen)
        compare = partial(beside.compared, at_all)
        now = judged(form, split, protocol=lambda: accepted.CLEAN, compare=compare)
        typical_sizes = typical(kernel)
        if isinstance(now, TargetError):
            LOG.info("the asynchronous form of `%s` does not compile: %s", kernel.artifact.name, now.wrong)
        elif now is not None and typical_sizes is not None:
            verdict = timed(form, now, _rival(beside.triton, typical_sizes), partial(beside.timed, typical_sizes))
        else:
            verdict = now
    return form.record if verdict is None else accepted.written(verdict)


def is_decided(form: Asynchronous) -> bool:
    """True where the cache tells whether an asynchronous form runs."""
    verdict = known(form)
    return verdict is not None and list(verdict.faults) != [accepted.NOT_COMPARED]


def form_of(artifact: Artifact) -> Asynchronous:
    """The asynchronous form of a kernel that has it."""
    assert isinstance(artifact.form, Asynchronous)
    return artifact.form


def split_of(artifact: Artifact) -> tuple[int, int]:
    """Registers of a consumer's and of a producer's thread that the asynchronous form asks for."""
    registers = kernels_of(artifact.explanation[ASYNCHRONOUS])[0]["registers"]
    return int(registers["consumer"]), int(registers["producer"])


def typical(kernel: Executable) -> dict[str, int] | None:
    """Sizes to time both forms at: those of `shapes`, else what a variant is for, else usual ones, which fill a GPU.
    None where not all are known."""
    e = kernel.artifact.explanation
    named = {**(e.get(PREDICTION) or {}).get("sizes", {}), **e.get(AT, {}), **kernel.artifact.shapes}
    names = [s.name for s in kernel.loops.scalars if not is_float(s.dtype)]
    known = {n: int(named[n]) for n in names} if named.keys() >= set(names) else None
    return known and with_room(kernel.loops, known)


def _rival(triton: Artifact, sizes: Mapping[str, int]) -> str:
    """A digest of what else times depend on: the Triton form, the sizes, and the GPU."""
    texts = [list(triton.modules[loads].texts) for loads in LOADS]
    parts = [texts, triton.params, dict(sizes), device()]
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def on_trial(artifact: Artifact, split: tuple[int, int]) -> Artifact:
    """The kernel by itself with a record with which its asynchronous form runs, to be looked at."""
    form = form_of(artifact)
    clean = Verdict(
        key=accepted.key_of(form), shared_bytes=0, spill_bytes=0, local=0, local_inner=0, warnings=(), split=split,
        consumers=(split[0],), producers=(split[1],), findings=(), products=0, in_flight=0, exps=0, overlapped=0,
        protocol=accepted.CLEAN, compared=Compared(1, 0.0, 0.0),
    )  # fmt: skip
    return replace(artifact, form=replace(form, record=accepted.written(clean))).alone()


def sizes(program: Program, chosen: Sequence[str] = ()) -> list[dict[str, int]]:
    """Choices of all sizes and integer arguments: odd ones, and each in turn long beside short ones. Of so small ones
    launches choose parts of a tile each: they are tried with fewer numbers of parts as well."""
    numbers = [s for s in program.scalars if not is_float(s.dtype) and s.upto is None]
    all_odd = {s.name: nearest_size(s, LARGE if len(numbers) <= FEW else ODD) for s in numbers}
    alone = [{s.name: nearest_size(s, LONG if s is one else SHORT) for s in numbers} for one in numbers]
    # What is read must be there: beside 515 batches, 33 numbers of them would be compared with what lies behind them.
    every = [with_room(program, chosen_sizes) for chosen_sizes in (all_odd, *alone)]
    few = (dict.fromkeys(chosen, n) for n in PARTS if chosen)
    return [*every, *({**chosen_sizes, **parts} for parts in few for chosen_sizes in every)]
