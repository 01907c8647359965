"""The benchmarks of µGraphs: which program each is, its sizes, and what it should give in float64.

Source: Wu et al., "Mirage" (OSDI 2025), section 7, with the expressions and sizes of its scripts; b is the batch. Two
rows are added: norms of queries and keys, as the paper's text has it, and a norm with a gain.

`BENCHMARKS["RMSNorm"].program()` has symbolic sizes; `.program(**benchmark.sizes(8))` those of b = 8. Inputs and
results have one dtype, sums and what is between them float32; what a norm or a quotient gives to a product is rounded
to the dtype, as where a kernel of its own makes it. rms(x) = x / √(mean x²), without an epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neptune.frontend.builder import Tensor, build, compute, exp, placeholder, reduce_axis, sigmoid, sqrt, sum, var
from neptune.ir.evaluate.domains import Array
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.parts import wide

BATCHES = (1, 8, 16)
DTYPES = ("float16", "bfloat16")
Size = int | Expr
Reader = Callable[..., Expr]
"""(row …, depth) → the value there, in float32."""


@dataclass(frozen=True)
class Benchmark:
    """A row of the table: `build` makes the program of a dtype and of `symbols`, `sizes` gives their values at batch b.

    `reference` gives the result in float64 from the inputs in the order of a call.
    """

    name: str
    symbols: tuple[str, ...]
    build: Callable[..., Program]
    sizes: Callable[[int], dict[str, int]]
    reference: Callable[..., Array]

    def program(self, dtype: str = "float16", **sizes: int) -> Program:
        """The program; sizes that are not given are symbols."""
        return self.build(dtype, *(sizes.get(name, var(name)) for name in self.symbols))

    def __str__(self) -> str:
        return self.name


# --- programs ----------------------------------------------------------------------------------------


def gqa(dtype: str, heads: Size, queries: Size, keys: Size, depth: Size, *, normed: str = "") -> Program:
    """o = exp(q k) / Σ_keys exp(q k) · v, without a scale and a maximum, where each tensor in `normed` has rms first.

    q: [heads, queries, depth], k: [heads, depth, keys], v: [heads, keys, depth], o: as q. Stages: those of norms, s
    (scores), e, l (sums of e), p, c (the product), o.
    """
    q, k = placeholder((heads, queries, depth), dtype, "q"), placeholder((heads, depth, keys), dtype, "k")
    v = placeholder((heads, keys, depth), dtype, "v")
    # By row and column of the depth, whatever the layout.
    of_q, of_v = _read(q), _read(v)
    of_k: Reader = lambda h, j, d: wide(k[h, d, j])  # noqa: E731
    if "q" in normed:
        of_q = _read(_rms(of_q, (heads, queries, depth), "q", dtype))
    if "k" in normed:
        of_k = _read(_rms(of_k, (heads, keys, depth), "k", dtype))
    if "v" in normed:
        of_v = _read(_rms(of_v, (heads, keys, depth), "v", dtype))
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, keys), "j")
    scores = (heads, queries, keys)
    s = compute(scores, lambda h, i, j: sum(of_q(h, i, d) * of_k(h, j, d), axis=d), "s")
    e = compute(scores, lambda h, i, j: exp(s[h, i, j]), "e")
    l = compute((heads, queries), lambda h, i: sum(e[h, i, j], axis=j), "l")  # noqa: E741 (the field's name)
    p = compute(scores, lambda h, i, j: (e[h, i, j] / l[h, i]).astype(dtype), "p")
    c = compute(q.shape, lambda h, i, d: sum(wide(p[h, i, j]) * of_v(h, j, d), axis=j), "c")
    o = compute(q.shape, lambda h, i, d: c[h, i, d].astype(dtype), "o")
    return build(o, inputs=[q, k, v], name=f"{normed}_norm_gqa" if normed else "gqa")


def qk_norm(dtype: str, heads: Size, queries: Size, keys: Size, depth: Size) -> Program:
    """`gqa` of rms(q), k and rms(v), as in the scripts."""
    return gqa(dtype, heads, queries, keys, depth, normed="qv")


def qk_norm_both(dtype: str, heads: Size, queries: Size, keys: Size, depth: Size) -> Program:
    """`gqa` of rms(q), rms(k) and v, as in the text of the paper."""
    return gqa(dtype, heads, queries, keys, depth, normed="qk")


def rms_norm(dtype: str, m: Size, k: Size, n: Size, *, gain: bool = False) -> Program:
    """y = rms(x) w, with a `gain` rms(x · g) w. x: [m, k], g: [k], w: [k, n], y: [m, n].

    Stages: x_squares, x_root, x_norm, c (the product), y.
    """
    x, g, w = placeholder((m, k), dtype, "x"), placeholder((k,), dtype, "g"), placeholder((k, n), dtype, "w")
    z = _rms((lambda i, p: wide(x[i, p]) * wide(g[p])) if gain else _read(x), (m, k), "x", dtype)
    p = reduce_axis((0, k), "p")
    c = compute((m, n), lambda i, j: sum(wide(z[i, p]) * wide(w[p, j]), axis=p), "c")
    y = compute((m, n), lambda i, j: c[i, j].astype(dtype), "y")
    return build(y, inputs=[x, g, w] if gain else [x, w], name="rms_norm_gain" if gain else "rms_norm")


def rms_norm_gain(dtype: str, m: Size, k: Size, n: Size) -> Program:
    """`rms_norm` with a gain."""
    return rms_norm(dtype, m, k, n, gain=True)


def lora(dtype: str, m: Size, k: Size, n: Size, r: Size) -> Program:
    """y = x w + (x a) b. x: [m, k], w: [k, n], a: [k, r], b: [r, n], y: [m, n]. Stages: c, low, h, up, y."""
    x, w = placeholder((m, k), dtype, "x"), placeholder((k, n), dtype, "w")
    a, b = placeholder((k, r), dtype, "a"), placeholder((r, n), dtype, "b")
    p, e = reduce_axis((0, k), "p"), reduce_axis((0, r), "e")
    c = compute((m, n), lambda i, j: sum(wide(x[i, p]) * wide(w[p, j]), axis=p), "c")
    low = compute((m, r), lambda i, e: sum(wide(x[i, p]) * wide(a[p, e]), axis=p), "low")
    h = compute((m, r), lambda i, e: low[i, e].astype(dtype), "h")
    up = compute((m, n), lambda i, j: sum(wide(h[i, e]) * wide(b[e, j]), axis=e), "up")
    y = compute((m, n), lambda i, j: (c[i, j] + up[i, j]).astype(dtype), "y")
    return build(y, inputs=[x, w, a, b], name="lora")


def gated_mlp(dtype: str, m: Size, k: Size, n: Size) -> Program:
    """y = silu(x w) · (x u). x: [m, k], w and u: [k, n], y: [m, n]. Stages: gate, up, y."""
    x, w, u = (placeholder(s, dtype, name) for name, s in (("x", (m, k)), ("w", (k, n)), ("u", (k, n))))
    p = reduce_axis((0, k), "p")
    gate = compute((m, n), lambda i, j: sum(wide(x[i, p]) * wide(w[p, j]), axis=p), "gate")
    up = compute((m, n), lambda i, j: sum(wide(x[i, p]) * wide(u[p, j]), axis=p), "up")
    y = compute((m, n), lambda i, j: (gate[i, j] * sigmoid(gate[i, j]) * up[i, j]).astype(dtype), "y")
    return build(y, inputs=[x, w, u], name="gated_mlp")


def n_trans(dtype: str, rows: Size, cols: Size) -> Program:
    """y = rms(x + α · (rms(h) + x)): the step of a normalised transformer, as the scripts have it. All: [rows, cols].

    Stages: h_squares, h_root, t (the sum), t_squares, t_root, y.
    """
    x, h, alpha = (placeholder((rows, cols), dtype, name) for name in ("x", "h", "alpha"))
    h_root = _root(_read(h), (rows, cols), "h")
    t = compute(
        (rows, cols),
        lambda i, j: wide(x[i, j]) + wide(alpha[i, j]) * (wide(h[i, j]) / h_root[i] + wide(x[i, j])),
        "t",
    )
    t_root = _root(_read(t), (rows, cols), "t")
    y = compute((rows, cols), lambda i, j: (t[i, j] / t_root[i]).astype(dtype), "y")
    return build(y, inputs=[x, h, alpha], name="n_trans")


def _read(t: Tensor) -> Reader:
    return lambda *at: wide(t[at])


def _root(x: Reader, shape: tuple[Size, ...], name: str) -> Tensor:
    """√(mean x²) along the last axis."""
    *rows, depth = shape
    d = reduce_axis((0, depth), "d")
    count = float(depth) if isinstance(depth, int) else depth.astype("float32")
    squares = compute(rows, lambda *i: sum(x(*i, d) * x(*i, d), axis=d), f"{name}_squares")
    return compute(rows, lambda *i: sqrt(squares[i] / count), f"{name}_root")


def _rms(x: Reader, shape: tuple[Size, ...], name: str, dtype: str) -> Tensor:
    """x / √(mean x²) along the last axis, rounded to `dtype`."""
    root = _root(x, shape, name)
    return compute(shape, lambda *i: (x(*i) / root[i[:-1]]).astype(dtype), f"{name}_norm")


# --- what they should give -----------------------------------------------------------------------------


def rms64(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True)))


def gqa64(q: Array, k: Array, v: Array) -> Array:
    s = q @ k
    e = np.exp(s - s.max(-1, keepdims=True))  # softmax is the same with any maximum
    return np.asarray(e / e.sum(-1, keepdims=True) @ v)


def _rms_columns64(k: Array) -> Array:
    return rms64(k.swapaxes(-1, -2)).swapaxes(-1, -2)


def _gated64(x: Array, w: Array, u: Array) -> Array:
    gate = x @ w
    return np.asarray(gate / (1 + np.exp(-gate)) * (x @ u))


def _attention_sizes(b: int) -> dict[str, int]:
    return {"heads": 2 * b, "queries": 256, "keys": 4096, "depth": 64}


def _rms_norm_sizes(b: int) -> dict[str, int]:
    return {"m": 2 * b, "k": 4096, "n": 6144}


_ATTENTION, _PRODUCT = ("heads", "queries", "keys", "depth"), ("m", "k", "n")
_ROWS = (
    Benchmark("GQA", _ATTENTION, gqa, _attention_sizes, gqa64),
    Benchmark("QKNorm", _ATTENTION, qk_norm, _attention_sizes, lambda q, k, v: gqa64(rms64(q), k, rms64(v))),
    Benchmark(
        "QKNorm-both",
        _ATTENTION,
        qk_norm_both,
        _attention_sizes,
        lambda q, k, v: gqa64(rms64(q), _rms_columns64(k), v),
    ),
    Benchmark("RMSNorm", _PRODUCT, rms_norm, _rms_norm_sizes, lambda x, w: rms64(x) @ w),
    Benchmark("RMSNorm-gain", _PRODUCT, rms_norm_gain, _rms_norm_sizes, lambda x, g, w: rms64(x * g) @ w),
    Benchmark(
        "LoRA",
        ("m", "k", "n", "r"),
        lora,
        lambda b: {"m": 16, "k": 256, "n": 4096, "r": 16},
        lambda x, w, a, b: x @ w + x @ a @ b,
    ),
    Benchmark("GatedMLP", _PRODUCT, gated_mlp, lambda b: {"m": 8, "k": 4096, "n": 4096}, _gated64),
    Benchmark(
        "nTrans",
        ("rows", "cols"),
        n_trans,
        lambda b: {"rows": 8 * b, "cols": 4096},
        lambda x, h, alpha: rms64(x + alpha * (rms64(h) + x)),
    ),
)
BENCHMARKS = {row.name: row for row in _ROWS}
