"""Attention under every mask on a GPU: long and odd lengths, hostile data, and tiles that are never read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.ops.test_masks import CASES, HOSTILE, check

pytestmark = pytest.mark.gpu
SHAPES = ((33, 47), (16, 300), (1, 70), (257, 1021), (1000, 333), (1024, 1024))


@pytest.mark.parametrize("name", list(CASES))
def test_attention(name: str) -> None:
    for s_q, s_kv in SHAPES:
        data = CASES[name].data(np.random.default_rng(s_kv), s_q, s_kv)
        check("cuda", CASES[name], s_q, s_kv, data, CASES[name].scalars or {})


@pytest.mark.parametrize(("name", "data"), HOSTILE)
def test_any_value_of_a_tensor(name: str, data: dict[str, list[int]]) -> None:
    wide = {
        n: np.repeat(np.array(x)[:, None], 16, axis=1) if n in ("start", "end") else np.array(x)
        for n, x in data.items()
    }
    check("cuda", CASES[name], 16, 40, wide, {})
