"""matmul_split: a product in parts of its depth."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, maximum, placeholder, reduce_axis, sum, var
from neptune.ops.softmax import softmax

pytestmark = pytest.mark.compared
M, N, K = var("m"), var("n"), var("k")


def product(dtype="float32"):
    """relu(2a · b + bias)."""
    a, b = placeholder((M, K), dtype, "a"), placeholder((K, N), dtype, "b")
    bias = placeholder((N,), "float32", "bias")
    p = reduce_axis((0, K), "p")
    twice = compute((M, K), lambda i, p: a[i, p] * 2.0, "twice")
    wide = [lambda t, *at: t[at].astype("float32")] * 2
    c = compute((M, N), lambda i, j: sum(wide[0](twice, i, p) * wide[1](b, p, j), axis=p), "c")
    return build(compute((M, N), lambda i, j: maximum(c[i, j] + bias[j], 0.0), "y"), name="product")


@cache
def compiled(**params):
    return neptune.compile(product(), "matmul_split", target="llvm", params=params)


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("k", [1, 40, 300])
def test_any_number_of_parts(target, k):
    a, b, bias = torch.randn(5, k), torch.randn(k, 37), torch.randn(37)
    runs = [compiled(NUM_SPLITS=3)] + [compiled().with_params(NUM_SPLITS=parts) for parts in (1, 3, 64)]
    for kernel in runs:
        found = kernel.for_target(target)(a=a, b=b, bias=bias)
        torch.testing.assert_close(found, torch.relu(2 * a @ b + bias), rtol=1e-4, atol=1e-4)


def test_it_takes_two_kernels_and_the_parts_alone_go_through_memory():
    kernel = compiled()
    assert [len(k.grid) for k in kernel.facts.kernels] == [3, 2]
    assert len(kernel.facts.temporaries) == 1
    assert "NUM_SPLITS" in kernel.executable.artifact.chosen


def test_halves_use_the_matrix_unit():
    kernel = neptune.compile(product("float16"), "matmul_split", target="cuda:90")
    first, second = kernel.resources("cuda:90")
    assert first.matrix and not first.spill_bytes and not second.spill_bytes


def test_it_needs_a_product():
    with pytest.raises(ScheduleError, match="matmul_split"):
        neptune.compile(softmax(), "matmul_split", target="llvm")
