"""Programs as users bring them, for searches: typical sizes, and how large a kernel has to be searched for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neptune.frontend.builder import Tensor, build, compute, exp, max, placeholder, reduce_axis, sigmoid, sqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.parts import wide


@dataclass(frozen=True)
class Wild:
    """A program with typical sizes, and how large a kernel has to be searched for it."""

    build: Callable[[], Program]
    sizes: Mapping[str, int]
    operators: int = 9
    kernels: int = 3


M, K, N, R, H, Q, J, D, B, T = (var(x) for x in ("m", "k", "n", "r", "h", "rows", "keys", "d", "b", "t"))


def _in(name: str, *shape: Expr) -> Tensor:
    return placeholder(shape, "float16", name)


def _product(x: Tensor, w: Tensor, name: str) -> Tensor:
    """x w in float32."""
    p = reduce_axis((0, x.shape[1]), "p")
    rows, cols = x.shape[0], w.shape[1]
    return compute((rows, cols), lambda i, j: sum(wide(x[i, p]) * wide(w[p, j]), axis=p), name)


def _half(x: Tensor, name: str) -> Tensor:
    return compute(x.shape, lambda *i: x[i].astype("float16"), name)


def norm_qkv() -> Program:
    """rms(x) before three products, each a result."""
    x, weights = _in("x", M, K), [_in(f"w{c}", K, N) for c in "qkv"]
    q = reduce_axis((0, K), "q")
    squares = compute((M,), lambda i: sum(wide(x[i, q]) * wide(x[i, q]), axis=q), "squares")
    root = compute((M,), lambda i: sqrt(squares[i] / K.astype("float32") + 1e-5), "root")
    z = compute((M, K), lambda i, p: (wide(x[i, p]) / root[i]).astype("float16"), "z")
    made = [_half(_product(z, w, f"c{w.name}"), f"y{w.name}") for w in weights]
    return build(made, inputs=[x, *weights], name="norm_qkv")


def swiglu() -> Program:
    """(silu(x w) · x u) d."""
    x, w, u, down = _in("x", M, K), _in("w", K, N), _in("u", K, N), _in("down", N, K)
    gate, up = _product(x, w, "gate"), _product(x, u, "up")
    h = compute((M, N), lambda i, j: (gate[i, j] * sigmoid(gate[i, j]) * up[i, j]).astype("float16"), "h")
    return build(_half(_product(h, down, "c"), "y"), inputs=[x, w, u, down], name="swiglu")


def _softmax(s: Tensor, name: str) -> Tensor:
    """Along the last axis, with its maximum."""
    *rows, cols = s.shape
    j, k = reduce_axis((0, cols), "j"), reduce_axis((0, cols), "jj")
    m = compute(rows, lambda *i: max(s[(*i, j)], axis=j), f"{name}_max")
    e = compute(s.shape, lambda *i: exp(s[i] - m[i[:-1]]), f"{name}_exp")
    total = compute(rows, lambda *i: sum(e[(*i, k)], axis=k), f"{name}_sum")
    return compute(s.shape, lambda *i: (e[i] / total[i[:-1]]).astype("float16"), name)


def gated_attention() -> Program:
    """softmax(q k) v · sigmoid(g), with the maximum."""
    q, k, v, g = _in("q", H, Q, D), _in("k", H, J, D), _in("v", H, J, D), _in("g", H, Q, D)
    d, j = reduce_axis((0, D), "e"), reduce_axis((0, J), "jv")
    s = compute((H, Q, J), lambda h, i, j: sum(wide(q[h, i, d]) * wide(k[h, j, d]), axis=d), "s")
    p = _softmax(s, "p")
    c = compute((H, Q, D), lambda h, i, d: sum(wide(p[h, i, j]) * wide(v[h, j, d]), axis=j), "c")
    o = compute((H, Q, D), lambda h, i, d: (c[h, i, d] * sigmoid(wide(g[h, i, d]))).astype("float16"), "o")
    return build(o, inputs=[q, k, v, g], name="gated_attention")


def pooling() -> Program:
    """Rows of a sequence, weighted by the softmax of their products with one vector."""
    x, w = _in("x", B, T, D), _in("w", D)
    d, t = reduce_axis((0, D), "e"), reduce_axis((0, T), "tt")
    s = compute((B, T), lambda b, t: sum(wide(x[b, t, d]) * wide(w[d]), axis=d), "s")
    p = _softmax(s, "p")
    y = compute((B, D), lambda b, d: sum(wide(p[b, t]) * wide(x[b, t, d]), axis=t), "c")
    return build(_half(y, "y"), inputs=[x, w], name="pooling")


def cosine() -> Program:
    """The cosine of each row of x with each of y."""
    x, y = _in("x", M, K), _in("y", N, K)

    p, of_x, of_y = reduce_axis((0, K), "p"), _root(x), _root(y)
    c = compute((M, N), lambda i, j: sum(wide(x[i, p]) * wide(y[j, p]), axis=p), "c")
    z = compute((M, N), lambda i, j: (c[i, j] / (of_x[i] * of_y[j])).astype("float16"), "z")
    return build(z, inputs=[x, y], name="cosine")


def _root(a: Tensor) -> Tensor:
    """The norm of each row."""
    p = reduce_axis((0, a.shape[1]), "q")
    squares = compute((a.shape[0],), lambda i: sum(wide(a[i, p]) * wide(a[i, p]), axis=p), f"squares_{a.name}")
    return compute((a.shape[0],), lambda i: sqrt(squares[i]), f"norm_{a.name}")


def two_adapters() -> Program:
    """x w + (x a) b + (x c) d."""
    x, w = _in("x", M, K), _in("w", K, N)
    pairs = [(_in(f"a{n}", K, R), _in(f"b{n}", R, N)) for n in (1, 2)]
    low = [_half(_product(x, a, f"low_{a.name}"), f"h_{a.name}") for a, _ in pairs]
    c, up = _product(x, w, "c"), [_product(h, b, f"up_{b.name}") for h, (_, b) in zip(low, pairs, strict=True)]
    y = compute((M, N), lambda i, j: (c[i, j] + up[0][i, j] + up[1][i, j]).astype("float16"), "y")
    return build(y, inputs=[x, w, *(t for pair in pairs for t in pair)], name="two_adapters")


def linear_attention() -> Program:
    """exp(q) (exp(k) v) / exp(q) Σ exp(k)."""
    q, k, v = _in("q", H, Q, D), _in("k", H, J, D), _in("v", H, J, R)
    j, jj = reduce_axis((0, J), "j"), reduce_axis((0, J), "jj")
    d, dd = reduce_axis((0, D), "e"), reduce_axis((0, D), "ee")
    fq = compute((H, Q, D), lambda h, i, d: exp(wide(q[h, i, d])), "fq")
    fk = compute((H, J, D), lambda h, j, d: exp(wide(k[h, j, d])), "fk")
    kv = compute((H, D, R), lambda h, d, e: sum(fk[h, j, d] * wide(v[h, j, e]), axis=j), "kv")
    ks = compute((H, D), lambda h, d: sum(fk[h, jj, d], axis=jj), "ks")
    up = compute((H, Q, R), lambda h, i, e: sum(fq[h, i, d] * kv[h, d, e], axis=d), "up")
    down = compute((H, Q), lambda h, i: sum(fq[h, i, dd] * ks[h, dd], axis=dd), "down")
    o = compute((H, Q, R), lambda h, i, e: (up[h, i, e] / down[h, i]).astype("float16"), "o")
    return build(o, inputs=[q, k, v], name="linear_attention")


_HEADS = {"h": 16, "rows": 1024, "keys": 1024, "d": 64}
WILD: Mapping[str, Wild] = {
    "norm_qkv": Wild(norm_qkv, {"m": 16, "k": 4096, "n": 4096}, 10),
    "swiglu": Wild(swiglu, {"m": 16, "k": 2048, "n": 4096}),
    "gated_attention": Wild(gated_attention, _HEADS, 12, 1),
    "pooling": Wild(pooling, {"b": 32, "t": 2048, "d": 128}, 10),
    "cosine": Wild(cosine, {"m": 1024, "k": 512, "n": 1024}),
    "two_adapters": Wild(two_adapters, {"m": 64, "k": 2048, "n": 2048, "r": 16}, 8),
    "linear_attention": Wild(linear_attention, {"h": 16, "rows": 2048, "keys": 2048, "d": 64, "r": 64}, 8),
}
