"""packed_attention and packed_decoding: heads that share keys are rows, whatever the number of queries."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.ir.program import Program
from neptune.ops.attention import attention
from tests.tiers import sampled

pytestmark = pytest.mark.compared
TEMPLATES = ("packed_attention", "packed_decoding")
DEPTH = 16
SIZES = ((1, 1), (1, 45), (3, 33), (17, 40), (40, 17))
"""Queries and keys: one of each, a tile and a tail, more rows than a tile, more queries than keys."""


def grouped(kind: str) -> Program:
    """Three heads share keys, or all six."""
    options: dict[str, dict[str, Any]] = {
        "causal": {"causal": True},
        "window": {"window": 5},
        "full": {},
        "alibi": {"alibi": True},
        "one": {},
    }
    kv_heads = 1 if kind == "one" else 2
    return attention(heads=6, kv_heads=kv_heads, depth=DEPTH, dtype="float32", lse=True, **options[kind])


@cache
def kernel(template: str, kind: str) -> neptune.Kernel:
    return neptune.compile(grouped(kind), template, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})


def exact(kind: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> list[torch.Tensor]:
    """(o, lse) in float64; 0 and -inf where a query sees no key."""
    (m, n), group = (q.shape[2], k.shape[2]), q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    i, j = torch.arange(m)[:, None] + n - m, torch.arange(n)
    s = q.double() @ k.mT / math.sqrt(DEPTH)
    if kind == "alibi":
        s = s + slopes.double()[:, None, None] * (j - i)
    seen = {"causal": j <= i, "window": (j <= i) & (j > i - 5)}.get(kind)
    s = s if seen is None else s.masked_fill(~seen, -math.inf)
    return [torch.softmax(s, -1).nan_to_num() @ v, torch.logsumexp(s, -1)]


@pytest.mark.parametrize(
    ("template", "kind"), sampled([(t, k) for t in TEMPLATES for k in ("causal", "window", "full", "alibi", "one")], 3)
)
def test_numbers(template: str, kind: str) -> None:
    """Random, large and -inf scores, into memory that held NaN, on llvm and in the interpreter."""
    run = kernel(template, kind)
    assert {r.verdict for r in run.build.checks.values()} <= {"accepted"}
    shared = 1 if kind == "one" else 2
    for m, n in SIZES:
        draw = torch.Generator().manual_seed(m * 100 + n)
        q, k, v = (torch.randn(2, h, x, DEPTH, generator=draw) for h, x in ((6, m), (shared, n), (shared, n)))
        q[0, 1], k[:, :, n // 2] = q[0, 1] * 50, k[:, :, n // 2] * 20
        slopes = torch.rand(6, generator=draw)
        given = [q, k, v, slopes] if kind == "alibi" else [q, k, v]
        forms = [run, run.for_target("interpret")] if (m, n) == SIZES[2] else [run]
        for form in forms:
            out = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
            o, lse = form(*given, out=out)
            want, want_lse = exact(kind, q, k, v, slopes)
            assert (o.double() - want).norm() <= 3e-6 * want.norm() + 1e-30
            torch.testing.assert_close(lse.double(), want_lse, rtol=3e-6, atol=1e-5)


def test_few_queries_are_packed_and_many_are_not() -> None:
    """What decides is the length at the call: one program serves both."""
    run = neptune.compile(attention(heads=32, kv_heads=8, depth=128, causal=True), target="cuda:90", form="triton")

    def template(batch: int, s_q: int, s_kv: int) -> str:
        return run.chosen(batch=batch, s_q=s_q, s_kv=s_kv).template

    assert template(1, 1, 1 << 17) == "packed_decoding" and template(64, 1, 8192) == "packed_attention"
    assert template(4, 4096, 4096) == "flash_attention"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("options", [{"heads": 4}, {"heads": 4, "kv_heads": 2, "queries": 1}])
def test_what_it_is_not_for(template: str, options: dict[str, Any]) -> None:
    """Heads with keys of their own, and a number of queries that is known: other templates see to that."""
    with pytest.raises(ScheduleError, match="groups of heads that share keys"):
        neptune.compile(attention(**options, depth=DEPTH), template, target="llvm")


@pytest.mark.parametrize("template", TEMPLATES)
def test_compiled_for_gpus(template: str) -> None:
    run = neptune.compile(attention(heads=8, kv_heads=2, depth=64, causal=True), template, target="llvm")
    for target in ("cuda:80", "cuda:90", "hip:gfx942"):
        used = run.resources(target)
        assert all(k.registers for k in used) and any(k.matrix for k in used)
