"""The verdict on a kernel's asynchronous form, where the GPU that it is for is here: then it may run.

Made where a kernel is compiled, or a variant of it at its first call; kept in the cache (`neptune.hopper.accept`), so
that it is made once for a text and a compiler; both forms are timed once more for other sizes. Without the GPU the form
is text that other forms run in place of. Whatever runs first runs in a process of its own (`neptune.hopper.beside`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune.driver.asynchronous import ARCHITECTURE, ENTRY, kernels_of
from neptune.errors import TargetError
from neptune.ir.bounds import with_room
from neptune.ir.dtypes import is_float
from neptune.ir.program import Program, Scalar
from neptune.kernel import Kernel
from neptune.runtime import accepted, launch
from neptune.runtime.accepted import Compared, Verdict
from neptune.runtime.addressing import LOADS
from neptune.runtime.artifact import AT, PREDICTION, Artifact

if TYPE_CHECKING:
    from neptune.hopper.beside import Beside

DECIDES = "decides"
"""What is said of a form by which a template was chosen."""
LARGE, ODD, LONG, SHORT = 200, 70, 515, 33
"""Sizes of what both forms are compared on, no multiples of a tile: some tiles, of few sizes or of many; many tiles,
less than one."""
FEW = 3
PARTS = (1, 4)
"""Numbers of parts beside those that launches choose: of nine tiles all, and three each, but for one that is empty."""
LOG = logging.getLogger("neptune.codegen")


def with_verdict(kernel: Kernel, *, forced: bool = False) -> Kernel:
    """The kernel with the verdict on its asynchronous form, if it has one: whole, where the GPU that it is for is here.

    One that is `forced` runs though the Triton form is faster.
    """
    of = kernel.executable.artifact.asynchronous
    if of is None:
        return kernel
    from neptune.hopper.accept import judged, known, timed

    found = known(of)
    if of.architecture == str(launch.gpu_target()):
        split = split_of(kernel)
        beside = _beside(kernel, split)
        try:
            # A form whose protocol is refused is never made.
            at_all = sizes(kernel.executable.loops, kernel.executable.artifact.chosen)
            compare = partial(beside.compared, at_all)
            found = judged(of, split, protocol=lambda: accepted.CLEAN, compare=compare)
            at = typical(kernel)
            if found is not None and at is not None:
                found = timed(of, found, _rival(beside.triton, at), partial(beside.timed, at))
        except TargetError as error:
            LOG.info("the asynchronous form of `%s` does not compile: %s", kernel.name, error.wrong)
    record = of.record if found is None else accepted.written(found)
    if record == of.record and forced == of.forced:
        return kernel
    artifact = kernel.executable.artifact
    return kernel.keeping(replace(artifact, asynchronous=replace(of, record=record, forced=forced)))


def decided(artifact: Artifact) -> bool:
    """True where the cache tells whether a kernel's asynchronous form runs, or it has none."""
    of = artifact.asynchronous
    if of is None:
        return True
    from neptune.hopper.accept import known

    found = known(of)
    return found is not None and list(found.faults) != [accepted.NOT_COMPARED]


def sharing(kernel: Kernel, choice: Mapping[str, Any]) -> Kernel:
    """Another variant of a kernel, whose values on tiles are other ones, with the same asynchronous form: at its sizes
    either may be the faster."""
    on_tiles = kernel.with_params(choice["params"])
    said = on_tiles.executable.artifact.unjudged(choice.get(AT)).explanation
    return on_tiles.keeping(replace(kernel.executable.artifact, explanation=said))


def in_vain(kernel: Kernel) -> bool:
    """True where a template was chosen for a form that the verdict refuses."""
    artifact = kernel.executable.artifact
    of = artifact.asynchronous
    found = None if of is None or of.record is None else accepted.read(of.record)
    if of is None or found is None or found.key != accepted.key_of(of) or accepted.runs(of):
        return False
    decisions = artifact.explanation["decisions"]
    return list(found.faults) != [accepted.NOT_COMPARED] and any(d["verdict"] == DECIDES for d in decisions)


