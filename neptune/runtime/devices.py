"""The target that serves tensors of a device: Triton on a GPU; on a CPU LLVM where TVM is installed, else Triton's
interpreter, which is for trying things out and says so once."""

from __future__ import annotations

import warnings
from functools import cache

from neptune.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning
from neptune.runtime.launch import default_target, has_tvm, parse_target

EXTRA = "pip install 'neptune-compiler[te]'"


def target_on(device: str, wanted: str = "interpret") -> str:
    """The target for tensors of a torch device type, "cpu" or "cuda": `wanted` itself where that is one of it."""
    of = parse_target(wanted)
    if device == "cuda":
        return wanted if of.on_gpu else str(default_target())
    if of.kind == "llvm" or not has_tvm():
        return wanted if of.kind == "llvm" else _interpreted()
    return "llvm"


@cache
def _interpreted() -> str:
    """Say it in the first call, and in no later one."""
    warnings.warn(
        "CPU tensors run in Triton's interpreter, which is slow and there to try things out; compiled code for this "
        f"machine's CPU needs TVM: {EXTRA}",
        NeptunePerformanceWarning,
        stacklevel=2 + frames_of_package(),
    )
    return "interpret"
