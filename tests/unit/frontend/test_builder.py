"""The builder: names, order, dtypes and the shape of what comes out."""

from __future__ import annotations

import pytest

from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    Tensor,
    abs,
    all_of,
    build,
    compute,
    eq,
    exp,
    if_then_else,
    max,
    max_value,
    min,
    min_value,
    placeholder,
    pow,
    prod,
    reduce_axis,
    select,
    sum,
    var,
)
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Load, Op, Select, Var, walk
from neptune.ir.program import For, Scalar, Seq, Stage, Store, Update, stages

M, N = Var("m"), Var("n")


def rows(x: Tensor, n: Var | int = N, name: str = "y") -> Tensor:
    j = reduce_axis((0, n), "j")
    return compute((x.shape[0],), lambda i: sum(x[i, j], axis=j), name)


def test_a_reduction_becomes_one_nest():
    x = placeholder((M, N), "float32", "x")
    program = build(rows(x))
    update = Update(("y",), (Var("i"),), "sum", (Load("x", (Var("i"), Var("j")), "float32"),), (Const(0.0, "float32"),))
    zero = Const(0, "int32")
    assert program.body == For("i", zero, M, For("j", zero, N, Stage("y", update)))
    assert [b.name for b in (*program.inputs, *program.outputs)] == ["x", "y"]
    assert program.name == "y"
    assert program.scalars == (Scalar("m", lo=1), Scalar("n", lo=1))


def test_no_front_end_node_is_left_in_a_program():
    x = placeholder((M, N), "float32", "x")
    action = stages(build(rows(x)).body)[0].action
    assert isinstance(action, Update)
    assert {type(node) for e in (*action.values, *action.index) for node in walk(e)} == {Load, Var}


@pytest.mark.parametrize(
    ("fold", "reducer", "start"),
    [
        (sum, "sum", 0),
        (prod, "prod", 1),
        (max, "max", DTYPES["float16"].lowest),
        (min, "min", DTYPES["float16"].highest),
    ],
)
def test_reductions_start_from_the_identity_of_their_dtype(fold, reducer, start):
    x = placeholder((4,), "float16", "x")
    j = reduce_axis((0, 4), "j")
    action = stages(build(compute((), lambda: fold(x[j], axis=j), "y")).body)[0].action
    assert (action.reducer, action.init, action.index) == (reducer, (Const(float(start), "float16"),), ())


def test_several_axes_keep_their_order_and_where_and_init_are_kept():
    x = placeholder((3, 4, 5), "float32", "x")
    a, b = reduce_axis((0, 4), "a"), reduce_axis((0, 5), "b")
    program = build(compute((3,), lambda i: max(x[i, a, b], axis=[b, a], where=a < 2, init=float("-inf")), "y"))
    text = str(program)
    assert text.index("for b in") < text.index("for a in")
    assert "y[i] max= select(a < 2, x[i, a, b], -inf) init -inf" in text


def test_where_uses_the_identity_when_init_is_not_neutral():
    x = placeholder((4,), "float32", "x")
    j = reduce_axis((0, 4), "j")
    program = build(compute((), lambda: sum(x[j], axis=j, where=j < 2, init=5), "y"))
    assert "y[] += select(j < 2, x[j], 0.0) init 5.0" in str(program)


def test_inputs_are_ordered_by_first_read_from_the_output():
    a, b, c = (placeholder((4,), "float32", n) for n in "abc")
    s = compute((4,), lambda i: c[i] + a[i], "s")
    t = compute((4,), lambda i: b[i] * s[i], "t")
    y = compute((4,), lambda i: s[i] + t[i], "y")
    program = build(y)
    assert [x.name for x in program.inputs] == ["c", "a", "b"]
    assert [x.name for x in stages(program.body)] == ["s", "t", "y"]
    assert [x.name for x in build(y, inputs=[a, b, c]).inputs] == ["a", "b", "c"]


def test_an_output_that_is_read_again_is_not_a_temporary():
    x = placeholder((4,), "float32", "x")
    a = compute((4,), lambda i: exp(x[i]), "a")
    b = compute((4,), lambda i: a[i] + 1, "b")
    program = build([b, a], name="two")
    assert [o.name for o in program.outputs] == ["b", "a"]
    assert program.temporaries == ()
    assert isinstance(program.body, Seq)


