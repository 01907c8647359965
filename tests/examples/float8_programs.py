"""Programs on 8-bit floats: a product with scales, decoding with a cache of them, rounding to them."""

from __future__ import annotations

import math

from neptune.frontend import builder as nb
from neptune.ir.expr import Expr
from neptune.ir.program import Program


def scaled_matmul(dtype: str, other: str | None = None, out: str = "float16", wide: str = "float32") -> Program:
    """o[i, j] = Σ a[i, k] b[j, k] · sa[i] · sb[j]: operands of `dtype` and `other`, cast to `wide` and to float32."""
    m, n, k = nb.var("m"), nb.var("n"), nb.var("k")
    a, b = nb.placeholder((m, k), dtype, "a"), nb.placeholder((n, k), other or dtype, "b")
    sa, sb = nb.placeholder((m,), "float32", "sa"), nb.placeholder((n,), "float32", "sb")
    p = nb.reduce_axis((0, k), "p")

    def read(e: Expr) -> Expr:
        return e.astype(wide).astype("float32")

    c = nb.compute((m, n), lambda i, j: nb.sum(read(a[i, p]) * read(b[j, p]), axis=p), "c")
    o = nb.compute((m, n), lambda i, j: (c[i, j] * sa[i] * sb[j]).astype(out), "o")
    return nb.build(o, name="scaled_matmul")


def decode(dtype: str, heads: int = 4, kv_heads: int = 2, depth: int = 32, weights: str = "float16") -> Program:
    """Attention of one float16 query to keys and values of `dtype`, with a scale for each head of either.

    `weights`: what probabilities are rounded to.
    """
    batch, length, group = nb.var("batch"), nb.var("length"), heads // kv_heads
    q = nb.placeholder((batch, heads, 1, depth), "float16", "q")
    k, v = (nb.placeholder((batch, kv_heads, length, depth), dtype, name) for name in "kv")
    ks, vs = (nb.placeholder((kv_heads,), "float32", name) for name in ("k_scale", "v_scale"))
    d, j = nb.reduce_axis((0, depth), "d"), nb.reduce_axis((0, length), "j")
    scores, rows = (batch, heads, 1, length), (batch, heads, 1)

    def wide(e: Expr) -> Expr:
        return e.astype("float16").astype("float32")

    s = nb.compute(
        scores, lambda b, h, i, j: nb.sum(q[b, h, i, d].astype("float32") * wide(k[b, h // group, j, d]), axis=d), "s"
    )
    scaled = nb.compute(scores, lambda b, h, i, j: s[b, h, i, j] * ks[h // group] * (1 / math.sqrt(depth)), "scaled")
    m = nb.compute(rows, lambda b, h, i: nb.max(scaled[b, h, i, j], axis=j), "m")
    p = nb.compute(scores, lambda b, h, i, j: nb.exp(scaled[b, h, i, j] - m[b, h, i]), "p")
    l = nb.compute(rows, lambda b, h, i: nb.sum(p[b, h, i, j], axis=j), "l")  # noqa: E741
    w = nb.compute(scores, lambda b, h, i, j: p[b, h, i, j].astype(weights), "w")
    acc = nb.compute(
        (*rows, depth),
        lambda b, h, i, e: nb.sum(w[b, h, i, j].astype("float32") * wide(v[b, h // group, j, e]), axis=j),
        "acc",
    )
    o = nb.compute(
        (*rows, depth), lambda b, h, i, e: (acc[b, h, i, e] / l[b, h, i] * vs[h // group]).astype("float16"), "o"
    )
    return nb.build(o, name="decode")


def quantised(dtype: str) -> Program:
    """Each row of x by its own scale: y = x / (max |x| / highest) as `dtype`, and the scale."""
    highest = 448.0 if dtype == "float8_e4m3fn" else 57344.0
    m, n = nb.var("m"), nb.var("n")
    x = nb.placeholder((m, n), "float16", "x")
    j = nb.reduce_axis((0, n), "j")
    top = nb.compute((m,), lambda i: nb.max(nb.abs(x[i, j].astype("float32")), axis=j), "top")
    scale = nb.compute((m,), lambda i: nb.maximum(top[i], 1e-12) / highest, "scale")
    y = nb.compute((m, n), lambda i, j: (x[i, j].astype("float32") / scale[i]).astype(dtype), "y")
    return nb.build([y, scale], name="quantised")
