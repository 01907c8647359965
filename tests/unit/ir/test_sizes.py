"""Sizes inside of dimensions are solved where a shape gives them, and only there."""

from __future__ import annotations

import pytest

from neptune.ir.expr import Const, Var, binary
from neptune.ir.indices.sizes import given, solved
from neptune.ir.text.printer import print_expr

A, B, C = Var("a"), Var("b"), Var("c")


def times(x, y):
    return binary("mul", x, y)


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([[times(4, A)]], {"a": (4, "0")}),
        ([[times(4, A) + 1, B]], {"a": (4, "1")}),
        ([[A + A + B], [B]], {"a": (2, "b")}),
        # b follows from a, wherever it stands.
        ([[A + times(3, B)], [times(2, A)]], {"a": (2, "0"), "b": (3, "a")}),
        # A dimension of its own gives it, and what is said elsewhere has to agree.
        ([[times(2, A)], [A]], {}),
        ([[times(4, A)], [times(2, A)]], {"a": (4, "0")}),
        # Two unknowns, a product of them, a part, one that falls, and none.
        ([[A + B]], {}),
        ([[times(A, B)], [A]], {}),
        ([[times(A, A)]], {}),
        ([[binary("floordiv", A, 2)]], {}),
        ([[8 - A]], {}),
        ([[Const(3, "int32")]], {}),
    ],
)
def test_what_is_solved(shapes, found):
    assert {s.name: (s.times, print_expr(s.rest)) for s in solved(shapes)} == found
    plain = {d.name for shape in shapes for d in shape if isinstance(d, Var)}
    assert given(shapes) == plain | set(found)


def test_a_remainder_is_no_value():
    (a,) = solved([[times(4, A) + 3]])
    assert [a.value(n, {}) for n in (2, 3, 7, 8, 10, 11)] == [None, 0, 1, None, None, 2]
    (a,) = solved([[times(2, A) + B], [B]])
    assert (a.value(9, {"b": 5}), a.value(9, {"b": 4}), a.value(3, {"b": 5})) == (2, None, -1)
