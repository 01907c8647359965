"""The process that compiles: see `neptune.codegen.compile`."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from typing import Any

from neptune.runtime.processes.source import load_source
from neptune.runtime.processes.worker import Json, serve


class _Driver:
    """Stands for Triton's driver of a GPU that need not be here."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """The GPU."""
        return self._target


def compile_kernel(request: Json, _: bytes) -> tuple[Json, bytes]:
    """Compile one kernel and measure it. `language` names another class of source than that of plain Triton, and with
    `kinds` the answer is these forms of the kernel one after the other, their sizes in the header."""
    import triton
    from triton.backends.compiler import GPUTarget

    where, _, name = request.get("language", "triton.compiler:ASTSource").partition(":")
    fn = getattr(load_source(request["source"]), request["function"])
    attrs = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in request["aligned"]}
    types = {n: _with_layout(request["types"][n], request.get("layout")) for n in fn.arg_names}
    source = getattr(importlib.import_module(where), name)(fn, types, request["constants"], attrs)
    backend, arch, warp = request["target"]
    target = GPUTarget(backend, arch, warp)
    # What a kernel asks of `tl.target_info` is about the GPU that it is compiled for, not the one here.
    triton.runtime.driver.set_active(_Driver(target))
    compiled, log = _compiled(source, target, request["options"])
    answer, asm = _measure_cuda(compiled, log) if backend == "cuda" else _measure_hip(compiled)
    if "kinds" not in request:
        return answer, asm
    forms = [_as_bytes(compiled.asm[kind]) for kind in request["kinds"]]
    more = {"sizes": list(map(len, forms)), "disassembler": triton.knobs.nvidia.nvdisasm.path}
    return {**answer, **more}, b"".join(forms)


def _as_bytes(form: str | bytes) -> bytes:
    return form.encode() if isinstance(form, str) else form


def _with_layout(written: str, layout: str | None) -> str:
    """The type of a parameter; that of a descriptor with the layout of its box in shared memory, where it wants one.

    "tensordesc<fp16[64, 128]>" → "tensordesc<fp16[64, 128],NVMMASharedLayout(…)>"
    """
    parsed = re.fullmatch(r"tensordesc<(\w+)\[([\d, ]+)\]>", written)
    if parsed is None or layout is None:
        return written
    where, _, name = layout.partition(":")
    module = importlib.import_module(where)
    dtype = module.dtype(parsed[1])
    swizzled = getattr(module, name).get_default_for([int(n) for n in parsed[2].split(",")], dtype)
    return f"tensordesc<{parsed[1]}[{parsed[2]}],{swizzled!r}>"


def _compiled(source: Any, target: Any, options: Json) -> tuple[Any, str]:
    """A compiled kernel and what the assembler said of it, which is only printed when it runs: a kernel that Triton
    kept from another time is compiled again."""
    import triton

    for again in (False, True):
        warnings = io.StringIO()
        with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope(), contextlib.redirect_stdout(warnings):
            triton.knobs.nvidia.dump_ptxas_log = True
            triton.knobs.compilation.always_compile = again
            try:
                compiled = triton.compile(source, target=target, options=options)
            except Exception as error:
                raise _first(error) from None
        if target.backend != "cuda" or "ptxas info" in warnings.getvalue():
            break
    return compiled, warnings.getvalue()


def _first(error: BaseException) -> BaseException:
    """Where a function that is called does not compile, Triton tells where it is called, and by its cause why."""
    while type(error.__cause__) is type(error):
        error = error.__cause__
    return error


def _measure_cuda(compiled: Any, log: str) -> tuple[Json, bytes]:
    """Registers, spills and remarks as the assembler says them."""
    ptx: str = compiled.asm["ptx"]
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores", log)
    answer = {
        "registers": int(registers[1]) if registers else 0,
        "spill_bytes": int(spills[1]) if spills else 0,
        "shared_bytes": int(compiled.metadata.shared),
        "matrix": "wgmma" if "wgmma.mma_async" in ptx else "mma" if "mma.sync" in ptx else None,
        "warnings": sorted(set(re.findall(r"C75\d\d[^\n]*", log))),
    }
    return answer, ptx.encode()


def _measure_hip(compiled: Any) -> tuple[Json, bytes]:
    """The same from the metadata in the assembly; a spilled register is 4 bytes a thread."""
    asm: str = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        match = re.search(rf"\.{name}:\s*(\d+)", asm)
        return int(match[1]) if match else 0

    answer: Json = {
        "registers": field("vgpr_count"),
        "spill_bytes": 4 * field("vgpr_spill_count"),
        "shared_bytes": field("group_segment_fixed_size") or int(compiled.metadata.shared),
        "matrix": "mfma" if "v_mfma" in asm else None,
        "warnings": [],
    }
    return answer, asm.encode()


if __name__ == "__main__":
    serve(compile_kernel)
