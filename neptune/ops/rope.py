"""Rotary position embedding, alone; in front of attention it is `attention(…, rope="half")`."""

from __future__ import annotations

from typing import Any

from neptune.base.boundary import public
from neptune.frontend.builder import build, compute, placeholder, var
from neptune.ir.program import Program
from neptune.ops.operands import check_rotation, rotated
from neptune.ops.options import check_choice, check_counts, check_dtype, check_flags
from neptune.ops.parts import wide


@public
def rope(
    dtype: str = "float16",
    *,
    convention: str = "half",
    depth: int = 128,
    layout: str = "bhsd",
    positions: bool = False,
) -> Program:
    """y = x with pairs of each row turned: (a, b) → (a cos - b sin, b cos + a sin).

    x and y: [batch, heads, rows, depth] of `dtype` (`layout="bshd"` swaps heads and rows), cos and sin:
    f32[rows, depth/2], those of the row's position; sizes symbolic but for `depth`, which is even. With `positions`,
    the tables are [length, depth/2] and an input positions: i64[batch, rows] says which of their rows is meant.
    `convention` "half" pairs d with d + depth/2 (NeoX, Llama), "interleaved" 2d with 2d + 1 (GPT-J). Computed in
    float32 and rounded once. Stage: y. ExpressionError for options that there are not, and an odd depth.
    """
    check_dtype("rope", dtype)
    check_counts("rope", {"depth": depth})
    check_flags("rope", {"positions": positions})
    check_choice("rope", "layout", layout, ("bhsd", "bshd"))
    check_rotation("rope", convention, depth)
    batch, heads, rows = var("batch"), var("heads"), var("rows")
    rows_first = layout == "bshd"
    x = placeholder((batch, rows, heads, depth) if rows_first else (batch, heads, rows, depth), dtype, "x")
    length: Any = var("length") if positions else rows
    cos, sin = (placeholder((length, depth // 2), "float32", n) for n in ("cos", "sin"))
    where = placeholder((batch, rows), "int64", "positions")
    turned = rotated(
        lambda b, h, i, d: wide(x[b, i, h, d] if rows_first else x[b, h, i, d]),
        depth,
        convention,
        cos,
        sin,
        lambda b, i: where[b, i] if positions else i,
    )
    if rows_first:
        y = compute(x.shape, lambda b, i, h, d: turned(b, h, i, d).astype(dtype), "y")
    else:
        y = compute(x.shape, lambda b, h, i, d: turned(b, h, i, d).astype(dtype), "y")
    return build(y, inputs=[x, cos, sin, *([where] if positions else [])], name="rope")
