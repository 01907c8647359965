"""Arguments of a call that nobody gave, to measure it or to compare results, and outputs that show what is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from neptune.ir.dtypes import is_float
from neptune.ir.expr import loads
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer, Program
from neptune.runtime.arguments import Signature
from neptune.runtime.indices import lookups

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
