"""Times of calls: the interface that a measuring process uses, and how a GPU is timed.

Each figure is one call, captured as a CUDA graph so that launching costs nothing, behind a write to more memory than
the L2 cache holds.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Protocol

import torch

from neptune.kernel import Kernel
from neptune.runtime.launch import gpu_target
from neptune.runtime.warm import warm_up
from neptune.tune.machine import machine_of

GPU = "neptune.autotune.timer:GpuTimer"
CLEARED = 256 << 20
"""Bytes that are written before each call, more than any L2 cache has."""
WARM = 3
LEAST, MOST, ENOUGH = 5, 25, 20_000.0
"""Calls that are timed, at least and at most, and the microseconds that they may take together."""
CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem"}
Call = Callable[[], Any]


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
        self._cleared: torch.Tensor | None = None

    def compile(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        warm_up(kernel.executable, sizes)

    def run(self, kernel: Kernel, args: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
        kernel(*args, out=tuple(out))
        torch.cuda.synchronize()

    def time(self, kernel: Kernel, args: Sequence[Any]) -> list[float]:
        return self.samples(captured(lambda: kernel(*args)))

    def samples(self, call: Call, least: int = LEAST, most: int = MOST) -> list[float]:
        """Microseconds of calls of what `captured` gives, so many at least, and at most."""
        first = [self._one(call) for _ in range(least)]
        more = min(most, int(ENOUGH / max(median(first), 1e-3))) - least
        return first + [self._one(call) for _ in range(more)]

    def _one(self, call: Call) -> float:
        if self._cleared is None:
            self._cleared = torch.empty(CLEARED, dtype=torch.int8, device=self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._cleared.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def clocks(self) -> Mapping[str, int]:
        with suppress(OSError, subprocess.SubprocessError, ValueError, AttributeError):
            one = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
            query = ["nvidia-smi", one, f"--query-gpu={','.join(CLOCKS.values())}", "--format=csv,noheader,nounits"]
            said = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
            return {name: int(mhz) for name, mhz in zip(CLOCKS, said.split(","), strict=True)}
        return {}

    def room(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def name(self) -> str:
        present = gpu_target()
        return "" if present is None else machine_of(present.arch, torch.cuda.get_device_name()).device


def captured(call: Call) -> Call:
    """The call as the replay of a graph; one that cannot be captured, itself."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    return graph.replay