def test_loop_names_follow_the_lambda_and_avoid_sizes_and_one_another():
    i = var("i")
    x = placeholder((i, 4), "float32", "x")
    axis = reduce_axis((0, 4), "k")
    y = compute((i, 4), lambda i, k_: x[i, k_], "y")
    z = compute((i,), lambda k: sum(y[k, axis], axis=axis), "z")
    loops = {s.name: [] for s in stages(build(z).body)}
    for nest in build(z).body.stmts:
        names, inner = [], nest
        while isinstance(inner, For):
            names.append(inner.var)
            inner = inner.body
        loops[inner.name] = names
    assert loops == {"y": ["i_1", "k_"], "z": ["k", "k_1"]}


def test_varargs_are_i0_i1():
    x = placeholder((2, 3), "float32", "x")
    program = build(compute((2, 3), lambda *ax: x(*ax), "y"))
    assert "y[i0, i1] = x[i0, i1]" in str(program)
    program = build(compute((2, 3), lambda r, *ax: x[r, ax[0]], "y"))
    assert "y[r, i0] = x[r, i0]" in str(program)


def test_numbers_adapt_and_integer_widths_meet_at_int64():
    x = placeholder((4,), "float16", "x")
    idx = placeholder((4,), "int64", "idx")
    y = compute((4,), lambda i: x[idx[i] + i] * 2 - 0.5, "y")
    value = stages(build(y).body)[0].action.value
    assert value.dtype == "float16"
    assert Cast(Var("i"), "int64") in list(walk(value))
    assert {n.dtype for n in walk(value) if isinstance(n, Const)} == {"float16"}


def test_functions_of_values():
    x = placeholder((4,), "float32", "x")
    y = compute((4,), lambda i: if_then_else(all_of(i < 3, eq(i % 2, 0)), pow(x[i], 2), abs(x[i])), "y")
    value = stages(build(y).body)[0].action.value
    assert isinstance(value, Select)
    assert value.then == Op("pow", (Load("x", (Var("i"),), "float32"), Const(2.0, "float32")), "float32")
    assert select is if_then_else
    assert (min_value("float32").value, max_value("int32").value) == (DTYPES["float32"].lowest, 2**31 - 1)


def test_scalars_follow_the_sizes_by_name_or_as_listed():
    n, scale, window = var("n"), var("scale", "float32"), var("window")
    x = placeholder((n,), "float32", "x")
    y = compute((n,), lambda i: select(i < window, x[i] * scale, 0), "y")
    assert build(y).scalars == (Scalar("n", lo=1), Scalar("scale", "float32"), Scalar("window"))
    assert [s.name for s in build(y, inputs=[x, window, scale]).scalars] == ["n", "window", "scale"]


def test_sizes_inside_larger_dimensions():
    h, g, n = var("h"), var("g"), var("n")
    x = placeholder((h * g, n + 1), "float32", "x")
    program = build(compute((h * g,), lambda i: x[i, n], "y"))
    assert program.scalars == (Scalar("g", lo=1), Scalar("h", lo=1), Scalar("n", lo=0))


def test_loop_bounds_may_load_integers():
    ptr = placeholder((5,), "int32", "ptr")
    x = placeholder((N,), "float32", "x")

    def ragged(b):
        j = reduce_axis((ptr[b], ptr[b + 1]), "j")
        return sum(x[j], axis=j)

    program = build(compute((4,), ragged, "y"))
    assert "for j in [ptr[b], ptr[b + 1]):" in str(program)
    assert [t.name for t in program.inputs] == ["ptr", "x"]


def test_unused_inputs_may_be_listed():
    x, u = placeholder((4,), "float32", "x"), placeholder((4,), "float32", "u")
    y = compute((4,), lambda i: x[i], "y")
    assert [t.name for t in build(y, inputs=[u, x]).inputs] == ["u", "x"]
    assert isinstance(stages(build(y).body)[0].action, Store)
    with pytest.raises(ExpressionError):
        build(y, inputs=[u])
