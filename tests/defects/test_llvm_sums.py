"""W15: on target llvm long rows keep their digits: within twice torch's error, with offsets of 10^4."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program

COLUMNS = 65536


def rows(make: Callable[..., torch.Tensor]) -> Program:
    """A program over x: [n, m]; `make(x, over)` sums by `over(value of j)`."""
    n, m = var("n"), var("m")
    x = placeholder((n, m), "float32", "x")
    return build(make(x, n, m))


def total(x, n, m):
    a = reduce_axis((0, m), "a")
    return compute((n,), lambda i: sum(x[i, a], axis=a), "s")


def variance(x, n, m):
    a, b = reduce_axis((0, m), "a"), reduce_axis((0, m), "b")
    s = compute((n,), lambda i: sum(x[i, a], axis=a), "s")
    t = compute(
        (n,),
        lambda i: sum((x[i, b] - s[i] / m.astype("float32")) * (x[i, b] - s[i] / m.astype("float32")), axis=b),
        "t",
    )
    return compute((n,), lambda i: t[i] / m.astype("float32"), "v")


def squares(x, n, m):
    a = reduce_axis((0, m), "a")
    return compute((n,), lambda i: sum(x[i, a] * x[i, a], axis=a), "q")


def var_of(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(1, keepdim=True)) ** 2).mean(1)


CASES = {
    "sum": (total, lambda x: x.sum(1)),
    "squares": (squares, lambda x: (x * x).sum(1)),
    "variance": (variance, var_of),
}


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found.double() - right).norm() / right.norm()).item()


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("name", CASES)
def test_w15_long_rows_keep_their_digits(name: str, offset: float) -> None:
    make, of_torch = CASES[name]
    x = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(0)).abs() + offset
    right = of_torch(x.double())
    kernel = neptune.compile(rows(make), target="llvm")
    assert off(kernel(x), right) <= 2 * off(of_torch(x), right) + 1e-8


def test_w15_a_row_of_one_number_keeps_its_mean() -> None:
    """Roundings of equal terms all go one way."""
    x = torch.full((1, COLUMNS), 0.1)
    assert off(neptune.compile(rows(total), target="llvm")(x), x.double().sum(1)) < 2e-7
