"""NaN stays where it belongs, and masks with a lower bound are cut into three pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import neptune
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.ops import masks
from neptune.ops.attention import attention, prefill_causal
from tests.tiers import sampled

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16}


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_one_row_of_nan_is_one_row_of_nan(target: str) -> None:
    kernel = neptune.compile(
        prefill_causal(depth=16, dtype="float32", lse=True), "flash_attention", target=target, params=BLOCKS
    )
    q, k, v = (torch.randn(1, 1, 40, 16) for _ in range(3))
    q[0, 0, 7] = math.nan
    o, lse = kernel(q, k, v)
    bad = torch.zeros(40, dtype=torch.bool)
    bad[7] = True
    assert torch.equal(o[0, 0].isnan().all(dim=1), bad) and torch.equal(o[0, 0].isnan().any(dim=1), bad)
    assert torch.equal(lse[0, 0].isnan(), bad)


def windowed(width: int) -> Program:
    """Causal attention that looks back over `width` keys."""
    return attention(depth=16, dtype="float32", window=width, name="windowed")


def window(width: int, target: str) -> Kernel:
    return neptune.compile(windowed(width), "flash_attention", target=target, params=BLOCKS)


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("width", sampled([5, 1, 16, 33], 4))
def test_windows(width: int, target: str) -> None:
    kernel = window(width, target)
    assert [x.axis for x in kernel.facts.kernels[0].loops] == ["j0", "j0", "j0"]
    for s_q, s_kv in ((40, 70), (70, 40), (1, 3), (64, 64)):
        q, k, v = (torch.randn(1, 1, n, 16) for n in (s_q, s_kv, s_kv))
        i, j = torch.arange(s_q)[:, None] + s_kv - s_q, torch.arange(s_kv)[None, :]
        s = q.double() @ k.double().mT * 0.25
        s = s.masked_fill(~((j <= i) & (i - j < width)), -math.inf)
        exact = torch.softmax(s, -1).nan_to_num() @ v.double()
        o = kernel(q, k, v)
        assert isinstance(o, torch.Tensor)
        assert float((o - exact).norm() / exact.norm()) < 1e-6


LOWEST, HIGHEST = -(2**31), 2**31 - 1
ENDS: dict[str, tuple[masks.Mask, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "no prefix": (masks.prefix(LOWEST), lambda i, j: j + i < 0),
    "all of it": (masks.prefix(HIGHEST), lambda i, j: j + i >= 0),
    "a window": (masks.window(HIGHEST - 1), lambda i, j: j <= i),
    "one chunk": (masks.chunked(HIGHEST), lambda i, j: j + i >= 0),
    "behind the lowest": (lambda b, h, i, j: j > LOWEST, lambda i, j: j + i >= 0),
    "behind the highest": (lambda b, h, i, j: i - j > HIGHEST, lambda i, j: j + i < 0),
    "no farther": (lambda b, h, i, j: j <= i - HIGHEST, lambda i, j: j + i < 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_numbers_at_the_ends_of_int32_stay_masks(name: str) -> None:
    """No bound of a loop is computed from one: that would leave int32."""
    mask, sees = ENDS[name]
    program = attention(heads=1, depth=16, dtype="float32", causal=False, mask=mask)
    kernel = neptune.compile(program, "flash_attention", target="interpret", params=BLOCKS)
    q, k, v = (torch.randn(1, 1, 40, 16) for _ in range(3))
    at = torch.arange(40)[:, None], torch.arange(40)[None, :]
    s = (q.double() @ k.double().mT * 0.25).masked_fill(~sees(*at), -math.inf)
    exact = torch.softmax(s, -1).nan_to_num() @ v.double()
    o = kernel(q, k, v)
    assert isinstance(o, torch.Tensor)
    assert float((o - exact).norm()) <= 1e-6 * max(1.0, float(exact.norm()))
