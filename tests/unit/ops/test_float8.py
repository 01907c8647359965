"""Products of 8-bit floats with scales, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.ops.float8 import float8_linear
from tests.unit.ops.checks import hard, kernel_agrees, same

X, W, B = hard("random", 5, 260), hard("random", 130, 260, seed=1), hard("random", 130, seed=2)
SHAPES = {"tensor": ((1,), (1,)), "row": ((5,), (130,)), "block": ((5, 3), (2, 3))}


def scaled(x, scale, rows):
    """x with its scales; `rows` share one where there is one for each block."""
    if scale.ndim == 1:
        return x * (scale if len(scale) == 1 else scale[:, None])
    each = np.repeat(np.repeat(scale, rows, 0)[: len(x)], 128, 1)
    return x * each[:, : x.shape[1]]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_scales(kind, bias):
    of_x, of_w = (np.random.default_rng(n).uniform(0.1, 2, s) for n, s in enumerate(SHAPES[kind]))
    exact = scaled(X, of_x, 1) @ scaled(W, of_w, 128).T + B * bias
    same(float8_linear(scales=kind, bias=bias, out="float32"), [exact], X, W, of_x, of_w, *[B] * bias)


def test_a_kernel_of_8_bits():
    program = float8_linear("float8_e5m2", weights="float8_e4m3fn", out="float16")
    kernel = neptune.compile(program, "matmul", target="llvm")

    def exact(x, w, of_x, of_w):
        return [(x * of_x[:, None]) @ (w * of_w[:, None]).T]

    w = torch.from_numpy(W[:17, :33].copy()).to(torch.float8_e4m3fn).double().numpy()
    for kind in ("random", "needle", "zeros"):
        x = torch.from_numpy(hard(kind, 5, 33)).to(torch.float8_e5m2).double().numpy()
        kernel_agrees(kernel, program, exact, x, w, np.linspace(0.1, 2, 5), np.linspace(0.01, 1, 17))


def test_wider_operands_are_refused():
    with pytest.raises(ExpressionError, match="'float16' is no dtype of its operands"):
        float8_linear("float16")
