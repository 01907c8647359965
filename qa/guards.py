"""Tensors inside poisoned memory: what a kernel reads or writes outside of them shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

WRONG = -77
PAD = 256
"""Elements of poison before, after, and (in a strided tensor) between what belongs to a tensor."""


@dataclass(frozen=True)
class Guarded:
    """`view` lies somewhere inside `memory`, poison everywhere else: NaN, among integers `WRONG`."""

    memory: torch.Tensor
    view: torch.Tensor

    def intact(self) -> bool:
        """Whether everything outside of the view is still poison."""
        outside = torch.ones(self.memory.shape, dtype=torch.bool, device=self.memory.device)
        outside.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(False)
        poisoned = self.memory.isnan() if self.memory.is_floating_point() else self.memory == WRONG
        return bool((poisoned | ~outside).all())


def guarded(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    strided: bool = False,
    fill: torch.Tensor | None = None,
) -> Guarded:
    """A tensor of poison, or a copy of the tensor `fill`, with poison around it.

    With `strided` it is a view of a larger tensor, with poison between its rows and a unit last stride.
    """
    outer = [n + 1 for n in shape[:-1]] + [shape[-1] + 5] if strided else list(shape)
    size = prod(outer)
    memory = torch.full(
        (size + 2 * PAD,), float("nan") if dtype.is_floating_point else WRONG, dtype=dtype, device=device
    )
    frame = memory[PAD : PAD + size].view(outer)
    view = frame[tuple(slice(0, n) for n in shape)]
    if fill is not None:
        view.copy_(fill)
    return Guarded(memory, view)
