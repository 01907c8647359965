"""Expressions, shipped operators and program texts that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import te, tirx

import neptune
from neptune.errors import ExpressionError
from neptune.frontend import builder as nt
from neptune.frontend.builder import (
    build,
    compute,
    eq,
    exp,
    if_then_else,
    max,
    placeholder,
    reduce_axis,
    select,
    sum,
    var,
)
from neptune.frontend.te import from_te
from neptune.ir.text.parser import parse_program
from neptune.ops import masks
from neptune.ops.attention import attention, operator, prefill_causal
from neptune.ops.linear import matmul
from tests.errors.table import case
from tests.examples.kernel_examples import rows_fused, rows_program

# --- the builder ----------------------------------------------------------------------------------

n = var("n")
x = placeholder((n, 4), "float32", "x")
half = placeholder((n,), "float16", "half")
eight = placeholder((n,), "float8_e4m3fn", "eight")
wide = placeholder((n, 4), "float8_e5m2", "wide")
codes = placeholder((n,), "int32", "codes")
j = reduce_axis((0, 4), "j")
k = reduce_axis((0, 4), "k")
y = compute((n,), lambda i: x[i, 0], "y")


def stage(body: Callable[..., Any], shape: Any = (n,)) -> Callable[[], object]:
    return lambda: compute(shape, body, "bad")


BUILDER = [
    (stage(lambda i: nt.argmax(x[i, j], axis=j) * 2), "a stage of its own"),
    (stage(lambda i: exp(nt.argmax(x[i, j], axis=j))), "must be the outermost"),
    (stage(lambda i: 1.0 + sum(lambda j: max(lambda k: x[j, k]), (1, n))), "`j`, over [1, n): no dimension of"),
    (stage(lambda i: sum(lambda j: 1.0)), "nothing says how long `j` is"),
    (stage(lambda i: sum(lambda j: x[i, j] * half[j].astype("float32"))), "dimensions of 4 and n elements"),
    (stage(lambda i: sum(lambda: x[i, 0])), "it takes no index"),
    (stage(lambda i: sum(lambda j, k: x[j, k], n)), "it takes 2 indices, and `axis` has one range"),
    (stage(lambda i: sum(lambda j: x[i, j], 1.5)), "the range of `j` is 1.5, not a length or (lo, hi)"),
    (lambda: placeholder((sum(lambda i, j: x[i, j]),)), "is not an integer expression"),
    (stage(lambda i: sum(x[i, j], axis=j, init=x[i, j])), "is folded: there is none where a fold starts"),
    (stage(lambda i: sum(lambda k: x[i, 0], nt.max(lambda a: codes[a]) + 1)), "has a reduction in it"),
    (lambda: reduce_axis(nt.max(lambda a: codes[a]) + 1, "k"), "the extent `max + 1` has max(…, axis=a) in it"),
    (stage(lambda i: x[i, 0] * nt.max(lambda a: codes[a])), "not float32 and int32"),
    (lambda: nt.softmax(x[0, 0]), "it takes a tensor of floats"),
    (lambda: nt.einsum("ij", x), "an arrow, and letters of these behind it"),
    (lambda: nt.einsum("ijk->i", x), "`ijk` does not fit"),
    (lambda: nt.einsum("ij,ji->i", x, x), "axis `j` has two lengths"),
    (lambda: nt.einsum(x, "ij->i"), "the pattern is no text"),
    (stage(lambda i: sum(x[i, j], axis=k)), "legal here: `i`, `k`"),
    (stage(lambda i: x[i, j]), "legal here: `i`"),
    (stage(lambda i: sum(x[i, 0], axis=3)), "distinct reduce axes"),
    (stage(lambda i: max(x[i, 0], x[i, 1])), "maximum(a, b)"),
    (stage(lambda i: x[i]), "`x` has 2 dimensions, but 1 indices"),
    (stage(lambda i: x[i, 4]), "index 4 is outside the dimension [0, 4)"),
    (stage(lambda i: x[-1, 0]), "index -1 is outside the dimension [0, n)"),
    (stage(lambda i: x[i, 1.5]), "index 1 is `1.5` (float32), not an integer"),
    (stage(lambda i: x[i, 0:2]), "slice(0, 2, None), not an integer"),
    (stage(lambda i: x[i, 0] + half[i]), ".astype(dtype)"),
    (stage(lambda i: if_then_else(x[i, 0] == 0, 1.0, 2.0)), "eq(a, b)"),
    (stage(lambda i: if_then_else(x[i, 0], 1.0, 2.0)), "float32, not bool"),
    (stage(lambda i: x[i, 0] > 0 and x[i, 1] > 0), "no truth value"),
    (stage(lambda i: x[i, 0] == 0), "eq(a, b)"),
    (stage(lambda i: sum(x[i, j])), "axis=a reduce axis"),
    (stage(lambda i: math.exp(x[i, 0])), "not from math"),
    (stage(lambda i: __builtins__["sum"](x[i, 0])), "cannot be iterated"),
    (stage(lambda i: np.cbrt(x[i, 0])), "numpy's `cbrt` says nothing of an expression"),
    (stage(lambda i: np.add.reduce(x[i, 0])), "numpy's `reduce`"),
    (stage(lambda i: torch.cumsum(x[i, 0], 0)), "torch's `cumsum`"),
    (stage(lambda i: torch.tensor(2.0) * x[i, 0]), "cannot use tensor(2.) (Tensor)"),
    (lambda: attention(depth=0), "at least 1"),
    (lambda: attention(depth="64"), "depth = '64' is not a Python integer"),
    (lambda: attention(window=2.5), "window = 2.5 is not a Python integer"),
    (lambda: attention(scale="small"), "scale = 'small' is not a number"),
    (lambda: attention(scale=math.nan), "scale = nan is not finite"),
    (lambda: attention(sinks=3), "sinks = 3 is neither True nor False"),
    (lambda: attention(name=3), "name = 3 is not a string"),
    (lambda: matmul(bias=np.zeros(4)), "bias = array([0., 0., 0., 0.]) is neither True nor False"),
    (lambda: attention(softcap=0.0), "softcap is 0.0"),
    (lambda: attention(mask=3), "a function mask(b, h, i, j)"),
    (lambda: attention(mask=lambda i, j: i >= j), "a function mask(b, h, i, j)"),
    (lambda: attention(mask=lambda b, h, i, j: None), "cannot use None"),
    (lambda: attention(mask=masks.window(2.5)), "2.5, not an integer"),
    (lambda: operator("decode_gqa", head=3), "heads, depth"),
    (stage(lambda i: None), "the value is None"),
    (stage(lambda i: i / 2), "div is the float division; use floordiv"),
    (stage(lambda i: exp(i)), "exp takes a float, not int32"),
    (stage(lambda i: x[i, 0].astype("float8")), "legal here: float64"),
    (stage(lambda i: eight[i] * eight[i]), "mul of float8_e4m3fn, which only tensors hold"),
    (stage(lambda i: exp(eight[i])), "exp of float8_e4m3fn"),
    (stage(lambda i: sum(wide[i, j], axis=j)), "sum of float8_e5m2, which only tensors hold"),
    (stage(lambda i: nt.bitxor(x[i, j], axis=j)), "the bits of integers"),
    (stage(lambda i: nt.argmax(wide[i, j], axis=j)), "argmax of float8_e5m2"),
    (stage(lambda i: var("t", "float8_e5m2").astype("float32")), "the scalar `t` is float8_e5m2"),
    (stage(lambda i, j: x[i, j]), "the lambda takes 2 indices, but the shape has 1 dimensions"),
    (stage(lambda i: x[i, 0], (n, 2.5)), "the extent 2.5 is not an integer expression"),
    (stage(lambda i: x[i, 0], (-3,)), "the extent -3 is negative"),
    (stage(lambda i: x[i, 0], n), "(n,)"),
    (stage(lambda i: sum(eq(i, j), axis=j)), "astype"),
    (lambda: placeholder((4,), "half", "x"), "unknown dtype 'half'"),
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
    (lambda: prefill_causal(layout="sbhd"), "legal here: bhsd, bshd"),
    (lambda: prefill_causal(dtype="int8"), "legal here: float32, float16, bfloat16"),
    (lambda: operator("prefill_gqq"), "prefill_gqa"),
    (lambda: operator("prefill_gqa", heads=10), "both numbers"),
    (lambda: operator("prefill_window", window=0), "window of at least 1"),
    (lambda: masks.window("8"), "its size is '8', not an integer"),
    (lambda: masks.lengths(3), "kv_lengths = 3 is no tensor of an expression"),
    (lambda: masks.and_(masks.window(4), 3), "3 is not a mask"),
    (lambda: masks.chunked(0), "a chunk has at least one key"),
    (lambda: masks.causal(placeholder((n,), "int32", "q_len")), "both or neither"),
]


def typed(annotation: Any, result: Any = y) -> Callable[[], object]:
    """A compilation of a function whose parameter is annotated."""

    def function(x: Any) -> Any:
        return result

    function.__annotations__["x"] = annotation
    return lambda: neptune.compile(function, target="llvm")


def variadic(*xs: f32[n]) -> Any:  # noqa: F821
    """A function of any number of tensors."""
    return y


def of_size(a: f32[n], n: i32) -> Any:  # noqa: F821
    """A function that has a size and a tensor which tells it."""
    return y


BUILDER += [
    (typed("f32[n,, 4]"), "the dimension `` of `x` is no size"),
    (typed("f33[n]"), "annotated with f33[n]: no dtype and shape"),
    (typed("f32[n + ]"), "the dimension `n +` of `x` is no size"),
    (typed("f32[n]", None), "it returns nothing"),
    (lambda: neptune.jit(lambda x: x), "its parameters do not all say what they are"),
    (lambda: neptune.compile(variadic, target="llvm"), "`xs` is any number of arguments"),
    (lambda: neptune.compile(of_size, target="llvm"), "`n` is a size in a shape, which tensors have, and a parameter"),
]
for _make, _name in BUILDER:
    case(ExpressionError, f"builder: {_name}")(_make)


# --- tensors -------------------------------------------------------------------------------------

N = nt.var("n")


@case(ExpressionError)
def a_bool_as_predicate():
    x = nt.placeholder((N,), "float32", "x")
    nt.if_then_else(True, x[0], 1.0)


@case(ExpressionError)
def a_reduction_as_operand():
    x, j = nt.placeholder((N,), "float32", "x"), nt.reduce_axis((0, N), "j")
    nt.exp(nt.argmax(x[j], axis=j))


@case(ExpressionError)
def an_init_of_another_dtype():
    x, j = nt.placeholder((N,), "float32", "x"), nt.reduce_axis((0, N), "j")
    nt.sum(x[j], axis=j, init=nt.const(1, "int32"))


@case(ExpressionError)
def an_unknown_dtype():
    x = nt.placeholder((N,), "float32", "x")
    nt.compute((N,), lambda i: nt.exp(x[i].astype("float12")), "y")


@case(ExpressionError)
def inputs_listed_twice():
    x = nt.placeholder((N,), "float32", "x")
    nt.build(nt.compute((N,), lambda i: x[i] + 1.0, "y"), inputs=[x, x])


@case(ExpressionError)
def an_output_that_is_no_tensor():
    x = nt.placeholder((N,), "float32", "x")
    nt.build([nt.compute((N,), lambda i: x[i] + 1.0, "y"), 3])


@case(ExpressionError)
def a_nan_of_an_integer():
    x = nt.placeholder((N,), "int32", "x")
    nt.compute((N,), lambda i: nt.select(nt.isnan(x[i]), 0, x[i]), "y")


# --- choices -------------------------------------------------------------------------------------


def _chosen(fold: Callable[..., object], dtype: str = "float32") -> tuple[nt.Tensor, ...]:
    x, j = nt.placeholder((4, N), dtype, "x"), nt.reduce_axis((0, N), "j")
    return nt.compute((4,), lambda i: fold(x[i, j], axis=j), "best")


@case(ExpressionError)
def max_sumexp_of_integers():
    _chosen(nt.max_sumexp, "int32")


@case(ExpressionError)
def argmax_of_bools():
    _chosen(nt.argmax, "bool")


@case(ExpressionError)
def argmax_over_axes_that_start_elsewhere():
    x, j, l = nt.placeholder((4, 4), "float32", "x"), nt.reduce_axis((0, 4), "j"), nt.reduce_axis((1, 4), "l")  # noqa: E741
    nt.compute((), lambda: nt.argmax(x[j, l], axis=[j, l]), "y")


@case(ExpressionError)
def argmax_as_an_operand():
    _chosen(lambda x, axis: nt.argmax(x, axis=axis) + 1)


@case(ExpressionError)
def too_many_of_the_largest():
    _chosen(lambda x, axis: nt.top_k(x, 9, axis=axis))


@case(ExpressionError)
def a_stack_of_two_dtypes():
    nt.stack(_chosen(nt.argmax))


@case(ExpressionError)
def a_stack_of_numbers():
    nt.stack([1, 2])


@case(ExpressionError)
def a_tensor_called_like_a_choice():
    value, _ = _chosen(nt.argmax)
    nt.build(nt.compute((4,), lambda i: value[i] + 1.0, "best"))


# --- TVM -----------------------------------------------------------------------------------------


def _imported(make: Callable[[], object]) -> Callable[[], object]:
    def act() -> None:
        outputs = make()
        from_te(outputs if isinstance(outputs, te.Tensor) else [outputs])

    return act


def _pointwise(value, dtype="float32"):
    x = te.placeholder((4, 8), dtype, name="x")
    return te.compute((4, 8), lambda i, j: value(x[i, j], i, j), name="y")


def tuples():
    k = te.reduce_axis((0, 4), name="k")
    x = te.placeholder((4, 4), "float32", name="x")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[0]), lambda s, t: (tirx.const(0, s), tirx.const(0, t)), name="both"
    )
    return te.compute((4,), lambda i: both((x[i, k], x[i, k]), axis=k), name="y")[0]


def custom():
    k = te.reduce_axis((0, 4), name="k")
    x = te.placeholder((4, 4), "float32", name="x")
    odd = te.comm_reducer(lambda a, b: a + b * 2.0, lambda t: tirx.const(0, t), name="odd")
    return te.compute((4,), lambda i: odd(x[i, k], axis=k), name="y")


def borrowed_axis():
    k = te.reduce_axis((0, 4), name="k")
    x = te.placeholder((4, 4), "float32", name="x")
    s = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="s")
    return te.compute((4,), lambda i: s[i] + x[i, k], name="y")


TENSOR_EXPRESSIONS = [
    (tuples, "argmax and argmin"),
    (custom, "its own combiner"),
    (borrowed_axis, "axis `k` is also used outside"),
    (lambda: _pointwise(lambda x, i, j: tirx.nextafter(x, x)), "legal here: abs, acos"),
    (lambda: _pointwise(lambda x, i, j: x.astype("float8_e3m4")), "unsupported dtype float8"),
    (lambda: _pointwise(lambda x, i, j: x + x, "float8_e4m3fn"), "add of float8_e4m3fn, which only tensors hold"),
    (lambda: _pointwise(lambda x, i, j: tirx.popcount(x), "int32"), "`popcount(x[i0, i1])`"),
    (lambda: te.placeholder((4,), "float32", name="x"), "output `x` is an input"),
    (lambda: 3, "output 0 is int"),
]
for _make, _name in TENSOR_EXPRESSIONS:
    case(ExpressionError, f"te: {_name}")(_imported(_make))


def _doubled(name: str = "y"):
    x = te.placeholder((te.var("n"),), "float32", name="x")
    return te.compute(x.shape, lambda i: x[i] * 2.0, name=name)


@case(ExpressionError)
def te_inputs_of_another_kind():
    from_te(_doubled(), inputs=["x"])


@case(ExpressionError)
def te_scan():
    n = te.var("n")
    state = te.placeholder((n, 4), "float32", name="state")
    init = te.compute((1, 4), lambda _, i: 0.0, name="init")
    update = te.compute((n, 4), lambda t, i: state[t - 1, i] + 1.0, name="update")
    from_te(te.scan(init, update, state))


@case(ExpressionError)
def te_function_of_an_integer():
    x = te.placeholder((4,), "int32", name="x")
    from_te(te.compute((4,), lambda i: te.exp(x[i]), name="y"))


@case(ExpressionError)
def te_read_out_of_bounds():
    x = te.placeholder((4,), "float32", name="x")
    from_te(te.compute((4,), lambda i: x[7], name="y"))


@case(ExpressionError)
def te_integer_constant_of_another_dtype():
    from tvm import tirx

    x = te.placeholder((4,), "int16", name="x")
    from_te(te.compute((4,), lambda i: x[i] + tirx.const(1, "int16"), name="y"))


@case(ExpressionError)
def compile_without_tvm(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "neptune.frontend.te", None)
    neptune.compile(te.placeholder((4,), name="x"), rows_fused, target="llvm")


@case(ExpressionError)
def a_recurrence():
    n = var("n")
    x, y = placeholder((n,), "float32", "x"), placeholder((n,), "float32", "y")
    build(compute((n,), lambda i: x[i] + select(i > 0, y[i - 1] * 0.5, 0.0), "y"))


# --- compile -------------------------------------------------------------------------------------


@case(ExpressionError)
def inputs_of_a_program():
    neptune.compile(rows_program(), rows_fused, target="llvm", inputs=["x"])


@case(ExpressionError)
def a_name_that_is_none():
    neptune.compile(rows_program(), rows_fused, target="llvm", name="not a name")


@case(ExpressionError)
def a_program_that_is_not_well_formed():
    text = HEAD + "body:\n  for i in [0, n):\n    for j in [0, n) grid.x:\n      y: y[i] = x[j]"
    neptune.compile(parse_program(text), rows_fused, target="llvm")


# --- program texts -------------------------------------------------------------------------------

HEAD = "program p\n  in x: f32[n]\n  out y: f32[n]\n  scalar n: i32 lo 1\n"
TEXTS = {
    "empty": "",
    "no_program": "x = 1",
    "no_body": "program p\n  in x: f32[n]",
    "declaration": "program p\n  input x: f32[n]\nbody:",
    "made_as_what_is_unknown": HEAD + "  made y as draft of x\nbody:",
    "made_for_no_stage": HEAD + "  made z as copy of y\nbody:\n  for i in [0, n):\n    y: y[i] = x[i]",
    "character": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = x[i] ? 2",
    "missing_bracket": HEAD + "body:\n  for i in [0, n:\n    y: y[i] = x[i]",
    "trailing": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = x[i] x",
    "no_name": "program p\n  in 3: f32[n]\nbody:",
    "no_integer": "program p\n  scalar n: i32 lo x\nbody:",
    "dtype": "program p\n  in x: f12[4]\nbody:",
    "sum_of_types": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = x[i] + i",
    "variable": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = z",
    "value": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = *",
    "number": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = -i",
    "literal": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = 1.5:i32",
    "operator": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = zeta(x[i])",
    "arguments": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = exp(x[i], x[i])",
    "buffer": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = w[i]",
    "targets": HEAD + "body:\n  for i in [0, n):\n    y: y[i], y[i] = x[i]",
    "reducer": HEAD + "body:\n  for i in [0, n):\n    y: y[i] xor= x[i]",
    "indices": HEAD + "body:\n  for i in [0, n):\n    y: y[i], y[0] += x[i], x[i]",
    "at the margin": HEAD + "body:\n  y: y[0] = x[0]\nz: y[1] = x[1]",
    "indentation": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = x[i]\n      z: y[i] = x[i]",
    "outdented": HEAD + "body:\n    for i in [0, n):\n      y: y[i] = x[i]\n  for j in [0, n):\n    y: y[j] = x[j]",
    "statement": HEAD + "body:\n  while i:",
}


def _read(text: str) -> Callable[[], object]:
    return lambda: parse_program(text)


for _name, _text in TEXTS.items():
    case(ExpressionError, f"text_{_name}")(_read(_text))
