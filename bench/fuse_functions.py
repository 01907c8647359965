"""Plain torch functions, as a user writes them, for `bench.fuse`: each with arguments of a usual size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Function:
    """A function and a maker of its arguments, floats of a dtype. `source`: where it stands."""

    name: str
    call: Callable[..., Any]
    make: Callable[[torch.dtype], Args]
    source: str = "bench/fuse_functions.py"


def _indices(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)[None]


def textbook_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    i, j = _indices(q, k)
    s: Tensor = (q @ k.mT) * q.shape[-1] ** -0.5 + bias
    return s.masked_fill(j > i, float("-inf")).softmax(-1) @ v


def alibi_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    i, j = _indices(q, k)
    s: Tensor = (q @ k.mT) * q.shape[-1] ** -0.5 + slopes[:, None, None] * (j - i)
    weights: Tensor = torch.where(j <= i, s, float("-inf")).softmax(-1)
    return weights @ v


def gqa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    s: Tensor = q @ k.mT * q.shape[-1] ** -0.5
    return s.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def capped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.tanh((q @ k.mT) * q.shape[-1] ** -0.5 / 50.0) * 50.0
    return s.softmax(-1) @ v


def rms_norm_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * g
    return normed @ w


def layer_norm_linear(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, (x.shape[-1],), g, b), w)


def linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ w, target, reduction="none")


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def top_k_router(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    scores, experts = torch.topk((x @ w).float().softmax(-1), 2, dim=-1)
    return scores / scores.sum(-1, keepdim=True), experts


def cosine_scores(x: Tensor, y: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT


def linear_logsumexp(x: Tensor, w: Tensor) -> Tensor:
    return torch.logsumexp(x @ w, dim=-1)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def row_softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def row_median(x: Tensor) -> Tensor:
    return x.median(-1).values


def _qkv(dtype: torch.dtype, heads: int = 8, kv_heads: int = 8, rows: int = 1024, depth: int = 64) -> list[Tensor]:
    shapes = (1, heads, rows, depth), (1, kv_heads, rows, depth), (1, kv_heads, rows, depth)
    return [torch.randn(s, dtype=dtype) for s in shapes]


def _rows(dtype: torch.dtype, *shapes: tuple[int, ...]) -> Args:
    return tuple(torch.randn(s, dtype=dtype) * (s[0] ** -0.5 if len(s) == 2 and k else 1) for k, s in enumerate(shapes))


OWN = (
    Function("textbook_attention", textbook_attention, lambda d: (*_qkv(d), torch.randn(8, 1024, 1024, dtype=d))),
    Function("alibi_attention", alibi_attention, lambda d: (*_qkv(d), torch.exp2(-torch.arange(1.0, 9.0)).to(d))),
    Function("gqa_attention", gqa_attention, lambda d: tuple(_qkv(d, kv_heads=2))),
    Function("capped_attention", capped_attention, lambda d: tuple(_qkv(d))),
    Function("rms_norm_linear", rms_norm_linear, lambda d: _rows(d, (1024, 1024), (1024,), (1024, 1024))),
    Function("layer_norm_linear", layer_norm_linear, lambda d: _rows(d, (1024, 512), (512,), (512,), (512, 512))),
    Function(
        "linear_cross_entropy",
        linear_cross_entropy,
        lambda d: (*_rows(d, (512, 128), (128, 4096)), torch.randint(0, 4096, (512,))),
    ),
    Function("swiglu", swiglu, lambda d: _rows(d, (256, 256), (256, 512), (256, 512), (512, 256))),
    Function("top_k_router", top_k_router, lambda d: _rows(d, (1024, 512), (512, 16))),
    Function("cosine_scores", cosine_scores, lambda d: _rows(d, (512, 256), (512, 256))),
    Function("linear_logsumexp", linear_logsumexp, lambda d: _rows(d, (512, 128), (128, 4096))),
    Function("sdpa", sdpa, lambda d: tuple(_qkv(d))),
    Function("row_softmax", row_softmax, lambda d: _rows(d, (512, 1024))),
    Function("row_median", row_median, lambda d: _rows(d, (64, 128))),
)
"""Ten functions and more; the last is one that no Program says."""
