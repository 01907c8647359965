"""Times of calls: the interface that a measuring process uses, and how a GPU is timed.

How calls are timed there: `neptune.runtime.bench.GpuCalls`.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from neptune.kernel import Kernel
from neptune.runtime.bench import LEAST, MOST, Call, GpuCalls, captured
from neptune.runtime.executable import warm_up
from neptune.runtime.launching.launch import gpu_target
from neptune.tune.model.machine import machine_of

GPU = "neptune.autotune.timer:GpuTimer"
CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem"}


class Timer(Protocol):
    """What a measuring process needs; one that tests plant times with stands in for it. `device` is torch's."""

    device: str

    def compile(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """Make the machine code of a call at these sizes, without launching anything."""

    def run(self, kernel: Kernel, args: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
        """One call, complete when this returns."""

    def time(self, kernel: Kernel, args: Sequence[Any]) -> list[float]:
        """Microseconds of several calls."""

    def clocks(self) -> Mapping[str, int]:
        """MHz by name; empty where nobody knows."""

    def room(self) -> int:
        """Bytes of memory that are free on the device."""

    def name(self) -> str:
        """The device by its name in the table of machines; "" where it is none."""


def made(spec: str, options: Mapping[str, Any]) -> Timer:
    """The timer `module:Class`, with its options."""
    module, _, name = spec.partition(":")
    timer: Timer = getattr(importlib.import_module(module), name)(**options)
    return timer


class GpuTimer:
    """Calls on the GPU that torch has as its present one."""

    device = "cuda"

    def __init__(self) -> None:
        self._timed = GpuCalls()

    def compile(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        warm_up(kernel.executable, sizes)

    def run(self, kernel: Kernel, args: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
        kernel(*args, out=tuple(out))
        torch.cuda.synchronize()

    def time(self, kernel: Kernel, args: Sequence[Any]) -> list[float]:
        return self.samples(captured(lambda: kernel(*args)))

    def samples(self, call: Call, least: int = LEAST, most: int = MOST) -> list[float]:
        """Microseconds of calls of what `captured` gives, so many at least, and at most."""
        return self._timed.samples(call, least, most)

    def clocks(self) -> Mapping[str, int]:
        with suppress(OSError, subprocess.SubprocessError, ValueError, AttributeError):
            one = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
            query = ["nvidia-smi", one, f"--query-gpu={','.join(CLOCKS.values())}", "--format=csv,noheader,nounits"]
            answer = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
            return {name: int(mhz) for name, mhz in zip(CLOCKS, answer.split(","), strict=True)}
        return {}

    def room(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def name(self) -> str:
        present = gpu_target()
        return "" if present is None else machine_of(present.arch, torch.cuda.get_device_name()).device
