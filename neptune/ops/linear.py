"""Matrix products with what usually follows them."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    erf,
    maximum,
    placeholder,
    reduce_axis,
    sigmoid,
    sum,
    tanh,
    var,
)
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_flags

ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + erf(x * math.sqrt(0.5))),
    "relu": lambda x: maximum(x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "tanh": tanh,
}


@public
def matmul(
    dtype: str = "float16",
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    batch: bool = False,
    bias: bool = False,
    activation: str | None = None,
    residual: bool = False,
) -> Program:
    """y = activation(a b + bias) + residual, of `dtype`; products are summed in float32.

    a: [m, k] ([k, m] with `trans_a`), b: [k, n] ([n, k] with `trans_b`), bias: [n], residual and y: [m, n]; all
    sizes symbolic. With `batch`, a, b, residual and y have a leading dimension. `activation`: one of
    `ACTIVATIONS`. Stages: c (the product), y. Raises ExpressionError for another activation or dtype.
    """
    flags = {"trans_a": trans_a, "trans_b": trans_b, "batch": batch, "bias": bias, "residual": residual}
    check_flags("matmul", flags)
    if activation is not None and activation not in tuple(ACTIVATIONS):
        raise ExpressionError("matmul", f"unknown activation {activation!r}", legal=tuple(ACTIVATIONS))
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ExpressionError("matmul", f"{dtype!r} is no dtype of a product", legal=("float32", "float16", "bfloat16"))
    m, n, k = var("m"), var("n"), var("k")
    lead = (var("batch"),) if batch else ()
    a = placeholder((*lead, *((k, m) if trans_a else (m, k))), dtype, "a")
    b = placeholder((*lead, *((n, k) if trans_b else (k, n))), dtype, "b")
    p = reduce_axis((0, k), "p")

    def dot(*at: Expr) -> Expr:
        z, i, j = at[:-2], at[-2], at[-1]
        left = a[(*z, p, i)] if trans_a else a[(*z, i, p)]
        right = b[(*z, j, p)] if trans_b else b[(*z, p, j)]
        return left.astype("float32") * right.astype("float32")

    shape = (*lead, m, n)
    c = compute(
        shape, (lambda z, i, j: sum(dot(z, i, j), axis=p)) if batch else (lambda i, j: sum(dot(i, j), axis=p)), "c"
    )
    w = placeholder((n,), dtype, "bias") if bias else None
    r = placeholder(shape, dtype, "residual") if residual else None

    def finish(*at: Expr) -> Expr:
        value: Expr = c[at]
        if w is not None:
            value = value + w[at[-1]].astype("float32")
        if activation is not None:
            value = ACTIVATIONS[activation](value)
        if r is not None:
            value = value + r[at].astype("float32")
        return value.astype(dtype)

    y = compute(shape, (lambda z, i, j: finish(z, i, j)) if batch else (lambda i, j: finish(i, j)), "y")
    used: list[Tensor] = [a, b, *(t for t in (w, r) if t is not None)]
    return build(y, inputs=used, name="matmul")
