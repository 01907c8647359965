"""Which axes that a stage sums over are loops around its tile."""

from __future__ import annotations

import pytest
import torch

import neptune
from bench.chain_programs import ROW_CHAINS, distances64
from neptune.ir.program import For, walk
from neptune.ir.text.parser import parse_program
from neptune.tile.localize import LOOP
from neptune.tile.translate import with_depths

TILE = """program p
  in x: f32[n, 24]
  in y: f32[m, 24]
  in z: f32[n, m, 24]
  in w: i32[n]
  out far: f32[n, m]
  scalar n: i32 lo 1
  scalar m: i32 lo 1
  tunable BM in {16}
  tunable BN in {16}
body:
  for i0 in [0, n // BM) grid.y:
    for j0 in [0, m // BN) grid.x:
      for i in [0, BM):
        for j in [0, BN):
          start: far[i0 * BM + i, j0 * BN + j] = 0.0
          for d in [0, 24):
            far: far[i0 * BM + i, j0 * BN + j] += VALUE
"""
X, Y, Z = "x[i0 * BM + i, d]", "y[j0 * BN + j, d]", "z[i0 * BM + i, j0 * BN + j, d]"


def loops(value: str, text: str = TILE) -> set[str]:
    """The loops that shall not become tile axes."""
    program = with_depths(parse_program(text.replace("VALUE", value)))
    return {f.var for f in walk(program.body) if isinstance(f, For) and f.kind == LOOP}


@pytest.mark.parametrize(
    ("value", "around"),
    [
        (f"({X} - {Y}) * ({X} - {Y})", {"d"}),
        (f"abs({X} - {Y})", {"d"}),
        # The matrix unit's.
        (f"{X} * {Y}", set()),
        # A tile is read anyway, or holds one side alone.
        (f"({X} - {Y}) * {Z}", set()),
        (f"{X} * {X}", set()),
        # What is read of both rows and columns fills the tile, also where another index says which rows.
        (f"({X} - {Y}) * z[w[i0 * BM + i], j0 * BN + j, d]", set()),
    ],
)
def test_what_no_operand_fills_goes_element_by_element(value: str, around: set[str]) -> None:
    assert loops(value) == around


def test_of_the_axes_of_a_product_one_is_of_the_tile() -> None:
    text = TILE.replace("f32[n, 24]", "f32[n, 3, 24]").replace("f32[m, 24]", "f32[m, 3, 24]")
    text = text.replace("          for d in", "          for u in [0, 3):\n           for d in").replace(
        "            far:", "             far:"
    )
    assert loops("x[i0 * BM + i, u, d] * y[j0 * BN + j, u, d]", text) == {"u"}


def test_distances_within_a_chain_have_no_tile_of_three_axes() -> None:
    chain = next(c for c in ROW_CHAINS if c.name == "kernel_density")
    kernel = neptune.compile(
        chain.build(24), "flash_attention", target="interpret", params={"BLOCK_M": 16, "BLOCK_N": 16}
    )
    assert "for d in range(24)" in kernel.source and "[None, :, :]" not in kernel.source
    # Its own rows again and again, from the nearest cache: nothing that a user would mend.
    assert "repeated-passes" not in {w.code for w in kernel.warnings}
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 24, generator=g) for n in (19, 37))
    x[3, 5] = 1e4
    wanted = torch.logsumexp(torch.from_numpy(-0.5 * distances64(x.double().numpy(), y.double().numpy())), 1)
    got = kernel(x, y).double()
    torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-5)
    assert (got[3] / wanted[3] - 1).abs() < 1e-6
