"""Chains of reductions, each as one expression and what it should give in float64.

`ROW_CHAINS` is the table, to which `chain_attention` adds; no chain has anything of its own in the compiler.
Sizes are `rows` (kept) and `cols` (reduced over); depths are constants. What goes through the matrix unit is float16
and summed in float32, everything else float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune.frontend.builder import (
    Reduction,
    Tensor,
    abs,
    build,
    compute,
    eq,
    exp,
    log,
    max,
    maximum,
    placeholder,
    reduce_axis,
    round,
    rsqrt,
    select,
    sqrt,
    sum,
    top_k,
    var,
)
from neptune.ir.evaluate.domains import Array
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.softmax import softmax

EPS = 1e-5
ROWS, COLS = var("rows"), var("cols")
Cell = Callable[[Expr, Expr], Expr]
Body = Callable[[Expr, Expr], Expr | Reduction]


@dataclass(frozen=True)
class Chain:
    """`build` gives the program; `reference` its results in float64 from its inputs in the order of a call.

    `build` takes the depth of its products. `group` says what the reductions have in common. `positive`: inputs that
    are weights or variances; inputs of int32 are positions along `cols`.
    `template` schedules it, None for what fuses most; resources are asked for with products of this `depth`.
    `settle` turns results that are positions into what stands there, given the inputs: equals may change places.
    """

    name: str
    group: str
    build: Callable[[int], Program]
    reference: Callable[..., tuple[Array, ...]]
    positive: tuple[str, ...] = ()
    settle: Callable[..., tuple[Array, ...]] | None = None
    template: str | None = None
    depth: int = 64

    def __str__(self) -> str:
        return self.name


def matrix(name: str, rows: Any = ROWS, cols: Any = COLS, dtype: str = "float32") -> Tensor:
    return placeholder((rows, cols), dtype, name)


def wide(x: Expr) -> Expr:
    return x.astype("float32")


def per_row(fold: Callable[..., Reduction], value: Cell, name: str) -> Tensor:
    """name[i] = fold over j of value(i, j)."""
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS,), lambda i: fold(value(i, j), axis=j), name)


def cells(value: Body, name: str) -> Tensor:
    return compute((ROWS, COLS), value, name)


def product(left: Cell, right: Cell, name: str, cols: int) -> Tensor:
    """name[i, c] = Σ over j of left(i, j) right(j, c)."""
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS, cols), lambda i, c: sum(left(i, j) * right(j, c), axis=j), name)


# --- softmax and its relatives ---------------------------------------------------------------------


def _softmax_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, e = exp(x - m), l = Σ e."""
    m = per_row(max, lambda i, j: x[i, j], "m")
    e = cells(lambda i, j: exp(x[i, j] - m[i]), "e")
    return m, e, per_row(sum, lambda i, j: e[i, j], "l")


def log_softmax() -> Program:
    x = matrix("x")
    m, _, l = _softmax_parts(x)  # noqa: E741
    return build(cells(lambda i, j: x[i, j] - m[i] - log(l[i]), "y"), name="log_softmax")


def logsumexp() -> Program:
    m, _, l = _softmax_parts(matrix("x"))  # noqa: E741
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "y"), name="logsumexp")


