"""The memory of a kernel's temporaries: how much it takes, and how a caller's own is dealt out.

A kernel allocates its temporaries at each call, by torch's allocator, so that calls on several streams never share
them, and a captured CUDA graph has its own. A caller who wants to own that memory gives `workspace=`: it is used as it
is, whatever it holds, and must not be in use by another call at the same time.

Whether strided tensors share memory is told cheaply, and never wrongly in the direction of "no".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from neptune.errors import ShapeError
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer
from neptune.runtime.calls.offsets import Block, plan

ALIGNMENT = 256
"""Of each temporary, as torch's allocator aligns."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a temporary in a workspace: offset in bytes, shape and dtype."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def places(
    temporaries: Sequence[Buffer], sizes: Mapping[str, int | float], launches: Sequence[Sequence[str]]
) -> tuple[Place, ...]:
    """Temporaries of which no two that are in use at one time share memory. `launches` are the temporaries that each
    launch writes or reads, in order: one that is read for the last time gives its place to later ones."""
    rows = [
        Place(b.name, 0, tuple(evaluate_size(d, sizes) for d in b.shape), getattr(torch, b.dtype)) for b in temporaries
    ]
    blocks: list[Block] = []
    for p in rows:
        # What no launch names is kept for all of them.
        used = [k for k, names in enumerate(launches) if p.name in names] or [0, len(launches)]
        blocks.append(Block(p.bytes, used[0], used[-1]))
    offsets = plan(blocks, ALIGNMENT).offsets
    return tuple(replace(p, offset=offset) for p, offset in zip(rows, offsets, strict=True))


def size(temporaries: Sequence[Place]) -> int:
    """The bytes that temporaries take together."""
    return max((p.offset + p.bytes for p in temporaries), default=0)


def deal(workspace: torch.Tensor, temporaries: Sequence[Place]) -> list[torch.Tensor]:
    """The temporaries in a caller's memory."""
    return [view(workspace, p.offset, p.shape, p.dtype) for p in temporaries]


def view(workspace: torch.Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor in a workspace, `offset` bytes from its start."""
    count = prod(shape) * dtype.itemsize
    return workspace[offset : offset + count].view(dtype).view(tuple(shape))


def check(workspace: object, needed: int, device: torch.device, others: Sequence[torch.Tensor], request: str) -> None:
    """Raise ShapeError for what cannot hold so many bytes on that device, apart from the tensors of the call."""
    legal = (f"a contiguous torch.uint8 tensor of {needed} bytes or more on {device}",)
    if not isinstance(workspace, torch.Tensor):
        raise ShapeError(request, f"workspace= is {type(workspace).__name__}", legal=legal)
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or not workspace.is_contiguous():
        actual = f"{workspace.dtype} of shape {list(workspace.shape)} and strides {list(workspace.stride())}"
        raise ShapeError(request, f"workspace= is {actual}", legal=legal)
    if workspace.device != device:
        raise ShapeError(request, f"workspace= is on {workspace.device}", legal=legal)
    if workspace.numel() < needed:
        raise ShapeError(request, f"workspace= has {workspace.numel()} bytes", legal=legal, hint="kernel.workspace(…)")
    if workspace.data_ptr() % 16:
        raise ShapeError(request, "workspace= does not lie on 16 bytes", legal=legal, hint="torch.empty(n, dtype=…)")
    if any(overlap(workspace, t) for t in others):
        raise ShapeError(request, "workspace= overlaps an argument or a result in memory", legal=legal)


# --- tensors that share memory ----------------------------------------------------------------------


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
