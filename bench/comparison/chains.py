"""The chains of `bench.chain_programs` and `bench.chain_attention` as one writes them in torch.

Inputs are those of the programs, in the order of a call. Given in float64 they compute in float64: nothing is rounded
then, so that the same functions say what is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy, layer_norm, rms_norm

from bench.chain_attention import LAMBDA
from bench.chain_programs import EPS

Tensor = torch.Tensor


def wide(x: Tensor) -> Tensor:
    """Sixteen bits in float32; what is wider stays."""
    return x.float() if x.element_size() < 4 else x


def _unit(x: Tensor) -> Tensor:
    """What rows are divided by, so that the largest element is 127."""
    return wide(x).abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127.0


def _standard(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], eps=EPS)


def _rms(x: Tensor) -> Tensor:
    """In the dtype of x, as the programs round it."""
    return (wide(x) * torch.rsqrt((wide(x) * wide(x)).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _quantised(x: Tensor, w: Tensor) -> Tensor:
    unit = _unit(x)
    z = torch.round(wide(x) / unit)
    if x.dtype == torch.float64:
        return (z @ w.double()) * unit
    product: Tensor = torch._int_mm(z.to(torch.int8), w)
    return product.float() * unit


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    lengths: Tensor = ((x * x).sum(-1) * (y * y).sum(-1)).clamp_min(1e-12).sqrt()
    return (x * y).sum(-1) / lengths


def _weighted(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = w.sum(-1)
    mean = (w * x).sum(-1) / total
    return mean, (w * (x - mean[:, None]) ** 2).sum(-1) / total


def _inertia(x: Tensor, y: Tensor, mass: Tensor) -> Tensor:
    total = mass.sum(-1)
    cx, cy = (mass * x).sum(-1) / total, (mass * y).sum(-1) / total
    return (mass * ((x - cx[:, None]) ** 2 + (y - cy[:, None]) ** 2)).sum(-1)


def _far(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|², by its square: differences of all pairs would need rows × cols × depth numbers."""
    return (x * x).sum(-1)[:, None] + (y * y).sum(-1)[None] - 2 * (x @ y.T)


def _mixture(x: Tensor, mu: Tensor, precision: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    far = (x * x) @ precision.T - 2 * (x @ (mu * precision).T) + (mu * mu * precision).sum(-1)
    score = weight - 0.5 * far
    return torch.softmax(score, -1), torch.logsumexp(score, -1)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return wide(q @ k.T) / math.sqrt(q.shape[-1])


def _sunk(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None) -> Tensor:
    """Attention with one more logit per row (0 where none is given), which has no value."""
    s = _scores(q, k)
    column = torch.zeros_like(s[:, :1]) if sink is None else wide(sink)[:, None]
    return torch.softmax(torch.cat([s, column], -1), -1)[:, :-1].to(v.dtype) @ v


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q.clamp_min(0) + 0.01) @ (k.clamp_min(0) + 0.01).T
    return ((s @ v) / s.sum(-1, keepdim=True)).to(v.dtype)


def _differential(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    one, two = (torch.softmax(_scores(q, k), -1).to(v.dtype) @ v for q, k in ((q1, k1), (q2, k2)))
    return one - LAMBDA * two


def _distant(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(-_far(wide(q), wide(k)), -1).to(v.dtype) @ v


TORCH: Mapping[str, Callable[..., Any]] = {
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "linear_logsumexp": lambda x, w: torch.logsumexp(wide(x @ w.T), -1),
    "linear_cross_entropy": lambda x, w, t: cross_entropy(wide(x @ w.T), t.long(), reduction="none"),
    "softmax_top_k": lambda x: tuple(torch.topk(torch.softmax(x, -1), 2).values.unbind(-1)),
    "rms_norm_linear": lambda x, g, w: rms_norm(x, x.shape[-1:], g, EPS) @ w,
    "layer_norm": lambda x, g, b: layer_norm(x, x.shape[-1:], g, b, EPS),
    "variance": lambda x: x.var(-1, correction=0),
    "standardise_linear": lambda x, w: _standard(x) @ w,
    "l2_normalise_matmul": lambda x, w: (x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPS)) @ w,
    "abs_max_matmul": lambda x, w: wide((wide(x) / _unit(x)).to(x.dtype) @ w),
    "quantise_matmul": _quantised,
    "cosine_similarity": _cosine,
    "weighted_mean": lambda x, w: (w * x).sum(-1) / w.sum(-1),
    "weighted_variance": _weighted,
    "moment_of_inertia": _inertia,
    "kernel_density": lambda x, y: torch.logsumexp(-0.5 * _far(x, y), -1),
    "gaussian_mixture": _mixture,
    "off_by_one_attention": _sunk,
    "attention_sinks": _sunk,
    "sigmoid_attention": lambda q, k, v: torch.sigmoid(_scores(q, k)).to(v.dtype) @ v,
    "linear_attention": _linear,
    "differential_attention": _differential,
    "qk_norm_attention": lambda q, k, v: torch.softmax(_scores(_rms(q), _rms(k)), -1).to(v.dtype) @ v,
    "distance_attention": _distant,
}
