"""Products of matrices behind factors that do not move in the sum."""

from __future__ import annotations

from collections.abc import Callable

from neptune.frontend.builder import build, compute, exp, log, max, placeholder, reduce_axis, rsqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program

EPS = 1e-6
M, N, K = var("m"), var("n"), var("k")
Term = Callable[[Expr, Expr, Expr], Expr]
"""What is summed, of x, r and w, each in float32."""


def wide(x: Expr) -> Expr:
    return x.astype("float32")


def plain(x: Expr, r: Expr, w: Expr) -> Expr:
    return x * r * w


def rms_linear(
    term: Term = plain, *, k: int | None = None, dtype: str = "float16", stored: str | None = None
) -> Program:
    """y[i, j] = Σ over k of `term`, r[i] = rsqrt(Σ x² / k + eps), as plainly written.

    x: [m, k], w: [k, n] of `dtype`; k symbolic or given; `stored`: the dtype that y is cast to.
    """
    depth = K if k is None else k
    x, w = placeholder((M, depth), dtype, "x"), placeholder((depth, N), dtype, "w")
    p, q = reduce_axis((0, depth), "p"), reduce_axis((0, depth), "q")
    ss = compute((M,), lambda i: sum(wide(x[i, p]) * wide(x[i, p]), axis=p), "ss")
    size = wide(K) if k is None else float(k)

    def value(i: Expr, j: Expr) -> Expr:
        return sum(term(wide(x[i, q]), rsqrt(ss[i] / size + EPS), wide(w[q, j])), axis=q)

    y = compute((M, N), value, "y")
    return build(
        y if stored is None else compute((M, N), lambda i, j: y[i, j].astype(stored), "out"),
        inputs=[x, w],
        name="rms_linear",
    )


def weighted_rms_linear(term: Callable[[Expr, Expr, Expr, Expr], Expr]) -> Program:
    """The same with a weight of the norm, g[k], which moves: `term` of x, g, w and r. x: [m, k], g: [k], w: [k, n]."""
    x, g, w = (
        placeholder((M, K), "float16", "x"),
        placeholder((K,), "float16", "g"),
        placeholder((K, N), "float16", "w"),
    )
    p, q = reduce_axis((0, K), "p"), reduce_axis((0, K), "q")
    ss = compute((M,), lambda i: sum(wide(x[i, p]) * wide(x[i, p]), axis=p), "ss")
    r = compute((M,), lambda i: rsqrt(ss[i] / wide(K) + EPS), "r")

    def value(i: Expr, j: Expr) -> Expr:
        return sum(term(wide(x[i, q]), wide(g[q]), wide(w[q, j]), r[i]), axis=q)

    return build(compute((M, N), value, "y"), inputs=[x, g, w], name="weighted_rms_linear")


def scaled_product(term: Callable[[Expr, Expr, Expr, Expr], Expr], dtype: str = "float32") -> Program:
    """y = Σ `term` of x[i, q], w[q, j], and scales r[i], c[j] of float32. x: [m, k], w: [k, n]."""
    x, w = placeholder((M, K), dtype, "x"), placeholder((K, N), dtype, "w")
    r, c, q = placeholder((M,), "float32", "r"), placeholder((N,), "float32", "c"), reduce_axis((0, K), "q")

    def value(i: Expr, j: Expr) -> Expr:
        return sum(term(wide(x[i, q]), wide(w[q, j]), r[i], c[j]), axis=q)

    return build(compute((M, N), value, "y"), inputs=[x, w, r, c], name="scaled_product")


def through_a_map(*, kept: bool) -> Program:
    """z = x r in float32, y = Σ z w; with `kept` z is a result as well. x: [m, k], r: [m], w: [k, n]."""
    x, w = placeholder((M, K), "float16", "x"), placeholder((K, N), "float16", "w")
    r, q = placeholder((M,), "float32", "r"), reduce_axis((0, K), "q")
    z = compute((M, K), lambda i, k: wide(x[i, k]) * r[i], "z")
    y = compute((M, N), lambda i, j: sum(z[i, q] * wide(w[q, j]), axis=q), "y")
    return build([y, z] if kept else y, inputs=[x, w, r], name="through_a_map")


def gathered_loss(depth: int, classes: int | None = None) -> Program:
    """loss[i] = log Σ over v of exp(x[i] · w[v]) - x[i] · w[t[i]]: the score of the class is gathered, not masked out.

    x: [r, depth], w: [v, depth] of float16, t: [r] of int32, loss: [r]; v symbolic, or `classes`.
    """
    r, v = var("r"), var("v") if classes is None else classes
    x, w = placeholder((r, depth), "float16", "x"), placeholder((v, depth), "float16", "w")
    t, d, e = placeholder((r,), "int32", "t"), reduce_axis((0, depth), "d"), reduce_axis((0, depth), "e")

    def score(i: Expr, j: Expr, k: Expr) -> Expr:
        return wide(x[i, k]) * wide(w[j, k])

    s = compute((r, v), lambda i, j: sum(score(i, j, d), axis=d), "s")
    a, b = reduce_axis((0, v), "a"), reduce_axis((0, v), "b")
    top = compute((r,), lambda i: max(s[i, a], axis=a), "top")
    total = compute((r,), lambda i: sum(exp(s[i, b] - top[i]), axis=b), "total")
    hit = compute((r,), lambda i: sum(score(i, t[i], e), axis=e), "hit")
    loss = compute((r,), lambda i: top[i] + log(total[i]) - hit[i], "loss")
    return build(loss, inputs=[x, w, t], name="gathered_loss")
