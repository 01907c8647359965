"""Attention with normed queries and values as one kernel: five kernels become one, found by search.

python examples/graph_qk_norm.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import Tensor, build, compute, exp, placeholder, reduce_axis, sqrt, sum, var
from neptune.ir.expr import Expr


def program() -> neptune.Program:
    """Attention of rms(q), k and rms(v); rms(x) = x / √(mean x²) along the depth.

    q and o: [heads, queries, depth], k: [heads, depth, keys], v: [heads, keys, depth].
    """
    h, m, n, depth = var("heads"), var("queries"), var("keys"), var("depth")
    shapes = {"q": (h, m, depth), "k": (h, depth, n), "v": (h, n, depth)}
    q, k, v = (placeholder(shape, "float16", name) for name, shape in shapes.items())

    def rms(x: Tensor, rows: Expr, name: str) -> Tensor:
        d = reduce_axis((0, depth), "d")
        squares = compute(
            (h, rows), lambda b, i: sum(x[b, i, d].astype("float32") * x[b, i, d].astype("float32"), axis=d), f"{name}s"
        )
        root = compute((h, rows), lambda b, i: sqrt(squares[b, i] / depth.astype("float32")), f"{name}r")
        return compute(
            x.shape, lambda b, i, d: (x[b, i, d].astype("float32") / root[b, i]).astype("float16"), f"{name}n"
        )

    qn, vn = rms(q, m, "q"), rms(v, n, "v")
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, n), "j")
    s = compute(
        (h, m, n), lambda b, i, j: sum(qn[b, i, d].astype("float32") * k[b, d, j].astype("float32"), axis=d), "s"
    )
    e = compute((h, m, n), lambda b, i, j: exp(s[b, i, j]), "e")
    total = compute((h, m), lambda b, i: sum(e[b, i, j], axis=j), "total")
    p = compute((h, m, n), lambda b, i, j: (e[b, i, j] / total[b, i]).astype("float16"), "p")
    c = compute(
        (h, m, depth), lambda b, i, d: sum(p[b, i, j].astype("float32") * vn[b, j, d].astype("float32"), axis=j), "c"
    )
    return build(
        compute((h, m, depth), lambda b, i, d: c[b, i, d].astype("float16"), "o"), inputs=[q, k, v], name="qk_norm"
    )


def main() -> float:
    """Search, run at small sizes, and return the relative error against float64."""
    sizes = {"heads": 32, "queries": 256, "keys": 4096, "depth": 64}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=11, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    assert kernel.graph is not None and len(kernel.graph.kernels) == 1
    q, k, v = (torch.randn(s).half() for s in ((2, 19, 24), (2, 24, 33), (2, 33, 24)))
    qn, vn = (x.double() / x.double().square().mean(-1, keepdim=True).sqrt() for x in (q, v))
    exact = (qn @ k.double()).softmax(-1) @ vn
    o: Any = kernel(q, k, v)
    return float((o.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
