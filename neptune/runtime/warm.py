"""Binaries before the first call: Triton compiles what a launch with tensors of some sizes needs, and runs nothing.

The generated launch function is called on tensors without memory, with kernels in it that compile instead of running.
So all that Triton specialises on follows as it does in a call: strides, lengths, alignment, tiles, numbers of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neptune.ir.dtypes import is_float
from neptune.runtime.artifact import AT
from neptune.runtime.executable import Executable
from neptune.runtime.launch import gpu_target


def warm_up(kernel: Executable, sizes: Mapping[str, int]) -> bool:
    """Compile the binaries of a call with dense tensors of these sizes; whether there was something to compile for.

    What `sizes` does not tell is as in `shapes`, then as it was predicted at, then as in `bounds`. Raises TargetError
    where Triton refuses the kernel, or the GPU here is another one.
    """
    if not kernel.target.on_gpu or gpu_target() is None:
        return False
    artifact = kernel.artifact
    known = {**artifact.bounds, **artifact.explanation.get(AT, {}), **artifact.shapes, **sizes}
    scalars: dict[str, int | float] = {}
    for s in kernel.loops.scalars:
        if is_float(s.dtype):
            scalars[s.name] = 0.5
        elif s.name not in known:
            return False
        else:
            scalars[s.name] = known[s.name]
    kernel.on_no_memory(scalars, _Compiled)
    return True


class _Compiled:
    """Stands for a kernel in the launch function: compiles it and runs nothing."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **keywords: self._kernel.warmup(*args, grid=grid, **keywords)
