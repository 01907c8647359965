"""Do strided tensors share memory?  Cheap, and never wrong in the direction of "no"."""

from __future__ import annotations

import torch


def overlaps_itself(t: torch.Tensor) -> bool:
    """True unless every element visibly has an address of its own.

    >>> overlaps_itself(torch.empty(1, 4).expand(3, 4)), overlaps_itself(torch.empty(4, 3).t())
    (True, False)
    """
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True unless `a` and `b` visibly have no byte in common.

    Slices of one packed tensor are told apart: modulo a stride of both, each keeps to a part of its own.

    >>> packed = torch.empty(8, 3, 16)
    >>> overlap(packed[:, 0], packed[:, 1]), overlap(packed[:, 0], packed[:, :2])
    (False, True)
    """
    if a.numel() == 0 or b.numel() == 0:
        return False
    if a.data_ptr() + _reach(a) <= b.data_ptr() or b.data_ptr() + _reach(b) <= a.data_ptr():
        return False
    periods = {s * t.element_size() for t in (a, b) for s in t.stride()}
    return not any(_apart(a, b, p) for p in periods if p > 0)


def _steps(t: torch.Tensor) -> list[tuple[int, int]]:
    """(count - 1, stride in bytes) of every dimension in which the tensor moves."""
    item = t.element_size()
    return [(n - 1, s * item) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1 and s]


def _reach(t: torch.Tensor) -> int:
    """Bytes from the first to past the last element."""
    return sum(n * s for n, s in _steps(t)) + t.element_size()


def _apart(a: torch.Tensor, b: torch.Tensor, period: int) -> bool:
    """Return True if, modulo `period` bytes, the tensors occupy disjoint intervals."""
    widths = []
    for t in (a, b):
        steps = _steps(t)
        if any(s >= period and s % period for _, s in steps):
            return False
        widths.append(sum(n * s for n, s in steps if s < period) + t.element_size())
    gap = (b.data_ptr() - a.data_ptr()) % period
    return widths[0] <= gap and gap + widths[1] <= period
