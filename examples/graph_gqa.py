"""Attention as one kernel that reads keys and values once, found by search from the plain expression.

The expression has no maximum: the search puts both sums over the keys into one loop, and safe softmax adds a running
maximum, so that large scores do not overflow.

python examples/graph_gqa.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, sum, var


def program() -> neptune.Program:
    """o = exp(q k) / Σ exp(q k) · v.

    q and o: [heads, queries, depth], k: [heads, depth, keys], v: [heads, keys, depth].
    """
    h, m, n, depth = var("heads"), var("queries"), var("keys"), var("depth")
    shapes = {"q": (h, m, depth), "k": (h, depth, n), "v": (h, n, depth)}
    q, k, v = (placeholder(shape, "float16", name) for name, shape in shapes.items())
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, n), "j")
    s = compute(
        (h, m, n), lambda b, i, j: sum(q[b, i, d].astype("float32") * k[b, d, j].astype("float32"), axis=d), "s"
    )
    e = compute((h, m, n), lambda b, i, j: exp(s[b, i, j]), "e")
    total = compute((h, m), lambda b, i: sum(e[b, i, j], axis=j), "total")
    p = compute((h, m, n), lambda b, i, j: (e[b, i, j] / total[b, i]).astype("float16"), "p")
    c = compute(
        (h, m, depth), lambda b, i, d: sum(p[b, i, j].astype("float32") * v[b, j, d].astype("float32"), axis=j), "c"
    )
    return build(compute((h, m, depth), lambda b, i, d: c[b, i, d].astype("float16"), "o"), name="gqa")


def main() -> float:
    """Search, run at small sizes with scores of hundreds, and return the relative error against float64."""
    sizes = {"heads": 32, "queries": 256, "keys": 4096, "depth": 64}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=9, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    assert kernel.graph is not None and len(kernel.graph.kernels) == 1
    q, k, v = (torch.randn(s).half() for s in ((2, 19, 24), (2, 24, 33), (2, 33, 24)))
    q *= 20
    exact = (q.double() @ k.double()).softmax(-1) @ v.double()
    o: Any = kernel(q, k, v)
    return float((o.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
