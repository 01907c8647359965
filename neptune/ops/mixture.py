"""Densities: exponentials of distances that are sums themselves.

Points are [rows, depth] and [cols, depth] of `dtype`; `depth` is a number, lengths are symbolic. All is computed and
summed in float32, results are float32. ExpressionError for another dtype, and for a depth below 1.
"""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.frontend.builder import Tensor, build, compute, log, reduce_axis, sum
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_counts, check_dtype
from neptune.ops.parts import COLS, ROWS, Cell, cells, exponentials, matrix, vector, wide


@public
def kernel_density(depth: int, dtype: str = "float32") -> Program:
    """density[i] = log Σ_j exp(-|x_i - y_j|² / 2): with a bandwidth h, of points that are divided by h.

    x: [rows, depth], y: [cols, depth], density: f32[rows]; not normalised by the number of points or (2π)^(depth/2).
    Stages: far, score, m, e, l, density.
    """
    _check("kernel_density", depth, dtype)
    x, y = matrix("x", ROWS, depth, dtype), matrix("y", COLS, depth, dtype)
    far = distances(x, y, depth)
    m, _, l = exponentials(_as_cell(cells(lambda i, j: far[i, j] * -0.5, "score")))  # noqa: E741 (the field's name)
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "density"), inputs=[x, y], name="kernel_density")


@public
def gaussian_mixture(depth: int, dtype: str = "float32") -> Program:
    """The E-step: how likely each component is for each point, and the point's log-likelihood.

    x: [rows, depth] (points), mu and precision: [cols, depth] (components, diagonal), weight: [cols] (the log of a
    component's share, with its norm log √(Π precision / (2π)^depth) added). Results: share: f32[rows, cols], likely:
    f32[rows]. Stages: far, score, m, e, l, share, likely.
    """
    _check("gaussian_mixture", depth, dtype)
    x, mu, weight = matrix("x", ROWS, depth, dtype), matrix("mu", COLS, depth, dtype), vector("weight", dtype)
    precision = matrix("precision", COLS, depth, dtype)
    d = reduce_axis((0, depth), "d")

    def apart(i: Expr, j: Expr) -> Expr:
        return wide(x[i, d]) - wide(mu[j, d])

    far = cells(lambda i, j: sum(apart(i, j) * apart(i, j) * wide(precision[j, d]), axis=d), "far")
    score = cells(lambda i, j: wide(weight[j]) - far[i, j] * 0.5, "score")
    m, e, l = exponentials(_as_cell(score))  # noqa: E741
    share = cells(lambda i, j: e[i, j] / l[i], "share")
    likely = compute((ROWS,), lambda i: m[i] + log(l[i]), "likely")
    return build([share, likely], inputs=[x, mu, precision, weight], name="gaussian_mixture")


def distances(x: Tensor, y: Tensor, depth: int) -> Tensor:
    """far[i, j] = |x_i - y_j|²."""
    d = reduce_axis((0, depth), "d")

    def apart(i: Expr, j: Expr) -> Expr:
        return wide(x[i, d]) - wide(y[j, d])

    return cells(lambda i, j: sum(apart(i, j) * apart(i, j), axis=d), "far")


def _as_cell(t: Tensor) -> Cell:
    return lambda i, j: t[i, j]


def _check(name: str, depth: int, dtype: str) -> None:
    check_counts(name, {"depth": depth})
    check_dtype(name, dtype, "points")
