"""A norm behind its product: rms(x) w as one kernel that reads x and w once, found by search.

python examples/graph_rms_norm.py
"""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sqrt, sum, var


def program() -> neptune.Program:
    """y = (x / √(mean x²)) w. x: [m, k], w: [k, n]."""
    m, k, n = var("m"), var("k"), var("n")
    x, w = placeholder((m, k), "float16", "x"), placeholder((k, n), "float16", "w")
    p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")
    squares = compute((m,), lambda i: sum(x[i, q].astype("float32") * x[i, q].astype("float32"), axis=q), "squares")
    root = compute((m,), lambda i: sqrt(squares[i] / k.astype("float32")), "root")
    z = compute((m, k), lambda i, p: (x[i, p].astype("float32") / root[i]).astype("float16"), "z")
    c = compute((m, n), lambda i, j: sum(z[i, p].astype("float32") * w[p, j].astype("float32"), axis=p), "c")
    return build(compute((m, n), lambda i, j: c[i, j].astype("float16"), "y"), name="rms_norm")


def main() -> float:
    """Search, run at small sizes, and return the relative error against float64."""
    sizes = {"m": 16, "k": 4096, "n": 6144}
    kernel = neptune.superoptimize(
        program(), shapes=sizes, budget="60s", max_block_ops=9, max_kernels=1, target="interpret"
    )
    print(kernel.explain())
    assert kernel.graph is not None and len(kernel.graph.kernels) == 1
    x, w = torch.randn(5, 70).half(), torch.randn(70, 33).half()
    exact = x.double() / x.double().square().mean(1, keepdim=True).sqrt() @ w.double()
    y: Any = kernel(x, w)
    return float((y.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    assert main() < 2e-3
