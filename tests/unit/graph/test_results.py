"""Regions that are taken, whatever is predicted, give what torch gives."""

from __future__ import annotations

from typing import Any

import torch

import neptune


def test_integers_are_multiplied_as_torch_does_and_no_variance_is_negative() -> None:
    def folded(x: Any, y: Any) -> Any:
        return x.prod(-1), y.var(-1, correction=3)

    x, y = torch.full((3, 8), 100, dtype=torch.int32), torch.randn(3, 2)
    made = neptune.fuse(folded, target="llvm", take="all")
    with torch.no_grad():
        product, spread = made(x, y)
    assert sum(len(r.taken) for r in made.reports) == 2
    assert torch.equal(product, x.prod(-1)) and torch.equal(spread, torch.full((3,), torch.inf))


def test_a_sum_behind_a_mask_keeps_the_nan_that_it_does_not_see() -> None:
    keep = torch.tensor([True, False, True, True])

    def masked(x: torch.Tensor) -> torch.Tensor:
        e = (x - x.amax(-1, keepdim=True)).exp()
        return torch.where(keep, e, 0.0).sum(-1)

    x = torch.tensor([[1.0, float("nan"), 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    with torch.no_grad():
        found = neptune.fuse(masked, target="llvm", take="all")(x)
    torch.testing.assert_close(found, masked(x), equal_nan=True)


def test_counts_are_divided_as_floats() -> None:
    """Integers that a float comes of: a share, a quotient of two counts, and one that is added to a float."""

    def shares(x: torch.Tensor) -> Any:
        above, below = (x > 0.5).sum(-1), (x < 0.3).sum(-1)
        return above / x.shape[-1], above / below, above / 3 + x.sum(-1)

    x, made = torch.rand(5, 37), neptune.fuse(shares, target="llvm", take="all")
    with torch.no_grad():
        found, exact = made(x), shares(x)
    assert "defect" not in str(made.reports[0]) and made.reports[0].taken
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs)


def kernels(fn: Any, *inputs: Any) -> tuple[Any, int]:
    """What the fused function gives, and how many regions were taken."""
    made = neptune.fuse(fn, target="llvm", take="all")
    with torch.no_grad():
        found = made(*inputs)
    return found, sum(len(r.taken) for r in made.reports)


def test_log_sum_exp_is_one_kernel_with_and_without_its_dimension() -> None:
    x = torch.tensor([[1.0, float("nan"), 2.0], [-torch.inf] * 3, [3e38, 1.0, -3e38], [torch.inf, 0.0, 1.0]])

    def both(x: torch.Tensor) -> Any:
        return torch.logsumexp(x, -1), torch.logsumexp(x * 0.5, 1, keepdim=True)

    found, taken = kernels(both, x)
    assert taken >= 1
    for ours, exact in zip(found, both(x), strict=True):
        torch.testing.assert_close(ours, exact, equal_nan=True)
    (one,), taken = kernels(lambda x: (torch.logsumexp(x, -1),), x)
    assert taken == 1 and torch.equal(one.isnan(), torch.tensor([True, False, False, False]))


def test_a_maximum_beside_another_sum_keeps_its_nan() -> None:
    x, y = torch.tensor([[1.0, float("nan")], [2.0, 3.0]]), torch.ones(2, 2)

    def other_log(x: torch.Tensor, y: torch.Tensor) -> Any:
        m = x.amax(-1, keepdim=True)
        return (x - m).exp().sum(-1, keepdim=True), y.exp().sum(-1, keepdim=True).log() + m

    def other_way(x: torch.Tensor, _: torch.Tensor) -> Any:
        return ((x - x.amax(-1, keepdim=True)).exp().sum(0),)

    for fn in (other_log, other_way):
        for ours, exact in zip(kernels(fn, x, y)[0], fn(x, y), strict=True):
            torch.testing.assert_close(ours, exact, equal_nan=True)
