"""The TE importer: equal to the builder, honest about what TVM drops, and clear in what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.frontend import builder as nb
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Op, Select, walk
from neptune.ir.program import Program, Scalar, stages
from neptune.ir.text.printer import print_expr
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.softmax import figure1, softmax
from neptune.verify.evaluate import evaluate

tvm = pytest.importorskip("tvm")
from tvm import te, tirx  # noqa: E402

from neptune.frontend.te import from_te  # noqa: E402
from tests.examples import te_examples  # noqa: E402


def value(program: Program):
    """The value of the last stage."""
    action = stages(program.body)[-1].action
    return action.value if hasattr(action, "value") else action.values[0]


def pointwise(fn, dtype="float32", shape=(4, 8)):
    x = te.placeholder(shape, dtype, name="x")
    return te.compute(shape, lambda *ax: fn(x(*ax), *ax), name="y")


def test_softmax_and_figure1_equal_the_builders():
    assert from_te(te_examples.softmax(), name="softmax") == softmax()
    assert from_te(te_examples.softmax("float16"), name="softmax") == softmax("float16")
    assert from_te(te_examples.figure1(), name="figure1") == figure1()


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_builders(causal, layout, dtype, lse):
    op = prefill_causal if causal else prefill_global
    expected = op(depth=96, dtype=dtype, layout=layout, lse=lse)
    tensors = te_examples.attention(causal, layout, 96, dtype, lse)
    assert from_te(tensors, name=op.__name__) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_max_starts_from_the_reducers_identity(dtype):
    x = te.placeholder((4,), dtype, name="x")
    k = te.reduce_axis((0, 4), name="k")
    program = from_te(te.compute((), lambda: te.max(x[k], axis=k), name="y"))
    assert stages(program.body)[0].action.init[0].value == DTYPES[dtype].lowest


def test_two_axes_min_prod_where_and_init():
    x = te.placeholder((3, 4, 5), "float32", name="x")
    a, b = te.reduce_axis((0, 4), name="a"), te.reduce_axis((1, 5), name="b")
    bx = nb.placeholder((3, 4, 5), "float32", "x")
    ba, bb = nb.reduce_axis((0, 4), "a"), nb.reduce_axis((1, 5), "b")
    start = tirx.const(2.0, "float32")
    y = te.compute((3,), lambda i: te.min(x[i, a, b], axis=[a, b], where=a < 2, init=start), name="y")
    z = nb.compute((3,), lambda i: nb.min(bx[i, ba, bb], axis=[ba, bb], where=ba < 2, init=2.0), "y")
    assert from_te(y) == nb.build(z)
    y = te.compute((3,), lambda i: te.sum(x[i, a, b], axis=[a, b], where=a < 2, init=start), name="y")
    z = nb.compute((3,), lambda i: nb.sum(bx[i, ba, bb], axis=[ba, bb], where=ba < 2, init=2.0), "y")
    assert from_te(y) == nb.build(z)
    product = te.comm_reducer(lambda p, q: q * p, lambda t: tirx.const(1, t), name="product")
    y = te.compute((3,), lambda i: product(x[i, a, b], axis=[a, b]), name="y")
    assert from_te(y) == nb.build(nb.compute((3,), lambda i: nb.prod(bx[i, ba, bb], axis=[ba, bb]), "y"))


def test_functions():
    def body(x, i, j):
        terms = [te.exp(x), tirx.exp2(x), te.log(x), tirx.log2(x), te.sqrt(x), te.rsqrt(x), te.tanh(x), te.sigmoid(x)]
        terms += [te.abs(x), te.power(x, 2.0), te.min(x, x + 1), te.max(x, x - 1), x / 2]
        total = terms[0]
        for t in terms[1:]:
            total = total + t
        pred = tirx.all(i < 3, tirx.any(j >= i, tirx.Not(j > 2)))
        return tirx.Select(pred, total, te.if_then_else(i % 2 == 0, x, (i // 2).astype("float32")))

    tree = value(from_te(pointwise(body)))
    ops = {e.name for e in walk(tree) if isinstance(e, Op)}
    assert ops >= {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "pow", "min", "max", "div"}
    assert ops >= {"and", "or", "lt", "ge", "eq", "mod", "floordiv"}
    assert sum(isinstance(e, Select) for e in walk(tree)) == 2


def test_indirection_and_integer_widths():
    n = te.var("n", "int64")
    x, idx = te.placeholder((n, 4), "float32", name="x"), te.placeholder((n,), "int64", name="idx")
    program = from_te(te.compute((n, 4), lambda i, j: x[idx[i], j * 2 % 4] + 1.0, name="y"))
    assert program.scalars == (Scalar("n", lo=1),)
    assert "y[i, j] = x[idx[i], j * 2 % 4] + 1.0" in str(program)
    assert not any(isinstance(e, Cast) for e in walk(value(program)))


def test_scalars_and_input_order():
    n, scale = te.var("n"), te.var("scale", "float32")
    a, b = te.placeholder((n,), "float32", name="a"), te.placeholder((n,), "float32", name="b")
    y = te.compute((n,), lambda i: b[i] * scale + a[i], name="y")
    program = from_te(y)
    assert [t.name for t in program.inputs] == ["b", "a"]
    assert program.scalars == (Scalar("n", lo=1), Scalar("scale", "float32"))
    assert [t.name for t in from_te(y, inputs=[a, b, scale, n]).inputs] == ["a", "b"]


def test_ambiguous_names_get_a_suffix_and_stages_come_first():
    m, n, n2 = te.var("m"), te.var("n"), te.var("n")
    x, w = te.placeholder((m, n), "float32", name="x"), te.placeholder((n2,), "float32", name="x")
    k = te.reduce_axis((0, n), name="m")
    a = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="m")
    b = te.compute((m,), lambda m: a[m] + w[0], name="T.add")
    c = te.compute((m,), lambda i: b[i] * 2.0, name="T.add")
    program = from_te(c)
    assert [s.name for s in stages(program.body)] == ["m", "T_add", "T_add_1"]
    assert [t.name for t in program.inputs] == ["x", "x_1"]
    assert [s.name for s in program.scalars] == ["m_1", "n", "n_1"]


def test_several_outputs_and_zero_dimensions():
    x = te.placeholder((4,), "float32", name="x")
    k = te.reduce_axis((0, 4), name="k")
    total = te.compute((), lambda: te.sum(x[k], axis=k), name="total")
    y = te.compute((4,), lambda i: x[i] / total(), name="y")
    program = from_te([y, total], name="two")
    assert [o.name for o in program.outputs] == ["y", "total"]
    assert "y[i] = x[i] / total[]" in str(program)


def test_truncating_division_is_plain_where_nothing_is_negative():
    assert print_expr(value(from_te(pointwise(lambda x, i, j: tirx.truncdiv(i + j, 2))))) == "(i0 + i1) // 2"
    assert print_expr(value(from_te(pointwise(lambda x, i, j: tirx.truncmod(i, 2))))) == "i0 % 2"


def test_a_truncated_remainder_of_floats_is_fmod() -> None:
    assert print_expr(value(from_te(pointwise(lambda x, i, j: tirx.Mod(x, x))))) == "fmod(x[i0, i1], x[i0, i1])"


@pytest.mark.parametrize("operator", [tirx.truncdiv, tirx.truncmod])
def test_truncating_division_of_any_signs(operator):
    a, b = te.placeholder((8,), "int32", name="a"), te.placeholder((8,), "int32", name="b")
    program = from_te(te.compute((8,), lambda i: operator(a[i], b[i]), name="y"), [a, b])
    numbers = np.array([7, -7, 7, -7, 6, -6, 0, 2147483647], "int32"), np.array([2, 2, -2, -2, 3, 3, -5, -2], "int32")
    (result,) = evaluate(program, dict(zip(("a", "b"), numbers, strict=True)), {}).values()
    quotients = [int(x / y) for x, y in zip(*numbers, strict=True)]
    remainders = [x - q * y for x, y, q in zip(*numbers, quotients, strict=True)]
    assert result.tolist() == (quotients if operator is tirx.truncdiv else remainders)


def test_components_that_fold_apart_become_stages():
    x, k = te.placeholder((4, 4), "float32", name="x"), te.reduce_axis((0, 4), name="k")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], tirx.Max(b[1], a[1])), lambda s, t: (tirx.const(0, s), te.min_value(t)), name="both"
    )
    outs = te.compute((4,), lambda i: both((x[i, k] * x[i, k], x[i, k]), axis=k), name="y")
    bx, bk = nb.placeholder((4, 4), "float32", "x"), nb.reduce_axis((0, 4), "k")
    squares = nb.compute((4,), lambda i: nb.sum(bx[i, bk] * bx[i, bk], axis=bk), "y_v0")
    assert from_te(list(outs)) == nb.build([squares, nb.compute((4,), lambda i: nb.max(bx[i, bk], axis=bk), "y_v1")])
