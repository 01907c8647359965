"""Attention in variants that no flag of an attention library selects, as chains of `chain_programs`."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch

from bench.cases import Case
from bench.chain_programs import EPS, Chain, distances64, rms64, softmax64
from neptune.ir.evaluate.domains import Array
from neptune.ops import attention_variants as variants
from neptune.ops.attention import OPERATORS

LAMBDA = 0.3


def _half(x: Array) -> Array:
    """As the expression says: rounded to float16."""
    return x.astype(np.float16).astype(np.float64)


def _scaled64(q: Array, k: Array) -> Array:
    return np.asarray(q @ k.T / math.sqrt(q.shape[-1]))


def _sink64(q: Array, k: Array, v: Array, sink: Array | float) -> tuple[Array, ...]:
    s = _scaled64(q, k)
    column = np.broadcast_to(np.asarray(sink, np.float64), (len(q),))[:, None]
    return (softmax64(np.concatenate([s, column], 1))[:, :-1] @ v,)


def _linear64(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    s = _half(np.maximum(q, 0) + 0.01) @ _half(np.maximum(k, 0) + 0.01).T
    return (s @ v / s.sum(-1, keepdims=True),)


def _differential64(q1: Array, k1: Array, q2: Array, k2: Array, v: Array) -> tuple[Array, ...]:
    return ((softmax64(_scaled64(q1, k1)) - LAMBDA * softmax64(_scaled64(q2, k2))) @ v,)


def _qk_norm64(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    return (softmax64(_scaled64(_half(rms64(q)), _half(rms64(k)))) @ v,)


def _operator(name: str, template: str | None = None) -> Chain:
    """One of the paper's ten operators, with few heads."""

    def case(depth: int = 16) -> Case:
        return Case(name, "flash_attention", "float16", depth=depth)

    def exact(*given: Array) -> tuple[Array, ...]:
        return tuple(x.numpy() for x in case().reference.float64(*map(torch.from_numpy, given)))

    label = name if template is None else f"{name}_split"
    return Chain(label, "operators", lambda depth: case(depth).program, exact, template=template, depth=128)


SPLIT = tuple(n for n in OPERATORS if n.startswith("decode"))
"""Operators with one query, for which the keys are split as well."""
OPERATOR_CHAINS = (*map(_operator, OPERATORS), *(_operator(n, "flash_decoding") for n in SPLIT))
ATTENTION: tuple[Chain, ...] = (
    Chain(
        "off_by_one_attention",
        "attention",
        partial(variants.off_by_one_attention, flat=True),
        lambda q, k, v: _sink64(q, k, v, 0.0),
    ),
    Chain("attention_sinks", "attention", partial(variants.attention_sinks, flat=True), _sink64),
    Chain(
        "sigmoid_attention",
        "attention",
        partial(variants.sigmoid_attention, flat=True),
        lambda q, k, v: (1 / (1 + np.exp(-_scaled64(q, k))) @ v,),
    ),
    Chain("linear_attention", "attention", partial(variants.linear_attention, flat=True), _linear64),
    Chain(
        "differential_attention",
        "attention",
        partial(variants.differential_attention, flat=True, share=LAMBDA),
        _differential64,
    ),
    Chain("qk_norm_attention", "attention", partial(variants.qk_norm_attention, flat=True, eps=EPS), _qk_norm64),
    Chain(
        "distance_attention",
        "attention",
        partial(variants.distance_attention, flat=True),
        lambda q, k, v: (softmax64(-distances64(q, k)) @ v,),
    ),
)
