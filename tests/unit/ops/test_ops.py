"""The shipped operators against numpy, by a brute-force reading of their Programs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from bench.references import attention as expected_attention
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var
from neptune.ir.program import For, Program, Seq, Store, Update, for_loops, paths
from neptune.ops.attention import OPERATORS, attention, operator, prefill_causal, prefill_global
from neptune.ops.softmax import figure1, softmax

NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "exp": np.exp,
    "log": np.log,
    "max": np.maximum,
    "le": np.less_equal,
    "lt": np.less,
    "and": np.logical_and,
    "tanh": np.tanh,
    "floordiv": np.floor_divide,
    "gt": np.greater,
}
FOLD = {"sum": np.add, "max": np.maximum}
DTYPE = {"float16": np.float16, "float32": np.float64}  # float32 arithmetic is widened, roundings to fp16 stay


def scalar(e: Expr, env: dict, arrays: dict):
    match e:
        case Const(value, _):
            return value
        case Var(name, _):
            return env[name]
        case Load(buffer, index, _):
            return arrays[buffer][tuple(scalar(i, env, arrays) for i in index)]
        case Cast(arg, dtype):
            return DTYPE[dtype](scalar(arg, env, arrays))
        case Select(pred, then, other):
            return scalar(then if scalar(pred, env, arrays) else other, env, arrays)
        case Op(name, args, _):
            return NUMPY[name](*(scalar(a, env, arrays) for a in args))


def run(program: Program, sizes: dict[str, int], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """One nest after the other, element by element."""
    arrays = dict(zip((b.name for b in program.inputs), inputs, strict=True))
    for b in (*program.outputs, *program.temporaries):
        arrays[b.name] = np.full([scalar(d, sizes, {}) for d in b.shape], np.nan)
    for path, stage in paths(program.body):
        action, loops = stage.action, for_loops(path)
        target = arrays[action.buffer if isinstance(action, Store) else action.buffers[0]]
        if isinstance(action, Update):
            target[...] = scalar(action.init[0], {}, {})
        for point in product(*(range(scalar(f.lo, sizes, arrays), scalar(f.hi, sizes, arrays)) for f in loops)):
            env = sizes | {f.var: i for f, i in zip(loops, point, strict=True)}
            at = tuple(scalar(i, env, arrays) for i in action.index)
            if isinstance(action, Store):
                target[at] = scalar(action.value, env, arrays)
            else:
                target[at] = FOLD[action.reducer](target[at], scalar(action.values[0], env, arrays))
    return [arrays[b.name] for b in program.outputs]


def stage_names(program: Program) -> list[str]:
    return [s.name for _, s in paths(program.body)]


def reference(q, k, v, scale, causal):
    s = np.einsum("bhid,bhjd->bhij", q, k).astype(np.float64) * scale
    s_q, s_kv = s.shape[2:]
    if causal:
        s[..., np.arange(s_kv)[None] > np.arange(s_q)[:, None] + s_kv - s_q] = -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("bhij,bhjd->bhid", np.nan_to_num(e / e.sum(-1, keepdims=True)), v)
        return o, np.where(np.isfinite(s.max(-1)), s.max(-1) + np.log(e.sum(-1)), -np.inf)


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_softmax():
    x = random(3, 5)
    (y,) = run(softmax(), {"rows": 3, "cols": 5}, [x])
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-12)
    assert stage_names(softmax()) == ["m", "e", "l", "y"]


def test_figure1():
    x = random(2, 4)
    (y,) = run(figure1(), {"m": 2, "n": 4}, [x])
    np.testing.assert_allclose(y, np.exp(x - x.max(1, keepdims=True)).sum(1), rtol=1e-12)
    assert stage_names(figure1()) == ["xmax", "xexp", "xsum"]


@pytest.mark.parametrize(("s_q", "s_kv"), [(3, 3), (2, 4), (4, 2)])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("make", [prefill_global, prefill_causal])
def test_attention(make, layout, s_q, s_kv):
    program = make(depth=4, dtype="float32", layout=layout, scale=0.3, lse=True)
    q, k, v = random(1, 2, s_q, 4), random(1, 2, s_kv, 4), random(1, 2, s_kv, 4) + 1

    def swap(t):
        return t.swapaxes(1, 2) if layout == "bshd" else t

    sizes = {"batch": 1, "heads": 2, "s_q": s_q, "s_kv": s_kv}
    with np.errstate(divide="ignore"):
        o, lse = run(program, sizes, [swap(q), swap(k), swap(v)])
    expected, expected_lse = reference(q, k, v, 0.3, make is prefill_causal)
    np.testing.assert_allclose(swap(o), expected, rtol=1e-10)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-10)
    if make is prefill_causal and s_q > s_kv:
        assert (swap(o)[:, :, 0] == 0).all() and (lse[:, :, 0] == -np.inf).all()


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
    shapes = [[scalar(d, sizes, {}) for d in b.shape] for b in program.inputs]
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
