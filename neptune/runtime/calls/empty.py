"""Calls with zero-length axes: an empty result is empty, and a reduction over nothing is its init.

Kernels are made for sizes of at least one, which their proofs and their masks use. A call with a size of
zero therefore runs the expression itself, in float64 on the host, whatever the target: what little there
is to compute does not depend on the axis that is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from neptune.errors import ShapeError
from neptune.ir.dtypes import is_float
from neptune.ir.program import Program

if TYPE_CHECKING:
    import numpy as np


def is_empty(
    program: Program,
    tensors: Sequence[torch.Tensor],
    scalars: Mapping[str, int | float],
) -> bool:
    """Return True if a tensor has no elements, or a size is below the least that kernels are made for."""
    return any(t.numel() == 0 for t in tensors) or any(s.lo == 1 and scalars[s.name] < 1 for s in program.scalars)


def run_empty(
    program: Program,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    scalars: Mapping[str, int | float],
) -> None:
    """Write the outputs of a program as it was imported.

    Raises ShapeError where it reads an element of an empty tensor.
    """
    if all(t.numel() == 0 for t in outputs):
        return
    # A saved kernel runs where torch and Triton are all there is; only this needs more.
    import numpy as np

    from neptune.ir.evaluate.domains import EvaluationError
    from neptune.ir.evaluate.program import evaluate

    arrays = {b.name: _array(t) for b, t in zip(program.inputs, inputs, strict=True)}
    try:
        results = evaluate(program, arrays, scalars)
    except EvaluationError as error:
        raise ShapeError(
            f"call of kernel `{program.name}`",
            f"with these sizes it reads what is not there: {error}",
            legal=("sizes of at least 1",),
        ) from None
    for b, t in zip(program.outputs, outputs, strict=True):
        t.copy_(torch.from_numpy(np.ascontiguousarray(results[b.name])).reshape(t.shape))


def _array(t: torch.Tensor) -> np.ndarray:
    """A tensor as the evaluator takes it: floats as float64, integers as int64."""
    name = str(t.dtype).removeprefix("torch.")
    t = t.detach().cpu()
    return (t.double() if is_float(name) else t if name == "bool" else t.long()).numpy()
