"""Quotients and remainders that are worked out have the values that they had."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.ir.expr import Const, Expr, Load, Op, Var
from neptune.ir.indices.affine import number, poly, to_expr
from neptune.ir.indices.quotients import divided, quotient
from tests.examples.schedule_examples import values_of
from tests.unit.ir.test_affine import I0, I1, POINTS, SCOPE, B, affine

WIDTHS = [B, B * 2, Const(2, "int32"), Const(3, "int32"), Const(-2, "int32"), I1]


@settings(max_examples=300, deadline=None)
@given(affine(), affine(), st.sampled_from(WIDTHS), st.booleans())
def test_quotients(whole: Expr, rest: Expr, width: Expr, as_sum: bool) -> None:
    e = whole * width + rest if as_sum else rest
    found = quotient(poly(e), poly(width), SCOPE)
    if found is None:
        return
    times, left = map(to_expr, found)
    for p in POINTS[::3]:
        w = values_of(width, p)
        assert (values_of(times, p), values_of(left, p)) == (values_of(e, p) // w, values_of(e, p) % w)


def test_what_split_and_pack_need() -> None:
    row = I0 * B + I1
    assert divided(row // B, SCOPE) == I0 and divided(row % B, SCOPE) == I1
    assert divided(Load("k", (I0 * 4 + row % 4, (I0 * 4 + row % 4) // 4), "float32"), SCOPE).index[1] == I0
    assert poly(divided((row * 6 + 5) // 6, SCOPE)) == poly(row) and divided((row * 6 + 5) % 6, SCOPE) == Const(
        5, "int32"
    )
    assert quotient(number(0), poly(B), SCOPE) == (number(0), number(0))


def test_what_is_not_known_stays() -> None:
    for e in ((I0 * 4 + I1) // 4, I1 // 2, (I0 * 4 + 4) // Var("unknown"), (I0 * B - 1) // B):
        assert divided(e, SCOPE) == e
    load = Load("t", ((I0 * B + I1) // B,), "int32")
    assert (
        divided(Op("add", (load, load // 2), "int32"), SCOPE)
        == Load("t", (I0,), "int32") + Load("t", (I0,), "int32") // 2
    )