def ready() -> None:
    """Have the processes start that compile a form and that compare it, the latter where there is a GPU for it: what
    they import takes as long as what comes before."""
    from neptune.codegen.compile import WORKER

    WORKER.start()
    if _here():
        from neptune.hopper import beside

        beside.WORKER.start()


def _here() -> bool:
    return str(launch.gpu_target()) == f"cuda:{ARCHITECTURE}"


def split_of(kernel: Kernel) -> tuple[int, int]:
    """Registers of a consumer's and of a producer's thread that the asynchronous form asks for."""
    registers = kernels_of(kernel.executable.artifact.explanation[ENTRY])[0]["registers"]
    return int(registers["consumer"]), int(registers["producer"])


def _beside(kernel: Kernel, split: tuple[int, int]) -> Beside:
    from neptune.hopper.beside import Beside

    artifact = kernel.executable.artifact
    return Beside(on_trial(artifact, split), replace(artifact, asynchronous=None).alone())


def typical(kernel: Kernel) -> dict[str, int] | None:
    """Sizes to time both forms at: those of `shapes`, else what a variant is for, else usual ones, which fill a GPU.
    None where not all are known."""
    artifact = kernel.executable.artifact
    e = artifact.explanation
    known = {**(e.get(PREDICTION) or {}).get("sizes", {}), **e.get(AT, {}), **artifact.shapes}
    names = [s.name for s in kernel.executable.loops.scalars if not is_float(s.dtype)]
    at = {n: int(known[n]) for n in names} if known.keys() >= set(names) else None
    return at and with_room(kernel.executable.loops, at)


def _rival(triton: Artifact, at: Mapping[str, int]) -> str:
    """What else times depend on: the Triton form, the sizes, and the GPU."""
    from neptune.hopper.beside import device

    texts = [list(triton.modules[loads].texts) for loads in LOADS]
    parts = [texts, triton.params, dict(at), device()]
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def on_trial(artifact: Artifact, split: tuple[int, int]) -> Artifact:
    """The kernel by itself with a record with which its asynchronous form runs, to be looked at."""
    of = artifact.asynchronous
    assert of is not None
    clean = Verdict(
        key=accepted.key_of(of), shared_bytes=0, spill_bytes=0, local=0, local_inner=0, warnings=(), split=split,
        consumers=(split[0],), producers=(split[1],), findings=(), products=0, in_flight=0, exps=0, overlapped=0,
        protocol=accepted.CLEAN, compared=Compared(1, 0.0, 0.0),
    )  # fmt: skip
    return replace(artifact, asynchronous=replace(of, record=accepted.written(clean))).alone()


def sizes(program: Program, chosen: Sequence[str] = ()) -> list[dict[str, int]]:
    """Choices of all sizes and integer arguments: odd ones, and each in turn long beside short ones. Of so small ones
    launches choose parts of a tile each: they are tried with fewer numbers of parts as well."""
    numbers = [s for s in program.scalars if not is_float(s.dtype) and s.upto is None]
    all_odd = {s.name: _allowed(s, LARGE if len(numbers) <= FEW else ODD) for s in numbers}
    alone = [{s.name: _allowed(s, LONG if s is one else SHORT) for s in numbers} for one in numbers]
    # What is read must be there: beside 515 batches, 33 numbers of them would be compared with what lies behind them.
    every = [with_room(program, at) for at in (all_odd, *alone)]
    few = (dict.fromkeys(chosen, n) for n in PARTS if chosen)
    return [*every, *({**at, **parts} for parts in few for at in every)]


def _allowed(s: Scalar, value: int) -> int:
    """The next value that a size may have."""
    up = -(-value // s.divisor) * s.divisor
    return min(max(up, s.lo or 0), up if s.hi is None else s.hi)
