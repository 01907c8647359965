"""Softmax over rows and its relatives, and the paper's Figure 1.

`x`: [rows, cols], both symbolic. All is computed and summed in float32, and rounded once, at the end. A row whose
largest element is -inf or inf has no probabilities: like torch's, its softmax and log_softmax are NaN, its logsumexp
is that element.
"""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.frontend.builder import build, compute, exp, log, max, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program
from neptune.ops.options import check_dtype
from neptune.ops.parts import ROWS, cells, exponentials, matrix, wide


@public
def softmax(dtype: str = "float32") -> Program:
    """y = exp(x) / Σ exp(x) along each row; y: [rows, cols] of `dtype`.

    Stages: m (row maximum), e = exp(x - m), l (row sum of e), y = e / l. ExpressionError for another dtype.
    """
    check_dtype("softmax", dtype)
    x = matrix("x", dtype=dtype)
    _, e, l = exponentials(lambda i, j: wide(x[i, j]))  # noqa: E741 (the field's name)
    return build(cells(lambda i, j: (e[i, j] / l[i]).astype(dtype), "y"), name="softmax")


@public
def log_softmax(dtype: str = "float32") -> Program:
    """y = x - log Σ exp(x) along each row; y: [rows, cols] of `dtype`. Stages: m, e, l, y. Errors as in `softmax`."""
    check_dtype("log_softmax", dtype)
    x = matrix("x", dtype=dtype)
    m, _, l = exponentials(lambda i, j: wide(x[i, j]))  # noqa: E741
    return build(cells(lambda i, j: (wide(x[i, j]) - m[i] - log(l[i])).astype(dtype), "y"), name="log_softmax")


@public
def logsumexp(dtype: str = "float32") -> Program:
    """y = log Σ exp(x) along each row; y: [rows] of `dtype`. Stages: m, e, l, y. Errors as in `softmax`."""
    check_dtype("logsumexp", dtype)
    x = matrix("x", dtype=dtype)
    m, _, l = exponentials(lambda i, j: wide(x[i, j]), infinite=True)  # noqa: E741
    return build(compute((ROWS,), lambda i: (m[i] + log(l[i])).astype(dtype), "y"), name="logsumexp")


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
