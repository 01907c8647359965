"""What a candidate must compute: results of the unfused program on the same data, and how near they must be.

The reference is the template `stagewise`, one kernel a stage without any repair, on the same target; before it is
believed, it is compared at small sizes with the expression in float64. Where its temporaries do not fit in memory,
candidates are compared at the largest sizes at which they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from typing import Any, TypeAlias

import numpy as np
import torch

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.floats import Float64, Rounded
from neptune.ir.evaluate.program import evaluate
from neptune.ir.program import Buffer, Program, Scalar
from neptune.runtime.bench import drawn, poisoned
from neptune.runtime.calls.arguments import Signature
from neptune.tune.points import repeated
from neptune.verify.numerics import Errors, allowance, rel_error

TEMPLATE = "stagewise"
SMALL, FEW = 37, 2
"""Sizes at which the reference itself is checked: of lengths, no multiple of a tile, and of repetitions."""
BOTH = 2.0
"""Two results may each be as far from the truth as is allowed."""
Sizes: TypeAlias = Mapping[str, int]
Unfused: TypeAlias = "list[Errors]"
"""The errors of the unfused program with its roundings, of each output."""
Run: TypeAlias = "Callable[[Sequence[Any], list[torch.Tensor]], None]"
"""A call on arguments that writes outputs, complete when it returns."""


# --- sizes -----------------------------------------------------------------------------------------


def small(program: Program, sizes: Sizes) -> dict[str, int]:
    """Sizes at which the expression can be evaluated on the host, in the same order as those that are given."""
    few, known = repeated(program), {s.name: s for s in program.scalars}
    return {n: _legal(known[n], min(v, FEW if n in few else SMALL)) for n, v in sizes.items()}


def smaller(program: Program, sizes: Sizes) -> dict[str, int] | None:
    """The next smaller sizes: repetitions are 1 first, then what is longest is halved; None where all are 1."""
    few, known = repeated(program), {s.name: s for s in program.scalars}
    once = {n: _legal(known[n], 1) if n in few else v for n, v in sizes.items()}
    if once != dict(sizes):
        return once
    longest = max(sizes.values(), default=1)
    halved = {n: _legal(known[n], v // 2) if v == longest else v for n, v in sizes.items()}
    return halved if halved != dict(sizes) else None


def _legal(size: Scalar, value: int) -> int:
    lo, by = max(1, size.lo or 0), size.divisor
    return max(-(-lo // by), -(-value // by)) * by


# --- agreement -------------------------------------------------------------------------------------


def trusted(program: Program, sizes: Sizes, device: str, run: Run) -> tuple[Unfused, str]:
    """Whether the reference computes what the expression says, at small sizes: the errors of its roundings, and what
    is wrong ("": nothing)."""
    at = small(program, sizes)
    args = drawn(program, at, device, seed=1)
    out = poisoned(program, at, device)
    run(args, out)
    names = [s.name for s in Signature(program, device).free]
    count = len(program.inputs)
    scalars = {**at, **dict(zip(names, args[count:], strict=True))}
    arrays = {b.name: _array(t) for b, t in zip(program.inputs, args, strict=False)}
    exact, rounded = (evaluate(program, arrays, scalars, domain) for domain in (Float64(), Rounded()))
    unfused = [rel_error(rounded[b.name], exact[b.name]) for b in program.outputs]
    for b, t, e in zip(program.outputs, out, unfused, strict=True):
        wanted = torch.from_numpy(np.ascontiguousarray(exact[b.name])).reshape(t.shape)
        if why := differs(b, t.cpu(), wanted, e):
            return unfused, why
    return unfused, ""


def grown(unfused: Unfused, sizes: Sizes, at: Sizes) -> Unfused:
    """The errors at longer sizes: roundings add up like steps of a random walk (Higham and Mary, 2019), with the square
    root of their number."""
    by = sqrt(max((sizes[n] / at[n] for n in at), default=1.0))
    return [Errors(e.total * max(1.0, by), e.row * max(1.0, by)) for e in unfused]


def differs(b: Buffer, out: torch.Tensor, wanted: torch.Tensor, unfused: Errors) -> str:
    """What is wrong with an output, "" where it agrees with what is wanted: integers exactly, floats as nearly as two
    results may be that are each within what is allowed (docs/design/numerics.md, "Numerics"), all in all and in every
    row."""
    if not is_float(b.dtype):
        count = int((out.to(wanted.dtype) != wanted).sum())
        return f"{count} of {out.numel()} elements of `{b.name}` differ" if count else ""
    differences = errors(out, wanted)
    for what, error, own in (("", differences.total, unfused.total), ("a row of ", differences.row, unfused.row)):
        most = BOTH * allowance(b.dtype, own)
        if not error <= most:
            return f"{what}`{b.name}` is off by {error:.2g}, and {most:.2g} is allowed"
    return ""


def errors(out: torch.Tensor, wanted: torch.Tensor) -> Errors:
    """As `neptune.verify.numerics.rel_error`, on the tensors' own device; NaN on one side only is an infinite error."""
    out, wanted = out.double(), wanted.double()
    same = (out == wanted) | (out.isnan() & wanted.isnan())
    off = torch.where(same, 0.0, out - wanted)
    off = torch.where(off.isfinite(), off, inf)
    base = torch.where(wanted.isfinite(), wanted, 0.0)
    total = float(_over(off.norm(), base.norm())) if off.numel() else 0.0
    if not off.ndim or not off.numel():
        return Errors(total, total)
    return Errors(total, float(_over(off.norm(dim=-1), base.norm(dim=-1)).max()))


def _over(error: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return error / torch.where(reference == 0, 1.0, reference)


def _array(t: Any) -> Any:
    """A tensor as NumPy has it; floats as float64, which holds all of them."""
    return (t.double() if t.is_floating_point() else t).cpu().numpy()
