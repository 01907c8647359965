"""The verdict on a kernel's asynchronous form, where the GPU that it is for is here: then it may run.

Made where a kernel is compiled, or a variant of it at its first call; kept in the cache (`neptune.hopper.accept`), so
that it is made once for a text and a compiler. Without the GPU the form is text that other forms run in place of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from neptune.driver.asynchronous import ENTRY, kernels_of
from neptune.errors import TargetError
from neptune.ir.dtypes import is_float
from neptune.ir.program import Program, Scalar
from neptune.kernel import Kernel
from neptune.runtime import accepted, launch
from neptune.runtime.accepted import Compared, Verdict
from neptune.runtime.addressing import Asynchronous
from neptune.runtime.executable import Executable

LARGE, ODD, LONG, SHORT = 200, 70, 515, 33
"""Sizes of what both forms are compared on, no multiples of a tile: some tiles, of few sizes or of many; many tiles,
less than one."""
FEW = 3
LOG = logging.getLogger("neptune.codegen")


def with_verdict(kernel: Kernel) -> Kernel:
    """The kernel with the verdict on its asynchronous form, if it has one that the GPU here runs."""
    of = kernel.executable.artifact.asynchronous
    if of is None or of.architecture != str(launch.gpu_target()):
        return kernel
    from neptune.hopper.accept import judged

    registers = kernels_of(kernel.executable.artifact.explanation[ENTRY])[0]["registers"]
    split = (int(registers["consumer"]), int(registers["producer"]))
    try:
        # A form whose protocol is refused is never made.
        found = judged(of, split, protocol=lambda: accepted.CLEAN, compare=lambda: _compared(kernel, split))
    except TargetError as error:
        LOG.info("the asynchronous form of `%s` does not compile: %s", kernel.name, error.wrong)
        return kernel
    if found is None:
        return kernel
    return _with_record(kernel, accepted.written(found))


def _with_record(kernel: Kernel, record: Mapping[str, Any]) -> Kernel:
    artifact = kernel.executable.artifact
    assert artifact.asynchronous is not None
    return kernel.keeping(replace(artifact, asynchronous=replace(artifact.asynchronous, record=record)))


def _compared(kernel: Kernel, split: tuple[int, int]) -> Compared:
    """Results of the form beside those of the Triton form, on inputs that are made up."""
    from neptune.hopper.compare import compared

    of = kernel.executable
    artifact = of.artifact
    assert artifact.asynchronous is not None
    on_trial = replace(artifact.asynchronous, record=_on_trial(artifact.asynchronous, split))
    forms = [replace(artifact, asynchronous=x).alone() for x in (on_trial, None)]
    asynchronous, plain = (_run(Executable(a, of.loops)) for a in forms)
    return compared(of.loops, asynchronous, plain, sizes(of.loops), of.target.device)


def _on_trial(of: Asynchronous, split: tuple[int, int]) -> dict[str, Any]:
    """A record with which the form runs, for the comparison alone."""
    clean = Verdict(
        key=accepted.key_of(of), shared_bytes=0, spill_bytes=0, local=0, local_inner=0, warnings=(), split=split,
        consumers=(split[0],), producers=(split[1],), findings=(), products=0, in_flight=0, exps=0, overlapped=0,
        protocol=accepted.CLEAN, compared=Compared(1, 0.0, 0.0),
    )  # fmt: skip
    return accepted.written(clean)


def _run(executable: Executable) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], None]:
    def run(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        executable.call(tuple(args), tuple(outputs) if len(outputs) > 1 else outputs[0], None, None)

    return run


def sizes(program: Program) -> list[dict[str, int]]:
    """Choices of all sizes and integer arguments: odd ones, and each in turn long beside short ones."""
    numbers = [s for s in program.scalars if not is_float(s.dtype) and s.upto is None]
    all_odd = {s.name: _allowed(s, LARGE if len(numbers) <= FEW else ODD) for s in numbers}
    alone = [{s.name: _allowed(s, LONG if s is one else SHORT) for s in numbers} for one in numbers]
    return [all_odd, *alone]


def _allowed(s: Scalar, value: int) -> int:
    """The next value that a size may have."""
    up = -(-value // s.divisor) * s.divisor
    return min(max(up, s.lo or 0), up if s.hi is None else s.hi)
