"""reciprocal: one division per row."""

from __future__ import annotations

from neptune.ir.expr import Cast, Op, Var
from neptune.tile.ir import Assign, Branch, Local, Rearrange, StoreTile, TExpr, TStmt, walk_stmts
from neptune.tile.passes.hoist import hoist
from neptune.tile.passes.reciprocal import reciprocal
from tests.examples.kernels import (
    TILE,
    N,
    apply,
    assigned,
    body_of,
    column,
    count,
    fold,
    full,
    inputs,
    keeps_meaning,
    kernel,
    lit,
    load,
    loop,
    map_,
    put,
    row,
    same,
    tile,
)
from tests.examples.tile_examples import where


def divided(by: str = "l") -> Op:
    return map_("div", tile("a"), column(row(by)))


SQUARES = fold("sum", map_("mul", load("w"), load("w")))
START = (Assign("a", load("w")), Assign("l", map_("max", SQUARES, lit(1e-6))))
UNKNOWN = (Assign("a", load("w")), Assign("l", SQUARES))


def test_one_division_per_row() -> None:
    after = keeps_meaning(reciprocal, kernel(*START, put(divided())))
    assert assigned(after, "inv_l") == [map_("div", lit(1.0), row("l"))] and count(after, "div") == 1


def test_a_divisor_that_may_be_subnormal_is_divided_by() -> None:
    """1 / 1e-39 is infinite in float32, 1e-39 / 1e-39 is 1."""
    before = kernel(*UNKNOWN, put(divided()))
    assert apply(reciprocal, before) == before


def test_a_root_is_0_or_has_an_inverse() -> None:
    """That of the smallest float32 is 3.7e-23; a root that is scaled may be as small as anything."""
    root = map_("sqrt", SQUARES)
    after = keeps_meaning(reciprocal, kernel(Assign("a", load("w")), Assign("l", root), put(divided())))
    assert assigned(after, "inv_l") and count(after, "div") == 1
    before = kernel(Assign("a", load("w")), Assign("l", map_("mul", root, lit(1e-30))), put(divided()))
    assert apply(reciprocal, before) == before


def test_a_product_with_an_inverse_that_may_overflow_becomes_a_division() -> None:
    inverse = column(map_("div", lit(1.0), row("l")))
    product = put(map_("mul", tile("a"), inverse))
    after = keeps_meaning(reciprocal, kernel(*UNKNOWN, product))
    assert after == kernel(*UNKNOWN, put(divided()))
    before = kernel(*START, product)
    assert apply(reciprocal, before) == before


def online(x: TExpr, start: float = -3.4028234663852886e38) -> tuple[TStmt, ...]:
    """A running maximum of w, and the sum of exponentials of `x` below it."""
    body = (
        Assign("s", load("w")),
        Assign("m_prev", row("m")),
        Assign("m", map_("max", row("m"), fold("max", tile("s")))),
        Assign("p", map_("exp", map_("sub", x, column(row("m"))))),
        Assign("factor", map_("exp", map_("sub", row("m_prev"), row("m")))),
        Assign("l", map_("add", map_("mul", row("l"), row("factor")), fold("sum", tile("p")))),
    )
    return (Assign("a", load("w")), Assign("m", full(start)), Assign("l", full(0.0)), loop(*body))


def test_a_sum_of_exponentials_that_holds_its_maximum() -> None:
    after = keeps_meaning(reciprocal, kernel(*online(tile("s")), put(divided())))
    assert count(after, "div") == 1 and assigned(after, "inv_l")


def test_a_sum_of_exponentials_that_may_lack_its_maximum() -> None:
    other = map_("mul", tile("s"), tile("s"))
    for before in (kernel(*online(other), put(divided())), kernel(*online(tile("s"), 5.0), put(divided()))):
        assert apply(reciprocal, before) == before


def test_one_inverse_serves_several_uses() -> None:
    other = Assign("b", map_("add", divided(), divided()))
    after = keeps_meaning(reciprocal, kernel(*START, other, put(map_("mul", tile("b"), divided()))))
    assert count(after, "div") == 1 and len(assigned(after, "inv_l")) == 1


def test_a_divisor_that_changes_in_between() -> None:
    body = (
        Assign("b", divided()),
        Assign("l", map_("add", row("l"), row("l"))),
        put(map_("add", tile("b"), divided())),
    )
    after = keeps_meaning(reciprocal, kernel(*START, *body))
    assert count(after, "div") == 2


def test_a_divisor_that_a_loop_changes() -> None:
    body = (Assign("b", map_("add", divided(), tile("b"))), Assign("l", map_("add", row("l"), row("l"))))
    after = keeps_meaning(
        reciprocal, kernel(*START, Assign("b", divided()), loop(*body), put(map_("add", tile("b"), divided())))
    )
    assert count(after, "div") == 3


def test_the_inverse_of_what_a_loop_keeps_is_hoisted() -> None:
    before = kernel(
        *START, Assign("b", full(0.0, TILE)), loop(Assign("b", map_("add", divided(), tile("b")))), put(tile("b"))
    )
    after = keeps_meaning(hoist, keeps_meaning(reciprocal, before))
    assert any(isinstance(s, Assign) and s.name == "inv_l" for s in body_of(after))


def test_in_a_branch() -> None:
    before = kernel(
        *START, Assign("b", tile("a")), Branch(N > 1, (Assign("b", divided()),)), put(map_("add", tile("b"), divided()))
    )
    keeps_meaning(reciprocal, before)


def test_a_zero_divisor_behind_a_choice() -> None:
    safe = where(column(map_("gt", row("l"), lit(0.0))), divided(), lit(0.0))
    data = inputs()
    data["w"][2] = 0.0
    before = kernel(*START, put(safe))
    after = keeps_meaning(reciprocal, before, data)
    assert count(after, "div") == 1


def test_elementwise_and_row_divisions_stay() -> None:
    row_wise = map_("div", row("l"), map_("add", row("l"), lit(1.0)))
    before = kernel(*START, put(row_wise), put(map_("div", tile("a"), load("w"))))
    assert apply(reciprocal, before) == before


def test_a_short_dtype_keeps_its_division() -> None:
    """1/20000 is subnormal in float16."""
    h = Local("hh", TILE, "float16")
    total = Cast(row("l"), "float16")
    value = Cast(Op("div", (h, Rearrange(total, "r -> r 1")), "float16"), "float32")
    before = kernel(*START, Assign("hh", load("h")), put(value))
    assert apply(reciprocal, before) == before


def test_names_in_use_are_left_alone() -> None:
    before = kernel(*START, Assign("inv_l", full(3.0)), put(divided()), put(row("inv_l")))
    after = keeps_meaning(reciprocal, before)
    assert len(assigned(after, "inv_l")) == 1 and assigned(after, "inv_l_")


def test_a_loop_variable_called_like_the_inverse() -> None:
    body = Assign("b", map_("add", divided(), load("w", shift=Var("inv_l"))))
    before = kernel(*START, Assign("b", tile("a")), loop(body, var="inv_l"), put(tile("b")))
    after = keeps_meaning(reciprocal, before)
    same(before, after)
    assert not any(isinstance(s, StoreTile) and s.buffer == "inv_l" for s in walk_stmts(body_of(after)))
