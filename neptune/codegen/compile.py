"""Compile generated kernels for a target without a GPU: assembly, registers, spills, shared memory.

The compiler runs in a worker process. Signatures are those of a real launch: pointers and strides are
divisible by 16 (without that nothing is loaded asynchronously), lengths are not specialised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from neptune.base.boundary import public
from neptune.codegen.triton.kernel import KernelText
from neptune.codegen.triton.module import kernel_texts
from neptune.errors import InternalError, TargetError, unless_refused
from neptune.runtime.calls.addressing import KernelParameters, extent_of
from neptune.runtime.processes.worker import Json, Worker
from neptune.tile.ir import TileProgram

TYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "i1",
}
LOG = logging.getLogger("neptune.codegen")
WORKER = Worker("neptune.codegen.compile_worker", {"TRITON_INTERPRET": None})
HINT = "other tile sizes, num_warps or num_stages"
_SERVED: set[str] = set()
"""The targets that the worker may have compiled for."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled kernel. `matrix` names the matrix instruction it uses, None for none; `spill_bytes`
    are per thread; `warnings` are the compiler's remarks that cost speed (serialised wgmma)."""

    name: str
    asm: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """The parameters of a kernel as Triton's compiler takes them: types and constants by name, and the names
    of those that are divisible by 16."""

    function: str
    types: dict[str, str]
    constants: dict[str, int]
    aligned: tuple[str, ...]


def parse_target(target: str) -> tuple[str, int | str, int]:
    """Triton's (backend, architecture, warp size).

    >>> parse_target("cuda:90"), parse_target("hip:gfx942")
    (('cuda', 90, 32), ('hip', 'gfx942', 64))
    """
    backend, _, arch = target.partition(":")
    if backend == "cuda" and arch.isdigit():
        return backend, int(arch), 32
    if backend == "hip" and arch.startswith("gfx"):
        return backend, arch, 64 if arch.startswith("gfx9") else 32
    raise TargetError(
        f"compile for target {target!r}",
        "this is not a GPU that can be compiled for",
        legal=("cuda:80", "cuda:90", "hip:gfx942"),
    )


def tunable_values(program: TileProgram, params: Mapping[str, int]) -> dict[str, int]:
    """The value of each tunable: given, else its first candidate."""
    values = {}
    for t in program.tunables:
        if t.name not in params and not t.candidates:
            raise InternalError(f"no value for {t.name}, which has no candidates")
        values[t.name] = int(params[t.name]) if t.name in params else t.candidates[0]
    return values


@public
def compile_offline(
    source: str, program: TileProgram, target: str, params: Mapping[str, int] | None = None, *, loads: str = "pointer"
) -> list[Compiled]:
    """Compile every kernel of `program`, whose module `source` is, for `target`.

    `params` are values of tunables, `num_warps` and `num_stages`; `loads` is what `source` was
    generated with. Raises TargetError where the compiler refuses.
    """
    params = dict(params or {})
    values = tunable_values(program, params)
    return compile_kernels(source, kernel_parameters(program, loads=loads), target, {**params, **values})


def compile_kernels(
    source: str, kernels: Sequence[KernelParameters], target: str, params: Mapping[str, int]
) -> list[Compiled]:
    """`compile_offline` of kernels whose parameters are known; `params` has a value for every tunable."""
    options = {"num_warps": int(params.get("num_warps", 4)), "num_stages": int(params.get("num_stages", 2))}
    values = {name: int(value) for name, value in params.items() if name not in options}
    request: Json = {"source": source, "target": parse_target(target), "options": options}
    results = []
    _prepare(source, target)
    for kernel in kernels:
        start = time.perf_counter()
        request |= asdict(with_values(kernel, values))
        what = f"compile kernel {kernel.function} for {target} with {values | options}"
        answer, asm = unless_refused(answered(request, what))
        compiled = Compiled(kernel.function, asm.decode(), **answer | {"warnings": tuple(answer["warnings"])})
        results.append(compiled)
        ms = 1e3 * (time.perf_counter() - start)
        used = f"{compiled.registers} registers, {compiled.spill_bytes} bytes spilled"
        LOG.info("%s compiled for %s: %s, %.0f ms", compiled.name, target, used, ms)
    return results


def answered(request: Json, what: str, hint: str = HINT, worker: Worker = WORKER) -> tuple[Json, bytes] | TargetError:
    """What the compiler's process answers; why not, where it refuses, or dies of it."""
    try:
        answer, data = worker.request(request)
    except EOFError:
        return TargetError(what, "the compiler aborted", hint=hint, kind="triton")
    if "error" in answer:
        return TargetError(what, _short(answer["error"]), hint=hint, kind="triton")
    return answer, data


def _prepare(source: str, target: str) -> None:
    """Start another worker where the one at hand would convert 8-bit floats as another GPU does.

    A process of Triton's keeps the conversions of the first GPU that it compiles for.
    """
    if "float8" in source and not {target} >= _SERVED:
        WORKER.close()
        _SERVED.clear()
    _SERVED.add(target)


def launch_types(program: TileProgram, params: Mapping[str, int], *, loads: str = "pointer") -> list[KernelTypes]:
    """Return the types that a real launch would find for each kernel's parameters, in launch order."""
    values = tunable_values(program, params)
    return [with_values(k, values) for k in kernel_parameters(program, loads=loads)]


def with_values(kernel: KernelParameters, values: Mapping[str, int]) -> KernelTypes:
    """The types of a kernel's parameters where its tunables have these values."""
    types = dict(kernel.types)
    for name, box in kernel.boxes.items():
        extents = (str(values[e] if isinstance(e, str) else e) for e in box)
        types[name] = f"tensordesc<{types[name]}[{', '.join(extents)}]>"
    constants = {name: values[name] for name, t in types.items() if t == "constexpr"}
    return KernelTypes(kernel.function, types, constants, kernel.aligned)


def kernel_parameters(program: TileProgram, *, loads: str = "pointer") -> list[KernelParameters]:
    """The parameters of each kernel, in launch order."""
    return [parameters_of(program, k) for k in kernel_texts(program, loads=loads)]


def parameters_of(program: TileProgram, kernel: KernelText) -> KernelParameters:
    """The parameters of one kernel of `program`."""
    scalars = {s.name: s.dtype for s in program.scalars}
    types: dict[str, str] = {}
    boxes: dict[str, Sequence[int | str]] = {}
    aligned = []
    for p in kernel.parameters:
        if p.kind == "tunable":
            types[p.name] = "constexpr"
        elif p.kind == "scalar":
            types[p.name] = TYPES[scalars[p.of]]
            if p.name not in kernel.general:
                aligned.append(p.name)
        elif p.kind == "stride":
            types[p.name] = "i32"
            if p.name not in kernel.general:
                aligned.append(p.name)
        elif p.kind == "descriptor":
            types[p.name] = TYPES[program.globals[p.of].dtype]
            boxes[p.name] = tuple(extent_of(e) for e in p.box)
        else:
            types[p.name] = f"*{TYPES[program.globals[p.of].dtype]}"
            aligned.append(p.name)
    return KernelParameters(kernel.function, types, boxes, tuple(aligned))


def _short(text: str, lines: int = 6) -> str:
    """A compiler's message: its first line, and the last ones, which say what is the matter."""
    message = [line[:200] for line in text.splitlines()]
    return "\n".join(message if len(message) <= lines else [message[0], "…", *message[2 - lines :]])
