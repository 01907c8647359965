"""The hand-written baseline against float64, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import sampled

ROOT = Path(__file__).resolve().parents[3]

# The interpreter must be chosen before Triton is first imported, hence a process of its own.
SCRIPT = """
import math, sys
import torch
from bench.baselines.flash_attention_triton import Tile, flash_attention

causal, heads_kv = sys.argv[1] == "causal", int(sys.argv[2])
torch.manual_seed(0)
for s_q, s_kv in ((64, 64), (1, 7), (50, 77), (33, 130), (70, 20)):
    q, k, v = (torch.randn(2, h, s, 64).half() for h, s in ((4, s_q), (heads_kv, s_kv), (heads_kv, s_kv)))
    out, lse = torch.full_like(q, math.nan), torch.full((2, 4, s_q), math.nan)
    flash_attention(q, k, v, causal=causal, out=out, lse=lse, tile=Tile(32, 32, 4, 2))

    wide_k, wide_v = (t.double().repeat_interleave(4 // heads_kv, 1) for t in (k, v))
    scores = q.double() @ wide_k.mT / 8
    if causal:
        scores = scores.masked_fill(~torch.ones(s_q, s_kv, dtype=torch.bool).tril(s_kv - s_q), -math.inf)
    expected_lse = scores.logsumexp(-1)
    expected = scores.softmax(-1).nan_to_num(0.0) @ wide_v
    blind = expected_lse == -math.inf
    error = ((out.double() - expected).norm() / expected.norm()).item()
    assert error < 6e-4, (s_q, s_kv, error)
    assert (out[blind] == 0).all() and (lse[blind] == -math.inf).all(), (s_q, s_kv)
    torch.testing.assert_close(lse[~blind].double(), expected_lse[~blind], rtol=1e-5, atol=1e-5)
    if not causal or s_q <= s_kv:
        assert not blind.any()
    else:
        assert blind.any()
"""


@pytest.mark.parametrize(("mask", "heads_kv"), sampled([("causal", 2), ("full", 2), ("causal", 4), ("full", 4)], 4))
def test_agrees_with_float64(mask: str, heads_kv: int) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mask, str(heads_kv)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
