"""Rows quantised by their largest element, alone and in front of a product.

Every row has a scale of its own, unit = max(max |x| / highest, 2⁻¹²⁶), highest being 127 (int8), 448 (float8_e4m3fn) or
57344 (float8_e5m2), and becomes round(x / unit) as int8, to nearest and ties to even, or x / unit rounded to float8.
The unit of a row with NaN or inf is inf and the row 0, so that what it is multiplied to is NaN. Scales are float32.
ExpressionError for another dtype or target.
"""

from __future__ import annotations

from typing import Any

from neptune.base.boundary import public
from neptune.frontend.builder import Tensor, abs, build, compute, isnan, max, maximum, placeholder, round, select, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_choice, check_counts, check_dtype, check_flags
from neptune.ops.parts import COLS, ROWS, Cell, cells, matrix, per_row, product, wide
from neptune.ops.scaled import behind

HIGHEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""What the largest element of a row becomes."""
SMALLEST = 2.0**-126


@public
def quantise(dtype: str = "float16", *, to: str = "int8") -> Program:
    """Results (z, unit): the rows of x as `to`, and what each is to be multiplied by.

    x: [rows, cols] of `dtype`, z: [rows, cols] of `to`, unit: f32[rows]. Stages: top, unit, z.
    """
    _check("quantise", dtype, to)
    x = matrix("x", dtype=dtype)
    unit = _units(x, to)
    return build([_quantised(x, unit, to), unit], name="quantise")


@public
def quantise_matmul(
    dtype: str = "float16",
    *,
    to: str = "int8",
    width: int | None = None,
    trans_b: bool = False,
    scales: bool = False,
    out: str = "float32",
) -> Program:
    """y = (quantised rows of x) w · unit · scale: a product of 8 bits, scaled back.

    x: [rows, cols] of `dtype`, w: [cols, width] ([width, cols] with `trans_b`) of `to`, scale: f32[width] (with
    `scales`), y: [rows, width] of `out`. Sums are int32 for int8 and float32 for float8. `width` is a number, or None
    for a symbolic one. Only the final scale may be applied before the rounding, so each row is read as a whole first.
    Stages: top, unit, z, c, y.
    """
    name = "quantise_matmul"
    _check(name, dtype, to)
    check_flags(name, {"trans_b": trans_b, "scales": scales})
    check_counts(name, {} if width is None else {"width": width})
    check_dtype(name, out, "its result")
    n: Any = var("width") if width is None else width
    x, w = matrix("x", dtype=dtype), placeholder((n, COLS) if trans_b else (COLS, n), to, "w")
    scale = placeholder((n,), "float32", "scale")
    unit = _units(x, to)
    z, summed = _quantised(x, unit, to), "int32" if to == "int8" else "float32"

    def weight(j: Expr, c: Expr) -> Expr:
        return (w[c, j] if trans_b else w[j, c]).astype(summed)

    c = product(lambda i, j: z[i, j].astype(summed), weight, "c", n)

    def scaled(i: Expr, e: Expr) -> Expr:
        value = wide(c[i, e]) * unit[i]
        return (value * scale[e] if scales else value).astype(out)

    return build(compute((ROWS, n), scaled, "y"), inputs=[x, w, *([scale] if scales else [])], name=name)


@public
def abs_max_matmul(dtype: str = "float16", *, width: int | None = None, out: str | None = "float32") -> Program:
    """y = (x / unit) w, with unit = max(max |x|, 1e-6) / 127: rows scaled to ±127, and nothing rounded.

    x: [rows, cols], w: [cols, width] of `dtype`, y: [rows, width] of `out`. Stages: top, unit, z, c (y if float32), y.
    """
    check_dtype("abs_max_matmul", dtype, "a product")
    x = matrix("x", dtype=dtype)
    top = per_row(max, lambda i, j: abs(wide(x[i, j])), "top")
    unit = compute((ROWS,), lambda i: maximum(top[i], 1e-6) / HIGHEST["int8"], "unit")
    z = cells(lambda i, j: wide(x[i, j]) / unit[i], "z")
    as_cell: Cell = lambda i, j: z[i, j]  # noqa: E731
    return behind("abs_max_matmul", as_cell, [x], dtype, width, out)


def _units(x: Tensor, to: str) -> Tensor:
    # A maximum passes over NaN.
    top = per_row(max, lambda i, j: select(isnan(x[i, j]), float("inf"), abs(wide(x[i, j]))), "top")
    return compute((ROWS,), lambda i: maximum(top[i] / HIGHEST[to], SMALLEST), "unit")


def _quantised(x: Tensor, unit: Tensor, to: str) -> Tensor:
    def value(i: Expr, j: Expr) -> Expr:
        scaled = select(unit[i] < float("inf"), wide(x[i, j]) / unit[i], 0)
        return (round(scaled) if to == "int8" else scaled).astype(to)

    return cells(value, "z")


def _check(name: str, dtype: str, to: str) -> None:
    check_dtype(name, dtype, "rows")
    check_choice(name, "to", to, tuple(HIGHEST))
