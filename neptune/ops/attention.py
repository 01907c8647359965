"""Attention as expressions: the unfused textbook form, from which templates make fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    exp,
    log,
    max,
    placeholder,
    reduce_axis,
    select,
    sum,
    var,
)
from neptune.ir.expr import Expr, ExprLike, Var
from neptune.ir.program import Program

NEG_INF = float("-inf")
Score = Callable[[Expr, Expr, Expr, Expr, Expr], Expr]
"""(b, h, i, j, q·k) → the score of query i against key j; the indices are raw."""


def prefill_global(
    batch: int | None = None,
    heads: int | None = None,
    depth: int = 128,
    dtype: str = "float16",
    layout: str = "bhsd",
    scale: float | None = None,
    lse: bool = False,
) -> Program:
    """Attention of every query to every key: o = softmax(scale · q kᵀ) v. Arguments as in `prefill_causal`."""
    factor = _scale(scale, depth)
    return _attention("prefill_global", lambda b, h, i, j, s: s * factor, batch, heads, depth, dtype, layout, lse)


@public
def prefill_causal(
    batch: int | None = None,
    heads: int | None = None,
    depth: int = 128,
    dtype: str = "float16",
    layout: str = "bhsd",
    scale: float | None = None,
    lse: bool = False,
) -> Program:
    """Attention in which query i sees the keys j ≤ i + s_kv - s_q (aligned bottom-right).

    q: [batch, heads, s_q, depth]; k and v: [batch, heads, s_kv, depth]; o like q, all of `dtype`
    (`layout="bshd"` swaps heads and rows). Lengths are symbolic, batch and heads are where they are None.
    `scale` is 1/√depth by default. With `lse=True` the result is (o, lse), lse being the natural
    log-sum-exp, float32 [batch, heads, s_q]. A row without any key gives 0, and -inf as its lse.

    Stages: s, score, m, p, l, p_cast (16-bit dtypes only), acc, o, lse; loops b, h, i (query), j (key),
    d (depth of the dot), e (depth of the output).
    """
    factor = _scale(scale, depth)
    s_q, s_kv = var("s_q"), var("s_kv")

    def score(b: Expr, h: Expr, i: Expr, j: Expr, s: Expr) -> Expr:
        return select(j <= i + s_kv - s_q, s * factor, NEG_INF)

    return _attention("prefill_causal", score, batch, heads, depth, dtype, layout, lse)


def _attention(
    name: str,
    score_of: Score,
    batch: int | None,
    heads: int | None,
    depth: int,
    dtype: str,
    layout: str,
    lse: bool,
) -> Program:
    """softmax(score) v, stage by stage; `score_of` holds the scale, the mask and whatever else."""
    if layout not in ("bhsd", "bshd"):
        raise ExpressionError(name, f"unknown layout {layout!r}", legal=("bhsd", "bshd"))
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ExpressionError(name, f"{dtype!r} is no dtype of attention", legal=("float32", "float16", "bfloat16"))
    n_b: int | Var = var("batch") if batch is None else batch
    n_h: int | Var = var("heads") if heads is None else heads
    s_q, s_kv = var("s_q"), var("s_kv")
    rows_first = layout == "bshd"

    def tensor(rows: Var, what: str) -> Tensor:
        return placeholder((n_b, rows, n_h, depth) if rows_first else (n_b, n_h, rows, depth), dtype, what)

    def at(t: Tensor, b: Expr, h: Expr, row: Expr, col: Expr) -> Expr:
        return (t[b, row, h, col] if rows_first else t[b, h, row, col]).astype("float32")

    q, k, v = tensor(s_q, "q"), tensor(s_kv, "k"), tensor(s_kv, "v")
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, s_kv), "j")
    rows, scores = (n_b, n_h, s_q), (n_b, n_h, s_q, s_kv)

    s = compute(scores, lambda b, h, i, j: sum(at(q, b, h, i, d) * at(k, b, h, j, d), axis=d), "s")
    score = compute(scores, lambda b, h, i, j: score_of(b, h, i, j, s[b, h, i, j]), "score")
    m = compute(rows, lambda b, h, i: max(score[b, h, i, j], axis=j), "m")
    p = compute(scores, lambda b, h, i, j: exp(score[b, h, i, j] - m[b, h, i]), "p")
    l = compute(rows, lambda b, h, i: sum(p[b, h, i, j], axis=j), "l")  # noqa: E741 (the field's name)
    # The matrix unit takes operands of one dtype, so p is rounded to that of v; sums stay in float32.
    weight = p if dtype == "float32" else compute(scores, lambda b, h, i, j: p[b, h, i, j].astype(dtype), "p_cast")
    acc = compute(
        (*rows, depth),
        lambda b, h, i, e: sum(weight[b, h, i, j].astype("float32") * at(v, b, h, j, e), axis=j),
        "acc",
    )

    def normalised(b: Expr, h: Expr, i: Expr, e: Expr) -> Expr:
        # A row that sees no key has l = 0, and is 0 rather than 0/0. (Asked this way round, a NaN stays one.)
        return select(l[b, h, i] <= 0, 0, acc[b, h, i, e] / l[b, h, i]).astype(dtype)

    if rows_first:
        o = compute((n_b, s_q, n_h, depth), lambda b, i, h, e: normalised(b, h, i, e), "o")
    else:
        o = compute((n_b, n_h, s_q, depth), lambda b, h, i, e: normalised(b, h, i, e), "o")
    if not lse:
        return build(o, inputs=[q, k, v], name=name)
    log_sum = compute(rows, lambda b, h, i: select(l[b, h, i] <= 0, NEG_INF, m[b, h, i] + log(l[b, h, i])), "lse")
    return build([o, log_sum], inputs=[q, k, v], name=name)


def _scale(scale: ExprLike | None, depth: int) -> ExprLike:
    """The factor of q·k, 1/√depth by default."""
    return 1 / math.sqrt(depth) if scale is None else scale