def _logits(depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, w and their product s[i, j] = Σ x[i, d] w[j, d]."""
    x, w = matrix("x", ROWS, depth, "float16"), matrix("w", COLS, depth, "float16")
    d = reduce_axis((0, depth), "d")
    return x, w, cells(lambda i, j: sum(wide(x[i, d]) * wide(w[j, d]), axis=d), "s")


def linear_logsumexp(depth: int) -> Program:
    """log Σ exp of the logits x wᵀ, which are never stored."""
    x, w, s = _logits(depth)
    m, _, l = _softmax_parts(s)  # noqa: E741
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "y"), inputs=[x, w], name="linear_logsumexp")


def linear_cross_entropy(depth: int) -> Program:
    """The loss of each row against its target class; the logits are never stored."""
    x, w, s = _logits(depth)
    t = placeholder((ROWS,), "int32", "t")
    m, _, l = _softmax_parts(s)  # noqa: E741
    chosen = per_row(sum, lambda i, j: select(eq(j, t[i]), s[i, j], 0), "chosen")
    loss = compute((ROWS,), lambda i: m[i] + log(l[i]) - chosen[i], "loss")
    return build(loss, inputs=[x, w, t], name="linear_cross_entropy")


def softmax_top_k() -> Program:
    """The two most likely experts of each row, with their probabilities."""
    x = matrix("x")
    _, e, l = _softmax_parts(x)  # noqa: E741
    p = cells(lambda i, j: e[i, j] / l[i], "p")
    j = reduce_axis((0, COLS), "j")
    return build(compute((ROWS,), lambda i: top_k(p[i, j], 2, axis=j), "best"), inputs=[x], name="softmax_top_k")


def softmax64(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def lse64(x: Array) -> Array:
    m = x.max(-1)
    return np.asarray(m + np.log(np.exp(x - m[..., None]).sum(-1)))


def _top_two64(x: Array) -> tuple[Array, ...]:
    best = -np.sort(-softmax64(x), -1)
    return (best[:, 0], best[:, 1]) * 2


def _chosen64(x: Array, first: Array, second: Array, *index: Array) -> tuple[Array, ...]:
    p = softmax64(x)
    return first, second, *(np.take_along_axis(p, i.astype(int)[:, None], 1)[:, 0] for i in index)


# --- norms, before and behind a product ------------------------------------------------------------


def rms_norm_linear(depth: int) -> Program:
    x, g, w = matrix("x"), placeholder((COLS,), "float32", "g"), matrix("w", COLS, depth)
    ss = per_row(sum, lambda i, j: x[i, j] * x[i, j], "ss")
    r = compute((ROWS,), lambda i: rsqrt(ss[i] / COLS.astype("float32") + EPS), "r")
    y = product(lambda i, j: x[i, j] * r[i] * g[j], lambda j, c: w[j, c], "y", depth)
    return build(y, inputs=[x, g, w], name="rms_norm_linear")


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the variance of each row, as one writes them."""
    n = COLS.astype("float32")
    total = per_row(sum, lambda i, j: x[i, j], "total")
    mean = compute((ROWS,), lambda i: total[i] / n, "mean")
    squares = per_row(sum, lambda i, j: (x[i, j] - mean[i]) * (x[i, j] - mean[i]), "squares")
    return mean, compute((ROWS,), lambda i: squares[i] / n, "variance")


def layer_norm() -> Program:
    x, g, b = matrix("x"), placeholder((COLS,), "float32", "g"), placeholder((COLS,), "float32", "b")
    mean, variance = _moments(x)
    y = cells(lambda i, j: (x[i, j] - mean[i]) * rsqrt(variance[i] + EPS) * g[j] + b[j], "y")
    return build(y, inputs=[x, g, b], name="layer_norm")


def variance() -> Program:
    return build(_moments(matrix("x"))[1], name="variance")


def standardise_linear(depth: int) -> Program:
    x, w = matrix("x"), matrix("w", COLS, depth)
    mean, var_ = _moments(x)
    z = cells(lambda i, j: (x[i, j] - mean[i]) * rsqrt(var_[i] + EPS), "z")
    return build(
        product(lambda i, j: z[i, j], lambda j, c: w[j, c], "y", depth), inputs=[x, w], name="standardise_linear"
    )


def l2_normalise_matmul(depth: int) -> Program:
    x, w = matrix("x"), matrix("w", COLS, depth)
    ss = per_row(sum, lambda i, j: x[i, j] * x[i, j], "ss")
    z = cells(lambda i, j: x[i, j] / sqrt(ss[i] + EPS), "z")
    return build(
        product(lambda i, j: z[i, j], lambda j, c: w[j, c], "y", depth), inputs=[x, w], name="l2_normalise_matmul"
    )


def _abs_max(x: Tensor) -> Tensor:
    top = per_row(max, lambda i, j: abs(wide(x[i, j])), "top")
    return compute((ROWS,), lambda i: maximum(top[i], 1e-6) / 127.0, "unit")


def abs_max_matmul(depth: int) -> Program:
    """Rows scaled to ±127 by their largest element, the product, and back."""
    x, w = matrix("x", dtype="float16"), matrix("w", COLS, depth, "float16")
    unit = _abs_max(x)
    z = cells(lambda i, j: wide(x[i, j]) / unit[i], "z")
    y = product(lambda i, j: z[i, j], lambda j, c: wide(w[j, c]), "y", depth)
    return build(y, inputs=[x, w], name="abs_max_matmul")


def quantise_matmul(depth: int) -> Program:
    """The same, with a rounding to int8 in between: only the final scale may be applied before it."""
    x, w = matrix("x", dtype="float16"), placeholder((COLS, depth), "int8", "w")
    unit = _abs_max(x)
    z = cells(lambda i, j: round(wide(x[i, j]) / unit[i]).astype("int8"), "z")
    c = product(lambda i, j: z[i, j].astype("int32"), lambda j, c: w[j, c].astype("int32"), "c", depth)
    y = compute((ROWS, depth), lambda i, e: wide(c[i, e]) * unit[i], "y")
    return build(y, inputs=[x, w], name="quantise_matmul")


def rms64(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS))


