"""Rows that are scaled by one factor each in front of a product, with nothing rounded in between.

The factor (1/√mean(x²), 1/√variance, 1/|x|) waits until the product is summed, so that x is read once and no scaled
matrix is stored. Where torch's rounding of the scaled rows is wanted, see `rms_norm_linear` and `layer_norm_linear`.

x: [rows, cols], w: [cols, width], of `dtype`; y: [rows, width] of `out`, by default `dtype`; `width` is a number, or
None for a symbolic one. All is computed and summed in float32. Stages: those of the factor, z where there is one, the
product c, and y; the product is y itself where y is float32. ExpressionError for another dtype, and an eps below 0.
"""

from __future__ import annotations

from typing import Any

from neptune.base.boundary import public
from neptune.frontend.builder import Tensor, build, compute, rsqrt, sqrt, sum, var
from neptune.ir.program import Program
from neptune.ops.options import check_counts, check_dtype, check_eps, check_flags
from neptune.ops.parts import COLS, ROWS, Cell, cells, matrix, moments, per_row, product, vector, wide


@public
def rms_linear(
    dtype: str = "float16",
    *,
    width: int | None = None,
    eps: float = 1e-6,
    gain: bool = True,
    out: str | None = None,
    name: str = "rms_linear",
) -> Program:
    """y = (x / √(mean(x²) + eps) · g) w, with g: [cols] of `dtype` (with `gain`). Stages: ss, r, c, y."""
    _check(name, dtype, eps)
    check_flags(name, {"gain": gain})
    x, g = matrix("x", dtype=dtype), vector("g", dtype)
    ss = _squares(x)
    r = compute((ROWS,), lambda i: rsqrt(ss[i] / COLS.astype("float32") + eps), "r")
    scaled: Cell = lambda i, j: wide(x[i, j]) * r[i] * wide(g[j]) if gain else wide(x[i, j]) * r[i]  # noqa: E731
    return behind(name, scaled, [x, *([g] if gain else [])], dtype, width, out)


@public
def standardise_linear(
    dtype: str = "float16", *, width: int | None = None, eps: float = 1e-5, out: str | None = None
) -> Program:
    """y = ((x - mean(x)) / √(var(x) + eps)) w. Stages: total, mean, squares, variance, z, c, y."""
    _check("standardise_linear", dtype, eps)
    x = matrix("x", dtype=dtype)
    mean, variance = moments(lambda i, j: wide(x[i, j]))
    z = cells(lambda i, j: (wide(x[i, j]) - mean[i]) * rsqrt(variance[i] + eps), "z")
    return behind("standardise_linear", lambda i, j: z[i, j], [x], dtype, width, out)


@public
def l2_normalise_matmul(
    dtype: str = "float16", *, width: int | None = None, eps: float = 1e-12, out: str | None = None
) -> Program:
    """y = (x / √(Σ x² + eps)) w: rows of length 1. Stages: ss, z, c, y."""
    _check("l2_normalise_matmul", dtype, eps)
    x = matrix("x", dtype=dtype)
    ss = _squares(x)
    z = cells(lambda i, j: wide(x[i, j]) / sqrt(ss[i] + eps), "z")
    return behind("l2_normalise_matmul", lambda i, j: z[i, j], [x], dtype, width, out)


def behind(name: str, z: Cell, inputs: list[Tensor], dtype: str, width: int | None, out: str | None) -> Program:
    """The program y = z w, with w behind `inputs`."""
    check_counts(name, {} if width is None else {"width": width})
    check_dtype(name, out or dtype, "its result")
    n: Any = var("width") if width is None else width
    w = matrix("w", COLS, n, dtype)
    c = product(z, lambda j, c: wide(w[j, c]), "y" if (out or dtype) == "float32" else "c", n)
    y = c if c.name == "y" else compute((ROWS, n), lambda i, e: c[i, e].astype(out or dtype), "y")
    return build(y, inputs=[*inputs, w], name=name)


def _squares(x: Tensor) -> Tensor:
    return per_row(sum, lambda i, j: wide(x[i, j]) * wide(x[i, j]), "ss")


def _check(name: str, dtype: str, eps: float) -> None:
    check_dtype(name, dtype, "a product")
    check_eps(name, eps)
