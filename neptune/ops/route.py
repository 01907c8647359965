"""Routing: the most likely experts of each token."""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import Tensor, build, compute, reduce_axis, stack, top_k
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_counts, check_dtype, check_flags
from neptune.ops.parts import COLS, ROWS, cells, exponentials, matrix, wide

MOST = 8
"""The most experts that are chosen."""


@public
def softmax_top_k(dtype: str = "float32", *, k: int = 2, renormalise: bool = False, stacked: bool = True) -> Program:
    """The k (1 to 8) largest of softmax(x) along each row, descending, and their columns; of equals the first.

    x: [rows, cols], the logits of a token's experts, of `dtype`; all is computed in float32. Results: weights:
    f32[rows, k] and experts: i32[rows, k]; `stacked=False` gives k vectors [rows] of each instead, weights first.
    `renormalise` divides the weights by their sum. A row of fewer than k columns gives -inf (NaN if renormalised) and
    2**31 - 1 for what is not there. Stages: m, e, l, p, best, weights, experts. ExpressionError for another dtype or k.
    """
    name = "softmax_top_k"
    check_dtype(name, dtype, "logits")
    check_flags(name, {"renormalise": renormalise, "stacked": stacked})
    check_counts(name, {"k": k})
    if k > MOST:
        raise ExpressionError(name, f"k is {k}: at most {MOST} are kept", hint=f"k from 1 to {MOST}")
    x = matrix("x", dtype=dtype)
    _, e, l = exponentials(lambda i, j: wide(x[i, j]))  # noqa: E741 (the field's name)
    p = cells(lambda i, j: e[i, j] / l[i], "p")
    j = reduce_axis((0, COLS), "j")
    best = compute((ROWS,), lambda i: top_k(p[i, j], k, axis=j), "best")
    values, indices = list(best[:k]), best[k:]
    if renormalise:
        values = [_share(values, v, f"weight_{n}") for n, v in enumerate(values)]
    if not stacked:
        return build([*values, *indices], inputs=[x], name=name)
    return build([stack(values, "weights"), stack(indices, "experts")], inputs=[x], name=name)


def _share(values: list[Tensor], one: Tensor, name: str) -> Tensor:
    def share(i: Expr) -> Expr:
        whole: Expr = values[0][i]
        for v in values[1:]:
            whole = whole + v[i]
        return one[i] / whole

    return compute((ROWS,), share, name)
