"""Rotary position embedding of torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from neptune.functional.kernels import run, structure
from neptune.functional.operators import operator
from neptune.functional.tensors import check_size, dense, dtype_of, refuse, shape_of
from neptune.ops import rope as ropes


@operator
def rope(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    convention: str = "half",
    layout: str = "bhsd",
) -> torch.Tensor:
    """Pairs (a, b) of each row turned: (a cos - b sin, b cos + a sin), computed in float32 and rounded once.

    input and the result: [batch, heads, rows, depth] (`layout="bshd"`: [batch, rows, heads, depth]); cos and sin:
    [rows, depth/2], those of each row's position, or with `positions`, int64 [batch, rows], tables whose rows it names.
    `convention` "half" pairs d with d + depth/2 (NeoX, Llama), "interleaved" 2d with 2d + 1 (GPT-J).
    """
    name = "rope"
    dtype = dtype_of(name, input=input)
    dtype_of(name, cos=cos, sin=sin)
    if input.dim() != 4:
        refuse(name, f"`input` is {shape_of(input)}", legal=["[batch, heads, rows, depth]"])
    depth, rows = int(input.shape[-1]), input.shape[1 if layout == "bshd" else 2]
    check_size(name, "cos", cos, (cos.shape[0] if positions is not None and cos.dim() else rows, depth // 2), "half")
    check_size(name, "sin", sin, tuple(cos.shape), "as cos")
    more = [dense(t.float()) for t in (cos, sin)]
    if positions is not None:
        if positions.dtype != torch.int64:
            refuse(name, f"`positions` is {positions.dtype}", legal=["torch.int64"])
        check_size(name, "positions", positions, (input.shape[0], rows), "[batch, rows]")
        more.append(dense(positions))
    options: dict[str, Any] = {
        "convention": convention,
        "depth": depth,
        "layout": layout,
        "positions": positions is not None,
    }
    kind = structure(name, dtype=dtype, **options)
    y: torch.Tensor = run(kind, lambda: ropes.rope(dtype, **options), dense(input), *more)
    return y
