"""What operators should give, written down in torch and nothing of ours: float64, unfused, and torch's own.

Every function takes the tensors of an operator in call order and returns a tuple of its outputs:

- `float64`: the definition; NaN where an expression is undefined (0/0).
- `unfused`: the same in the operator's own dtypes, one rounding per step: what fusion may not be worse than.
- `torchs`: the library function a user would otherwise call, in the same dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Outputs = tuple[Tensor, ...]
LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Reference:
    """An operator's outputs by three roads."""

    float64: Callable[..., Outputs]
    unfused: Callable[..., Outputs]
    torchs: Callable[..., Outputs]


def attention(causal: bool, layout: str = "bhsd", lse: bool = False, scale: float | None = None) -> Reference:
    """softmax(scale · q kᵀ) v of q, k, v; causal masks are aligned bottom-right.

    A row without keys is 0, and -inf as its log-sum-exp. `torchs` gives no log-sum-exp.
    """

    def heads_first(*tensors: Tensor) -> list[Tensor]:
        return [t.transpose(1, 2) if layout == "bshd" else t for t in tensors]

    def outputs(o: Tensor, log_sum: Tensor) -> Outputs:
        (o,) = heads_first(o)
        return (o, log_sum) if lse else (o,)

    def factor(q: Tensor) -> float:
        return 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def scores(q: Tensor, k: Tensor) -> Tensor:
        s = (q @ k.transpose(-1, -2)) * factor(q)
        return s.masked_fill(~seen(q.shape[-2], k.shape[-2], q.device), -math.inf) if causal else s

    def exact(*qkv: Tensor) -> Outputs:
        q, k, v = heads_first(*(t.double() for t in qkv))
        s = scores(q, k)
        m = s.amax(-1, keepdim=True).clamp_min(LOWEST)
        p = torch.exp(s - m)
        total = p.sum(-1, keepdim=True)
        o = torch.where(total > 0, p @ v / total, 0.0)
        return outputs(o, torch.where(total > 0, m + total.log(), -math.inf).squeeze(-1))

    def unfused(*qkv: Tensor) -> Outputs:
        q, k, v = heads_first(*(t.float() for t in qkv))
        s = scores(q, k)
        m = s.amax(-1, keepdim=True).clamp_min(LOWEST)
        p = torch.exp(s - m)
        total = p.sum(-1, keepdim=True)
        o = torch.where(total > 0, p.to(qkv[2].dtype).float() @ v / total, 0.0).to(qkv[0].dtype)
        return outputs(o, torch.where(total > 0, m + total.log(), -math.inf).squeeze(-1))

    def torchs(*qkv: Tensor) -> Outputs:
        q, k, v = heads_first(*qkv)
        mask = seen(q.shape[-2], k.shape[-2], q.device) if causal else None
        return tuple(heads_first(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=factor(q))))

    return Reference(exact, unfused, torchs)


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

    return Reference(exact, unfused, lambda x: (torch.softmax(x, -1),))


def figure1() -> Reference:
    """Row sums of exp(x - row maximum); 0 for a row of -inf, since the maximum starts at a finite value."""

    def exact(x: Tensor) -> Outputs:
        return (torch.exp(x.double() - _row_max(x.double())).sum(-1),)

    def unfused(x: Tensor) -> Outputs:
        return (torch.exp(x - _row_max(x)).sum(-1),)

    return Reference(exact, unfused, lambda x: (torch.exp(torch.logsumexp(x, -1) - x.amax(-1)),))


def _row_max(x: Tensor) -> Tensor:
    return x.amax(-1, keepdim=True).clamp_min(LOWEST)
