"""`neptune.functional` without kernels: each call evaluates the Program that it would compile, in float64.

What is looked at is the way from a call to its Program: mods, masks, captured tensors, layouts. Kernels of a Program
are another fuzzer's.

    with evaluated():
        o = neptune.functional.flex_attention(q, k, v, score_mod=mod)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from neptune.functional import kernels
from neptune.ir.evaluate.program import evaluate
from neptune.ir.program import Program
from neptune.runtime.calls.arguments import Signature


@contextmanager
def evaluated() -> Iterator[None]:
    """Calls within evaluate their Programs."""
    before = kernels.kernel_of

    def kernel_of(kind: kernels.Structure, make: Callable[[], Program], args: Sequence[Any]) -> Any:
        return lambda *args, out=None: _run(kernels.program_of(kind, make), args, out)

    kernels.kernel_of = kernel_of
    try:
        yield
    finally:
        kernels.kernel_of = before


def _run(program: Program, args: tuple[Any, ...], out: Any) -> Any:
    """The results of a Program on tensors, rounded to their dtypes at the end alone."""
    call = Signature(program, "cpu").bind(args, out)
    given = {b.name: _array(t) for b, t in zip(program.inputs, call.inputs, strict=True)}
    found = evaluate(program, given, call.scalars)
    for b, t in zip(program.outputs, call.outputs, strict=True):
        t.copy_(torch.from_numpy(np.asarray(found[b.name], dtype=np.float64 if t.is_floating_point() else np.int64)))
    return call.outputs[0] if len(call.outputs) == 1 else call.outputs


def _array(t: torch.Tensor) -> np.ndarray[Any, Any]:
    return (t.double() if t.is_floating_point() else t if t.dtype == torch.bool else t.long()).numpy()