def _standard64(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS))


def _unit64(x: Array) -> Array:
    return np.asarray(np.maximum(np.abs(x).max(-1, keepdims=True), 1e-6) / 127.0)


# --- sums over rows --------------------------------------------------------------------------------


def cosine_similarity() -> Program:
    x, y = matrix("x"), matrix("y")
    xy, xx, yy = _dot(x, y, "xy"), _dot(x, x, "xx"), _dot(y, y, "yy")
    cosine = compute((ROWS,), lambda i: xy[i] / sqrt(maximum(xx[i] * yy[i], 1e-12)), "cosine")
    return build(cosine, inputs=[x, y], name="cosine_similarity")


def _dot(x: Tensor, y: Tensor, name: str) -> Tensor:
    return per_row(sum, lambda i, j: x[i, j] * y[i, j], name)


def _centre(x: Tensor, w: Tensor, total: Tensor, name: str) -> Tensor:
    """The mean of x with weights w, whose sum is given."""
    first = _dot(w, x, f"{name}_sum")
    return compute((ROWS,), lambda i: first[i] / total[i], name)


def weighted_mean() -> Program:
    x, w = matrix("x"), matrix("w")
    total = per_row(sum, lambda i, j: w[i, j], "total")
    return build(_centre(x, w, total, "mean"), inputs=[x, w], name="weighted_mean")


def weighted_variance() -> Program:
    x, w = matrix("x"), matrix("w")
    total = per_row(sum, lambda i, j: w[i, j], "total")
    mean = _centre(x, w, total, "mean")
    spread = per_row(sum, lambda i, j: w[i, j] * (x[i, j] - mean[i]) * (x[i, j] - mean[i]), "spread")
    variance = compute((ROWS,), lambda i: spread[i] / total[i], "variance")
    return build([mean, variance], inputs=[x, w], name="weighted_variance")


def moment_of_inertia() -> Program:
    """Of point masses in a plane, one body a row, about their centre of mass."""
    x, y, mass = matrix("x"), matrix("y"), matrix("mass")
    total = per_row(sum, lambda i, j: mass[i, j], "total")
    cx, cy = _centre(x, mass, total, "cx"), _centre(y, mass, total, "cy")

    def squared(i: Expr, j: Expr) -> Expr:
        return (x[i, j] - cx[i]) * (x[i, j] - cx[i]) + (y[i, j] - cy[i]) * (y[i, j] - cy[i])

    inertia = per_row(sum, lambda i, j: mass[i, j] * squared(i, j), "inertia")
    return build(inertia, inputs=[x, y, mass], name="moment_of_inertia")


def _cosine64(x: Array, y: Array) -> tuple[Array, ...]:
    return ((x * y).sum(-1) / np.sqrt(np.maximum((x * x).sum(-1) * (y * y).sum(-1), 1e-12)),)


def _weighted64(x: Array, w: Array) -> tuple[Array, Array]:
    mean = (w * x).sum(-1) / w.sum(-1)
    return mean, (w * (x - mean[:, None]) ** 2).sum(-1) / w.sum(-1)


def _inertia64(x: Array, y: Array, mass: Array) -> tuple[Array, ...]:
    cx, cy = _weighted64(x, mass)[0], _weighted64(y, mass)[0]
    return ((mass * ((x - cx[:, None]) ** 2 + (y - cy[:, None]) ** 2)).sum(-1),)


# --- densities -------------------------------------------------------------------------------------


def _distances(x: Tensor, y: Tensor, depth: int) -> Tensor:
    """|x_i - y_j|²."""
    d = reduce_axis((0, depth), "d")
    return cells(lambda i, j: sum((x[i, d] - y[j, d]) * (x[i, d] - y[j, d]), axis=d), "far")


