"""A product and its low-rank update in one loop: x w + (x a) b as one kernel that reads x once, found by search.

python examples/graph_lora.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, sum, var
from neptune.ir.expr import Expr


def program() -> neptune.Program:
    """y = x w + (x a) b. x: [m, k], w: [k, n], a: [k, r], b: [r, n]."""
    m, k, n, r = (var(s) for s in "mknr")
    shapes = {"x": (m, k), "w": (k, n), "a": (k, r), "b": (r, n)}
    x, w, a, b = (placeholder(s, "float16", name) for name, s in shapes.items())

    def product(x: Tensor, w: Tensor, depth: Expr, columns: Expr, name: str) -> Tensor:
        p = reduce_axis((0, depth), "p")
        return compute(
            (m, columns), lambda i, j: sum(x[i, p].astype("float32") * w[p, j].astype("float32"), axis=p), name
        )

    low = product(x, a, k, r, "low")
    narrow = compute((m, r), lambda i, e: low[i, e].astype("float16"), "narrow")
    c, up = product(x, w, k, n, "c"), product(narrow, b, r, n, "up")
    return build(compute((m, n), lambda i, j: (c[i, j] + up[i, j]).astype("float16"), "y"), inputs=[x, w, a, b])


def main() -> float:
    """Search, run at small sizes, and return the relative error against float64."""
    sizes = {"m": 16, "k": 256, "n": 4096, "r": 16}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=10, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    assert kernel.graph is not None and len(kernel.graph.kernels) == 1
    x, w, a, b = (torch.randn(s).half() for s in ((5, 70), (70, 33), (70, 9), (9, 33)))
    exact = x.double() @ w.double() + x.double() @ a.double() @ b.double()
    y: Any = kernel(x, w, a, b)
    return float((y.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
