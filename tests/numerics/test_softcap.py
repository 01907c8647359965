"""Attention of capped scores, whose tanh takes the form that is cheaper: as near to float64 as the plain one."""

from __future__ import annotations

import pytest

from bench.references import attention as reference
from neptune.ir.analysis.forms import FORMS
from neptune.ops.attention import attention
from tests.numerics.cases import attention_sizes, families
from tests.numerics.harness import Subject, check

TILES = {"BLOCK_M": 16, "BLOCK_N": 16}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cap", [0.5, 50.0, 130.0])
@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding"])
def test_capped_scores(template: str, cap: float, dtype: str) -> None:
    program = attention(depth=16, dtype=dtype, causal=True, softcap=cap)
    subject = Subject(program, template, reference(True, softcap=cap), TILES)
    kernel = subject.kernels["interpret"]
    source = kernel.source
    assert "_tanh" not in source and "tl.rsqrt(tl.exp2(s" in source
    # The scale of the cap is part of the multiply-add in front of the exponential.
    assert "tl.exp2(score * " in source
    decision = next(d for d in kernel.explain(json=True)["decisions"] if d["kind"] == "forms")
    assert decision["subject"] == "score" and f"{FORMS['tanh'].error:.1e}" in decision["verdict"]
    check(subject, families(program, attention_sizes(19, 37)))
