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
