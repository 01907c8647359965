"""What generated Gluon modules compute, under hostile schedules of their roles, beside float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neptune.hopper.emulate import load
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import Levers
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer
from neptune.verify.evaluate import evaluate
from tests.examples.hopper_examples import attention, product
from tests.examples.walks import tiles_of, walked

FLOAT16 = 1e-3
"""Weights and results are rounded to the dtype."""


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistent kernels have a program for each."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))


def off(out: torch.Tensor, want: torch.Tensor) -> float:
    return float((out.double() - want).norm() / want.norm())


@pytest.mark.parametrize(
    ("levers", "heads", "length", "order"),
    [
        (Levers(2, 2, "once", tiles={"BLOCK_M": 64, "BLOCK_N": 64}), 2, 200, "late"),
        (Levers(2, 2, "reverse", tiles={"BLOCK_M": 64, "BLOCK_N": 64}), 3, 330, "random"),
        (Levers(2, 1, "stride", tiles={"BLOCK_M": 64, "BLOCK_N": 128}), 3, 257, "random"),
        (Levers(2, 3, "table", own_out=False, tiles={"BLOCK_M": 64, "BLOCK_N": 64}), 3, 130, "late"),
        (Levers(2, 3, "table", ahead=True, tiles={"BLOCK_M": 64, "BLOCK_N": 64}), 5, 130, "late"),
        (Levers(3, 2, "table", pin=True, tiles={"BLOCK_M": 64, "BLOCK_N": 128}), 2, 321, "late"),
        (Levers(3, 2, "stride", own_out=False, tiles={"BLOCK_M": 64, "BLOCK_N": 128}), 4, 1, "eager"),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_attention(levers: Levers, heads: int, length: int, order: str, scale: float) -> None:
    walked, program = attention(levers.consumers)
    text = generate(program, roles(walked, program, levers)).text
    # Of every second head, rows with a gap behind them: strides of other tensors, whole 16 bytes.
    q, k, v = (torch.randn(1, 2 * heads, length + 3, 64).half()[:, ::2, :length] for _ in range(3))
    q *= scale
    out = torch.full_like(q, math.nan)
    load(text, seed=length, order=order)["prefill_causal"](q, k, v, out)
    s = q.double() @ k.double().mT / 8
    s = s.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -math.inf)
    assert off(out, s.softmax(-1) @ v.double()) < FLOAT16


@pytest.mark.parametrize("consumers", [2, 3])
def test_product(consumers: int) -> None:
    walked, program = product(consumers)
    levers = Levers(consumers, 3, "table", tiles={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64})
    text = generate(program, roles(walked, program, levers)).text
    a, b = torch.randn(200, 136).half(), torch.randn(136, 264).half()
    out = torch.full((200, 264), math.nan).half()
    load(text)["matmul"](a, b, out)
    assert off(out, a.double() @ b.double()) < FLOAT16


def matrices(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(m, k).half(), torch.randn(k, n).half(), torch.randn(m, n).half()


@pytest.mark.parametrize("persistent", ["once", "stride"])
@pytest.mark.parametrize("own_out", [True, False])
@pytest.mark.parametrize(("m", "n", "k", "order"), [(323, 136, 40, "late"), (64, 264, 264, "random")])
def test_a_residual_comes_as_a_box(persistent: str, own_out: bool, m: int, n: int, k: int, order: str) -> None:
    """And the result leaves over it, or from memory of its own."""
    _, tiles = tiles_of("matmul", "matmul", residual=True)
    levers = Levers(2, 2, persistent, own_out, tiles=TILES, band=2)
    made = roles(walked(tiles, levers), tiles, levers)
    verify_async(made, tiles)
    assert [o.over for o in made.outs] == [None if own_out else "residual"]
    a, b, r = matrices(m, n, k)
    out = torch.full((m, n), math.nan).half()
    load(generate(tiles, made).text, seed=m, order=order)["matmul"](a, b, r, out)
    assert off(out, a.double() @ b.double() + r.double()) < FLOAT16


TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "BLOCK_S": 64, "GROUP_M": 2}
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
SEQUENCES = {"batch": 1, "s_q": 130, "s_kv": 257}
MATRICES = {"m": 200, "n": 264, "k": 136}
WIDE = (
    ("prefill_global", "flash_attention", {"heads": 2, "depth": 64}, SEQUENCES),
    ("prefill_alibi", "flash_attention", {"heads": 2, "depth": 64}, {"batch": 2, "s_q": 200, "s_kv": 70}),
    ("prefill_window", "flash_attention", {"heads": 2, "kv_heads": 1, "depth": 64, "window": 100}, SEQUENCES),
    ("prefill_gqa", "flash_attention", {"heads": 4, "kv_heads": 2, "depth": 64}, {"batch": 1, "s_q": 64, "s_kv": 320}),
    ("attention_sinks", "flash_attention", {"heads": 2, "depth": 64}, SEQUENCES),
    ("attention", "flash_attention", {"heads": 2, "depth": 64, "causal": True, "lse": True}, SEQUENCES),
    ("attention", "flash_attention", {"heads": 2, "depth": 64, "depth_v": 128, "dtype": "bfloat16"}, SEQUENCES),
    ("matmul", "matmul", {"bias": True, "activation": "gelu", "residual": True}, MATRICES),
    ("matmul", "matmul", {"trans_a": True, "batch": True}, {**MATRICES, "batch": 2}),
    ("gated_linear", "matmul", {"trans_b": True}, MATRICES),
    ("rms_norm_linear", "norm_linear", {}, MATRICES),
    ("l2_normalise_matmul", "norm_linear_rolling", {}, {"rows": 200, "cols": 328, "width": 136}),
)


@pytest.mark.parametrize(("operator", "template", "options", "sizes"), WIDE)
def test_operators(operator: str, template: str, options: dict[str, Any], sizes: dict[str, int]) -> None:
    program, tiles = tiles_of(operator, template, **options)
    levers = Levers(2, 3, "once" if "residual" in options else "table", tiles=TILES)
    text = generate(tiles, roles(walked(tiles, levers), tiles, levers)).text

    def shape(b: Buffer) -> list[int]:
        return [int(evaluate_size(d, sizes)) for d in b.shape]

    inputs = [torch.randn(shape(b)).to(TYPES[b.dtype]) for b in tiles.inputs]
    outputs = [torch.full(shape(b), math.nan, dtype=TYPES[b.dtype]) for b in tiles.outputs]
    load(text, seed=len(text))[tiles.name](*inputs, *outputs)
    known = {b.name: x.double().numpy() for b, x in zip(tiles.inputs, inputs, strict=True)}
    want = evaluate(program, known, sizes)
    bound = 8 * FLOAT16 if options.get("dtype") == "bfloat16" else FLOAT16
    for b, out in zip(tiles.outputs, outputs, strict=True):
        expected = torch.from_numpy(np.asarray(want[b.name], dtype=np.float64))
        # Rows without keys have a log-sum-exp of -inf.
        both = torch.isinf(expected) & (out == expected)
        assert off(out.double().masked_fill(both, 0), expected.masked_fill(both, 0)) < bound
