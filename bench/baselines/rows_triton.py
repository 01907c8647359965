"""Softmax of rows and a plain product, written by hand in plain Triton: what a careful person writes in an hour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

TILES = ((128, 128, 64, 4, 4), (128, 256, 64, 8, 3), (128, 128, 32, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4))
"""BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages."""
GROUP = 8
"""Tiles of rows that share columns while these are in the L2 cache."""


@triton.jit
def softmax_rows(x, y, cols, BLOCK: tl.constexpr):
    """One program has one row, whole."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * cols + at, mask=at < cols, other=float("-inf"))
    e = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * cols + at, e / tl.sum(e, 0), mask=at < cols)


@triton.jit
def product(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr
):
    """One program has one tile of c; tiles are numbered in groups of rows."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    number = tl.program_id(0)
    group = number // (GROUP_M * tiles_n)
    first = group * GROUP_M
    size = tl.minimum(tiles_m - first, GROUP_M)
    tile_m = first + number % (GROUP_M * tiles_n) % size
    tile_n = number % (GROUP_M * tiles_n) // size
    rows, cols = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    at_a = a + (rows % m)[:, None].to(tl.int64) * k + inner[None, :]
    at_b = b + inner[:, None].to(tl.int64) * n + (cols % n)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        left = tl.load(at_a, mask=inner[None, :] < k - start, other=0.0)
        right = tl.load(at_b, mask=inner[:, None] < k - start, other=0.0)
        total = tl.dot(left, right, total)
        at_a += BLOCK_K
        at_b += BLOCK_K * n
    out = c + rows[:, None].to(tl.int64) * n + cols[None, :]
    tl.store(out, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def softmax(x: torch.Tensor, warps: int) -> torch.Tensor:
    """Softmax of the rows of a dense matrix."""
    y = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=warps)
    return y


def matmul(a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int, int, int]) -> torch.Tensor:
    """The product of two dense matrices."""
    (m, k), n = a.shape, b.shape[1]
    block_m, block_n, block_k, warps, stages = tile
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": GROUP}
    product[grid](a, b, c, m, n, k, **sizes, num_warps=warps, num_stages=stages)
    return c


def _softmax(x: torch.Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    for warps in (4, 8, 16):
        yield f"one row w{warps}", partial(softmax, x, warps)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    for tile in TILES:
        yield "{}×{}×{} w{} s{}".format(*tile), partial(matmul, a, b, tile)


FORMS: Mapping[str, Callable[..., Iterator[tuple[str, Callable[[], Any]]]]] = {"softmax": _softmax, "matmul": _matmul}
"""What is written by hand, by the first word of a subject's name."""
