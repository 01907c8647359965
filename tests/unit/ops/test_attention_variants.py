"""Attention with other weights, with heads, groups and a causal line, against numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.ops import attention_variants as variants
from tests.unit.ops.checks import hard, kernel_agrees, same

DEPTH = 4
GROUPED = {"batch": 1, "heads": 4, "kv_heads": 2}


def grouped(x):
    return np.repeat(x, 2, axis=1)


def seen(s_q, s_kv, causal):
    return np.tril(np.ones((s_q, s_kv), bool), s_kv - s_q) if causal else np.ones((s_q, s_kv), bool)


def scores(q, k, causal):
    s = q @ grouped(k).swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return np.where(seen(*s.shape[-2:], causal), s, -np.inf)


def softmax(s, *, extra=None):
    """Weights of keys, of which `extra` (a score per query) takes a share."""
    s = s if extra is None else np.concatenate([s, np.broadcast_to(extra, s.shape[:-1])[..., None]], -1)
    p = torch.softmax(torch.from_numpy(s), -1).numpy()
    return p if extra is None else p[..., :-1]


def phi(x):
    return np.maximum(x, 0) + 0.01


def linear64(q, k, v, causal):
    s = phi(q) @ phi(grouped(k)).swapaxes(-1, -2) * seen(q.shape[-2], k.shape[-2], causal)
    return s @ grouped(v) / s.sum(-1, keepdims=True)


def unit(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def far(q, k, causal):
    d = -((q[..., :, None, :] - grouped(k)[..., None, :, :]) ** 2).sum(-1)
    return np.where(seen(*d.shape[-2:], causal), d, -np.inf)


EXACT = {
    variants.off_by_one_attention: lambda q, k, v, c: softmax(scores(q, k, c), extra=0.0) @ grouped(v),
    variants.sigmoid_attention: lambda q, k, v, c: (
        torch.sigmoid(torch.from_numpy(scores(q, k, c))).numpy() @ grouped(v)
    ),
    variants.linear_attention: linear64,
    variants.qk_norm_attention: lambda q, k, v, c: softmax(scores(unit(q), unit(k), c)) @ grouped(v),
    variants.distance_attention: lambda q, k, v, c: softmax(far(q, k, c)) @ grouped(v),
}


def qkv(kind="random", s_q=3, s_kv=5, depth=DEPTH):
    return [hard(kind, 1, 4, s_q, depth), *(hard("random", 1, 2, s_kv, depth, seed=s) for s in (1, 2))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", EXACT)
def test_variants_with_groups_and_a_causal_line(variant, causal):
    """At s_q ≠ s_kv: the last query sees the last key."""
    q, k, v = qkv()
    program = variant(DEPTH, dtype="float32", causal=causal, **GROUPED)
    same(program, [EXACT[variant](q, k, v, causal)], q, k, v)


def test_sinks_are_a_score_of_each_head():
    q, k, v = qkv()
    sink = np.array([0.0, -3.0, 2.0, 30.0])
    exact = softmax(scores(q, k, True), extra=sink[:, None]) @ grouped(v)
    same(variants.attention_sinks(DEPTH, dtype="float32", causal=True, **GROUPED), [exact], q, k, v, sink)


def test_a_difference_of_two():
    q1, k1, v = qkv()
    q2, k2, _ = qkv("tails")
    exact = (softmax(scores(q1, k1, True)) - 0.8 * softmax(scores(q2, k2, True))) @ grouped(v)
    program = variants.differential_attention(DEPTH, dtype="float32", share=0.8, causal=True, **GROUPED)
    same(program, [exact], q1, k1, q2, k2, v)


def test_a_query_without_keys_attends_to_nothing():
    """With fewer keys than queries the first see none: off by one gives 0 there, and no NaN."""
    q, k, v = qkv(s_q=4, s_kv=2)
    exact = softmax(scores(q, k, True), extra=0.0) @ grouped(v)
    assert not exact[:, :, :2].any()
    same(variants.off_by_one_attention(DEPTH, dtype="float32", causal=True, **GROUPED), [exact], q, k, v)


@pytest.mark.parametrize("variant", [variants.off_by_one_attention, variants.sigmoid_attention])
def test_one_kernel_with_heads(variant):
    program = variant(16, heads=4, kv_heads=2, causal=True)
    kernel = neptune.compile(program, target="llvm")
    assert kernel.facts.temporaries == () and set(kernel.facts.traversals.values()) == {1}
    for kind in ("random", "huge", "zeros"):
        kernel_agrees(
            kernel,
            program,
            lambda q, k, v: [EXACT[variant](q.numpy(), k.numpy(), v.numpy(), True)],
            *qkv(kind, s_q=9, s_kv=35, depth=16),
        )


def test_heads_that_do_not_divide():
    with pytest.raises(ExpressionError, match="5 heads do not share 2 key heads"):
        variants.sigmoid_attention(heads=5, kv_heads=2)
