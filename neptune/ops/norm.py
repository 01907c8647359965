"""Norms of rows, alone, behind a sum, and in front of a matrix product.

Everything is computed and summed in float32 and rounded to the operator's dtype where torch rounds: once, at the end
of the norm. Gains and biases have the dtype of `x`, as those of torch's modules have. `eps` is a number of at least 0;
with `eps=0` a row without spread is 0·∞, which is NaN, as torch's is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from neptune.base.boundary import public
from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, rsqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.linear import check_names
from neptune.ops.options import check_dtype, check_eps, check_flags
from neptune.ops.parts import COLS, ROWS, Cell, cells, matrix, moments, per_row, vector, wide

Norm: TypeAlias = Callable[[Cell], Cell]
"""Values of rows → the same, normalised, in float32."""


@public
def rms_norm(dtype: str = "float16", *, eps: float = 1e-6, gain: bool = True) -> Program:
    """y = x / √(mean(x²) + eps) · g: rows over the root of their mean square.

    x and y: [rows, cols], g: [cols] (with `gain`), all of `dtype`. Stages: ss (sums of squares), r, y. Raises
    ExpressionError for another dtype, a flag that is none, and an eps below 0.
    """
    _check("rms_norm", dtype, eps, gain=gain)
    x, (g,) = matrix("x", dtype=dtype), _vectors(dtype, g=gain)
    y = _rounded(_rms(lambda i, j: wide(x[i, j]), eps, g), dtype)
    return build(y, inputs=[x, *_given(g)], name="rms_norm")


@public
def layer_norm(dtype: str = "float16", *, eps: float = 1e-5, gain: bool = True, bias: bool = True) -> Program:
    """y = (x - mean(x)) / √(var(x) + eps) · g + b, with the variance over n, not n - 1.

    x and y: [rows, cols], g and b: [cols] (with `gain`, with `bias`), all of `dtype`. Stages: total, mean, squares,
    variance, y. Errors as in `rms_norm`.
    """
    _check("layer_norm", dtype, eps, gain=gain, bias=bias)
    x, (g, b) = matrix("x", dtype=dtype), _vectors(dtype, g=gain, b=bias)
    y = _rounded(_standard(lambda i, j: wide(x[i, j]), eps, g, b), dtype)
    return build(y, inputs=[x, *_given(g, b)], name="layer_norm")


@public
def add_rms_norm(dtype: str = "float16", *, eps: float = 1e-6, gain: bool = True) -> Program:
    """h = x + residual, and y = rms_norm(h): results (y, h).

    All matrices [rows, cols] of `dtype`, g: [cols]. h is rounded to `dtype`, and the norm is that of what was rounded,
    as where torch adds first. Stages: h, ss, r, y. Errors as in `rms_norm`.
    """
    _check("add_rms_norm", dtype, eps, gain=gain)
    (g,) = _vectors(dtype, g=gain)
    return _behind_sum("add_rms_norm", dtype, lambda h: _rms(h, eps, g), _given(g))


@public
def add_layer_norm(dtype: str = "float16", *, eps: float = 1e-5, gain: bool = True, bias: bool = True) -> Program:
    """h = x + residual, and y = layer_norm(h): results (y, h). Shapes and roundings as in `add_rms_norm`."""
    _check("add_layer_norm", dtype, eps, gain=gain, bias=bias)
    g, b = _vectors(dtype, g=gain, b=bias)
    return _behind_sum("add_layer_norm", dtype, lambda h: _standard(h, eps, g, b), _given(g, b))


@public
def group_norm(dtype: str = "float16", *, eps: float = 1e-5, gain: bool = True, bias: bool = True) -> Program:
    """Each group of channels of an image, normalised as by `layer_norm`, then gain and bias of each channel.

    x and y: [batch, groups, cols] with cols = channels · pixels, g and b: [groups, channels] (channels of one group),
    all of `dtype` and symbolic; `channels` divides `cols`. torch's x: [N, C, H, W] in G groups is
    `x.view(N, G, C // G * H * W)`, and its weight `w.view(G, C // G)`. Stages and errors as in `layer_norm`.
    """
    _check("group_norm", dtype, eps, gain=gain, bias=bias)
    batch, groups, channels = var("batch"), var("groups"), var("channels")
    x = placeholder((batch, groups, COLS), dtype, "x")
    g, b = (placeholder((groups, channels), dtype, n) if on else None for n, on in (("g", gain), ("b", bias)))
    j, k, n = reduce_axis((0, COLS), "j"), reduce_axis((0, COLS), "k"), COLS.astype("float32")
    rows = (batch, groups)

    def apart(a: Expr, c: Expr, j: Expr) -> Expr:
        return wide(x[a, c, j]) - mean[a, c]

    total = compute(rows, lambda a, c: sum(wide(x[a, c, j]), axis=j), "total")
    mean = compute(rows, lambda a, c: total[a, c] / n, "mean")
    squares = compute(rows, lambda a, c: sum(apart(a, c, k) * apart(a, c, k), axis=k), "squares")
    variance = compute(rows, lambda a, c: squares[a, c] / n, "variance")

    def normal(a: Expr, c: Expr, i: Expr) -> Expr:
        y, channel = apart(a, c, i) * rsqrt(variance[a, c] + eps), i // (COLS // channels)
        y = y if g is None else y * wide(g[c, channel])
        return (y if b is None else y + wide(b[c, channel])).astype(dtype)

    return build(compute((*rows, COLS), normal, "y"), inputs=[x, *_given(g, b)], name="group_norm")


# --- in front of a product -------------------------------------------------------------------------


@public
def rms_norm_linear(dtype: str = "float16", *, eps: float = 1e-6, trans_b: bool = False) -> Program:
    """y = rms_norm(x, g) w, of `dtype`: rows of x over the root of their mean square, times g, rounded to `dtype` as
    torch's rms_norm does, then a product that is summed in float32.

    x: [m, k], g: [k], w: [k, n] ([n, k] with `trans_b`), y: [m, n], all sizes symbolic. Stages: ss (sums of squares),
    r, z (the normalised rows), c (the product), y. Raises ExpressionError for another dtype.
    """
    check_flags("rms_norm_linear", {"trans_b": trans_b})
    check_names("rms_norm_linear", None, dtype)
    check_eps("rms_norm_linear", eps)
    m, k = var("m"), var("k")
    x, g = placeholder((m, k), dtype, "x"), placeholder((k,), dtype, "g")
    p = reduce_axis((0, k), "p")
    ss = compute((m,), lambda i: sum(wide(x[i, p]) * wide(x[i, p]), axis=p), "ss")
    r = compute((m,), lambda i: rsqrt(ss[i] / k.astype("float32") + eps), "r")
    z = compute((m, k), lambda i, j: (wide(x[i, j]) * r[i] * wide(g[j])).astype(dtype), "z")
    return _linear("rms_norm_linear", dtype, z, [x, g], trans_b)


@public
def layer_norm_linear(
    dtype: str = "float16", *, eps: float = 1e-5, trans_b: bool = False, gain: bool = True, bias: bool = True
) -> Program:
    """y = layer_norm(x, g, b) w, of `dtype`; the normalised rows are rounded to `dtype`, the product is summed in
    float32. A bias of the product is not among its inputs: `b` is that of the norm.

    x: [m, k], g and b: [k], w: [k, n] ([n, k] with `trans_b`), y: [m, n], all sizes symbolic. Stages: total, mean,
    squares, variance, z (the normalised rows), c (the product), y. Errors as in `rms_norm`.
    """
    check_flags("layer_norm_linear", {"trans_b": trans_b})
    _check("layer_norm_linear", dtype, eps, gain=gain, bias=bias)
    m, k = var("m"), var("k")
    x = placeholder((m, k), dtype, "x")
    g, b = (placeholder((k,), dtype, n) if on else None for n, on in (("g", gain), ("b", bias)))
    p, n = reduce_axis((0, k), "p"), k.astype("float32")
    total = compute((m,), lambda i: sum(wide(x[i, p]), axis=p), "total")
    mean = compute((m,), lambda i: total[i] / n, "mean")
    squares = compute((m,), lambda i: sum((wide(x[i, p]) - mean[i]) * (wide(x[i, p]) - mean[i]), axis=p), "squares")
    variance = compute((m,), lambda i: squares[i] / n, "variance")

    def normal(i: Expr, j: Expr) -> Expr:
        y = (wide(x[i, j]) - mean[i]) * rsqrt(variance[i] + eps)
        y = y if g is None else y * wide(g[j])
        return (y if b is None else y + wide(b[j])).astype(dtype)

    return _linear("layer_norm_linear", dtype, compute((m, k), normal, "z"), [x, *_given(g, b)], trans_b)


def _linear(name: str, dtype: str, z: Tensor, inputs: list[Tensor], trans_b: bool) -> Program:
    """y = z w, with w behind the other inputs."""
    (m, k), n = z.shape, var("n")
    w = placeholder((n, k) if trans_b else (k, n), dtype, "w")
    q = reduce_axis((0, k), "q")

    def term(i: Expr, j: Expr) -> Expr:
        return wide(z[i, q]) * wide(w[j, q] if trans_b else w[q, j])

    c = compute((m, n), lambda i, j: sum(term(i, j), axis=q), "c")
    y = compute((m, n), lambda i, j: c[i, j].astype(dtype), "y")
    return build(y, inputs=[*inputs, w], name=name)


# --- what they share -------------------------------------------------------------------------------


def _rms(x: Cell, eps: float, g: Tensor | None) -> Cell:
    ss = per_row(sum, lambda i, j: x(i, j) * x(i, j), "ss")
    r = compute((ROWS,), lambda i: rsqrt(ss[i] / COLS.astype("float32") + eps), "r")
    return lambda i, j: x(i, j) * r[i] if g is None else x(i, j) * r[i] * wide(g[j])


def _standard(x: Cell, eps: float, g: Tensor | None, b: Tensor | None) -> Cell:
    mean, variance = moments(x)

    def normal(i: Expr, j: Expr) -> Expr:
        y = (x(i, j) - mean[i]) * rsqrt(variance[i] + eps)
        y = y if g is None else y * wide(g[j])
        return y if b is None else y + wide(b[j])

    return normal


def _behind_sum(name: str, dtype: str, norm: Norm, vectors: list[Tensor]) -> Program:
    x, residual = matrix("x", dtype=dtype), matrix("residual", dtype=dtype)
    h = cells(lambda i, j: (wide(x[i, j]) + wide(residual[i, j])).astype(dtype), "h")
    y = _rounded(norm(lambda i, j: wide(h[i, j])), dtype)
    return build([y, h], inputs=[x, residual, *vectors], name=name)


def _rounded(value: Cell, dtype: str) -> Tensor:
    return cells(lambda i, j: value(i, j).astype(dtype), "y")


def _vectors(dtype: str, **wanted: bool) -> list[Tensor | None]:
    return [vector(name, dtype) if on else None for name, on in wanted.items()]


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


def _check(name: str, dtype: str, eps: float, **flags: bool) -> None:
    check_flags(name, flags)
    check_dtype(name, dtype, "a norm")
    check_eps(name, eps)
