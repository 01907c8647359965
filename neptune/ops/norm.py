"""Norms of rows in front of a matrix product."""

from __future__ import annotations

from neptune.boundary import public
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, rsqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.linear import check_names
from neptune.ops.options import check_flags


@public
def rms_norm_linear(dtype: str = "float16", *, eps: float = 1e-6, trans_b: bool = False) -> Program:
    """y = rms_norm(x, g) w, of `dtype`: rows of x over the root of their mean square, times g, rounded to `dtype` as
    torch's rms_norm does, then a product that is summed in float32.

    x: [m, k], g: [k], w: [k, n] ([n, k] with `trans_b`), y: [m, n], all sizes symbolic. Stages: ss (sums of squares),
    r, z (the normalised rows), c (the product), y. Raises ExpressionError for another dtype.
    """
    check_flags("rms_norm_linear", {"trans_b": trans_b})
    check_names("rms_norm_linear", None, dtype)
    m, n, k = var("m"), var("n"), var("k")
    x, g = placeholder((m, k), dtype, "x"), placeholder((k,), dtype, "g")
    w = placeholder((n, k) if trans_b else (k, n), dtype, "w")
    p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")

    def wide(i: Expr, j: Expr) -> Expr:
        return x[i, j].astype("float32")

    ss = compute((m,), lambda i: sum(wide(i, p) * wide(i, p), axis=p), "ss")
    r = compute((m,), lambda i: rsqrt(ss[i] / k.astype("float32") + eps), "r")
    z = compute((m, k), lambda i, j: (wide(i, j) * r[i] * g[j].astype("float32")).astype(dtype), "z")

    def term(i: Expr, j: Expr) -> Expr:
        return z[i, q].astype("float32") * (w[j, q] if trans_b else w[q, j]).astype("float32")

    c = compute((m, n), lambda i, j: sum(term(i, j), axis=q), "c")
    y = compute((m, n), lambda i, j: c[i, j].astype(dtype), "y")
    return build(y, inputs=[x, g, w], name="rms_norm_linear")
