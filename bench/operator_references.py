"""Every shipped operator in plain torch, which in float64 is what it should give and in its own dtype what torch gives.

A reference takes the inputs in the order of a call, of any dtype, and uses no function of Neptune's. `options` make
the operator small; inputs named in `positive` are weights, in `infinite` they may hold -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from neptune.ops.attention import OPERATORS as PAPER

Tensor = torch.Tensor
Results = tuple[Tensor, ...]


@dataclass(frozen=True)
class Reference:
    results: Callable[..., Results]
    options: Mapping[str, Any] = field(default_factory=dict)
    positive: tuple[str, ...] = ()
    infinite: tuple[str, ...] = ()
    settle: Callable[..., Results] | None = None

    def settled(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Results:
        """Results with what stands there in the place of positions: equals may change places."""
        return tuple(results) if self.settle is None else self.settle(*inputs, *results)


# --- rows ------------------------------------------------------------------------------------------


def _one(f: Callable[..., Tensor]) -> Callable[..., Results]:
    return lambda *inputs: (f(*inputs),)


def rms(x: Tensor, g: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], g, eps)


def layer(x: Tensor, g: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], g, b)


def _group(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    batch, groups, cols = x.shape
    image = x.reshape(batch, g.numel(), cols // g.shape[1])
    return F.group_norm(image, groups, g.flatten(), b.flatten()).reshape(x.shape)


def _loss(logits: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(logits, t.long(), reduction="none")


def _top(x: Tensor) -> Results:
    weights, experts = torch.softmax(x, -1).sort(dim=-1, descending=True, stable=True)
    return weights[:, :2], experts[:, :2]


def _chosen(x: Tensor, weights: Tensor, experts: Tensor) -> Results:
    return weights, torch.softmax(x, -1).gather(-1, experts.long())


def _quantised(x: Tensor) -> Results:
    unit = x.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127.0
    return (x / unit).round(), unit[:, 0]


def _quantised_product(x: Tensor, w: Tensor) -> Results:
    z, unit = _quantised(x)
    return (z @ w.to(x.dtype) * unit[:, None],)


def _abs_max_product(x: Tensor, w: Tensor) -> Results:
    return (x / (x.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127.0) @ w,)


def _scaled_8_bits(x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.to(torch.bfloat16)
    return (wide @ w.to(wide.dtype).T * of_x[:, None] * of_w).to(wide.dtype)


def _lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w.T + x @ a.T @ b.T


def _covariance(x: Tensor, y: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) @ (y - y.mean(-1, keepdim=True)).T / (x.shape[-1] - 1)


def _weighted(x: Tensor, w: Tensor) -> Results:
    mean = (w * x).sum(-1) / w.sum(-1)
    return mean, (w * (x - mean[:, None]) ** 2).sum(-1) / w.sum(-1)


def _inertia(x: Tensor, y: Tensor, mass: Tensor) -> Tensor:
    cx, cy = (_weighted(t, mass)[0][:, None] for t in (x, y))
    return (mass * ((x - cx) ** 2 + (y - cy) ** 2)).sum(-1)


def _far(x: Tensor, y: Tensor, precision: Tensor | float = 1.0) -> Tensor:
    return ((x[:, None] - y[None]) ** 2 * precision).sum(-1)


def _mixture(x: Tensor, mu: Tensor, precision: Tensor, weight: Tensor) -> Results:
    score = weight - 0.5 * _far(x, mu, precision)
    return torch.softmax(score, -1), torch.logsumexp(score, -1)


# --- attention -------------------------------------------------------------------------------------

HEADS = {"batch": 1, "heads": 4, "kv_heads": 2, "depth": 16}


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows by the convention "half"."""
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _grouped(q: Tensor, k: Tensor) -> Tensor:
    return k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def _seen(q: Tensor, k: Tensor, causal: bool, window: int | None = None) -> Tensor:
    at = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2] - torch.arange(k.shape[-2])
    seen = at >= 0 if causal or window is not None else at == at
    return seen if window is None else seen & (at < window)


def _softmax_to(score: Tensor, v: Tensor) -> Tensor:
    """A query that sees no key gives 0."""
    return torch.softmax(score, -1).nan_to_num(0.0) @ v


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *more: Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi: bool = False,
    sinks: bool = False,
    rope: bool = False,
    qk_norm: bool = False,
    scales: bool = False,
) -> Tensor:
    """Attention as one writes it; `more` are the inputs behind v in the order of a call."""
    rest = list(more)
    k, v = k.to(q.dtype), v.to(q.dtype)
    if qk_norm:
        q, k = rms(q, rest.pop(0)), rms(k, rest.pop(0))
    if rope:
        cos, sin = rest.pop(0), rest.pop(0)
        ahead = k.shape[-2] - q.shape[-2]
        q, k = turned(q, cos[ahead:], sin[ahead:]), turned(k, cos, sin)
    if scales:
        k, v = (x * rest.pop(0).to(q.dtype)[:, None, None] for x in (k, v))
    s = q @ _grouped(q, k).mT / math.sqrt(q.shape[-1])
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    if alibi:
        apart = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None] - (k.shape[-2] - q.shape[-2])
        s = s + rest.pop(0).to(s.dtype)[:, None, None] * apart
    s = s.masked_fill(~_seen(q, k, causal, window), -math.inf)
    if sinks:
        sink = rest.pop(0).to(s.dtype)[:, None, None].expand(*s.shape[:-1], 1)
        return torch.softmax(torch.cat([s, sink], -1), -1)[..., :-1] @ _grouped(q, v)
    return _softmax_to(s, _grouped(q, v))


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return (q @ _grouped(q, k).mT / math.sqrt(q.shape[-1])).masked_fill(~_seen(q, k, True), -math.inf)


