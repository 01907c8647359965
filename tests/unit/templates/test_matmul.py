"""The matmul template: any operand order, batch axes, epilogues, odd sizes; and what it is compiled to."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, maximum, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program
from neptune.ops.linear import ACTIVATIONS
from neptune.ops.linear import matmul as expression

pytestmark = pytest.mark.compared
TILES = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 16}
# One ulp of the result, relative; float32 sums differ in order.
TOLERANCE = {"float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def operands(shapes: list[tuple[int, ...]], dtype: str) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g).to(getattr(torch, dtype)) for s in shapes]


def close(got: torch.Tensor, want: torch.Tensor, dtype: str, depth: int) -> None:
    """Every element, to the rounding of the result and of the sum."""
    assert got.dtype == getattr(torch, dtype) and got.shape == want.shape
    slack = 2.0**-22 * depth**0.5 * 8
    error = (got.double() - want).abs()
    assert torch.isfinite(got).all() and (error <= TOLERANCE[dtype] * want.abs() + slack).all(), error.max()


ORDERS = [("float16", a, b) for a in (False, True) for b in (False, True)]


@cache
def compiled(dtype: str, **options: Any) -> neptune.Kernel:
    return neptune.compile(expression(dtype, **options), "matmul", target="llvm", params=TILES)


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize(
    ("dtype", "trans_a", "trans_b"), [*ORDERS, ("bfloat16", False, True), ("float32", True, False)]
)
def test_operand_orders_and_dtypes(target: str, dtype: str, trans_a: bool, trans_b: bool) -> None:
    kernel = compiled(dtype, trans_a=trans_a, trans_b=trans_b).for_target(target)
    for m, n, k in ((17, 130, 33), (1, 1, 1), (64, 17, 16)):
        a, b = operands([(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)], dtype)
        want = (a.T if trans_a else a).double() @ (b.T if trans_b else b).double()
        out = torch.full((m, n), float("nan"), dtype=a.dtype)
        close(kernel(a, b, out=out), want, dtype, k)


@pytest.mark.parametrize(
    ("target", "activation"), [("interpret", "silu"), ("llvm", None), *(("llvm", a) for a in ACTIVATIONS)]
)
def test_batch_and_epilogue(target: str, activation: str | None) -> None:
    made = compiled("float16", trans_b=True, batch=True, bias=True, activation=activation, residual=True)
    kernel = made.for_target(target)
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    m, n, k = 17, 33, 20
    a, b, bias, r = operands([(3, m, k), (3, n, k), (n,), (3, m, n)], "float16")
    x = a.double() @ b.double().transpose(1, 2) + bias.double()
    gelu, by_tanh = torch.nn.functional.gelu(x), torch.nn.functional.gelu(x, approximate="tanh")
    plain = {None: x, "relu": x.relu(), "silu": x * x.sigmoid(), "tanh": x.tanh()}
    done = (plain | {"gelu": gelu, "gelu_tanh": by_tanh})[activation]
    close(kernel(a, b, bias, r), done + r.double(), "float16", k)


def test_sizes_around_the_tiles() -> None:
    kernel = compiled("float32")
    for m in (1, 31, 32, 33):
        for n in (1, 15, 16, 130):
            for k in (1, 15, 16, 17, 130):
                a, b = operands([(m, k), (k, n)], "float32")
                out = torch.full((m, n), float("nan"))
                close(kernel(a, b, out=out), a.double() @ b.double(), "float32", k)


# --- other programs of that shape ---------------------------------------------------------------

M, N, K = var("m"), var("n"), var("k")


def run(program: Program, inputs: list[torch.Tensor], *want: torch.Tensor) -> None:
    kernel = neptune.compile(program, "matmul", target="llvm", params=TILES)
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    for target in ("llvm", "interpret"):
        found = kernel.for_target(target)(*inputs)
        for got, exact in zip(found if isinstance(found, tuple) else (found,), want, strict=True):
            close(got, exact, "float32", 40)


def test_a_linear_layer_and_a_map_before() -> None:
    """x[b, s, k] W[n, k] with a scaled weight: two axes are of x alone, b is one of the grid."""
    b, s = var("b"), var("s")
    x, w, scale = placeholder((b, s, K), name="x"), placeholder((N, K), name="w"), placeholder((N,), name="scale")
    p = reduce_axis((0, K), "p")
    ws = compute((N, K), lambda j, p: w[j, p] * scale[j], "ws")
    y = compute((b, s, N), lambda z, i, j: sum(x[z, i, p] * ws[j, p], axis=p), "y")
    one, two, three = operands([(2, 17, 20), (33, 20), (33,)], "float32")
    want = one.double() @ (two.double() * three.double()[:, None]).T
    run(build(y, inputs=[x, w, scale]), [one, two, three], want)


def test_the_result_transposed_and_two_results() -> None:
    a, b = placeholder((M, K), name="a"), placeholder((K, N), name="b")
    p = reduce_axis((0, K), "p")
    c = compute((M, N), lambda i, j: sum(a[i, p] * b[p, j], axis=p), "c")
    t = compute((N, M), lambda j, i: maximum(c[i, j], 0.0), "t")
    one, two = operands([(17, 20), (20, 33)], "float32")
    product = one.double() @ two.double()
    run(build(t, inputs=[a, b]), [one, two], product.relu().T)
    run(build([c, t], inputs=[a, b]), [one, two], product, product.relu().T)


def test_operands_may_stand_either_way() -> None:
    p = reduce_axis((0, 40), "p")
    a, b = placeholder((40, M), name="a"), placeholder((40, N), name="b")
    y = compute((M, N), lambda i, j: sum(b[p, j] * a[p, i], axis=p), "y")
    one, two = operands([(40, 17), (40, 33)], "float32")
    run(build(y, inputs=[a, b]), [one, two], one.double().T @ two.double())


# --- what it is compiled to ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "unit", "warps"), [("cuda:80", "mma", 8), ("cuda:90", "wgmma", 8), ("hip:gfx942", "mfma", 8)]
)
def test_the_matrix_unit_without_spills(target: str, unit: str, warps: int) -> None:
    params = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": warps}
    for trans_b in (False, True):
        program = expression("float16", trans_b=trans_b, bias=True, activation="relu")
        (found,) = neptune.compile(program, "matmul", target="llvm", params=params).resources(target)
        assert (found.matrix, found.spill_bytes, found.warnings) == (unit, 0, ())
