"""Tensor expressions in TVM's own language that several tests share; each returns its output tensors."""

from __future__ import annotations

import math

from tvm import te, tirx


def figure1() -> te.Tensor:
    """The paper's Figure 1: xsum[i] = sum over j of exp(inp[i, j] - max over j of inp[i, j])."""
    m, n = te.var("m"), te.var("n")
    inp = te.placeholder((m, n), "float32", name="inp")
    j1, j2 = te.reduce_axis((0, n), name="j"), te.reduce_axis((0, n), name="j")
    xmax = te.compute((m,), lambda i: te.max(inp[i, j1], axis=j1), name="xmax")
    xexp = te.compute((m, n), lambda i, j: te.exp(inp[i, j] - xmax[i]), name="xexp")
    return te.compute((m,), lambda i: te.sum(xexp[i, j2], axis=j2), name="xsum")


def softmax(dtype: str = "float32") -> te.Tensor:
    """Row softmax with the stages m, e, l, y."""
    rows, cols = te.var("rows"), te.var("cols")
    x = te.placeholder((rows, cols), dtype, name="x")
    j1, j2 = te.reduce_axis((0, cols), name="j"), te.reduce_axis((0, cols), name="j")
    m = te.compute((rows,), lambda i: te.max(_to(x[i, j1], "float32", dtype), axis=j1), name="m")
    e = te.compute((rows, cols), lambda i, j: te.exp(_to(x[i, j], "float32", dtype) - m[i]), name="e")
    l = te.compute((rows,), lambda i: te.sum(e[i, j2], axis=j2), name="l")  # noqa: E741
    return te.compute((rows, cols), lambda i, j: _to(e[i, j] / l[i], dtype, "float32"), name="y")


def attention(
    causal: bool = True, layout: str = "bhsd", depth: int = 128, dtype: str = "float16", lse: bool = False
) -> list[te.Tensor]:
    """Attention with the stages of `neptune.ops.attention`: [o], or [o, lse]."""
    n_b, n_h, s_q, s_kv = te.var("batch"), te.var("heads"), te.var("s_q"), te.var("s_kv")
    rows_first = layout == "bshd"

    def tensor(length, name):
        shape = (n_b, length, n_h, depth) if rows_first else (n_b, n_h, length, depth)
        return te.placeholder(shape, dtype, name=name)

    def at(t, b, h, row, col):
        return _to(t[b, row, h, col] if rows_first else t[b, h, row, col], "float32", dtype)

    def scored(i, j, value):
        value = value * tirx.const(1 / math.sqrt(depth), "float32")
        return te.if_then_else(j <= i + s_kv - s_q, value, tirx.const(float("-inf"), "float32")) if causal else value

    q, k, v = tensor(s_q, "q"), tensor(s_kv, "k"), tensor(s_kv, "v")
    d = te.reduce_axis((0, depth), name="d")
    j1, j2, j3 = (te.reduce_axis((0, s_kv), name="j") for _ in range(3))
    rows, scores = (n_b, n_h, s_q), (n_b, n_h, s_q, s_kv)
    s = te.compute(scores, lambda b, h, i, j: te.sum(at(q, b, h, i, d) * at(k, b, h, j, d), axis=d), name="s")
    score = te.compute(scores, lambda b, h, i, j: scored(i, j, s[b, h, i, j]), name="score")
    m = te.compute(rows, lambda b, h, i: te.max(score[b, h, i, j1], axis=j1), name="m")
    p = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - m[b, h, i]), name="p")
    l = te.compute(rows, lambda b, h, i: te.sum(p[b, h, i, j2], axis=j2), name="l")  # noqa: E741
    w = p
    if dtype != "float32":
        w = te.compute(scores, lambda b, h, i, j: p[b, h, i, j].astype(dtype), name="p_cast")
    acc = te.compute(
        (*rows, depth),
        lambda b, h, i, e: te.sum(_to(w[b, h, i, j3], "float32", dtype) * at(v, b, h, j3, e), axis=j3),
        name="acc",
    )
    zero = tirx.const(0.0, "float32")

    def normalised(b, h, i, e):
        value = te.if_then_else(l[b, h, i] <= zero, zero, acc[b, h, i, e] / l[b, h, i])
        return _to(value, dtype, "float32")

    if rows_first:
        o = te.compute((n_b, s_q, n_h, depth), lambda b, i, h, e: normalised(b, h, i, e), name="o")
    else:
        o = te.compute((n_b, n_h, s_q, depth), lambda b, h, i, e: normalised(b, h, i, e), name="o")
    if not lse:
        return [o]
    neg_inf = tirx.const(float("-inf"), "float32")

    def log_sum(b, h, i):
        return te.if_then_else(l[b, h, i] <= zero, neg_inf, m[b, h, i] + te.log(l[b, h, i]))

    return [o, te.compute(rows, log_sum, name="lse")]


def _to(value, dtype: str, source: str):
    return value if dtype == source else value.astype(dtype)
