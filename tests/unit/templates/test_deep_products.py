"""A product in front of a chain whose depth is long or not known is summed in blocks, on the matrix unit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.ops.attention import attention
from neptune.ops.cross_entropy import linear_cross_entropy
from neptune.tune.choose import lowered
from neptune.tune.facts import read_facts
from tests.unit.ops.checks import hard, kernel_agrees


@pytest.mark.parametrize("depth", [None, 4096])
@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding"])
def test_logits_are_never_stored(template, depth):
    tiles = lowered(template, linear_cross_entropy(depth=depth), strict=False).lowered.tiles
    assert not {"s", "e"} & set(read_facts(tiles).temporaries)
    assert "dot(x," in str(tiles) and "BLOCK_K" in {t.name for t in tiles.tunables}


@pytest.mark.parametrize("depth", [64, 256])
def test_a_short_depth_stays_one_tile(depth):
    tiles = lowered("flash_attention", attention(depth=depth, heads=1), strict=False).lowered.tiles
    assert "BLOCK_K" not in {t.name for t in tiles.tunables}


@pytest.mark.parametrize(("template", "more"), [("flash_attention", {}), ("flash_decoding", {"NUM_SPLITS": 3})])
def test_blocks_of_the_depth_add_up(template, more):
    """Rows, classes and depth are no multiples of their tiles; the last part of the classes is short."""
    program = linear_cross_entropy(label_smoothing=0.1)
    params = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, **more}
    kernel = neptune.compile(program, template, target="llvm", params=params)

    def exact(x, w, t):
        return [F.cross_entropy(x @ w.T, t, reduction="none", label_smoothing=0.1)]

    t = torch.randint(0, 53, (19,), generator=torch.Generator().manual_seed(0))
    t[3] = -100
    for kind in ("random", "needle", "zeros"):
        kernel_agrees(kernel, program, exact, hard(kind, 19, 41), hard("random", 53, 41), t.numpy())
