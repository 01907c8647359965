"""The benchmarks of µGraphs in plain torch: as a user writes them, and their product alone.

Each takes the inputs in the order of the benchmark's program. On float64 they are what results are compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

Call = Callable[..., Tensor]


def rms(x: Tensor, dim: int = -1) -> Tensor:
    """x / √(mean x²), in float32 and rounded back."""
    wide = x.float() if x.dtype != torch.float64 else x
    return (wide * torch.rsqrt(wide.square().mean(dim, keepdim=True))).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k, -1) @ v


def n_trans(x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
    return rms(x + alpha * (rms(h) + x))


EAGER: dict[str, Call] = {
    "GQA": attention,
    "QKNorm": lambda q, k, v: attention(rms(q), k, rms(v)),
    "QKNorm-both": lambda q, k, v: attention(rms(q), rms(k, -2), v),
    "RMSNorm": lambda x, w: rms(x) @ w,
    "RMSNorm-gain": lambda x, g, w: rms(x * g) @ w,
    "LoRA": lambda x, w, a, b: x @ w + (x @ a) @ b,
    "GatedMLP": lambda x, w, u: silu(x @ w) * (x @ u),
    "nTrans": n_trans,
}
PRODUCTS: dict[str, Call] = {
    "RMSNorm": lambda x, w: x @ w,
    "RMSNorm-gain": lambda x, g, w: x @ w,
    "LoRA": lambda x, w, a, b: x @ w,
    "GatedMLP": lambda x, w, u: x @ w,
}
"""cuBLAS on the largest product alone: what is left of the program if all else cost nothing."""


def norm_qkv(x: Tensor, *weights: Tensor) -> Tensor:
    """The three results one behind the other."""
    z = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)).to(weights[0].dtype)
    return torch.stack([z @ w for w in weights])


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fq, fk = q.exp(), k.exp()
    return (fq @ (fk.mT @ v)) / (fq @ fk.sum(-2).unsqueeze(-1))


WILD: dict[str, Call] = {
    "norm_qkv": norm_qkv,
    "swiglu": lambda x, w, u, down: (silu(x @ w) * (x @ u)) @ down,
    "gated_attention": lambda q, k, v, g: (torch.softmax(q @ k.mT, -1) @ v) * torch.sigmoid(g),
    "pooling": lambda x, w: (torch.softmax(x @ w, -1).unsqueeze(-2) @ x).squeeze(-2),
    "cosine": lambda x, y: (x @ y.T) / (x.norm(dim=-1, keepdim=True) * y.norm(dim=-1)),
    "two_adapters": lambda x, w, a, b, c, d: x @ w + (x @ a) @ b + (x @ c) @ d,
    "linear_attention": linear_attention,
}
"""The programs of `bench.mirage_wild`."""
