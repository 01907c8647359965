"""The operators under test, and inputs for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import torch

from bench.references import attention, figure1, softmax
from neptune import Program
from neptune.ir.integers import evaluate_size
from neptune.ops import softmax as rows
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.verify.numerics import Tensors, input_families
from tests.numerics.harness import Subject

OPERATORS = {"prefill_causal": prefill_causal, "prefill_global": prefill_global}
DTYPES = ("float16", "bfloat16", "float32")
ROW_TILES = {"softmax_online": {"BLOCK_M": 4, "BLOCK_N": 16}, "softmax_row": {"BLOCK_M": 2}}
Families = dict[str, list[torch.Tensor]]


@cache
def attention_subject(
    operator: str,
    template: str = "flash_attention",
    tiles: tuple[int, int] = (16, 16),
    *,
    depth: int = 16,
    dtype: str = "float16",
    layout: str = "bhsd",
    lse: bool = True,
    scale: float | None = None,
) -> Subject:
    program = OPERATORS[operator](depth=depth, dtype=dtype, layout=layout, lse=lse, scale=scale)
    reference = attention(operator == "prefill_causal", layout, lse, scale)
    return Subject(program, template, reference, {"BLOCK_M": tiles[0], "BLOCK_N": tiles[1]})


@cache
def softmax_subject(template: str, dtype: str = "float32") -> Subject:
    return Subject(rows.softmax(dtype), template, softmax(), ROW_TILES[template])


@cache
def figure1_subject(template: str) -> Subject:
    return Subject(rows.figure1(), template, figure1(), ROW_TILES[template])


def attention_sizes(s_q: int, s_kv: int, batch: int = 1, heads: int = 1) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "s_q": s_q, "s_kv": s_kv}


def shapes(program: Program, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a program's inputs."""
    return {b.name: tuple(evaluate_size(d, sizes) for d in b.shape) for b in program.inputs}


def rounded(program: Program, arrays: Tensors) -> list[torch.Tensor]:
    """Arrays by name as the inputs of a program."""
    return [torch.from_numpy(arrays[b.name]).to(getattr(torch, b.dtype)) for b in program.inputs]


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int = 0) -> list[torch.Tensor]:
    return next(iter(families(program, sizes, seed=seed).values()))


def families(
    program: Program,
    sizes: Mapping[str, int],
    *,
    tile: int = 16,
    axis: int = -2,
    additive: Collection[str] = (),
    seed: int = 0,
) -> Families:
    """The hostile inputs of docs/design/numerics.md, "Numerics"; `axis` is the one that tiles of `tile` elements
    cut."""
    options: dict[str, Any] = {"seed": seed, "tile": tile, "axis": axis, "additive": additive}
    found = input_families(shapes(program, sizes), **options)
    return {name: rounded(program, arrays) for name, arrays in found}
