"""Results of a kernel's asynchronous form beside those of its Triton form, on inputs that are made up here.

Both forms are right within rounding, or one of them is not: a register that is overwritten under a product, or a tile
that is read too early, gives numbers that are far off, NaN, or another result the next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from neptune.ir.dtypes import is_float
from neptune.ir.program import Program
from neptune.runtime.drawn import drawn, poisoned
from neptune.runtime.hopper.accepted import Compared

DRAWS = 3
REPEATS = 4
"""Launches of the asynchronous form on the same inputs, whose results are the same bit for bit."""
ROUNDINGS = 8.0
"""How many roundings of the narrowest dtype results may differ by, relative to the largest element."""
Run: TypeAlias = Callable[[Sequence[Any], Sequence[torch.Tensor], Mapping[str, Any]], None]
"""Inputs as a call takes them, outputs that it fills, and sizes; among these may be numbers of parts, which the launch
chooses else."""


def compared(
    program: Program, asynchronous: Run, plain: Run, sizes: Sequence[Mapping[str, Any]], device: str
) -> Compared:
    """Run both forms on DRAWS inputs of each of `sizes`, which should have odd lengths among them.

    The error is infinite where an element is not written, is NaN in one form alone, or changes between launches.
    """
    worst, draws = 0.0, 0
    for at in sizes:
        for seed in range(DRAWS):
            args = drawn(program, at, device, seed)
            wanted = _results(plain, program, args, at, device)
            first = _results(asynchronous, program, args, at, device)
            worst = max(worst, *(_error(a, b) for a, b in zip(first, wanted, strict=True)))
            for _ in range(REPEATS - 1):
                again = _results(asynchronous, program, args, at, device)
                if not all(map(_same, first, again)):
                    worst = math.inf
            draws += 1
    return Compared(draws, worst, limit(program))


def limit(program: Program) -> float:
    """How large the error may be, by the narrowest dtype of inputs and outputs."""
    floats = [b.dtype for b in (*program.inputs, *program.outputs) if is_float(b.dtype)]
    return ROUNDINGS * max((float(torch.finfo(getattr(torch, d)).eps) for d in floats), default=0.0)


def _results(run: Run, program: Program, args: Sequence[Any], at: Mapping[str, Any], device: str) -> list[torch.Tensor]:
    outputs = poisoned(program, at, device)
    run(args, outputs, at)
    return outputs


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference relative to the largest element of `b`."""
    x, y = a.double(), b.double()
    if not torch.equal(x.isnan(), y.isnan()) or (y.numel() and bool(y.isnan().all())):
        return math.inf
    if not torch.equal(x.isinf(), y.isinf()) or not torch.equal(x[y.isinf()], y[y.isinf()]):
        return math.inf
    finite = y.isfinite()
    if not finite.any():
        return 0.0
    largest = float(y[finite].abs().max())
    off = float((x[finite] - y[finite]).abs().max())
    return off if largest == 0 else off / largest


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
