"""Names from assignments."""

from __future__ import annotations

from types import SimpleNamespace

import neptune.frontend.builder as nb
from neptune.records.record import keys_of

M = nb.var("m")


def copy(x):
    return nb.compute((M,), lambda i: x[i] + 1.0)


def test_the_variable_names_a_tensor_an_axis_and_an_input():
    x = nb.placeholder((M,))
    row = nb.reduce_axis(M)
    total = nb.compute((1,), lambda i: nb.sum(x[row], axis=row))
    assert (x.name, row.name, total.name) == ("x", "row", "total")


def test_an_attribute_and_a_walrus_name_too():
    space = SimpleNamespace()
    space.x = nb.placeholder((M,))
    assert space.x.name == "x" and (y := copy(space.x)).name == "compute"
    assert (z := nb.compute((M,), lambda i: y[i])).name == "z" and z is not y


def test_several_in_one_statement():
    x, y = nb.placeholder((M,)), nb.placeholder((M,))
    a, b, c = (nb.placeholder((M,)), nb.placeholder((4,), "float16"), nb.placeholder((M,), dtype="int32"))
    p, q, r, s = nb.placeholder((M,)), nb.placeholder((M,)), nb.reduce_axis(M), nb.compute((M,), lambda i: x[i])
    assert [t.name for t in (x, y, a, b, c, p, q, r, s)] == list("xyabcpqrs")
    first = second = nb.placeholder((M,))
    assert first.name == "first" and second is first


def test_a_result_that_goes_elsewhere_has_no_name():
    x = [nb.placeholder((M,))][0]
    y = copy(x) if (z := nb.placeholder((M,))) else None
    w = nb.compute((M,), lambda i: x[i]).shape
    assert (x.name, y.name, z.name, w) == ("placeholder", "compute", "z", (M,))


def test_a_given_name_wins_and_an_argument_has_none():
    x = nb.placeholder((M,), name="first")
    assert x.name == "first" and copy(nb.placeholder((M,))).name == "compute"
    assert [t.name for t in [nb.placeholder((M,)) for _ in range(2)]] == ["placeholder", "placeholder"]


def test_code_that_is_executed_names_as_well():
    space = {"nb": nb, "M": M}
    exec("held = nb.placeholder((M,))", space)
    assert space["held"].name == "held"


def test_names_that_nobody_has_given_avoid_all_others():
    x = nb.placeholder((M,))
    y = x
    for _ in range(3):
        y = nb.compute((M,), lambda i, y=y: y[i] * 2.0)
    m = nb.compute((M,), lambda i: y[i] + x[i])
    program = nb.build(m)
    # `m` is a size, and `m_1` its stage.
    assert [b.name for b in program.outputs] == ["m_1"] and {b.name for b in program.temporaries} == {"y", "y_1", "y_2"}
    fixed = nb.compute((M,), lambda i: y[i], "y_1")
    assert [b.name for b in nb.build(fixed).outputs] == ["y_1"]


def test_names_are_no_part_of_the_keys_of_records():
    def program(name):
        x = nb.placeholder((M,))
        return nb.build(nb.compute((M,), lambda i: x[i] + 1.0, name))

    first, second = program("a"), program(None)
    assert first != second and keys_of(first) == keys_of(second)


def test_results_of_one_stage_in_several_variables_have_the_name_of_none():
    x = nb.placeholder((M,))
    best, where = nb.compute((), lambda: nb.argmax(lambda i: x[i]))
    assert (best.name, where.name) == ("compute_value", "compute_index")