def kernel_density(depth: int) -> Program:
    """log Σ_j exp(-|x_i - y_j|² / 2)."""
    x, y = matrix("x", ROWS, depth), matrix("y", COLS, depth)
    far = _distances(x, y, depth)
    m, _, l = _softmax_parts(cells(lambda i, j: far[i, j] * -0.5, "score"))  # noqa: E741
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "density"), inputs=[x, y], name="kernel_density")


def gaussian_mixture(depth: int) -> Program:
    """The E-step: how likely each component is for each point, and the point's log-likelihood."""
    x, mu, weight = matrix("x", ROWS, depth), matrix("mu", COLS, depth), placeholder((COLS,), "float32", "weight")
    precision = matrix("precision", COLS, depth)
    d = reduce_axis((0, depth), "d")
    far = cells(lambda i, j: sum((x[i, d] - mu[j, d]) * (x[i, d] - mu[j, d]) * precision[j, d], axis=d), "far")
    m, e, l = _softmax_parts(cells(lambda i, j: weight[j] - far[i, j] * 0.5, "score"))  # noqa: E741
    share = cells(lambda i, j: e[i, j] / l[i], "share")
    likely = compute((ROWS,), lambda i: m[i] + log(l[i]), "likely")
    return build([share, likely], inputs=[x, mu, precision, weight], name="gaussian_mixture")


def distances64(x: Array, y: Array) -> Array:
    return np.asarray(((x[:, None] - y[None]) ** 2).sum(-1))


def _mixture64(x: Array, mu: Array, precision: Array, weight: Array) -> tuple[Array, ...]:
    score = weight - 0.5 * (((x[:, None] - mu[None]) ** 2) * precision[None]).sum(-1)
    return softmax64(score), lse64(score)


ROW_CHAINS: tuple[Chain, ...] = (
    Chain("softmax", "softmax", lambda _: softmax(), lambda x: (softmax64(x),)),
    Chain("log_softmax", "softmax", lambda _: log_softmax(), lambda x: (x - lse64(x)[:, None],)),
    Chain("logsumexp", "softmax", lambda _: logsumexp(), lambda x: (lse64(x),)),
    Chain("linear_logsumexp", "softmax", linear_logsumexp, lambda x, w: (lse64(x @ w.T),)),
    Chain(
        "linear_cross_entropy",
        "softmax",
        linear_cross_entropy,
        lambda x, w, t: (lse64(x @ w.T) - (x @ w.T)[np.arange(len(x)), t],),
    ),
    Chain("softmax_top_k", "softmax", lambda _: softmax_top_k(), _top_two64, settle=_chosen64),
    Chain("rms_norm_linear", "norm", rms_norm_linear, lambda x, g, w: (rms64(x) * g @ w,)),
    Chain("layer_norm", "norm", lambda _: layer_norm(), lambda x, g, b: (_standard64(x) * g + b,)),
    Chain("variance", "norm", lambda _: variance(), lambda x: (x.var(-1),)),
    Chain("standardise_linear", "norm", standardise_linear, lambda x, w: (_standard64(x) @ w,)),
    Chain(
        "l2_normalise_matmul",
        "norm",
        l2_normalise_matmul,
        lambda x, w: (x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS) @ w,),
    ),
    Chain("abs_max_matmul", "norm", abs_max_matmul, lambda x, w: (x / _unit64(x) @ w,)),
    Chain("quantise_matmul", "norm", quantise_matmul, lambda x, w: (np.rint(x / _unit64(x)) @ w * _unit64(x),)),
    Chain("cosine_similarity", "sums", lambda _: cosine_similarity(), _cosine64),
    Chain("weighted_mean", "sums", lambda _: weighted_mean(), lambda x, w: _weighted64(x, w)[:1], positive=("w",)),
    Chain("weighted_variance", "sums", lambda _: weighted_variance(), _weighted64, positive=("w",)),
    Chain("moment_of_inertia", "sums", lambda _: moment_of_inertia(), _inertia64, positive=("mass",)),
    Chain("kernel_density", "density", kernel_density, lambda x, y: (lse64(-0.5 * distances64(x, y)),)),
    Chain("gaussian_mixture", "density", gaussian_mixture, _mixture64, positive=("precision",)),
)
