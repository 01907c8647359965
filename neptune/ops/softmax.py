"""Softmax over rows, and the paper's Figure 1."""

from __future__ import annotations

from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program


def softmax(dtype: str = "float32") -> Program:
    """Row softmax of `x`: [rows, cols] → [rows, cols], both symbolic, of `dtype`; computed in float32.

    Stages: m (row maximum), e = exp(x - m), l (row sum of e), y = e / l.
    """
    rows, cols = var("rows"), var("cols")
    x = placeholder((rows, cols), dtype, "x")
    j = reduce_axis((0, cols), "j")
    m = compute((rows,), lambda i: max(x[i, j].astype("float32"), axis=j), "m")
    e = compute((rows, cols), lambda i, j: exp(x[i, j].astype("float32") - m[i]), "e")
    l = compute((rows,), lambda i: sum(e[i, j], axis=j), "l")  # noqa: E741 (the field's name)
    y = compute((rows, cols), lambda i, j: (e[i, j] / l[i]).astype(dtype), "y")
    return build(y, name="softmax")


def figure1() -> Program:
    """Figure 1 of the paper: `inp`: f32[m, n] → `xsum`: f32[m], the row sums of exp(inp - row maximum).

    Stages: xmax, xexp, xsum.
    """
    m, n = var("m"), var("n")
    inp = placeholder((m, n), "float32", "inp")
    j = reduce_axis((0, n), "j")
    xmax = compute((m,), lambda i: max(inp[i, j], axis=j), "xmax")
    xexp = compute((m, n), lambda i, j: exp(inp[i, j] - xmax[i]), "xexp")
    xsum = compute((m,), lambda i: sum(xexp[i, j], axis=j), "xsum")
    return build(xsum, name="figure1")
