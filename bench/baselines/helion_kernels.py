"""Softmax, a product, RMSNorm with a product, and attention in Helion, which tunes them.

Importing this needs helion (tried with 1.5.1). It measures on the GPU while it tunes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import helion
import helion.language as hl
import torch

SECONDS = 30
"""Of tuning one kernel."""
OPTIONS: dict[str, Any] = {"static_shapes": True, "autotune_effort": "quick", "autotune_budget_seconds": SECONDS}


@helion.kernel(**OPTIONS)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of rows, each whole."""
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        value = x[tile, :]
        e = torch.exp(value - torch.amax(value, dim=1, keepdim=True))
        out[tile, :] = e / torch.sum(e, dim=1, keepdim=True)
    return out


@helion.kernel(**OPTIONS)
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A plain product."""
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for i, j in hl.tile([m, n]):
        total = hl.zeros([i, j], dtype=torch.float32)
        for p in hl.tile(k):
            total = torch.addmm(total, a[i, p], b[p, j])
        out[i, j] = total.to(a.dtype)
    return out


@helion.kernel(**OPTIONS)
def gated_linear(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """silu(x w) · (x u)."""
    m, k = x.size()
    _, n = w.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        gate = hl.zeros([i, j], dtype=torch.float32)
        value = hl.zeros([i, j], dtype=torch.float32)
        for p in hl.tile(k):
            gate = torch.addmm(gate, x[i, p], w[p, j])
            value = torch.addmm(value, x[i, p], u[p, j])
        out[i, j] = (gate * torch.sigmoid(gate) * value).to(x.dtype)
    return out


@helion.kernel(**OPTIONS)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: hl.constexpr) -> torch.Tensor:
    """Attention of [heads, rows, depth]; as many queries as keys where it is causal."""
    heads, s_q, _ = q.size()
    s_kv = k.size(1)
    depth = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(depth) * 1.44269504
    for h, i in hl.tile([heads, s_q]):
        top = hl.full([h, i], float("-inf"), dtype=torch.float32)
        total = torch.full_like(top, 1.0)
        acc = hl.zeros([h, i, depth], dtype=torch.float32)
        rows = q[h, i, :]
        stop = i.end if causal else s_kv
        for j in hl.tile(0, stop):
            s = torch.bmm(rows, k[h, j, :].transpose(1, 2)).to(torch.float32) * scale
            if causal:
                seen = i.index[:, None] >= j.index[None, :]
                s = torch.where(seen[None, :, :], s, -1.0e30)
            above = torch.maximum(top, torch.amax(s, -1))
            p = torch.exp2(s - above[:, :, None])
            step = torch.exp2(top - above)
            total = total * step + torch.sum(p, -1)
            acc = torch.baddbmm(acc * step[:, :, None], p.to(v.dtype), v[h, j, :])
            top = above
        out[h, i, :] = (acc / total[:, :, None]).to(out.dtype)
    return out


def tuned(name: str, row: Mapping[str, Any], args: Sequence[torch.Tensor]) -> tuple[str, Callable[[], Any]] | None:
    """The configuration that Helion takes, and a call; None where nothing is written here."""
    given: tuple[Any, ...]
    plain: dict[str, Any] = {"softmax": softmax, "matmul": matmul, "gated_linear": gated_linear}
    if name in plain:
        kernel, given = plain[name], (*args,)
    elif name in ("prefill_global", "prefill_causal"):
        flat = (t.reshape(-1, *t.shape[-2:]) for t in args)
        kernel, given = attention, (*flat, bool(row.get("causal")))
    else:
        return None
    config, call, like = kernel.autotune(given), kernel.bind(given), args[0]
    if not row:
        return str(config)[:200], partial(call, *given)
    return str(config)[:200], lambda: call(*given).view(like.shape)
