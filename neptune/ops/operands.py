"""What is done to queries, keys and values in front of attention: norms, rotation by position, scales of 8-bit floats.

A `Reader` is the value at (batch row, head, row, column) in float32, whatever layout and dtype it is stored in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune.errors import ExpressionError
from neptune.frontend.builder import Tensor, ceildiv, compute, eq, placeholder, reduce_axis, rsqrt, select, sum
from neptune.ir.expr import Expr
from neptune.ops.options import check_choice
from neptune.ops.parts import wide

Reader = Callable[[Expr, Expr, Expr, Expr], Expr]
Scale = Callable[[Expr, Expr, Expr], Expr]
"""(batch row, key head, row) → its scale."""
CONVENTIONS = ("half", "interleaved")
"""Which elements of a row of depth D turn together: d and d + D/2 (NeoX, Llama), or 2d and 2d + 1 (GPT-J)."""
SCALES = ("tensor", "head", "row", "block")
BLOCK = 128
"""Rows that share a scale."""


def reader(t: Tensor) -> Reader:
    """Reads a tensor of four dimensions in float32."""
    return lambda b, h, i, d: wide(t[b, h, i, d])


def rounded(x: Reader, dtype: str) -> Reader:
    """The same, rounded to `dtype`."""
    return lambda b, h, i, d: wide(x(b, h, i, d).astype(dtype))


def stored(x: Reader, shape: tuple[Any, ...], name: str, dtype: str) -> Reader:
    """The same, rounded to `dtype`, as a stage of its own."""
    return reader(compute(shape, lambda b, h, i, d: x(b, h, i, d).astype(dtype), name))


def scaled(x: Reader, scale: Scale) -> Reader:
    """Rows times their scales."""
    return lambda b, h, i, d: x(b, h, i, d) * scale(b, h, i)


def normed(x: Reader, shape: tuple[Any, ...], name: str, gain: Tensor, eps: float) -> Reader:
    """Rows over the root of their mean square, times a gain; a stage `<name>_ss`."""
    *rows, depth = shape
    d = reduce_axis((0, depth), "d")
    ss = compute(rows, lambda b, h, i: sum(x(b, h, i, d) * x(b, h, i, d), axis=d), f"{name}_ss")

    return lambda b, h, i, d: x(b, h, i, d) * rsqrt(ss[b, h, i] / float(depth) + eps) * wide(gain[d])


def rotated(
    x: Reader, depth: int, convention: str, cos: Tensor, sin: Tensor, row: Callable[[Expr, Expr], Expr]
) -> Reader:
    """Pairs of each row turned by the angles in row `row(b, i)` of the tables cos and sin: f32[…, D/2].

    (x, y) → (x cos - y sin, y cos + x sin). The tables say the direction and the frequencies.
    """

    def turned(b: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
        if convention == "half":
            angle, other, first = d % (depth // 2), (d + depth // 2) % depth, d < depth // 2
        else:
            angle, first = d // 2, eq(d % 2, 0)
            other = d + 1 - (d % 2) * 2
        partner = x(b, h, i, other) * sin[row(b, i), angle]
        return x(b, h, i, d) * cos[row(b, i), angle] + select(first, -partner, partner)

    return turned


def scales(kind: str, name: str, batch: Any, heads: Any, rows: Any) -> tuple[Tensor, Scale]:
    """The input `name` with scales of 8-bit floats, in float32, and how it is read.

    tensor: [1]; head: [heads]; row: [batch, heads, rows]; block: [batch, heads, ⌈rows / 128⌉].
    """
    if kind == "tensor":
        one = placeholder((1,), "float32", name)
        return one, lambda b, h, j: one[0]
    if kind == "head":
        each = placeholder((heads,), "float32", name)
        return each, lambda b, h, j: each[h]
    many = placeholder((batch, heads, rows if kind == "row" else ceildiv(rows, BLOCK)), "float32", name)
    return many, lambda b, h, j: many[b, h, j if kind == "row" else j // BLOCK]


def check_rotation(request: str, convention: object, depth: int) -> None:
    """Raise ExpressionError for a convention that there is not, and for a depth that has no pairs."""
    check_choice(request, "rope", convention, CONVENTIONS)
    if depth % 2:
        raise ExpressionError(request, f"a depth of {depth} has no pairs to rotate", hint="an even depth")
