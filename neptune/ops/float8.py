"""Products of 8-bit floats with scales."""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.frontend.builder import Tensor, build, ceildiv, compute, placeholder, reduce_axis, sum, var
from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.operands import BLOCK
from neptune.ops.options import check_choice, check_dtype, check_flags
from neptune.ops.parts import wide

SCALES = ("tensor", "row", "block")


@public
def float8_linear(
    dtype: str = "float8_e4m3fn",
    *,
    weights: str | None = None,
    scales: str = "row",
    bias: bool = False,
    out: str = "bfloat16",
) -> Program:
    """y = (x · x_scale) (w · w_scale)ᵀ + bias, of `out`; products of 8 bits are summed in float32.

    x: [m, k] of `dtype`, w: [n, k] of `weights` (by default the same), bias: [n] of `out`, y: [m, n]; all sizes
    symbolic. `scales`, in float32, of x and of w: "tensor" [1] and [1], "row" [m] and [n], applied behind the sum, or
    "block" [m, ⌈k/128⌉] and [⌈n/128⌉, ⌈k/128⌉] as DeepSeek has them. A scale that changes along the sum is applied in
    front of it: operands are scaled and rounded to `out`, exactly where scales are powers of two, and the product is
    one of `out`. Stages: c, y. ExpressionError for other dtypes and scales.
    """
    name = "float8_linear"
    check_dtype(name, dtype, "its operands", FLOAT8)
    check_dtype(name, weights or dtype, "its operands", FLOAT8)
    check_dtype(name, out, "its result")
    check_choice(name, "scales", scales, SCALES)
    check_flags(name, {"bias": bias})
    m, n, k = var("m"), var("n"), var("k")
    x, w = placeholder((m, k), dtype, "x"), placeholder((n, k), weights or dtype, "w")
    b = placeholder((n,), out, "bias")
    p = reduce_axis((0, k), "p")
    of_x, of_w = _scales(scales, m, n, k)

    def term(i: Expr, j: Expr) -> Expr:
        if scales != "block":
            return wide(x[i, p]) * wide(w[j, p])
        left = wide(x[i, p]) * of_x[i, p // BLOCK]
        return wide(left.astype(out)) * wide((wide(w[j, p]) * of_w[j // BLOCK, p // BLOCK]).astype(out))

    c = compute((m, n), lambda i, j: sum(term(i, j), axis=p), "c")

    def finished(i: Expr, j: Expr) -> Expr:
        value: Expr = c[i, j]
        if scales != "block":
            value = value * (of_x[0] * of_w[0] if scales == "tensor" else of_x[i] * of_w[j])
        return (value + wide(b[j]) if bias else value).astype(out)

    y = compute((m, n), finished, "y")
    return build(y, inputs=[x, w, of_x, of_w, *([b] if bias else [])], name=name)


def _scales(kind: str, m: Expr, n: Expr, k: Expr) -> tuple[Tensor, Tensor]:
    blocks = ceildiv(k, BLOCK)
    shapes: dict[str, tuple[tuple[Expr | int, ...], tuple[Expr | int, ...]]] = {
        "tensor": ((1,), (1,)),
        "row": ((m,), (n,)),
        "block": ((m, blocks), (ceildiv(n, BLOCK), blocks)),
    }
    of_x, of_w = shapes[kind]
    return placeholder(of_x, "float32", "x_scale"), placeholder(of_w, "float32", "w_scale")
