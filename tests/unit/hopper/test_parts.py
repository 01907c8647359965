"""Kernels whose launches choose in how many parts an axis is folded: the form computes the same for any number."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from neptune.hopper.derive import Derived, form_of
from neptune.hopper.emulate import load
from neptune.hopper.ir import Levers
from neptune.tile.ir import TileProgram
from tests.examples.walks import tiles_of

HALF = 1e-3
PARTS = "NUM_SPLITS"
PRODUCT = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
SCORES = {"BLOCK_M": 64, "BLOCK_N": 64}
COUNTS = (1, 2, 3, 7)
"""Of five tiles: of one part, of even ones, of two and one, and two that are empty."""


@cache
def form(name: str, template: str, persistent: str, consumers: int = 2, **options: object) -> Derived:
    tiles = program(name, template, **options)
    split = next(k for k in tiles.kernels if any(g.var == "part" for g in k.grid))
    values = PRODUCT if template == "matmul_split" else SCORES
    return form_of(tiles, {split.name: Levers(consumers, 2, persistent, tiles=values)})


def program(name: str, template: str, **options: object) -> TileProgram:
    return tiles_of(name, template, **options)[1]


def ran(made: Derived, name: str, inputs: list[torch.Tensor], out: torch.Tensor, parts: int, **how: object) -> None:
    """Every temporary begins as NaN."""
    load(made.text.text, **how)[name](*inputs, out, parts)  # type: ignore[arg-type]
    assert not out.isnan().any()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def off(out: torch.Tensor, exact: torch.Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("parts", COUNTS)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 160), (256, 256, 152), (130, 72, 8)])
@pytest.mark.parametrize("persistent", ["once", "stride", "table"])
def test_a_product_in_parts(persistent: str, m: int, n: int, k: int, parts: int) -> None:
    made = form("matmul", "matmul_split", persistent)
    assert [p.kernel.name for p in made.parts] == ["matmul_c_split_kernel"] and "matmul_y_kernel" in made.text.text
    torch.manual_seed(parts)
    a, b = half(m, k), half(k, n)
    out = torch.full((m, n), torch.nan).half()
    ran(made, "matmul", [a, b], out, parts, seed=k, order="random")
    assert off(out, a.double() @ b.double()) < HALF


@pytest.mark.parametrize("parts", COUNTS)
@pytest.mark.parametrize(("s_q", "s_kv"), [(200, 300), (70, 257), (129, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_parts(causal: bool, s_q: int, s_kv: int, parts: int) -> None:
    """Where a row sees a part of the keys, parts lie wholly behind it."""
    name = "prefill_causal" if causal else "prefill_global"
    made = form(name, "flash_decoding", "table", depth=32, heads=2)
    torch.manual_seed(parts)
    q, k, v = (half(1, 2, n, 32) for n in (s_q, s_kv, s_kv))
    out = torch.full(q.shape, torch.nan).half()
    ran(made, name, [q, k, v], out, parts, seed=s_kv, order="late")
    scores = q.double() @ k.double().mT * 32**-0.5
    if causal:
        sees = torch.arange(s_kv) <= torch.arange(s_q)[:, None] + s_kv - s_q
        scores = scores.masked_fill(~sees, -torch.inf)
    exact = torch.nan_to_num(scores.softmax(-1)) @ v.double()
    assert off(out, exact) < HALF
