"""Two products in one loop: silu(x w) · (x u) as one kernel that reads x once. A template makes it, too.

Where a template makes the same kernel, a graph is no better: the search says so, and the template's kernel is kept.

python examples/graph_gated_mlp.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, sigmoid, sum, var


def program() -> neptune.Program:
    """y = silu(x w) · (x u). x: [m, k], w and u: [k, n]."""
    m, k, n = var("m"), var("k"), var("n")
    x, w, u = (placeholder(s, "float16", name) for name, s in (("x", (m, k)), ("w", (k, n)), ("u", (k, n))))

    def product(w: Tensor, name: str) -> Tensor:
        p = reduce_axis((0, k), "p")
        return compute((m, n), lambda i, j: sum(x[i, p].astype("float32") * w[p, j].astype("float32"), axis=p), name)

    gate, up = product(w, "gate"), product(u, "up")
    y = compute((m, n), lambda i, j: (gate[i, j] * sigmoid(gate[i, j]) * up[i, j]).astype("float16"), "y")
    return build(y, inputs=[x, w, u], name="gated_mlp")


def main() -> float:
    """Search, run at small sizes, and return the relative error against float64."""
    sizes = {"m": 8, "k": 4096, "n": 4096}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=9, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    said = kernel.explain(json=True)["search"]
    assert said["exhausted"] and said["numbers"]["verified"] and len(kernel.facts.kernels) == 1
    x, w, u = (torch.randn(s).half() for s in ((5, 70), (70, 33), (70, 33)))
    exact = torch.nn.functional.silu(x.double() @ w.double()) * (x.double() @ u.double())
    y: Any = kernel(x, w, u)
    return float((y.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
