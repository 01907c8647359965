"""A product in front of a chain whose depth is long or not known is summed in blocks, on the matrix unit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.frontend.builder import build, compute, exp, if_then_else, max, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program
from neptune.ops.attention import attention
from neptune.ops.cross_entropy import linear_cross_entropy
from neptune.tile.registers import dots
from neptune.tune.choose import lowered
from neptune.tune.model.facts import read_facts
from tests.unit.ops.checks import hard, kernel_agrees

SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 64}


@pytest.mark.parametrize("depth", [None, 4096])
@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding"])
def test_logits_are_never_stored(template, depth):
    tiles = lowered(template, linear_cross_entropy(depth=depth), strict=False).tiles
    assert not {"s", "e"} & set(read_facts(tiles).temporaries)
    assert "dot(x," in str(tiles) and "BLOCK_K" in {t.name for t in tiles.tunables}


@pytest.mark.parametrize("depth", [64, 256])
def test_a_short_depth_stays_one_tile(depth):
    tiles = lowered("flash_attention", attention(depth=depth, heads=1), strict=False).tiles
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


# --- scores that are a sum of products -------------------------------------------------------------


def latent(depth, rope=24, own_values=False, long_first=True, common=False) -> Program:
    """Causal attention by q·k + r·p, where k, of `depth`, are the values too (multi-head latent attention)."""
    n, m = var("n"), var("m")
    q, k = placeholder((n, depth), "float16", "q"), placeholder((m, depth), "float16", "k")
    r = q if common else placeholder((n, rope), "float16", "r")
    p = placeholder((m, rope), "float16", "p")
    v = placeholder((m, 40), "float16", "v") if own_values else k
    d, e = reduce_axis((0, depth), "d"), reduce_axis((0, rope), "e")
    a, b, c = (reduce_axis((0, m), name) for name in "abc")

    def product(x, y, axis, name):
        return compute(
            (n, m), lambda i, j: sum(x[i, axis].astype("float32") * y[j, axis].astype("float32"), axis), name
        )

    pairs = [(q, k, d, "s"), (r, p, e, "t")]
    one, other = (product(*of) for of in (pairs if long_first else pairs[::-1]))
    score = compute((n, m), lambda i, j: if_then_else(j <= i, one[i, j] + other[i, j], float("-inf")), "score")
    top = compute((n,), lambda i: max(score[i, a], axis=a), "top")
    w = compute((n, m), lambda i, j: exp(score[i, j] - top[i]), "w")
    total = compute((n,), lambda i: sum(w[i, b], axis=b), "total")

    def kept(i, x):
        return sum(w[i, c].astype("float16").astype("float32") * v[c, x].astype("float32"), axis=c)

    o = compute((n, v.shape[1]), kept, "o")
    out = compute((n, v.shape[1]), lambda i, x: (o[i, x] / total[i]).astype("float16"), "out")
    return build(out, inputs=[q, k, *([] if common else [r]), p, *([v] if own_values else [])])


def attended(q, k, r, p, v=None):
    score = q @ k.T + r @ p.T
    score = score.masked_fill(~torch.ones_like(score, dtype=torch.bool).tril(), float("-inf"))
    return [torch.softmax(score, -1) @ (k if v is None else v)]


def numbers(kind, depth, n=19, m=37):
    """q, k, r, p and values: rows of scores in reach of float32, of a few keys or of one."""
    small = hard("random", n, depth, seed=2) / depth**0.5
    pair = hard("random", n, 24, seed=3) / 24**0.5
    return small, hard(kind, m, depth), pair, hard("random", m, 24, seed=4), hard("random", m, 40, seed=5)


@pytest.mark.parametrize("own_values", [False, True])
@pytest.mark.parametrize("long_first", [False, True])
@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding"])
def test_products_of_a_score_in_either_order(template, long_first, own_values):
    """Blocks of the depth, unless the keys are whole on chip as values: then they are read once."""
    program = latent(512, own_values=own_values, long_first=long_first)
    tiles = lowered(template, program, strict=False).tiles
    kernel = tiles.kernels[0]
    assert ("BLOCK_K" in {t.name for t in tiles.tunables}) == own_values
    # Three products in the pieces with and without a mask.
    assert len([*dots(kernel)]) == 6
    assert not {"s", "t", "score", "w"} & set(read_facts(tiles).temporaries)


def test_a_second_product_of_unknown_depth_is_summed_in_blocks():
    program = latent(64, rope=var("rope"), own_values=True)
    tiles = lowered("flash_attention", program, strict=False).tiles
    assert len([*dots(tiles.kernels[0])]) == 6


@pytest.mark.parametrize("depth", [512, var("depth")])
@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding"])
def test_products_with_a_common_operand_share_its_blocks(template, depth):
    program = latent(depth, rope=depth, own_values=True, common=True)
    tiles = lowered(template, program, strict=False).tiles
    assert len([*dots(tiles.kernels[0])]) == 6


@pytest.mark.parametrize(("template", "more"), [("flash_attention", {}), ("flash_decoding", {"NUM_SPLITS": 3})])
@pytest.mark.parametrize("own_values", [False, True])
def test_sums_of_products_are_right(template, more, own_values):
    """Rows, keys and depth are no multiples of their tiles."""
    program = latent(300, own_values=own_values, long_first=not own_values)
    params = {n: v for n, v in SMALL.items() if own_values or n != "BLOCK_K"}
    kernel = neptune.compile(program, template, target="llvm", params={**params, **more})
    for kind in ("random", "huge", "tails", "needle", "zeros"):
        given = numbers(kind, 300)
        kernel_agrees(kernel, program, attended, *(given if own_values else given[:4]))


def test_the_interpreter_agrees():
    program = latent(300, own_values=True, long_first=False)
    kernel = neptune.compile(program, "flash_attention", target="interpret", params=SMALL)
    kernel_agrees(kernel, program, attended, *numbers("tails", 300))
