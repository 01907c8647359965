"""A program in parts: cut where it is fastest, equal parts searched once, one kernel of all of them."""

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend.builder import Tensor, build, compute, eq, if_then_else, placeholder, reduce_axis, sqrt, var
from neptune.frontend.builder import sum as fold
from neptune.ir.program import Program, stages
from neptune.mirage.partition import Partition, partitioned
from neptune.tune.model.machine import DEFAULT

SIZES = {"m": 16, "k": 2048}


def wide(x):  # type: ignore[no-untyped-def]
    return x.astype("float32")


def blocks() -> Program:
    """rms(x) w, a rotation that no graph has, and rms(·) u."""
    m, k = var("m"), var("k")
    x = placeholder((m, k), "float16", "x")
    w, u = (placeholder((k, k), "float16", n) for n in "wu")

    def layer(x: Tensor, w: Tensor, n: str) -> Tensor:
        p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")
        s = compute((m,), lambda i: fold(wide(x[i, q]) * wide(x[i, q]), axis=q), f"{n}_squares")
        r = compute((m,), lambda i: sqrt(s[i] / k.astype("float32")), f"{n}_root")
        z = compute((m, k), lambda i, p: (wide(x[i, p]) / r[i]).astype("float16"), f"{n}_norm")
        c = compute((m, k), lambda i, j: fold(wide(z[i, p]) * wide(w[p, j]), axis=p), f"{n}_sum")
        return compute((m, k), lambda i, j: c[i, j].astype("float16"), f"{n}_out")

    first = layer(x, w, "a")
    turned = compute((m, k), lambda i, j: if_then_else(eq(j % 2, 0), first[i, j], -first[i, j]), "turned")
    return build(layer(turned, u, "b"), inputs=[x, w, u], name="blocks")


@pytest.fixture(scope="module")
def parts() -> Partition:
    return partitioned(blocks(), SIZES, DEFAULT, seconds=60.0)


def test_the_parts_are_the_program_and_what_has_no_graph_is_alone(parts: Partition) -> None:
    names = [s.name for p in parts.parts for s in stages(p.program.body)]
    assert names == [s.name for s in stages(blocks().body)]
    (alone,) = [p for p in parts.parts if any(s.name == "turned" for s in stages(p.program.body))]
    assert alone.graph is None and len(stages(alone.program.body)) == 1
    assert max(len(stages(p.program.body)) for p in parts.parts) > 1
    assert 0 < parts.us < 1e3


def test_equal_parts_are_searched_once(parts: Partition) -> None:
    assert parts.shared >= parts.searches - 1
    first, second = ([len(stages(p.program.body)) for p in of] for of in _halves(parts))
    assert first == second


def _halves(parts: Partition) -> tuple[list, list]:  # type: ignore[type-arg]
    at = next(k for k, p in enumerate(parts.parts) if p.graph is None and len(stages(p.program.body)) == 1
              and stages(p.program.body)[0].name == "turned")  # fmt: skip
    return list(parts.parts[:at]), list(parts.parts[at + 1 :])


def test_one_kernel_computes_all(parts: Partition) -> None:
    kernel = neptune.compile(blocks(), parts.lowered().template, target="interpret")
    assert len(kernel.facts.kernels) < len(stages(blocks().body))
    rng = np.random.default_rng(0)
    x, w, u = (torch.from_numpy(rng.standard_normal(s) / 4).half() for s in ((5, 40), (40, 40), (40, 40)))

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(1, keepdim=True).sqrt() @ w.double()

    sign = torch.tensor([1.0, -1.0]).repeat(20)
    exact = layer(layer(x.double(), w) * sign, u)
    assert float((kernel(x, w, u).double() - exact).norm() / exact.norm()) < 3e-3


def test_a_product_with_two_axes_of_columns_has_a_program_for_each_of_one() -> None:
    """Rows by a weight of heads and depths: a tile of all three axes would be no product for the matrix unit."""
    m, k, h = var("m"), var("k"), var("h")
    x, w = placeholder((m, k), "float16", "x"), placeholder((k, h, 64), "float16", "w")
    p = reduce_axis((0, k), "p")
    c = compute((h, m, 64), lambda h, i, d: fold(wide(x[i, p]) * wide(w[p, h, d]), axis=p), "c")
    program = build(compute(c.shape, lambda h, i, d: c[h, i, d].astype("float16"), "y"), inputs=[x, w])
    found = partitioned(program, {"m": 256, "k": 2048, "h": 32}, DEFAULT, seconds=10.0)
    assert [(len(stages(p.program.body)), p.graph is None) for p in found.parts] == [(2, False)]
    assert found.us < 30
    kernel = neptune.compile(program, found.lowered().template, target="interpret")
    assert len(kernel.facts.kernels) == 1 and not kernel.warnings
    rng = np.random.default_rng(0)
    x16, w16 = (torch.from_numpy(rng.standard_normal(s)).half() for s in ((5, 40), (40, 3, 64)))
    exact = torch.einsum("ik,khd->hid", x16.double(), w16.double())
    assert float((kernel(x16, w16).double() - exact).norm() / exact.norm()) < 1e-3
