"""Calls whose sizes are inside of dimensions: x of [b, 4·c, n] needs no argument for c."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.frontend.builder import compute, placeholder, reduce_axis, sum, var


@pytest.fixture(scope="module")
def means() -> neptune.Kernel:
    """The mean of each of four groups of channels; the row behind the last channel is read as a shift."""
    b, c, n = var("b"), var("c"), var("n")
    x, last = placeholder((b, 4 * c, n), "float32", "x"), placeholder((n + 1,), "float32", "last")
    j, k = reduce_axis((0, c), "j"), reduce_axis((0, n), "k")
    total = compute((b, 4), lambda i, g: sum(x[i, g * c + j, k], axis=(j, k)), "total")
    mean = compute((b, 4), lambda i, g: total[i, g] / (c * n).astype("float32") + last[n], "mean")
    return neptune.compile(mean, target="llvm")


def wanted(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    b, channels, n = x.shape
    return x.double().reshape(b, 4, channels // 4 * n).mean(-1) + last[-1].double()


def test_it_needs_no_argument(means, tmp_path):
    assert means.scalars == () and means.explain(json=True)["scalars"] == []
    means.save(tmp_path / "means")
    for kernel in (means, neptune.load(tmp_path / "means")):
        for b, c, n in ((2, 3, 5), (1, 1, 1), (2, 3, 5), (3, 17, 2)):
            x, last = torch.randn(b, 4 * c, n) * 1e3, torch.randn(n + 1)
            torch.testing.assert_close(kernel(x, last).double(), wanted(x, last), rtol=1e-5, atol=1e-3)


def test_a_remainder_is_refused_also_behind_a_call_that_was_not(means):
    means(torch.zeros(1, 8, 5), torch.zeros(6))
    for x, last in ((torch.zeros(1, 9, 5), torch.zeros(6)), (torch.zeros(1, 8, 5), torch.zeros(7))):
        with pytest.raises(ShapeError):
            means(x, last)
    assert means(torch.zeros(1, 8, 5), last=torch.ones(6)).tolist() == [[1.0] * 4]
