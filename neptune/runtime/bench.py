"""How long calls take: for `kernel.benchmark`, for what tunes, and for what compares kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any, TypeAlias

import torch

from neptune.runtime.launch import Target

ON_CPU, SECONDS = (5, 1000), 0.2
"""Calls on a CPU that are timed, at least and at most, and the seconds that they may take together."""
CLEARED = 256 << 20
"""Bytes that are written before each call, more than any L2 cache has."""
WARM = 3
LEAST, MOST, ENOUGH = 5, 25, 20_000.0
"""Calls that are timed, at least and at most, and the microseconds that they may take together."""
Call: TypeAlias = "Callable[[], Any]"


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a call: the `median`, and the quartiles `lower` and `upper`, of `calls` calls on `target`."""

    median: float
    lower: float
    upper: float
    calls: int
    target: str

    def __str__(self) -> str:
        return f"{self.median:.3g} ms ({self.lower:.3g} to {self.upper:.3g}), {self.calls} calls on {self.target}"


def time_calls(call: Callable[[], Any], target: Target) -> Timing:
    """The time of a call that has been made before, so that nothing is compiled any more."""
    if target.on_gpu:
        import triton.testing

        # Clears the L2 cache before each call, and waits for the GPU by events.
        ms: list[float] = triton.testing.do_bench(call, warmup=25, rep=100, return_mode="all")
    else:
        ms = _on_cpu(call)
    lower, middle, upper = quantiles(ms, n=4, method="inclusive")
    return Timing(middle, lower, upper, len(ms), str(target))


def _on_cpu(call: Callable[[], Any]) -> list[float]:
    ms: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(ms) < ON_CPU[0] or (len(ms) < ON_CPU[1] and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        ms.append((time.perf_counter() - start) * 1e3)
    return ms


class GpuCalls:
    """Calls on the GPU that torch has as its present one: each figure is one call of what `captured` gives, so that
    launching costs nothing, behind a write to more memory than the L2 cache holds."""

    def __init__(self) -> None:
        self._cleared: torch.Tensor | None = None

    def samples(self, call: Call, least: int = LEAST, most: int = MOST) -> list[float]:
        """Microseconds of calls of what `captured` gives, so many at least, and at most."""
        first = [self._one(call) for _ in range(least)]
        more = min(most, int(ENOUGH / max(median(first), 1e-3))) - least
        return first + [self._one(call) for _ in range(more)]

    def _one(self, call: Call) -> float:
        if self._cleared is None:
            self._cleared = torch.empty(CLEARED, dtype=torch.int8, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._cleared.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3


def captured(call: Call) -> Call:
    """The call as the replay of a graph; one that cannot be captured, itself."""
    try:
        return graph_of(call)
    except RuntimeError:
        torch.cuda.synchronize()
        return call


def graph_of(call: Call) -> Call:
    """The call as the replay of a CUDA graph, so that launching costs nothing; made a few times before.

    Raises RuntimeError where it cannot be captured.
    """
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return partial(_replayed, graph, call)


def _replayed(graph: torch.cuda.CUDAGraph, _call: Call) -> None:
    # What the call holds stays: a graph has addresses alone, and the next capture gives free memory back to the GPU.
    graph.replay()
