"""The process that compiles: see `neptune.codegen.compile`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from neptune.runtime.source import load_source
from neptune.runtime.worker import Json, serve

_folder = tempfile.TemporaryDirectory(prefix="neptune-")


class _Driver:
    """Stands for Triton's driver of a GPU that need not be here."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """The GPU."""
        return self._target


def compile_kernel(request: Json, _: bytes) -> tuple[Json, bytes]:
    """Compile one kernel and measure it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = getattr(load_source(request["source"]), request["function"])
    attrs = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in request["aligned"]}
    source = ASTSource(fn, request["types"], request["constants"], attrs)
    backend, arch, warp = request["target"]
    target = GPUTarget(backend, arch, warp)
    # What a kernel asks of `tl.target_info` is about the GPU that it is compiled for, not the one here.
    triton.runtime.driver.set_active(_Driver(target))
    compiled = triton.compile(source, target=target, options=request["options"])
    if backend == "cuda":
        return _measure_cuda(compiled, arch)
    return _measure_hip(compiled)


def _measure_cuda(compiled: Any, arch: int) -> tuple[Json, bytes]:
    """Registers, spills and remarks from `ptxas -v` on the PTX that triton made (its own run may be cached)."""
    ptx: str = compiled.asm["ptx"]
    log = _ptxas(ptx, arch)
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


def _ptxas(ptx: str, arch: int) -> str:
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    path = Path(_folder.name, "kernel.ptx")
    path.write_text(ptx)
    command = [get_ptxas(arch).path, "-v", f"--gpu-name={sm_arch_from_capability(arch)}", str(path), "-o", "/dev/null"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


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
