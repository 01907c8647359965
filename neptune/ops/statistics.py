"""Statistics of rows: means, variances, weighted ones, covariance, similarity.

Inputs are [rows, cols] of `dtype`, both symbolic; all is computed and summed in float32, results are rounded to `dtype`
once. Second moments are about the mean, as one writes them: no difference of large sums. ExpressionError for another
dtype, and for options that are of the wrong kind.
"""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import Tensor, build, compute, maximum, reduce_axis, sqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_dtype, check_eps, check_flags
from neptune.ops.parts import COLS, ROWS, Cell, matrix, per_row, wide


@public
def variance(dtype: str = "float32", *, correction: int = 0, mean: bool = False) -> Program:
    """Σ (x - mean(x))² / (n - correction) of each row; with `mean`, results (mean, variance). Each is [rows].

    `correction` 1 is torch.var's default; a row of no more elements than that gives NaN. Stages: total, mean, squares,
    variance.
    """
    _check("variance", dtype, correction, mean=mean)
    x = matrix("x", dtype=dtype)
    total = per_row(sum, lambda i, j: wide(x[i, j]), "total")
    centre = compute((ROWS,), lambda i: total[i] / COLS.astype("float32"), "mean")
    squares = per_row(sum, lambda i, j: (wide(x[i, j]) - centre[i]) * (wide(x[i, j]) - centre[i]), "squares")
    spread = compute((ROWS,), lambda i: (squares[i] / _count(correction)).astype(dtype), "variance")
    if not mean:
        return build(spread, name="variance")
    first = centre if dtype == "float32" else compute((ROWS,), lambda i: centre[i].astype(dtype), "mean_cast")
    return build([first, spread], name="variance")


@public
def covariance(dtype: str = "float32", *, correction: int = 1) -> Program:
    """The covariance matrix of variables that are rows, as torch.cov's: y: [rows, rows].

    x: [rows, cols] and again as x2, the same tensor, since one tensor of a product is read along one axis of a result:
    y[i, j] = Σ (x[i] - mean(x[i])) (x2[j] - mean(x2[j])) / (n - correction). So with two tensors [rows, cols] and
    [others, cols] it is their cross-covariance [rows, others]. Stages: those of each mean, then c and y.
    """
    _check("covariance", dtype, correction)
    others = var("others")
    x, x2 = matrix("x", dtype=dtype), matrix("x2", others, dtype=dtype)
    k, n = reduce_axis((0, COLS), "k"), COLS.astype("float32")

    def mean(t: Tensor, rows: Expr, name: str) -> Tensor:
        j = reduce_axis((0, COLS), "j")
        total = compute((rows,), lambda i: sum(wide(t[i, j]), axis=j), f"{name}_total")
        return compute((rows,), lambda i: total[i] / n, f"{name}_mean")

    a, b = mean(x, ROWS, "x"), mean(x2, others, "x2")
    c = compute((ROWS, others), lambda i, j: sum((wide(x[i, k]) - a[i]) * (wide(x2[j, k]) - b[j]), axis=k), "c")
    y = compute((ROWS, others), lambda i, j: (c[i, j] / _count(correction)).astype(dtype), "y")
    return build(y, inputs=[x, x2], name="covariance")


@public
def cosine_similarity(dtype: str = "float32", *, eps: float = 1e-8) -> Program:
    """Σ x·y / (max(|x|, eps) · max(|y|, eps)) of each row, as torch's; x, y: [rows, cols], cosine: [rows].

    Stages: xy, xx, yy, cosine.
    """
    check_dtype("cosine_similarity", dtype, "rows")
    check_eps("cosine_similarity", eps)
    x, y = matrix("x", dtype=dtype), matrix("y", dtype=dtype)
    xy, xx, yy = _dot(x, y, "xy"), _dot(x, x, "xx"), _dot(y, y, "yy")

    def cosine(i: Expr) -> Expr:
        lengths = maximum(sqrt(xx[i]), eps) * maximum(sqrt(yy[i]), eps)
        return (xy[i] / lengths).astype(dtype)

    return build(compute((ROWS,), cosine, "cosine"), inputs=[x, y], name="cosine_similarity")


