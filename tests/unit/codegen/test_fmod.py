"""The truncated remainder of floats."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.frontend.builder import compute, fmod, placeholder, var


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_fmod_is_exact_also_where_the_rounded_quotient_is_one_too_large(dtype):
    n = var("n")
    x, y = (placeholder((n,), dtype, v) for v in "xy")
    kernel = neptune.compile(compute((n,), lambda i: fmod(x[i], y[i]), "z"), target="llvm")
    a = torch.cat([torch.randn(500) * 10.0**k for k in (-2, 0, 3)]).to(getattr(torch, dtype))
    b = torch.randn(a.shape).abs().add(0.01).to(a.dtype)
    # 0.3 / 0.1 rounds to 3, and 0.1 · 3 is more than 0.3.
    a[:3], b[:3] = torch.tensor([0.3, -0.3, 7.5]), torch.tensor([0.1, 0.1, -2.0])
    for target in ("llvm", "interpret"):
        assert torch.equal(kernel.for_target(target)(a, b), torch.fmod(a.double(), b.double()).to(a.dtype)), target


def test_fmod_compiles_for_gpus():
    n = var("n")
    x = placeholder((n,), "float32", "x")
    kernel = neptune.compile(compute((n,), lambda i: fmod(x[i], 0.75), "z"), target="llvm")
    for target in ("cuda:80", "cuda:90", "hip:gfx942"):
        (used,) = kernel.resources(target)
        assert used.registers and not used.spill_bytes
