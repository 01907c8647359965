"""How long calls take, for `kernel.benchmark`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from neptune.runtime.launch import Target

LEAST, MOST, ENOUGH = 5, 1000, 0.2
"""Calls on a CPU that are timed, at least and at most, and the seconds that they may take together."""


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
    end = time.perf_counter() + ENOUGH
    while len(ms) < LEAST or (len(ms) < MOST and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        ms.append((time.perf_counter() - start) * 1e3)
    return ms
