"""Expressions, shipped operators and program texts that are refused."""

from __future__ import annotations

from collections.abc import Callable

from tvm import te

import neptune
from neptune.errors import ExpressionError
from neptune.frontend import builder as nt
from neptune.frontend.te import from_te
from neptune.ir.parser import parse_program
from tests.errors.table import case
from tests.errors.test_expression_errors import CASES as BUILDER
from tests.kernel_examples import rows_fused, rows_program
from tests.unit.frontend.test_te import REFUSED as TENSOR_EXPRESSIONS


def _provoke(make: Callable[[], object]) -> Callable[[], object]:
    return lambda: make()


for _make, *_parts in BUILDER:
    case(ExpressionError, f"builder: {_parts[-1]}")(_provoke(_make))


def _imported(make: Callable[[], object]) -> Callable[[], object]:
    def act() -> None:
        outputs = make()
        from_te(outputs if isinstance(outputs, te.Tensor) else [outputs])

    return act


for _make, *_parts in TENSOR_EXPRESSIONS:
    case(ExpressionError, f"te: {_parts[-1]}")(_imported(_make))


# --- tensors -------------------------------------------------------------------------------------

N = nt.var("n")


@case(ExpressionError)
def a_bool_as_predicate():
    x = nt.placeholder((N,), "float32", "x")
    nt.if_then_else(True, x[0], 1.0)


@case(ExpressionError)
def a_reduction_as_operand():
    x, j = nt.placeholder((N,), "float32", "x"), nt.reduce_axis((0, N), "j")
    nt.exp(nt.sum(x[j], axis=j))


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
    neptune.compile(object(), rows_fused, target="llvm")


# --- compile -------------------------------------------------------------------------------------


@case(ExpressionError)
def inputs_of_a_program():
    neptune.compile(rows_program(), rows_fused, target="llvm", inputs=["x"])


@case(ExpressionError)
def a_name_that_is_none():
    neptune.compile(rows_program(), rows_fused, target="llvm", name="not a name")


@case(ExpressionError)
def a_name_that_generated_code_uses():
    x = nt.placeholder((N,), "float32", "tl")
    neptune.compile(nt.compute((N,), lambda i: x[i] + 1.0, "y"), rows_fused, target="llvm")


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
    "indentation": HEAD + "body:\n  for i in [0, n):\n    y: y[i] = x[i]\n      z: y[i] = x[i]",
    "outdented": HEAD + "body:\n    for i in [0, n):\n      y: y[i] = x[i]\n  for j in [0, n):\n    y: y[j] = x[j]",
    "statement": HEAD + "body:\n  while i:",
}


def _read(text: str) -> Callable[[], object]:
    return lambda: parse_program(text)


for _name, _text in TEXTS.items():
    case(ExpressionError, f"text_{_name}")(_read(_text))
