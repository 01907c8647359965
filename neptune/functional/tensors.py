"""What a kernel asks of tensors, and how those of a call come to it: leading dimensions, strides, dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from neptune.errors import ShapeError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def refuse(name: str, wrong: str, *, legal: Sequence[str] = (), hint: str | None = None) -> NoReturn:
    """Raise the ShapeError of a function of `neptune.functional`."""
    raise ShapeError(f"neptune.functional.{name}", wrong, legal=legal, hint=hint)


def dtype_of(name: str, legal: Sequence[torch.dtype] = FLOATS, /, **tensors: torch.Tensor | None) -> str:
    """The one dtype of several tensors, a float that kernels compute on, by name. Raises ShapeError."""
    given = {n: t for n, t in tensors.items() if t is not None}
    (first, t), *others = given.items()
    if t.dtype not in legal:
        refuse(name, f"`{first}` is {t.dtype}", legal=[str(d) for d in legal])
    for other, u in others:
        if u.dtype != t.dtype:
            refuse(name, f"`{first}` is {t.dtype}, `{other}` {u.dtype}", hint=f"{other}.to({t.dtype})")
    return str(t.dtype).removeprefix("torch.")


def dense(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its last dimension is dense, else a copy."""
    t = t.resolve_neg() if t.is_neg() else t
    return t if t.dim() == 0 or t.stride(-1) == 1 or t.shape[-1] <= 1 else t.contiguous()


def lengths_of(q: torch.Tensor, k: torch.Tensor) -> tuple[int, int, int, int]:
    """Batches, heads, queries and keys of attention; one of what q has no dimension for."""
    return q.shape[0] if q.dim() > 3 else 1, q.shape[-3] if q.dim() > 2 else 1, q.shape[-2], k.shape[-2]


def shape_of(t: torch.Tensor) -> str:
    """A shape as errors show it."""
    return f"[{', '.join(map(str, t.shape))}]"


def check_size(name: str, argument: str, t: torch.Tensor, wanted: Sequence[Any], what: str) -> None:
    """Raise ShapeError for a tensor of another shape."""
    if t.dim() != len(wanted) or any(n != w for n, w in zip(t.shape, wanted, strict=True)):
        refuse(name, f"`{argument}` is {shape_of(t)}", legal=[f"[{', '.join(map(str, wanted))}] ({what})"])


@dataclass(frozen=True)
class Rows:
    """A tensor as rows along one dimension: [rows, n], and the way back.

    A view where the dimension is the last and the others flatten to one, else a copy.
    """

    flat: torch.Tensor
    lead: Sequence[Any]
    moved: int | None

    @staticmethod
    def of(t: torch.Tensor, dim: int = -1, width: int = 1) -> Rows:
        """The rows along dimension `dim`, or along the last `width` dimensions together."""
        last = t.dim() - 1
        moved = None if width > 1 or dim % t.dim() == last else dim % t.dim()
        t = t if moved is None else t.movedim(moved, -1)
        lead = t.shape[: t.dim() - width]
        n = 1
        for s in t.shape[t.dim() - width :]:
            n = n * s
        rows = 1
        for s in lead:
            rows = rows * s
        return Rows(dense(t.reshape(rows, n)), t.shape if width == 1 else (*lead, *t.shape[t.dim() - width :]), moved)

    def back(self, y: torch.Tensor) -> torch.Tensor:
        """A result of the rows' own shape, in the shape of the tensor."""
        y = y.reshape(tuple(self.lead))
        return y if self.moved is None else y.movedim(-1, self.moved)

    def folded(self, y: torch.Tensor) -> torch.Tensor:
        """A result with one value a row, in the shape of the tensor without the dimension."""
        return y.reshape(tuple(self.lead[:-1]))


Options = Mapping[str, Any]
