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
DTYPES = ("float32", "float16", "bfloat16")


def check_names(operator: str, activation: str | None, dtype: str) -> None:
    """Raise ExpressionError for an activation, or a dtype of a product, that there is not."""
    if activation is not None and activation not in tuple(ACTIVATIONS):
        raise ExpressionError(operator, f"unknown activation {activation!r}", legal=tuple(ACTIVATIONS))
    if dtype not in DTYPES:
        raise ExpressionError(operator, f"{dtype!r} is no dtype of a product", legal=DTYPES, kind="dtypes")


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
    check_names("matmul", activation, dtype)
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


@public
def gated_linear(dtype: str = "float16", *, activation: str = "silu", trans_b: bool = False) -> Program:
    """y = activation(x w) · (x u), of `dtype`, as in a gated MLP; products are summed in float32.

    x: [m, k], w and u: [k, n] ([n, k] with `trans_b`), y: [m, n], all sizes symbolic. `activation`: one of
    `ACTIVATIONS` ("silu" makes SwiGLU, "gelu" GeGLU). Stages: c_w, c_u (the products), y. Raises ExpressionError for
    another activation or dtype.
    """
    check_flags("gated_linear", {"trans_b": trans_b})
    check_names("gated_linear", activation, dtype)
    m, n, k = var("m"), var("n"), var("k")
    x = placeholder((m, k), dtype, "x")
    weights = [placeholder((n, k) if trans_b else (k, n), dtype, name) for name in ("w", "u")]

    def product(w: Tensor) -> Tensor:
        p = reduce_axis((0, k), "p")

        def term(i: Expr, j: Expr) -> Expr:
            return x[i, p].astype("float32") * (w[j, p] if trans_b else w[p, j]).astype("float32")

        return compute((m, n), lambda i, j: sum(term(i, j), axis=p), f"c_{w.name}")

    gate, value = (product(w) for w in weights)
    y = compute((m, n), lambda i, j: (ACTIVATIONS[activation](gate[i, j]) * value[i, j]).astype(dtype), "y")
    return build(y, inputs=[x, *weights], name="gated_linear")
