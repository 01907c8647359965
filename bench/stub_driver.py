"""A GPU that is not there: Triton compiles for it and launches on it, and no kernel runs.

What is left of a launch is the host's part: dispatch, argument checks, descriptors. `installed()` makes it Triton's
active driver, and lets a Neptune kernel for "cuda" take tensors in the CPU's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from neptune.runtime.launching import launch
from neptune.runtime.launching.launch import Target


class Launcher:
    """Takes what a compiled kernel is launched with; `calls`, where it is a list, receives it."""

    calls: ClassVar[list[tuple[Any, ...]] | None] = None

    def __init__(self, src: Any, metadata: Any) -> None:
        """As Triton's launchers are made."""

    def __call__(self, *args: Any) -> None:
        if Launcher.calls is not None:
            Launcher.calls.append(args)


class Utils:
    """The loader of binaries."""

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        return object(), 0, 64, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448, "multiprocessor_count": 132}


class Driver:
    """One device and one stream."""

    def __init__(self, arch: int) -> None:
        self.arch, self.utils, self.launcher_cls = arch, Utils(), Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def installed(arch: int = 90) -> Iterator[None]:
    """Launches go nowhere while this is open."""

    @contextmanager
    def device(_: object) -> Iterator[None]:
        yield

    present = Target("cuda", str(arch))
    compiling = sys.modules.get("neptune.driver.device")
    before = driver._active
    driver.set_active(Driver(arch))
    with (
        mock.patch.object(torch.cuda, "device", device),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        mock.patch.object(torch.cuda, "mem_get_info", lambda: (0, 0)),
        mock.patch.object(torch.cuda, "get_device_name", lambda: "NVIDIA H200"),
        mock.patch.object(Target, "device", "cpu"),
        mock.patch.object(launch, "gpu_target", lambda: present),
        # Launching knows nothing of compiling, whose own name of it is there once something was compiled.
        mock.patch.object(compiling, "gpu_target", lambda: present) if compiling is not None else nullcontext(),
    ):
        try:
            yield
        finally:
            driver._active = before
