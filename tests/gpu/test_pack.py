"""Packed rows on a GPU: every group size, few rows and many, heads next to each other in the grid."""

from __future__ import annotations

import math

import pytest
import torch

import neptune
from bench.references import attention as reference
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention

pytestmark = pytest.mark.gpu
LIMITS = {"float16": 1.5e-3, "bfloat16": 1.2e-2, "float32": 4e-6}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("group", [1, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("dtype", LIMITS)
def test_every_group_size(dtype: str, group: int, packed: bool) -> None:
    options = {"lse": True, "alibi": True, "sinks": True}
    program = attention(2, 2 * group, 64, dtype, kv_heads=2, causal=True, **options)
    template = flash_attention.with_choices(packed=packed)
    small = {"BLOCK_M": 32, "BLOCK_N": 32} if dtype == "float32" else {"BLOCK_M": 64, "BLOCK_N": 64}
    kernel = neptune.compile(program, template, target="cuda", params=small)
    for s_q, s_kv in ((1, 1), (1, 700), (5, 129), (33, 257), (300, 300), (129, 40)):
        torch.manual_seed(s_q)
        shapes = ((2, 2 * group, s_q, 64), (2, 2, s_kv, 64), (2, 2, s_kv, 64))
        q, k, v = (torch.randn(s, device="cuda").to(getattr(torch, dtype)) for s in shapes)
        vectors = [torch.rand(2 * group, device="cuda") * 0.1 for _ in range(2)]
        outs = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan, device="cuda")
        for _ in range(2):
            kernel(q, k, v, *vectors, out=outs)
            for got, wanted in zip(outs, reference(True, **options).float64(q, k, v, *vectors), strict=True):
                assert (got.double() - wanted).norm() <= LIMITS[dtype] * wanted.norm()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("queries", [1, 4, 16])
@pytest.mark.parametrize("group", [5, 8])
def test_decoding(group: int, queries: int, layout: str) -> None:
    program = attention(2, 2 * group, 128, layout=layout, kv_heads=2, queries=queries, causal=queries > 1)
    kernel = neptune.compile(program, flash_attention, target="cuda")
    assert "pack" in kernel.explain()
    for s_kv in (16, 63, 1024, 4097):
        torch.manual_seed(s_kv)
        shapes = [(2, n, s, 128) for n, s in ((2 * group, queries), (2, s_kv), (2, s_kv))]
        q, k, v = (torch.randn(s, device="cuda", dtype=torch.float16) for s in shapes)
        if layout == "bshd":
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        (wanted,) = reference(queries > 1, layout).float64(q, k, v)
        assert (kernel(q, k, v).double() - wanted).norm() <= LIMITS["float16"] * wanted.norm()
