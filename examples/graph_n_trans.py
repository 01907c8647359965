"""The step of a normalised transformer, of elements and norms of rows: the template's kernel is the best graph, too.

Where a template makes the same kernel, a graph is no better: the search says so, and the template's kernel is kept.

python examples/graph_n_trans.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, sqrt, sum, var


def program() -> neptune.Program:
    """y = rms(x + α · (rms(h) + x)); rms(x) = x / √(mean x²) along rows. All: [rows, cols]."""
    shape = rows, cols = var("rows"), var("cols")
    x, h, alpha = (placeholder(shape, "float16", name) for name in ("x", "h", "alpha"))

    def root(x: Tensor, name: str) -> Tensor:
        j = reduce_axis((0, cols), "j")
        squares = compute((rows,), lambda i: sum(x[i, j].astype("float32") * x[i, j].astype("float32"), axis=j), name)
        return compute((rows,), lambda i: sqrt(squares[i] / cols.astype("float32")), f"{name}_root")

    hr = root(h, "hs")
    near = compute(shape, lambda i, j: h[i, j].astype("float32") / hr[i] + x[i, j].astype("float32"), "near")
    t = compute(shape, lambda i, j: x[i, j].astype("float32") + alpha[i, j].astype("float32") * near[i, j], "t")
    tr = root(t, "ts")
    y = compute(shape, lambda i, j: (t[i, j] / tr[i]).astype("float16"), "y")
    return build(y, inputs=[x, h, alpha], name="n_trans")


def main() -> float:
    """Search, run at small sizes, and return the relative error against float64."""
    sizes = {"rows": 8, "cols": 4096}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=8, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    said = kernel.explain(json=True)["search"]
    assert said["exhausted"] and said["numbers"]["verified"] and len(kernel.facts.kernels) == 1
    x, h, alpha = (torch.randn(5, 70).half() for _ in range(3))

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    exact = rms(x.double() + alpha.double() * (rms(h.double()) + x.double()))
    y: Any = kernel(x, h, alpha)
    return float((y.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
