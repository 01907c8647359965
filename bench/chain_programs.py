"""Chains of reductions: which operator each is, and what it should give in float64.

`ROW_CHAINS` is the table, to which `chain_attention` adds; no chain has anything of its own in the compiler.
The expressions are the shipped operators', with a product's width, or depth, as a constant. What goes through the
matrix unit is float16 and summed in float32, everything else float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neptune.ir.evaluate.domains import Array
from neptune.ir.program import Program
from neptune.ops import cross_entropy, mixture, norm, quantise, route, scaled, softmax, statistics

EPS = 1e-5
WIDE = "float32"


@dataclass(frozen=True)
class Chain:
    """`build` gives the program; `reference` its results in float64 from its inputs in the order of a call.

    `build` takes the depth of its products. `group` says what the reductions have in common. `positive`: inputs that
    are weights or variances; inputs of int32 are positions along `cols`.
    `template` schedules it, None for what fuses most; resources are asked for with products of this `depth`.
    `settle` turns results that are positions into what stands there, given the inputs: equals may change places.
    """

    name: str
    group: str
    build: Callable[[int], Program]
    reference: Callable[..., tuple[Array, ...]]
    positive: tuple[str, ...] = ()
    settle: Callable[..., tuple[Array, ...]] | None = None
    template: str | None = None
    depth: int = 64

    def __str__(self) -> str:
        return self.name


def softmax64(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def lse64(x: Array) -> Array:
    m = x.max(-1)
    return np.asarray(m + np.log(np.exp(x - m[..., None]).sum(-1)))


def _top_two64(x: Array) -> tuple[Array, ...]:
    best = -np.sort(-softmax64(x), -1)
    return (best[:, 0], best[:, 1]) * 2


def _chosen64(x: Array, first: Array, second: Array, *index: Array) -> tuple[Array, ...]:
    p = softmax64(x)
    return first, second, *(np.take_along_axis(p, i.astype(int)[:, None], 1)[:, 0] for i in index)


def rms64(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS))


def _standard64(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS))


def _unit64(x: Array) -> Array:
    return np.asarray(np.maximum(np.abs(x).max(-1, keepdims=True), 1e-6) / 127.0)


def _cosine64(x: Array, y: Array) -> tuple[Array, ...]:
    return (
        (x * y).sum(-1) / (np.maximum(np.linalg.norm(x, axis=-1), 1e-8) * np.maximum(np.linalg.norm(y, axis=-1), 1e-8)),
    )


def _weighted64(x: Array, w: Array) -> tuple[Array, Array]:
    mean = (w * x).sum(-1) / w.sum(-1)
    return mean, (w * (x - mean[:, None]) ** 2).sum(-1) / w.sum(-1)


def _inertia64(x: Array, y: Array, mass: Array) -> tuple[Array, ...]:
    cx, cy = _weighted64(x, mass)[0], _weighted64(y, mass)[0]
    return ((mass * ((x - cx[:, None]) ** 2 + (y - cy[:, None]) ** 2)).sum(-1),)


def distances64(x: Array, y: Array) -> Array:
    return np.asarray(((x[:, None] - y[None]) ** 2).sum(-1))


def _mixture64(x: Array, mu: Array, precision: Array, weight: Array) -> tuple[Array, ...]:
    score = weight - 0.5 * (((x[:, None] - mu[None]) ** 2) * precision[None]).sum(-1)
    return softmax64(score), lse64(score)


ROW_CHAINS: tuple[Chain, ...] = (
    Chain("softmax", "softmax", lambda _: softmax.softmax(WIDE), lambda x: (softmax64(x),)),
    Chain("log_softmax", "softmax", lambda _: softmax.log_softmax(WIDE), lambda x: (x - lse64(x)[:, None],)),
    Chain("logsumexp", "softmax", lambda _: softmax.logsumexp(WIDE), lambda x: (lse64(x),)),
    Chain(
        "linear_logsumexp", "softmax", lambda d: cross_entropy.linear_logsumexp(depth=d), lambda x, w: (lse64(x @ w.T),)
    ),
    Chain(
        "linear_cross_entropy",
        "softmax",
        lambda d: cross_entropy.linear_cross_entropy(depth=d, ignore_index=None, targets="int32"),
        lambda x, w, t: (lse64(x @ w.T) - (x @ w.T)[np.arange(len(x)), t],),
    ),
    Chain("softmax_top_k", "softmax", lambda _: route.softmax_top_k(stacked=False), _top_two64, settle=_chosen64),
    Chain(
        "rms_norm_linear",
        "norm",
        lambda d: scaled.rms_linear(WIDE, width=d, eps=EPS, name="rms_norm_linear"),
        lambda x, g, w: (rms64(x) * g @ w,),
    ),
    Chain("layer_norm", "norm", lambda _: norm.layer_norm(WIDE, eps=EPS), lambda x, g, b: (_standard64(x) * g + b,)),
    Chain("variance", "norm", lambda _: statistics.variance(), lambda x: (x.var(-1),)),
    Chain(
        "standardise_linear",
        "norm",
        lambda d: scaled.standardise_linear(WIDE, width=d, eps=EPS),
        lambda x, w: (_standard64(x) @ w,),
    ),
    Chain(
        "l2_normalise_matmul",
        "norm",
        lambda d: scaled.l2_normalise_matmul(WIDE, width=d, eps=EPS),
        lambda x, w: (x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS) @ w,),
    ),
    Chain("abs_max_matmul", "norm", lambda d: quantise.abs_max_matmul(width=d), lambda x, w: (x / _unit64(x) @ w,)),
    Chain(
        "quantise_matmul",
        "norm",
        lambda d: quantise.quantise_matmul(width=d),
        lambda x, w: (np.rint(x / _unit64(x)) @ w * _unit64(x),),
    ),
    Chain("cosine_similarity", "sums", lambda _: statistics.cosine_similarity(), _cosine64),
    Chain(
        "weighted_mean",
        "sums",
        lambda _: statistics.weighted_mean(),
        lambda x, w: _weighted64(x, w)[:1],
        positive=("w",),
    ),
    Chain("weighted_variance", "sums", lambda _: statistics.weighted_variance(), _weighted64, positive=("w",)),
    Chain("moment_of_inertia", "sums", lambda _: statistics.moment_of_inertia(), _inertia64, positive=("mass",)),
    Chain("kernel_density", "density", mixture.kernel_density, lambda x, y: (lse64(-0.5 * distances64(x, y)),)),
    Chain("gaussian_mixture", "density", mixture.gaussian_mixture, _mixture64, positive=("precision",)),
)