def _off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = _scores(q, k)
    return torch.softmax(torch.cat([s, torch.zeros_like(s[..., :1])], -1), -1)[..., :-1] @ _grouped(q, v)


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q.clamp_min(0) + 0.01) @ (_grouped(q, k).clamp_min(0) + 0.01).mT * _seen(q, k, True)
    return s @ _grouped(q, v) / s.sum(-1, keepdim=True)


def _difference(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Tensor:
    return (torch.softmax(_scores(q1, k1), -1) - 0.3 * torch.softmax(_scores(q2, k2), -1)) @ _grouped(q1, v)


def _distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = -((q[..., :, None, :] - _grouped(q, k)[..., None, :, :]) ** 2).sum(-1)
    return _softmax_to(s.masked_fill(~_seen(q, k, True), -math.inf), _grouped(q, v))


def _attention(options: Mapping[str, Any] | None = None, **of_torch: Any) -> Reference:
    return Reference(_one(lambda *t: attended(*t, **of_torch)), {**HEADS, **(options or {})})


def _of_the_paper(name: str) -> Reference:
    row = {n: v for n, v in PAPER[name].items() if n not in ("heads", "kv_heads", "queries")}
    row |= {"window": 20} if "window" in row else {}
    small = HEADS | ({"window": 20} if "window" in row else {})
    return Reference(_one(lambda *t: attended(*t, **row)), small)


def _variant(f: Callable[..., Tensor]) -> Reference:
    return Reference(_one(f), {**HEADS, "causal": True})


REFERENCES: Mapping[str, Reference] = {
    "softmax": Reference(_one(lambda x: torch.softmax(x, -1)), infinite=("x",)),
    "log_softmax": Reference(_one(lambda x: torch.log_softmax(x, -1)), infinite=("x",)),
    "logsumexp": Reference(_one(lambda x: torch.logsumexp(x, -1)), infinite=("x",)),
    "rms_norm": Reference(_one(rms)),
    "layer_norm": Reference(_one(layer)),
    "group_norm": Reference(_one(_group)),
    "add_rms_norm": Reference(lambda x, r, g: (rms(x + r, g), x + r)),
    "add_layer_norm": Reference(lambda x, r, g, b: (layer(x + r, g, b), x + r)),
    "rms_norm_linear": Reference(_one(lambda x, g, w: rms(x, g) @ w)),
    "layer_norm_linear": Reference(_one(lambda x, g, b, w: layer(x, g, b) @ w)),
    "rms_linear": Reference(_one(lambda x, g, w: rms(x, g) @ w)),
    "standardise_linear": Reference(_one(lambda x, w: layer(x) @ w)),
    "l2_normalise_matmul": Reference(_one(lambda x, w: F.normalize(x, dim=-1) @ w)),
    "matmul": Reference(_one(lambda a, b: a @ b)),
    "linear": Reference(_one(F.linear)),
    "gated_linear": Reference(_one(lambda x, w, u: F.silu(x @ w) * (x @ u))),
    "swiglu": Reference(_one(lambda x, w, u: F.silu(x @ w.T) * (x @ u.T))),
    "geglu": Reference(_one(lambda x, w, u: F.gelu(x @ w.T, approximate="tanh") * (x @ u.T))),
    "lora_linear": Reference(_one(_lora)),
    "cross_entropy": Reference(_one(_loss), infinite=("x",)),
    "linear_cross_entropy": Reference(_one(lambda x, w, t: _loss(x @ w.T, t)), {"depth": 16}),
    "linear_logsumexp": Reference(_one(lambda x, w: torch.logsumexp(x @ w.T, -1)), {"depth": 16}),
    "quantise": Reference(_quantised),
    "quantise_matmul": Reference(_quantised_product),
    "abs_max_matmul": Reference(_abs_max_product),
    "float8_linear": Reference(_one(_scaled_8_bits)),
    "softmax_top_k": Reference(_top, infinite=("x",), settle=_chosen),
    "rope": Reference(_one(turned), {"depth": 16}),
    **{name: _of_the_paper(name) for name in PAPER},
    "attention": _attention(),
    "attention_sinks": _attention(causal=True, sinks=True),
    "rope_attention": _attention(causal=True, rope=True),
    "qk_norm_attention": _attention(causal=True, qk_norm=True),
    "float8_attention": _attention(scales=True),
    "off_by_one_attention": _variant(_off_by_one),
    "sigmoid_attention": _variant(lambda q, k, v: torch.sigmoid(_scores(q, k)) @ _grouped(q, v)),
    "linear_attention": _variant(_linear),
    "differential_attention": _variant(_difference),
    "distance_attention": _variant(_distance),
    "variance": Reference(_one(lambda x: x.var(-1, correction=0))),
    "covariance": Reference(_one(_covariance)),
    "cosine_similarity": Reference(_one(F.cosine_similarity)),
    "weighted_mean": Reference(lambda x, w: _weighted(x, w)[:1], positive=("w",)),
    "weighted_variance": Reference(_weighted, positive=("w",)),
    "moment_of_inertia": Reference(_one(_inertia), positive=("mass",)),
    "kernel_density": Reference(_one(lambda x, y: torch.logsumexp(-0.5 * _far(x, y), -1)), {"depth": 16}),
    "gaussian_mixture": Reference(_mixture, {"depth": 16}, positive=("precision",)),
}
