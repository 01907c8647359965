"""What stands in front of attention: norms, rotation, other depths, 8-bit keys and values; against numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.ops.attention import attention
from neptune.ops.rope import rope
from tests.unit.ops.checks import hard, kernel_agrees, same

D, S_Q, S_KV = 8, 3, 5
HEADS = {"batch": 1, "heads": 4, "kv_heads": 2}
ANGLES = np.random.default_rng(5).uniform(-4, 4, (S_KV, D // 2))
TABLES = [np.cos(ANGLES), np.sin(ANGLES)]


def turned(x, convention, angles):
    """As complex numbers: an independent way to say it."""
    pairs = (x[..., : D // 2], x[..., D // 2 :]) if convention == "half" else (x[..., ::2], x[..., 1::2])
    z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
    return (
        np.concatenate([z.real, z.imag], -1)
        if convention == "half"
        else np.stack([z.real, z.imag], -1).reshape(x.shape)
    )


def qkv(depth_v=D, s_q=S_Q):
    q, k = hard("tails", 1, 4, s_q, D), hard("random", 1, 2, S_KV, D, seed=1)
    return q, k, hard("random", 1, 2, S_KV, depth_v, seed=2)


def attended(q, k, v, causal=True):
    k, v = (np.repeat(x, 2, 1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2]), s, -np.inf)
    return torch.softmax(torch.from_numpy(s), -1).numpy() @ v


@pytest.mark.parametrize("convention", ["half", "interleaved"])
def test_rotation_is_that_of_complex_numbers(convention):
    x = hard("tails", 2, 3, S_KV, D)
    exact = turned(x, convention, ANGLES)
    same(rope("float16", convention=convention, depth=D), [exact], x, *TABLES)
    same(rope(convention=convention, depth=D, layout="bshd"), [exact], x.swapaxes(1, 2).copy(), *TABLES)
    at = np.array([[4, 0, 0, 2, 1], [3, 3, 3, 3, 3]])
    exact = turned(x, convention, ANGLES[at][:, None])
    same(rope(convention=convention, depth=D, positions=True), [exact], x, *TABLES, at)


def test_a_kernel_that_rotates():
    program = rope("bfloat16", depth=16)
    kernel = neptune.compile(program, target="llvm")
    angles = torch.linspace(-3, 3, 9 * 8, dtype=torch.float64).reshape(9, 8)

    def exact(x, cos, sin):
        a, b = x[..., :8], x[..., 8:]
        return [torch.cat([a * cos - b * sin, b * cos + a * sin], -1)]

    for kind in ("random", "huge", "needle", "zeros"):
        kernel_agrees(kernel, program, exact, hard(kind, 2, 3, 9, 16), angles.cos().numpy(), angles.sin().numpy())


@pytest.mark.parametrize("convention", ["half", "interleaved"])
@pytest.mark.parametrize("s_q", [1, S_Q])
def test_queries_stand_at_the_end(convention, s_q):
    """At s_q ≠ s_kv: query i has the angle of key i + s_kv - s_q."""
    q, k, v = qkv(s_q=s_q)
    exact = attended(turned(q, convention, ANGLES[S_KV - s_q :]), turned(k, convention, ANGLES), v)
    program = attention(depth=D, dtype="float32", causal=True, rope=convention, **HEADS)
    same(program, [exact], q, k, v, *TABLES)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("convention", [None, "half"])
def test_rows_are_normed_before_they_are_turned(convention, layout):
    q, k, v = qkv(depth_v=6)
    gains = [hard("random", D, seed=s) for s in (3, 4)]
    normed = [x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * g for x, g in zip((q, k), gains, strict=True)]
    if convention:
        normed = [turned(x, convention, ANGLES[S_KV - x.shape[2] :]) for x in normed]
    exact = attended(*normed, v)
    options = {"qk_norm": True, "eps": 1e-3, "rope": convention, "layout": layout, "depth_v": 6}
    program = attention(depth=D, dtype="float32", causal=True, **options, **HEADS)
    if layout == "bshd":
        q, k, v, exact = (x.swapaxes(1, 2).copy() for x in (q, k, v, exact))
    same(program, [exact], q, k, v, *gains, *(TABLES if convention else []))


def widened(x, scale):
    """An array of key heads times its scales, of any of the shapes that these have."""
    if scale.ndim == 1:
        return x * (scale if len(scale) == 1 else scale[:, None, None])
    return x * np.repeat(scale, -(-x.shape[2] // scale.shape[2]), 2)[:, :, : x.shape[2], None]


SCALES = {"tensor": (1,), "head": (2,), "row": (1, 2, S_KV), "block": (1, 2, 1)}


@pytest.mark.parametrize("kind", SCALES)
def test_scales_of_keys_and_values(kind):
    q, k, v = qkv(depth_v=6)
    of_k, of_v = (np.random.default_rng(s).uniform(0.1, 2, SCALES[kind]) for s in (6, 7))
    program = attention(depth=D, dtype="float32", causal=True, depth_v=6, kv_scales=kind, **HEADS)
    same(program, [attended(q, widened(k, of_k), widened(v, of_v))], q, k, v, of_k, of_v)


def test_blocks_are_128_rows():
    q, k, v = (hard("random", 1, n, s, 4) for n, s in ((4, 1), (2, 260), (2, 260)))
    of_k, of_v = (np.random.default_rng(s).uniform(0.1, 2, (1, 2, 3)) for s in (6, 7))
    wide = [x * np.repeat(s, 128, 2)[:, :, :260, None] for x, s in ((k, of_k), (v, of_v))]
    program = attention(depth=4, dtype="float32", kv_scales="block", **HEADS)
    same(program, [attended(q, *wide, causal=False)], q, k, v, of_k, of_v)


def test_a_kernel_with_8_bit_keys_and_values():
    """Scales of rows: one kernel that reads everything once."""
    program = attention(depth=16, kv_dtype="float8_e4m3fn", kv_scales="row", queries=1, **HEADS)
    kernel = neptune.compile(program, "flash_attention", target="llvm")
    assert kernel.facts.temporaries == () and set(kernel.facts.traversals.values()) == {1}

    def exact(q, k, v, ks, vs):
        return [attended(*(x.numpy() for x in (q, k * ks[..., None], v * vs[..., None])), causal=False)]

    eight = [torch.from_numpy(hard("random", 1, 2, 37, 16, seed=s)).to(torch.float8_e4m3fn).double() for s in (1, 2)]
    scales = [np.random.default_rng(s).uniform(0.1, 2, (1, 2, 37)) for s in (6, 7)]
    for kind in ("random", "huge", "zeros"):
        kernel_agrees(kernel, program, exact, hard(kind, 1, 4, 1, 16), *(x.numpy() for x in eight), *scales)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rope": "neox"}, "rope = 'neox' is no value"),
        ({"rope": "half", "depth": 15}, "a depth of 15 has no pairs"),
        ({"kv_dtype": "int8"}, "kv_dtype = 'int8' is no value"),
        ({"kv_scales": "column"}, "kv_scales = 'column' is no value"),
        ({"depth_v": 0}, "depth_v is 0"),
    ],
)
def test_what_is_no_option_is_refused(options, said):
    with pytest.raises(ExpressionError, match=said):
        attention(**options)
