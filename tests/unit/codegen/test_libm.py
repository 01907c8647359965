"""Functions of C's library: for GPUs those of CUDA's and ROCm's, and one operator however deep they stand."""

from __future__ import annotations

from functools import partial, reduce

import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, placeholder, var
from neptune.functional.mods import traced
from neptune.ir.expr import Var, op, walk
from neptune.ir.ops import LIBM, OPS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_they_compile_for_gpus(dtype: str) -> None:
    n = var("n")
    x = placeholder((n,), dtype, "x")
    each = [partial(lambda name, i: op(name, *(x[i],) * OPS[name].arity), name) for name in LIBM]
    made = build([compute((n,), body, f"f_{name}") for name, body in zip(LIBM, each, strict=True)])
    kernel = neptune.compile(made, target="llvm")
    for target in ("cuda:80", "cuda:90", "hip:gfx942"):
        assert all(used.registers for used in kernel.resources(target))


@pytest.mark.parametrize("function", [torch.log1p, torch.erfc, torch.asinh, torch.atan, torch.sinh, torch.nn.Mish()])
def test_functions_of_functions_stay_short(function: object) -> None:
    """Written out by others, each repeated its argument several times: eight of them were too long."""
    nested = traced(lambda s, b, h, i, j: reduce(lambda x, _: function(x), range(8), s), "score_mod")  # type: ignore[operator]
    e = nested.expression(Var("s", "float32"), *map(Var, "bhij"))
    assert sum(1 for _ in walk(e)) <= 2000
