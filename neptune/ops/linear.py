"""Matrix products with what usually follows them."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    erf,
    placeholder,
    reduce_axis,
    select,
    sigmoid,
    sum,
    tanh,
    var,
)
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_counts, check_dtype, check_factors, check_flags
from neptune.ops.parts import wide

# relu keeps NaN, as torch's; a maximum passes over it.
ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: x * 0.5 * (1.0 + tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))),
    "relu": lambda x: select(x <= 0.0, 0.0, x),
    "silu": lambda x: x * sigmoid(x),
    "tanh": tanh,
}


def check_names(operator: str, activation: str | None, dtype: str) -> None:
    """Raise ExpressionError for an activation, or a dtype of a product, that there is not."""
    if activation is not None and activation not in tuple(ACTIVATIONS):
        raise ExpressionError(operator, f"unknown activation {activation!r}", legal=tuple(ACTIVATIONS))
    check_dtype(operator, dtype, "a product")


def _finished(
    c: Tensor, index: tuple[Expr, ...], bias: Tensor | None, activation: str | None, more: Tensor | None
) -> Expr:
    """What follows a product c at one point: the bias of its column, the activation, the residual."""
    value: Expr = c[index]
    if bias is not None:
        value = value + wide(bias[index[-1]])
    if activation is not None:
        value = ACTIVATIONS[activation](value)
    return value if more is None else value + wide(more[index])


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

    def dot(*index: Expr) -> Expr:
        z, i, j = index[:-2], index[-2], index[-1]
        left = a[(*z, p, i)] if trans_a else a[(*z, i, p)]
        right = b[(*z, j, p)] if trans_b else b[(*z, p, j)]
        return wide(left) * wide(right)

    shape = (*lead, m, n)
    c = compute(
        shape, (lambda z, i, j: sum(dot(z, i, j), axis=p)) if batch else (lambda i, j: sum(dot(i, j), axis=p)), "c"
    )
    w = placeholder((n,), dtype, "bias") if bias else None
    r = placeholder(shape, dtype, "residual") if residual else None

    def finish(*index: Expr) -> Expr:
        return _finished(c, index, w, activation, r).astype(dtype)

    y = compute(shape, (lambda z, i, j: finish(z, i, j)) if batch else (lambda i, j: finish(i, j)), "y")
    used: list[Tensor] = [a, b, *(t for t in (w, r) if t is not None)]
    return build(y, inputs=used, name="matmul")


@public
def linear(
    dtype: str = "float16", *, bias: bool = False, activation: str | None = None, residual: bool = False
) -> Program:
    """y = activation(x wᵀ + bias) + residual with nn.Linear's weights: `matmul` with `trans_b`, of x for a and w for b.

    x: [m, k], w: [n, k], bias: [n], residual and y: [m, n], of `dtype`, all sizes symbolic. The rest as in `matmul`.
    """
    check_flags("linear", {"bias": bias, "residual": residual})
    check_names("linear", activation, dtype)
    m, n, k = var("m"), var("n"), var("k")
    x, w = placeholder((m, k), dtype, "x"), placeholder((n, k), dtype, "w")
    p = reduce_axis((0, k), "p")
    c = compute((m, n), lambda i, j: sum(wide(x[i, p]) * wide(w[j, p]), axis=p), "c")
    b = placeholder((n,), dtype, "bias") if bias else None
    r = placeholder((m, n), dtype, "residual") if residual else None
    y = compute((m, n), lambda i, j: _finished(c, (i, j), b, activation, r).astype(dtype), "y")
    return build(y, inputs=[x, w, *(t for t in (b, r) if t is not None)], name="linear")


@public
def lora_linear(dtype: str = "float16", *, rank: int = 16, scale: float = 1.0, bias: bool = False) -> Program:
    """y = x wᵀ + scale · (x aᵀ) bᵀ + bias: a linear layer with a low-rank correction.

    x: [m, k], w: [n, k], a: [rank, k], b: [n, rank], bias: [n], y: [m, n], of `dtype`; sizes symbolic but for `rank`.
    Products are summed in float32; x aᵀ is rounded to `dtype`, as where a layer of its own makes it. Stages: h (x aᵀ),
    c (x wᵀ), low (h bᵀ), y. Raises ExpressionError for another dtype, a rank below 1 and a scale that is not finite.
    """
    check_flags("lora_linear", {"bias": bias})
    check_names("lora_linear", None, dtype)
    check_counts("lora_linear", {"rank": rank})
    check_factors("lora_linear", {"scale": scale})
    m, n, k = var("m"), var("n"), var("k")
    x, w = placeholder((m, k), dtype, "x"), placeholder((n, k), dtype, "w")
    a, b = placeholder((rank, k), dtype, "a"), placeholder((n, rank), dtype, "b")
    p, q, r = reduce_axis((0, k), "p"), reduce_axis((0, k), "q"), reduce_axis((0, rank), "r")
    first = compute((m, rank), lambda i, e: sum(wide(x[i, q]) * wide(a[e, q]), axis=q), "h")
    h = compute((m, rank), lambda i, e: first[i, e].astype(dtype), "h_cast")
    c = compute((m, n), lambda i, j: sum(wide(x[i, p]) * wide(w[j, p]), axis=p), "c")
    low = compute((m, n), lambda i, j: sum(wide(h[i, r]) * wide(b[j, r]), axis=r), "low")
    v = placeholder((n,), dtype, "bias") if bias else None

    def finish(i: Expr, j: Expr) -> Expr:
        value = c[i, j] + low[i, j] * (1.0 if scale is None else scale)
        return (value if v is None else value + wide(v[j])).astype(dtype)

    y = compute((m, n), finish, "y")
    return build(y, inputs=[x, w, a, b, *([] if v is None else [v])], name="lora_linear")


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
            return wide(x[i, p]) * wide(w[j, p] if trans_b else w[p, j])

        return compute((m, n), lambda i, j: sum(term(i, j), axis=p), f"c_{w.name}")

    gate, value = (product(w) for w in weights)
    y = compute((m, n), lambda i, j: (ACTIVATIONS[activation](gate[i, j]) * value[i, j]).astype(dtype), "y")
    return build(y, inputs=[x, *weights], name="gated_linear")
