"""What an operator says, and what its kernel computes, from inputs alone: sizes follow from their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import neptune
from bench.chain_errors import poisoned_like
from bench.operators import KINDS, hard
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.verify.evaluate import evaluate
from neptune.verify.numerics import allowance, rel_error

HARD = KINDS
__all__ = ["HARD", "as_torch", "hard", "kernel_agrees", "meaning", "same", "sizes_of"]


def sizes_of(program: Program, inputs: Sequence[np.ndarray]) -> dict[str, int]:
    found: dict[str, int] = {}
    for b, x in zip(program.inputs, inputs, strict=True):
        assert len(b.shape) == x.ndim, b.name
        found |= {d.name: n for d, n in zip(b.shape, x.shape, strict=True) if isinstance(d, Var)}
    return found


def meaning(program: Program, *inputs: np.ndarray, rounded: bool = False) -> list[np.ndarray]:
    """What the expression evaluates to in float64, or with every step rounded to its dtype."""
    given = dict(zip((b.name for b in program.inputs), inputs, strict=True))
    with np.errstate(all="ignore"):
        found = evaluate(program, given, sizes_of(program, inputs), *([Rounded()] if rounded else []))
    return [np.asarray(found[b.name]) for b in program.outputs]


def same(program: Program, exact: Sequence[torch.Tensor | np.ndarray], *inputs: np.ndarray) -> None:
    """The expression of `program` means `exact`, in float64."""
    for ours, theirs in zip(meaning(program, *inputs), exact, strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-9, atol=1e-12)


def as_torch(program: Program, inputs: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [
        torch.from_numpy(np.array(x)).to(getattr(torch, b.dtype)) for b, x in zip(program.inputs, inputs, strict=True)
    ]


def kernel_agrees(kernel: neptune.Kernel, program: Program, exact, *inputs: np.ndarray) -> None:
    """The kernel's results are as near to `exact` (of inputs as rounded, in float64) as the expression's are.

    Limits are those of docs/design/numerics.md; outputs are poisoned before.
    """
    given = as_torch(program, inputs)
    wide = [t.double() if t.is_floating_point() else t for t in given]
    want = [t if torch.is_tensor(t) else torch.from_numpy(np.asarray(t)) for t in exact(*wide)]
    outs = poisoned_like(program, want)
    kernel(*given, out=outs[0] if len(outs) == 1 else tuple(outs))
    plain = meaning(program, *(t.numpy() for t in wide), rounded=True)
    for b, out, base, ref in zip(program.outputs, outs, plain, want, strict=True):
        dtype = b.dtype if "float" in b.dtype else "float32"
        pairs = zip(rel_error(out.double(), ref), rel_error(base, ref), strict=True)
        assert all(mine <= allowance(dtype, other) for mine, other in pairs), (b.name, [*pairs])
