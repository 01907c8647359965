"""What no row of a tile may see is never used, and what the verdict on a form draws is legal (W5, C1, C3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.driver.acceptance import sizes as of_verdict
from neptune.errors import NeptuneError
from neptune.frontend.builder import compute, exp, max, placeholder, reduce_axis, select, sum, var
from neptune.functional import softmax_attention
from neptune.functional.kernels import structure
from neptune.functional.mods import traced
from neptune.functional.softmax_attention import Mods
from neptune.ir.affine import extreme, poly, scope_of
from neptune.ir.expr import Expr, loads, logical_and, logical_or
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program, for_loops, paths, values
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.templates.flash_decoding import flash_decoding
from neptune.templates.softmax_row import softmax_row
from neptune.templates.stagewise import stagewise
from neptune.tile.arrange import started
from neptune.tile.pipeline import lower
from neptune.verify.evaluate import evaluate
from tests.examples.lowering import scheduled

NAN = float("nan")
BATCH, S_Q, S_KV, DEPTH = 3, 5, 11, 16
LENS = np.array([0, 6, 11])
KEEP = np.array([[0] * 11, [1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0], [1] * 10 + [0]], bool)
TILES = {"BLOCK_M": 4, "BLOCK_N": 4, "C": 4, "BLOCK_S": 4, "BLOCK_K": 16}


def _integers(name: str, *shape: str, dtype: str = "int32") -> Any:
    return placeholder(tuple(var(s) for s in shape), dtype, name)


LIM, KEPT = _integers("lim", "batch"), _integers("keep", "batch", "s_kv", dtype="bool")
FROM = _integers("first", "batch")
# Masks, and which keys some query of a sequence may see.
J = np.arange(S_KV)[None]
CASES: dict[str, tuple[masks.Mask, Any]] = {
    "a length": (lambda b, h, i, j: j < LIM[b], J < LENS[:, None]),
    "a length, written otherwise": (lambda b, h, i, j: LIM[b] - j > 0, J < LENS[:, None]),
    "a mask of keys": (lambda b, h, i, j: KEPT[b, j], KEEP),
    "a length and a causal one": (lambda b, h, i, j: logical_and(j <= i + 6, j < LIM[b]), J < LENS[:, None]),
    "a mask of keys and a length": (lambda b, h, i, j: logical_and(KEPT[b, j], j < LIM[b]), KEEP & (J < LENS[:, None])),
    "an interval": (lambda b, h, i, j: logical_and(FROM[b] <= j, j < LIM[b]), (J >= 2) & (J < LENS[:, None])),
    "a prefix, and a causal one of kept keys": (
        lambda b, h, i, j: logical_or(logical_and(KEPT[b, j], j < 3), logical_and(KEPT[b, j], j <= i + 6)),
        KEEP,
    ),
    "a causal one by lengths": (lambda b, h, i, j: j <= i + LIM[b] - 5, J < LENS[:, None]),
    "a number": (lambda b, h, i, j: j < 6, J < np.array([[6]] * 3)),
}
TEMPLATES = {"flash_attention": flash_attention, "flash_decoding": flash_decoding, "stagewise": stagewise, "softmax_row": softmax_row}


def inputs(seen: Any, poison: float) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((BATCH, 2, S_Q, DEPTH))
    k, v = rng.standard_normal((2, BATCH, 2, S_KV, DEPTH))
    k, v = (np.where(np.broadcast_to(seen, (BATCH, S_KV))[:, None, :, None], x, poison) for x in (k, v))
    return {"q": q, "k": k, "v": v, "lim": LENS, "keep": KEEP, "first": np.full(BATCH, 2)}


def run(program: Any, given: dict[str, Any]) -> Any:
    named = {b.name: given[b.name] for b in program.inputs}
    sizes = {"batch": BATCH, "s_q": S_Q, "s_kv": S_KV}
    sizes |= {t.name: TILES.get(t.name, 4) for t in program.tunables}
    sizes |= {s.name: 2 for s in program.scalars if s.upto is not None}
    return evaluate(program, named, sizes)["o"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_w5_what_no_row_sees_reaches_nothing(template: str, case: str) -> None:
    mask, seen = CASES[case]
    program = attention(heads=2, depth=DEPTH, causal=False, dtype="float32", mask=mask)
    try:
        made = scheduled(program, TEMPLATES[template])
    except NeptuneError:
        pytest.skip("the template does not serve it")
    for form in (started(made), lower(made, relaxed=template == "stagewise")):
        clean, poisoned = (run(form, inputs(seen, x)) for x in (0.0, NAN))
        assert not np.isnan(clean[1:]).any()
        np.testing.assert_array_equal(np.nan_to_num(poisoned, nan=9e9), np.nan_to_num(clean, nan=9e9), strict=True)
