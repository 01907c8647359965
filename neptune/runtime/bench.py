"""How long calls take, and what to call: for `kernel.benchmark`, for what tunes, and for what compares kernels.

Arguments that nobody gave are drawn, and outputs are filled so that they show what is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any, TypeAlias

import torch

from neptune.ir.dtypes import is_float
from neptune.ir.expr import loads
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer, Program
from neptune.runtime.calls.arguments import Signature
from neptune.runtime.calls.indices import lookups
from neptune.runtime.launching.launch import Target

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


# --- arguments that nobody gave ---------------------------------------------------------------------

INTEGERS = (-4, 5)
"""Values of integers that are drawn."""
POISON = -77
"""Stands in integer outputs before a call."""


def drawn(program: Program, sizes: Mapping[str, Any], device: str, seed: int = 0) -> list[Any]:
    """Arguments of a call: normal floats, small integers, zeros for what is an index of another tensor; sizes that no
    shape gives, and 1.0 for floats."""
    generator = torch.Generator(device=device).manual_seed(seed)
    indices = _indices(program)
    tensors = [_tensor(b, sizes, device, generator, b.name in indices) for b in program.inputs]
    free = Signature(program, device).free
    return [*tensors, *(sizes.get(s.name, 1.0) if is_float(s.dtype) else int(sizes[s.name]) for s in free)]


def _indices(program: Program) -> frozenset[str]:
    """The integer inputs that decide where others are read: any value but 0 may lead out of a tensor."""
    rows = lookups(program)
    return frozenset(r.source for r in rows) | {load.buffer for r in rows for load in loads(r.index)}


def _tensor(b: Buffer, sizes: Mapping[str, Any], device: str, generator: torch.Generator, index: bool) -> torch.Tensor:
    shape, dtype = tuple(evaluate_size(d, sizes) for d in b.shape), getattr(torch, b.dtype)
    if is_float(b.dtype):
        return torch.randn(shape, device=device, generator=generator).to(dtype)
    if b.dtype == "bool":
        return torch.rand(shape, device=device, generator=generator) < 0.5
    if index:
        return torch.zeros(shape, device=device, dtype=dtype)
    low, high = (0, INTEGERS[1]) if b.dtype.startswith("u") else INTEGERS
    return torch.randint(low, high, shape, device=device, generator=generator).to(dtype)


def poisoned(program: Program, sizes: Mapping[str, Any], device: str) -> list[torch.Tensor]:
    """Outputs in which an element that is not written shows."""
    shapes = Signature(program, device).shapes(sizes)
    outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
    for t in outputs:
        t.fill_(torch.nan if t.is_floating_point() else True if t.dtype == torch.bool else abs(POISON))
    return outputs
