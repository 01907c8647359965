"""Read compiled kernels: registers, spills, and what each loop of the machine code holds. No GPU is needed.

A kernel is compiled for sm_90 by a child process, because some failures of ptxas make Triton print the whole PTX and
others end the process; it is then taken apart with the disassembler that the Triton wheel carries. `analyse` finds the
loops of a cubin, `compile_kernel` compiles and analyses, `clean_loop` picks the loop that an attention kernel spends
its time in.

The figure to watch is `overlapped`: exponentials issued while a matrix instruction is in flight. Of a loop that waits
for each product before it goes on, it is 0, and matrix and exponential units take turns.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neptune.errors import InternalError
from neptune.runtime.machine_code.listing import Function, Instruction, disassemble, functions, loops


@dataclass(frozen=True)
class LoopStats:
    """What one loop of a kernel holds, from its header to its last backward branch.

    `hgmma` are matrix instructions of a warp group, `hmma` of a warp, on any dtype. Blocks that ptxas moved out of line
    (spinning on a barrier that is not ready yet) are not counted, and `ex2` is per
    thread: with 128 keys in a tile and one warp group per 64 queries, 64 of a tile and 2 of the rescaling.
    """

    kernel: str
    start: int
    end: int
    instructions: int
    hgmma: int
    hmma: int
    ex2: int
    overlapped: int
    ldgsts: int
    utmaldg: int
    ldg: int
    selects: int
    local: int


@dataclass(frozen=True)
class Request:
    """A kernel to compile.

    `kernel` is `path.py:name` or `module:name`; `divisible` names arguments that are multiples of 16.
    """

    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    divisible: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    capability: int = 90


@dataclass(frozen=True)
class Report:
    """A compiled kernel. `warnings` are ptxas's C75xx: matrix instructions that it had to run one by one."""

    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]
    loops: tuple[LoopStats, ...]


class CompileError(Exception):
    """ptxas or Triton gave up; the message is one screen, without the PTX."""


def analyse(cubin: bytes) -> list[LoopStats]:
    """The loops of every kernel in a cubin, in the order of their addresses, outer before inner."""
    try:
        text = disassemble(cubin)
    except InternalError as error:
        raise CompileError(error.wrong) from None
    return [stats for function in functions(text) for stats in _stats(function)]


def clean_loop(found: Iterable[LoopStats]) -> LoopStats | None:
    """The innermost loop with matrix instructions that compares and selects least: the one over unmasked tiles. Each
    consumer of a warp-specialised kernel has a copy of it, some instructions longer or shorter: the shortest."""
    matrix = [loop for loop in found if loop.hgmma or loop.hmma]
    inner = [a for a in matrix if not any(b is not a and a.start <= b.start and b.end <= a.end for b in matrix)]
    return min(inner, key=lambda loop: (loop.selects, loop.instructions, loop.start), default=None)


def compile_kernel(request: Request, timeout: float = 300.0) -> Report:
    """Compile in a child process and analyse. Raises CompileError where that fails."""
    root = Path(__file__).resolve().parents[2]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as scratch:
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TRITON_CACHE_DIR": scratch,  # a cached kernel would come without ptxas's messages
            "TRITON_DUMP_PTXAS_LOG": "1",
        }
        try:
            child = subprocess.run(
                [sys.executable, "-m", "tests.examples.sass", scratch],
                input=json.dumps(asdict(request)),
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"{request.kernel}: not compiled within {timeout:g} s") from None
        if child.returncode:
            raise CompileError(f"{request.kernel}: {_complaint(child.stdout, child.stderr)}")
        result = json.loads(Path(scratch, "result.json").read_text())
        cubin = Path(scratch, "kernel.cubin").read_bytes()
    registers = re.search(r"Used (\d+) registers", child.stdout)
    spilled = re.search(r"(\d+) bytes spill stores", child.stdout)
    return Report(
        kernel=result["name"],
        registers=int(registers[1]) if registers else 0,
        spill_bytes=int(spilled[1]) if spilled else 0,
        shared_bytes=result["shared"],
        warnings=tuple(sorted(set(re.findall(r"\bC75\d\d\b", child.stdout)))),
        loops=tuple(analyse(cubin)),
    )


def _complaint(stdout: str, stderr: str) -> str:
    for line in stdout.splitlines():
        if line.startswith("ptxas") and ("fatal" in line or "error" in line):
            return line[:400]
    tail = [line for line in stderr.splitlines() if line.strip()]
    return tail[-1][:400] if tail else "the compiler process died without a message"


def _stats(function: Function) -> list[LoopStats]:
    """What each loop of a kernel holds."""
    found = []
    for loop in loops(function):
        inside = [function.code[i] for block in loop.blocks for i in function.block(block)]
        found.append(_measure(function.name, inside))
    return sorted(found, key=lambda loop: (loop.start, -loop.end))


def _measure(name: str, body: Sequence[Instruction]) -> LoopStats:
    def count(*prefixes: str) -> int:
        return sum(op.opcode.startswith(prefixes) for op in body)

    return LoopStats(
        kernel=name,
        start=body[0].address,
        end=body[-1].address,
        instructions=len(body),
        hgmma=count("HGMMA", "IGMMA", "QGMMA"),
        hmma=count("HMMA", "IMMA"),
        ex2=count("MUFU.EX2"),
        overlapped=_overlapped(body),
        ldgsts=count("LDGSTS"),
        utmaldg=count("UTMALDG"),
        ldg=count("LDG."),
        selects=count("FSEL", "FSETP", "SEL"),
        local=count("LDL", "STL"),
    )


def _overlapped(body: Sequence[Instruction]) -> int:
    """Exponentials issued while a matrix instruction may be in flight.

    An HGMMA that ends a group says so by `gsb0`; `WARPGROUP.DEPBAR.LE gsb0, n` leaves at most n groups in flight. The
    loop is walked twice, and counted the second time, since a group may be in flight across the backward branch.
    """
    groups, open_group, total = 0, False, 0
    for counted in (False, True):
        for op in body:
            if op.opcode.startswith("HGMMA"):
                open_group = "gsb0" not in op.operands
                groups += not open_group
            elif op.opcode.startswith("WARPGROUP.DEPBAR"):
                groups = min(groups, int(op.operands.split(",")[1], 16))
            elif op.opcode.startswith("MUFU.EX2"):
                total += counted and (groups > 0 or open_group)
    return total


def _worker(folder: str) -> None:
    """In the child: compile what stdin asks for, and leave the cubin and its metadata in the folder."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    request = Request(**json.load(sys.stdin))
    where, _, name = request.kernel.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None:
            raise SystemExit(f"cannot import {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function = getattr(module, name)
    hints = {(function.arg_names.index(arg),): [["tt.divisibility", 16]] for arg in request.divisible}
    source = ASTSource(function, request.signature, request.constants, hints)
    options = {"num_warps": request.num_warps, "num_stages": request.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", request.capability, 32), options=options)
    Path(folder, "kernel.cubin").write_bytes(kernel.asm["cubin"])
    Path(folder, "result.json").write_text(json.dumps({"name": kernel.metadata.name, "shared": kernel.metadata.shared}))


if __name__ == "__main__":
    _worker(sys.argv[1])
