"""A block of a Llama as one program, of which a search has to make parts: most stages have graphs, rotations have none.

    x ─ rms ─ q, k, v ─ rotation of q, k ─ softmax(q k) v ─ product + x ─ rms ─ silu(gate) · up ─ product + ─ y

As in a step that sees all tokens at once, without a mask, with as many heads of k and v as of q.
"""

from __future__ import annotations

import numpy as np

from bench.mirage_programs import Reader, Size, _read, _rms, gqa64, rms64
from neptune.frontend.builder import Tensor, build, compute, exp, placeholder, reduce_axis, select, sigmoid, sum, var
from neptune.ir.evaluate.domains import Array
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.parts import wide

DEPTH = 64
SIZES = {"tokens": 256, "width": 2048, "heads": 32, "hidden": 8192}
"""Those of Llama 3.2 1B."""
SMALL = {"tokens": 21, "width": 70, "heads": 2, "hidden": 90}
"""Sizes at which errors are measured: no multiples of tiles."""


def llama_blocks(layers: int = 1, dtype: str = "float16", **sizes: int) -> Program:
    """Blocks one after another; sizes that are not given are symbols.

    Inputs: x: [tokens, width]; cos and sin: float32[tokens, 32]; then for each layer wq, wk, wv: [width, heads, 64],
    wo: [heads, 64, width], gate and up: [width, hidden], down: [hidden, width]. The result is as x.
    """
    tokens, width, heads, hidden = (sizes.get(n, var(n)) for n in SIZES)
    half = DEPTH // 2
    x = placeholder((tokens, width), dtype, "x")
    cos, sin = (placeholder((tokens, half), "float32", n) for n in ("cos", "sin"))
    inputs = [x, cos, sin]
    for k in range(layers):
        shapes = {
            **dict.fromkeys(("wq", "wk", "wv"), (width, heads, DEPTH)), "wo": (heads, DEPTH, width),
            "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width),
        }  # fmt: skip
        weights = {n: placeholder(s, dtype, f"{n}{k}") for n, s in shapes.items()}
        inputs += weights.values()
        x = _block(x, cos, sin, weights, (tokens, width, heads, hidden), f"b{k}", dtype)
    return build(x, inputs=inputs, name="llama_blocks")


def _block(
    x: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor], sizes: tuple[Size, ...], of: str, dtype: str
) -> Tensor:
    tokens, width, heads, hidden = sizes
    a = _rms(_read(x), (tokens, width), f"{of}_x", dtype)
    q, key, v = (_heads(a, w[f"w{n}"], sizes, f"{of}_{n}", dtype) for n in "qkv")
    q, key = (_turned(t, cos, sin, f"{of}_{n}_turned", dtype) for t, n in ((q, "q"), (key, "k")))
    o = _attention(q, key, v, sizes, of, dtype)
    h, d = reduce_axis((0, heads), "h"), reduce_axis((0, DEPTH), "d")
    c = compute(
        (tokens, width), lambda i, n: sum(wide(o[h, i, d]) * wide(w["wo"][h, d, n]), axis=[h, d]), f"{of}_wo_sum"
    )
    y = compute((tokens, width), lambda i, n: (wide(x[i, n]) + c[i, n]).astype(dtype), f"{of}_y")
    b = _rms(_read(y), (tokens, width), f"{of}_y", dtype)
    gate, up = (_product(b, w[n], (tokens, hidden), width, f"{of}_{n}") for n in ("gate", "up"))
    act = compute(
        (tokens, hidden),
        lambda i, n: (gate[i, n] * sigmoid(gate[i, n]) * up[i, n]).astype(dtype),
        f"{of}_act",
    )
    down = _product(act, w["down"], (tokens, width), hidden, f"{of}_down")
    return compute((tokens, width), lambda i, n: (wide(y[i, n]) + down[i, n]).astype(dtype), f"{of}_out")


def _product(a: Tensor, b: Tensor, shape: tuple[Size, Size], inner: Size, name: str) -> Tensor:
    p = reduce_axis((0, inner), "p")
    return compute(shape, lambda i, n: sum(wide(a[i, p]) * wide(b[p, n]), axis=p), f"{name}_sum")


def _heads(a: Tensor, w: Tensor, sizes: tuple[Size, ...], name: str, dtype: str) -> Tensor:
    tokens, width, heads, _ = sizes
    p = reduce_axis((0, width), "p")
    c = compute((heads, tokens, DEPTH), lambda h, i, d: sum(wide(a[i, p]) * wide(w[p, h, d]), axis=p), f"{name}_sum")
    return compute(c.shape, lambda h, i, d: c[h, i, d].astype(dtype), name)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, name: str, dtype: str) -> Tensor:
    half = DEPTH // 2

    def turned(h: Expr, i: Expr, d: Expr) -> Expr:
        other = wide(x[h, i, (d + half) % DEPTH]) * sin[i, d % half]
        return (wide(x[h, i, d]) * cos[i, d % half] + select(d < half, -other, other)).astype(dtype)

    return compute(x.shape, turned, name)


def _attention(q: Tensor, k: Tensor, v: Tensor, sizes: tuple[Size, ...], of: str, dtype: str) -> Tensor:
    tokens, _, heads, _ = sizes
    d, j = reduce_axis((0, DEPTH), "d"), reduce_axis((0, tokens), "j")
    scores, read = (heads, tokens, tokens), (_read(q), _read(k))
    of_q: Reader = read[0]
    s = compute(scores, lambda h, i, j: sum(of_q(h, i, d) * read[1](h, j, d), axis=d), f"{of}_s")
    e = compute(scores, lambda h, i, j: exp(s[h, i, j] * DEPTH**-0.5), f"{of}_e")
    l = compute((heads, tokens), lambda h, i: sum(e[h, i, j], axis=j), f"{of}_l")  # noqa: E741 (the field's name)
    p = compute(scores, lambda h, i, j: (e[h, i, j] / l[h, i]).astype(dtype), f"{of}_p")
    c = compute(q.shape, lambda h, i, d: sum(wide(p[h, i, j]) * wide(v[h, j, d]), axis=j), f"{of}_c")
    return compute(q.shape, lambda h, i, d: c[h, i, d].astype(dtype), f"{of}_o")


def llama64(x: Array, cos: Array, sin: Array, *weights: Array) -> Array:
    """What `llama_blocks` should give, in float64."""
    for wq, wk, wv, wo, gate, up, down in zip(*(weights[n::7] for n in range(7)), strict=True):
        q, k, v = (np.einsum("ip,phd->hid", rms64(x), w) for w in (wq, wk, wv))
        q, k = (_turned64(t, cos, sin) for t in (q, k))
        o = gqa64(q * DEPTH**-0.5, k.swapaxes(1, 2), v)
        y = x + np.einsum("hid,hdn->in", o, wo)
        g = rms64(y) @ gate
        x = y + (g / (1 + np.exp(-g)) * (rms64(y) @ up)) @ down
    return x


def _turned64(t: Array, cos: Array, sin: Array) -> Array:
    a, b = np.split(t, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def tables(tokens: int) -> tuple[Array, Array]:
    """cos and sin of the angles of a Llama, in float32."""
    angles = np.arange(tokens)[:, None] * 5e5 ** (-np.arange(0, DEPTH, 2) / DEPTH)
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")
