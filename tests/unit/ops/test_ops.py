"""The shipped operators against numpy: what their Programs evaluate to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.references import attention as expected_attention
from neptune.ir.integers import evaluate_size
from neptune.ir.program import For, Program, Seq, for_loops, paths
from neptune.ops.attention import OPERATORS, attention, operator, prefill_causal, prefill_global
from neptune.ops.softmax import softmax
from neptune.verify.evaluate import evaluate


def run(program: Program, sizes: dict[str, int], inputs: list[np.ndarray]) -> list[np.ndarray]:
    found = evaluate(program, dict(zip((b.name for b in program.inputs), inputs, strict=True)), sizes)
    return [found[b.name] for b in program.outputs]


def stage_names(program: Program) -> list[str]:
    return [s.name for _, s in paths(program.body)]


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_softmax():
    x = random(3, 5)
    (y,) = run(softmax(), {"rows": 3, "cols": 5}, [x])
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-12)
    assert stage_names(softmax()) == ["m", "e", "l", "y"]


GROUPED = {"heads": 6, "kv_heads": 2}


def small(name: str) -> dict:
    """The row of an operator with few heads and a window of 2 keys."""
    row = dict(OPERATORS[name])
    return row | (GROUPED if "kv_heads" in row else {"heads": 2}) | ({"window": 2} if "window" in row else {})


@pytest.mark.parametrize(("s_q", "s_kv"), [(3, 3), (2, 5), (4, 2)])
@pytest.mark.parametrize("row", [*OPERATORS, "sinks", "alibi, sinks, bshd"])
def test_every_operator_says_what_the_reference_says(row, s_q, s_kv):
    options = small(row) if row in OPERATORS else GROUPED | {"sinks": True, "causal": True, "alibi": "alibi" in row}
    layout = "bshd" if "bshd" in row else "bhsd"
    program = attention(1, depth=4, dtype="float32", layout=layout, lse=True, **options)
    sizes = {"s_q": s_q, "s_kv": s_kv}
    shapes = [[evaluate_size(d, sizes) for d in b.shape] for b in program.inputs]
    inputs = [random(*shape) * 2 for shape in shapes]
    with np.errstate(divide="ignore"):
        found = run(program, sizes, inputs)
    known = {k: v for k, v in options.items() if k not in ("heads", "kv_heads", "queries")}
    exact = expected_attention(layout=layout, lse=True, **known).float64(*map(torch.from_numpy, inputs))
    for ours, theirs in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10)


def test_operators_are_rows_of_options():
    program = operator("decode_gqa", depth=64)
    assert program.name == "decode_gqa"
    assert "q: f16[batch, 64, 1, 64]" in str(program) and "k: f16[batch, 8, s_kv, 64]" in str(program)


def test_half_precision_rounds_p_and_o_only():
    program = prefill_causal(batch=1, heads=2, depth=64)
    assert stage_names(program) == ["s", "score", "m", "p", "l", "p_cast", "acc", "o"]
    assert {n: b.dtype for n, b in program.globals.items() if b.dtype == "float16"}.keys() == {*"qkvo", "p_cast"}
    assert [s.name for s in program.scalars] == ["s_q", "s_kv"]
    assert "cast(f32, q[b, h, i, d]) * cast(f32, k[b, h, j, d])" in str(program)
    assert "select(j <= i + s_kv - s_q, s[b, h, i, j] * 0.125, -inf)" in str(program)
    assert "o[b, h, i, e] = cast(f16, select(l[b, h, i] <= 0.0, 0.0, acc[b, h, i, e] / l[b, h, i]))" in str(program)


def test_every_stage_is_one_top_level_nest():
    body = prefill_global().body
    assert isinstance(body, Seq) and all(isinstance(s, For) for s in body.stmts)
    assert [f.var for f in for_loops(next(iter(paths(body)))[0])] == ["b", "h", "i", "j", "d"]
