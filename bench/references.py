"""What operators should give, written down in torch and nothing of ours: float64, and unfused.

Every function takes the tensors of an operator in call order and returns a tuple of its outputs:

- `float64`: the definition; NaN where an expression is undefined (0/0).
- `unfused`: the same in the operator's own dtypes, one rounding per step: what fusion may not be worse than.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor
Outputs = tuple[Tensor, ...]
LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Reference:
    """An operator's outputs by two roads."""

    float64: Callable[..., Outputs]
    unfused: Callable[..., Outputs]


def attention(
    causal: bool = False,
    layout: str = "bhsd",
    lse: bool = False,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    alibi: bool = False,
    window: int | None = None,
    sinks: bool = False,
) -> Reference:
    """softmax(scores) v of q, k, v, the slopes (`alibi`) and the sinks; masks are aligned bottom-right.

    The scores are scale · q kᵀ, then softcap, ALiBi, the masks. Groups of query heads share a key head. A row without
    keys is 0, and -inf (its sink) as its log-sum-exp.
    """

    def heads_first(*tensors: Tensor) -> list[Tensor]:
        return [t.transpose(1, 2) if layout == "bshd" else t for t in tensors]

    def operands(tensors: tuple[Tensor, ...], dtype: torch.dtype | None) -> tuple[list[Tensor], list[Tensor]]:
        """q, k, v with the heads first and as many of each; the vectors per head."""
        q, k, v = heads_first(*(t if dtype is None else t.to(dtype) for t in tensors[:3]))
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v))
        return [q, k, v], [t.to(dtype or t.dtype) for t in tensors[3:]]

    def outputs(o: Tensor, log_sum: Tensor) -> Outputs:
        (o,) = heads_first(o)
        return (o, log_sum) if lse else (o,)

    def factor(q: Tensor) -> float:
        return 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def bias(q: Tensor, k: Tensor, vectors: list[Tensor]) -> Tensor:
        """What is added to the scores, -inf where a query does not see a key."""
        s_q, s_kv = q.shape[-2], k.shape[-2]
        behind = torch.arange(s_kv, device=q.device) - torch.arange(s_q, device=q.device)[:, None] - (s_kv - s_q)
        made = vectors[0][:, None, None] * behind if alibi else torch.zeros(1, s_q, s_kv, device=q.device)
        if causal or window is not None:
            made = made.masked_fill(behind > 0, -math.inf)
        return made if window is None else made.masked_fill(behind <= -window, -math.inf)

    def scores(q: Tensor, k: Tensor, vectors: list[Tensor]) -> Tensor:
        s = (q @ k.transpose(-1, -2)) * factor(q)
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        return s + bias(q, k, vectors).to(s.dtype)

    def computed(tensors: tuple[Tensor, ...], dtype: torch.dtype, rounded: torch.dtype) -> tuple[Tensor, Tensor]:
        (q, k, v), vectors = operands(tensors, dtype)
        s = scores(q, k, vectors)
        m = s.amax(-1, keepdim=True).clamp_min(LOWEST)
        p = torch.exp(s - m)
        total, o = p.sum(-1, keepdim=True), p.to(rounded).to(dtype) @ v
        if sinks:
            top = torch.maximum(m, vectors[-1][:, None, None])
            total, o = total * torch.exp(m - top) + torch.exp(vectors[-1][:, None, None] - top), o * torch.exp(m - top)
            m = top
        o = torch.where(total > 0, o / total, 0.0)
        return o, torch.where(total > 0, m + total.log(), -math.inf).squeeze(-1)

    def exact(*tensors: Tensor) -> Outputs:
        return outputs(*computed(tensors, torch.float64, torch.float64))

    def unfused(*tensors: Tensor) -> Outputs:
        o, log_sum = computed(tensors, torch.float32, tensors[2].dtype)
        return outputs(o.to(tensors[0].dtype), log_sum)

    return Reference(exact, unfused)


def seen(s_q: int, s_kv: int, device: torch.device | None = None) -> Tensor:
    """Which keys a query sees: j ≤ i + s_kv - s_q.

    >>> seen(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    return torch.arange(s_kv, device=device) <= torch.arange(s_q, device=device)[:, None] + (s_kv - s_q)


def softmax() -> Reference:
    """Row softmax of x, in float32 whatever the dtype of x; a row of -inf is undefined."""

    def exact(x: Tensor) -> Outputs:
        e = torch.exp(x.double() - _row_max(x.double()))
        return (e / e.sum(-1, keepdim=True),)

    def unfused(x: Tensor) -> Outputs:
        e = torch.exp(x.float() - _row_max(x.float()))
        return ((e / e.sum(-1, keepdim=True)).to(x.dtype),)

    return Reference(exact, unfused)


def figure1() -> Reference:
    """Row sums of exp(x - row maximum); 0 for a row of -inf, since the maximum starts at a finite value."""

    def exact(x: Tensor) -> Outputs:
        return (torch.exp(x.double() - _row_max(x.double())).sum(-1),)

    def unfused(x: Tensor) -> Outputs:
        return (torch.exp(x - _row_max(x)).sum(-1),)

    return Reference(exact, unfused)


def _row_max(x: Tensor) -> Tensor:
    return x.amax(-1, keepdim=True).clamp_min(LOWEST)