# --- with weights ----------------------------------------------------------------------------------


@public
def weighted_mean(dtype: str = "float32") -> Program:
    """Σ w·x / Σ w of each row; x and w: [rows, cols], mean: [rows]. Stages: total, mean_sum, mean."""
    check_dtype("weighted_mean", dtype, "rows")
    x, w = matrix("x", dtype=dtype), matrix("w", dtype=dtype)
    mean = _centre(x, w, _total(w), "mean")
    return build(_rounded(mean, dtype), inputs=[x, w], name="weighted_mean")


@public
def weighted_variance(dtype: str = "float32") -> Program:
    """The weighted mean and Σ w·(x - mean)² / Σ w of each row: results (mean, variance), each [rows].

    x and w: [rows, cols]; weights are positive, as nothing is made of a sum of 0. Stages: total, mean_sum, mean,
    spread, variance.
    """
    check_dtype("weighted_variance", dtype, "rows")
    x, w = matrix("x", dtype=dtype), matrix("w", dtype=dtype)
    total = _total(w)
    mean = _centre(x, w, total, "mean")
    apart: Cell = lambda i, j: wide(x[i, j]) - mean[i]  # noqa: E731
    spread = per_row(sum, lambda i, j: wide(w[i, j]) * apart(i, j) * apart(i, j), "spread")
    variance = compute((ROWS,), lambda i: (spread[i] / total[i]).astype(dtype), "variance")
    return build([_rounded(mean, dtype), variance], inputs=[x, w], name="weighted_variance")


@public
def moment_of_inertia(dtype: str = "float32") -> Program:
    """Of point masses in a plane, one body a row, about their centre of mass.

    x, y and mass: [rows, cols], inertia: [rows]. Stages: total, cx_sum, cx, cy_sum, cy, inertia.
    """
    check_dtype("moment_of_inertia", dtype, "rows")
    x, y, mass = (matrix(n, dtype=dtype) for n in ("x", "y", "mass"))
    total = _total(mass)
    cx, cy = _centre(x, mass, total, "cx"), _centre(y, mass, total, "cy")

    def squared(i: Expr, j: Expr) -> Expr:
        a, b = wide(x[i, j]) - cx[i], wide(y[i, j]) - cy[i]
        return a * a + b * b

    inertia = per_row(sum, lambda i, j: wide(mass[i, j]) * squared(i, j), "inertia")
    return build(_rounded(inertia, dtype), inputs=[x, y, mass], name="moment_of_inertia")


# --- what they share -------------------------------------------------------------------------------


def _dot(x: Tensor, y: Tensor, name: str) -> Tensor:
    return per_row(sum, lambda i, j: wide(x[i, j]) * wide(y[i, j]), name)


def _total(w: Tensor) -> Tensor:
    return per_row(sum, lambda i, j: wide(w[i, j]), "total")


def _centre(x: Tensor, w: Tensor, total: Tensor, name: str) -> Tensor:
    """The mean of x with weights w, whose sum is given."""
    first = _dot(w, x, f"{name}_sum")
    return compute((ROWS,), lambda i: first[i] / total[i], name)


def _rounded(x: Tensor, dtype: str) -> Tensor:
    return x if dtype == "float32" else compute((ROWS,), lambda i: x[i].astype(dtype), f"{x.name}_cast")


def _count(correction: int) -> Expr:
    return (COLS - correction).astype("float32") if correction else COLS.astype("float32")


def _check(name: str, dtype: str, correction: int, **flags: bool) -> None:
    check_flags(name, flags)
    check_dtype(name, dtype, "rows")
    if isinstance(correction, bool) or not isinstance(correction, int) or correction < 0:
        raise ExpressionError(name, f"correction = {correction!r:.60} is no number of degrees", hint="0 or 1")
