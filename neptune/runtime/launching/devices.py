"""The target that serves tensors of a device: Triton on a GPU; on a CPU LLVM where TVM is installed, else Triton's
interpreter, which is for trying things out and says so once."""

from __future__ import annotations

import warnings
from functools import cache

from neptune import config
from neptune.base.boundary import frames_of_package
from neptune.base.codes import INSTALL_TE
from neptune.errors import NeptunePerformanceWarning
from neptune.runtime.launching.launch import default_target, has_tvm, parse_target


def target_on(device: str, wanted: str = "interpret") -> str:
    """The target for tensors of a torch device type, "cpu" or "cuda": `wanted` itself where that is one of it."""
    target = parse_target(wanted)
    if device == "cuda":
        return wanted if target.on_gpu else str(default_target())
    if target.kind == "llvm" or not has_tvm():
        return wanted if target.kind == "llvm" else _interpreted()
    return "llvm"


def chosen_on(device: str) -> str:
    """$NEPTUNE_TARGET where it is one of the device, else what serves the device best."""
    request = config.read().target
    return request if request and parse_target(request).device == device else target_on(device)


@cache
def _interpreted() -> str:
    """Say it in the first call, and in no later one."""
    warnings.warn(
        "CPU tensors run in Triton's interpreter, which is slow and there to try things out; compiled code for this "
        f"machine's CPU needs TVM: {INSTALL_TE}",
        NeptunePerformanceWarning,
        stacklevel=2 + frames_of_package(),
    )
    return "interpret"
