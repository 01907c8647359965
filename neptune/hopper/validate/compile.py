"""Compile a Gluon kernel for sm_90 without a GPU: its forms, and what it needs of the machine.

In the process that compiles plain Triton too (`neptune.codegen.compile`): what ptxas refuses prints the whole PTX.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from neptune.codegen.compile import WORKER, answered, parse_target, with_values
from neptune.errors import InternalError, TargetError, unless_refused
from neptune.hopper.gluon import versions
from neptune.hopper.hardware import TARGET, WARPS
from neptune.hopper.validate.sass import Lint, lint
from neptune.runtime.calls.addressing import KernelParameters
from neptune.runtime.machine_code.listing import disassemble
from neptune.runtime.processes.worker import Json, Worker

KINDS = ("ttgir", "ptx", "cubin")
LOG = logging.getLogger("neptune.codegen")


@dataclass(frozen=True)
class Built:
    """One compiled Gluon kernel. `registers` are those that a thread is launched with; `spill_bytes` are per thread;
    `warnings` are the assembler's remarks (C75xx: products of warpgroups that it runs one by one); `barriers` are named
    barriers, `mbarriers` those in shared memory.
    """

    name: str
    ttgir: str
    ptx: str
    cubin: bytes
    disassembler: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]

    @cached_property
    def sass(self) -> str:
        """The machine code as text."""
        return disassemble(self.cubin, self.disassembler)

    @cached_property
    def lint(self) -> Lint:
        """The report of the linter on the machine code, the registers of each role among it."""
        (only,) = lint(self.sass)
        return only

    @property
    def mbarriers(self) -> int:
        return len(re.findall(r"\bmbarrier\.init\.", self.ptx))

    def asm(self, kind: str) -> str:
        """One form: "ttgir", "ptx" or "sass"."""
        if kind not in ("ttgir", "ptx", "sass"):
            raise InternalError(f"no form {kind!r} of a Gluon kernel")
        return str(getattr(self, kind))


def compile_gluon(
    source: str, kernel: KernelParameters, values: Mapping[str, int] | None = None, *, worker: Worker = WORKER
) -> Built:
    """Compile `kernel` of the module `source` for sm_90, in `worker`'s process; `values` are its constants.

    The type of a descriptor is that of its box ("tensordesc<fp16[64, 128]>"). Raises TargetError where the compiler
    refuses, and where Triton has no Gluon.
    """
    return unless_refused(gluon_or_why(source, kernel, values, worker))


def gluon_or_why(
    source: str, kernel: KernelParameters, values: Mapping[str, int] | None = None, worker: Worker = WORKER
) -> Built | TargetError:
    """The result of `compile_gluon`, or why it refuses."""
    purpose = f"compile Gluon kernel {kernel.function} for {TARGET}"
    if (lacks := versions.fault(purpose)) is not None:
        return lacks
    start = time.perf_counter()
    request: Json = {
        "source": source,
        "target": parse_target(TARGET),
        # The first consumer: other roles come on top.
        "options": {"num_warps": WARPS},
        "language": versions.SOURCE,
        "layout": versions.LAYOUT,
        "kinds": KINDS,
        **asdict(with_values(kernel, values or {})),
    }
    answer_or_why = answered(request, purpose, "fewer stages, fewer consumers or a smaller tile", worker)
    if isinstance(answer_or_why, TargetError):
        return answer_or_why
    answer, data = answer_or_why
    forms = dict(zip(KINDS, _split(data, answer["sizes"]), strict=True))
    built = Built(
        kernel.function,
        forms["ttgir"].decode(),
        forms["ptx"].decode(),
        forms["cubin"],
        answer["disassembler"],
        answer["registers"],
        answer["spill_bytes"],
        answer["shared_bytes"],
        tuple(answer["warnings"]),
    )
    ms = 1e3 * (time.perf_counter() - start)
    LOG.info("%s compiled for %s: %d bytes spilled, %.0f ms", built.name, TARGET, built.spill_bytes, ms)
    return built


def _split(data: bytes, sizes: list[int]) -> list[bytes]:
    begin, parts = 0, []
    for size in sizes:
        parts.append(data[begin : begin + size])
        begin += size
    return parts
