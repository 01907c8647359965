"""What the front ends refuse, and in which words."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    build,
    compute,
    eq,
    exp,
    if_then_else,
    max,
    placeholder,
    reduce_axis,
    sum,
    var,
)
from neptune.ops import masks
from neptune.ops.attention import attention, operator, prefill_causal

n = var("n")
x = placeholder((n, 4), "float32", "x")
half = placeholder((n,), "float16", "half")
j = reduce_axis((0, 4), "j")
k = reduce_axis((0, 4), "k")
y = compute((n,), lambda i: x[i, 0], "y")


def stage(body: Callable, shape=(n,)) -> Callable:
    return lambda: compute(shape, body, "bad")


CASES = [
    (stage(lambda i: sum(x[i, j], axis=j) * 2), "stage `bad`", "must be the outermost", "a stage of its own"),
    (stage(lambda i: x[i, 0] * sum(x[i, j], axis=j)), "stage `bad`", "sum(…, axis=j)", "a stage of its own"),
    (stage(lambda i: exp(sum(x[i, j], axis=j))), "stage `bad`", "must be the outermost"),
    (stage(lambda i: max(sum(x[i, j], axis=j), axis=k)), "stage `bad`", "must be the outermost"),
    (stage(lambda i: sum(x[i, j], axis=k)), "stage `bad`", "`x[i, j]` uses the axis `j`", "legal here: `i`, `k`"),
    (stage(lambda i: x[i, j]), "stage `bad`", "uses the axis `j`", "legal here: `i`"),
    (stage(lambda i: sum(x[i, 0], axis=3)), "stage `bad`", "distinct reduce axes"),
    (stage(lambda i: max(x[i, 0], x[i, 1])), "stage `bad`", "maximum(a, b)"),
    (stage(lambda i: x[i]), "reading `x[i]`", "`x` has 2 dimensions, but 1 indices"),
    (stage(lambda i: x[i, 4]), "reading `x[i, 4]`", "index 4 is outside the dimension [0, 4)"),
    (stage(lambda i: x[-1, 0]), "reading `x[-1, 0]`", "index -1 is outside the dimension [0, n)"),
    (stage(lambda i: x[i, 1.5]), "reading `x`", "index 1 is `1.5` (float32), not an integer"),
    (stage(lambda i: x[i, 0:2]), "reading `x`", "slice(0, 2, None), not an integer"),
    (
        stage(lambda i: x[i, 0] + half[i]),
        "add needs one dtype on both sides, not float32 and float16",
        ".astype(dtype)",
    ),
    (stage(lambda i: if_then_else(x[i, 0] == 0, 1.0, 2.0)), "Python bool False", "eq(a, b)"),
    (stage(lambda i: if_then_else(x[i, 0], 1.0, 2.0)), "the predicate `x[i, 0]`", "float32, not bool"),
    (stage(lambda i: x[i, 0] > 0 and x[i, 1] > 0), "stage `bad`", "no truth value"),
    (stage(lambda i: x[i, 0] == 0), "Python bool False", "eq(a, b)"),
    (stage(lambda i: sum(x[i, j])), "stage `bad`", "sum without an axis", "axis=a reduce axis"),
    (stage(lambda i: math.exp(x[i, 0])), "stage `bad`", "not from math"),
    (stage(lambda i: __builtins__["sum"](x[i, 0])), "stage `bad`", "cannot be iterated"),
    (stage(lambda i: np.arctan(x[i, 0])), "stage `bad`", "numpy's `arctan` says nothing of an expression"),
    (stage(lambda i: np.add.reduce(x[i, 0])), "stage `bad`", "numpy's `reduce`"),
    (stage(lambda i: torch.cumsum(x[i, 0], 0)), "stage `bad`", "torch's `cumsum`"),
    (stage(lambda i: torch.tensor(2.0) * x[i, 0]), "stage `bad`", "cannot use tensor(2.) (Tensor)"),
    (lambda: attention(depth=0), "attention", "depth is 0", "at least 1"),
    (lambda: attention(depth="64"), "depth = '64' is not a Python integer"),
    (lambda: attention(window=2.5), "window = 2.5 is not a Python integer"),
    (lambda: attention(scale="small"), "scale = 'small' is not a number"),
    (lambda: attention(softcap=0.0), "softcap is 0.0"),
    (lambda: attention(mask=3), "mask = 3 is not a function", "a function mask(b, h, i, j)"),
    (lambda: attention(mask=lambda i, j: i >= j), "the mask cannot be called", "a function mask(b, h, i, j)"),
    (lambda: attention(mask=lambda b, h, i, j: None), "stage `score`", "cannot use None"),  # type: ignore[arg-type]
    (lambda: attention(mask=masks.window(2.5)), "mask `window`", "2.5, not an integer"),
    (lambda: operator("decode_gqa", head=3), "attention has no option `head`", "heads, depth"),
    (stage(lambda i: None), "the value is None"),
    (stage(lambda i: i / 2), "div is the float division; use floordiv"),
    (stage(lambda i: exp(i)), "exp takes a float, not int32"),
    (stage(lambda i: x[i, 0].astype("float8")), "unknown dtype 'float8'", "legal here: float64"),
    (stage(lambda i, j: x[i, j]), "the lambda takes 2 indices, but the shape has 1 dimensions"),
    (stage(lambda i: x[i, 0], (n, 2.5)), "the extent 2.5 is not an integer expression"),
    (stage(lambda i: x[i, 0], (-3,)), "the extent -3 is negative"),
    (stage(lambda i: x[i, 0], n), "not a sequence", "(n,)"),
    (stage(lambda i: sum(eq(i, j), axis=j)), "a bool cannot be reduced", "astype"),
    (lambda: placeholder((4,), "half", "x"), "placeholder `x`", "unknown dtype 'half'"),
    (lambda: build(x), "output `x` is an input"),
    (lambda: build([]), "there is no output"),
    (lambda: build([y, y]), "output `y` is listed twice"),
    (lambda: build(y, inputs=[half]), "`inputs` lacks `x`"),
    (lambda: build(y, inputs=[y]), "input 0, `y`, is computed"),
    (lambda: build(y, inputs=[x, 3]), "input 1 is 3"),
    (lambda: build(compute((n,), lambda i: y[i], "y")), "two tensors are named `y`"),
    (lambda: build(compute((n,), lambda i: y[i], "x")), "two tensors are named `x`"),
    (lambda: build(compute((n,), lambda i: y[i], "n")), "`n` names both a tensor and a size"),
    (lambda: build(compute((n,), lambda i: y[i], "a.b")), "`a.b` is not a name"),
    (
        lambda: build(compute((n,), lambda i: y[i] * var("n", "float32"), "z")),
        "`n` is used both as int32 and as float32",
    ),
    (lambda: prefill_causal(layout="sbhd"), "unknown layout 'sbhd'", "legal here: bhsd, bshd"),
    (lambda: prefill_causal(dtype="int8"), "prefill_causal", "legal here: float32, float16, bfloat16"),
    (lambda: operator("prefill_gqq"), "there is no operator 'prefill_gqq'", "prefill_gqa"),
    (lambda: operator("prefill_gqa", heads=10), "10 heads do not share 8 key heads evenly", "both numbers"),
    (lambda: operator("prefill_window", window=0), "a window of 0 keys", "window of at least 1"),
    (lambda: masks.chunked(0), "mask `chunked(0)`", "a chunk has at least one key"),
    (lambda: masks.causal(placeholder((n,), "int32", "q_len")), "mask `causal`", "one side only", "both or neither"),
]


@pytest.mark.parametrize("case", CASES, ids=[c[1][:30] + "/" + c[-1][:30] for c in CASES])
def test_message(case):
    make, *parts = case
    with pytest.raises(ExpressionError) as error:
        make()
    text = str(error.value)
    assert all(part in text for part in parts), text
    assert len(text.splitlines()) <= 6


def test_the_users_line_is_named():
    with pytest.raises(ExpressionError, match=r"at: .*x\[i, 0\] \+ half\[i\]"):
        compute((n,), lambda i: x[i, 0] + half[i], "bad")


def test_a_mistake_in_the_users_own_code_stays_as_it_is():
    with pytest.raises(TypeError, match="NoneType"):
        compute((n,), lambda i: None + None, "bad")
    with pytest.raises(KeyError):
        compute((n,), lambda i: {}["missing"], "bad")
    with pytest.raises(TypeError, match="index it"):
        compute((n,), lambda i: list(x), "bad")
