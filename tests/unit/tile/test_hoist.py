"""name_loads and hoist: loads have names, and what a loop does not change stands in front of it."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.ir.expr import Cast, Const, Load, Var
from neptune.tile.ir import Assign, Branch, Iota, LoadTile, Local, Loop, Scalar, TExpr, TileProgram, TStmt, walk_stmts
from neptune.tile.passes.hoist import hoist, name_loads
from tests.examples.kernels import (
    ROW,
    TILE,
    C,
    N,
    assigned,
    body_of,
    column,
    fold,
    full,
    inputs,
    keeps_meaning,
    kernel,
    load,
    loop,
    map_,
    put,
    row,
)

J = Var("j")
S0 = Assign("s", full(0.0))


def add(name: str, e: TExpr) -> Assign:
    return Assign(name, map_("add", row(name), e))


def both(program: TileProgram) -> TileProgram:
    return keeps_meaning(hoist, keeps_meaning(name_loads, program))


def names(body: tuple[TStmt, ...]) -> list[str]:
    return [s.name for s in body if isinstance(s, Assign)]


def loops_of(program: TileProgram) -> list[Loop]:
    return [s for s in walk_stmts(body_of(program)) if isinstance(s, Loop)]


# --- names ---------------------------------------------------------------------------------------


def test_equal_loads_share_a_name_and_others_do_not() -> None:
    masked = load("w", mask=map_("lt", C, Scalar(Const(5, "int32"))))
    value = map_("add", map_("add", load("w"), masked), map_("mul", load("w"), masked))
    after = keeps_meaning(name_loads, kernel(put(value)))
    assert assigned(after, "w") == [load("w")] and assigned(after, "w_1") == [masked]


def weighted(e: TExpr) -> TExpr:
    """A row sum that tells columns apart."""
    return fold("sum", map_("mul", e, Cast(C, "float32")))


def test_a_load_inside_a_loop_does_not_overwrite_the_one_around_it() -> None:
    before = kernel(
        Assign("s", weighted(load("w"))),
        loop(add("s", weighted(load("w", shift=J)))),
        Assign("d", weighted(load("w"))),
        put(map_("add", row("s"), row("d"))),
    )
    assert assigned(both(before), "w_1")


def test_loops_side_by_side_use_one_name() -> None:
    first, second = (loop(add("s", fold("sum", load("w", shift=J + k)))) for k in (1, 2))
    after = both(kernel(S0, first, second, put(row("s"))))
    assert len(assigned(after, "w")) == 2 and not assigned(after, "w_1")


def test_one_name_has_one_shape() -> None:
    flat = LoadTile("w", (Iota("r"), Scalar(Const(0, "int32"))), None, 0.0, ROW, "float32")
    shifted = LoadTile("w", (Iota("r"), Scalar(J)), None, 0.0, ROW, "float32")
    before = kernel(
        S0, loop(add("s", fold("sum", load("w", shift=J)))), loop(add("s", map_("mul", flat, shifted))), put(row("s"))
    )
    assert assigned(both(before), "w_1")


def test_a_load_of_what_the_kernel_stores_is_read_again() -> None:
    back = load("z")
    before = kernel(
        put(load("w")),
        Assign("s", fold("sum", back)),
        put(map_("add", load("x"), load("w"))),
        Assign("d", fold("sum", back)),
        put(map_("sub", row("s"), row("d"))),
    )
    keeps_meaning(name_loads, before, {**inputs(), "x": np.ones((4, 8))})


def test_an_index_that_changes_is_loaded_again() -> None:
    """A gather by rows whose row numbers are reassigned in between."""
    rows = Local("at", ROW, "int32")
    gather = LoadTile("w", (column(rows), C), None, 0.0, TILE, "float32")
    t = LoadTile("t", (Iota("r"),), None, 0.0, ROW, "int32")
    before = kernel(
        Assign("at", t),
        Assign("s", fold("sum", gather)),
        Assign("at", map_("sub", Scalar(Const(3, "int32")), rows)),
        put(map_("add", row("s"), fold("sum", gather))),
    )
    data = {**inputs(), "t": np.array([0, 3, 1, 1], np.int32)}
    after = keeps_meaning(name_loads, before, data)
    assert len(assigned(after, "w")) + len(assigned(after, "w_1")) == 2


def test_a_loop_called_like_a_buffer() -> None:
    before = kernel(S0, loop(add("s", fold("sum", load("w", shift=Var("w")))), var="w"), put(row("s")))
    assert not assigned(both(before), "w")


# --- hoisting ------------------------------------------------------------------------------------


def test_a_load_that_the_loop_does_not_change() -> None:
    body = add("s", fold("sum", map_("mul", load("x"), load("w", shift=J))))
    after = both(kernel(S0, loop(body), loop(body), put(row("s"))))
    assert names(body_of(after)) == ["s", "x"]
    assert [names(f.body) for f in loops_of(after)] == [["w", "s"], ["w", "s"]]


def test_out_of_two_loops() -> None:
    inner = loop(add("s", fold("sum", map_("mul", load("x"), load("w", shift=J)))))
    after = both(kernel(S0, loop(inner, var="i"), put(row("s"))))
    assert names(body_of(after)) == ["s", "x"]


def test_only_out_of_the_loop_that_does_not_change_it() -> None:
    inner = loop(add("s", fold("sum", load("w", shift=Var("i")))))
    after = both(kernel(S0, loop(inner, var="i"), put(row("s"))))
    outer, within = loops_of(after)
    assert names(outer.body) == ["w"] and names(within.body) == ["s"]


def test_what_the_loop_changes_stays() -> None:
    """d rests on s, which the loop assigns behind it."""
    body = (Assign("d", map_("mul", row("s"), row("s"))), add("s", map_("add", row("d"), row("f"))))
    before = kernel(S0, Assign("f", fold("sum", load("w"))), loop(*body), put(row("s")))
    assert names(loops_of(both(before))[0].body) == ["d", "s"]


def test_a_loop_that_may_not_run_leaves_the_older_value() -> None:
    before = kernel(Assign("a", full(3.0)), loop(Assign("a", fold("sum", load("w")))), put(row("a")))
    both(before)
    keeps_meaning(hoist, before)


def test_a_value_that_is_read_before_it_is_assigned() -> None:
    body = (add("s", row("a")), Assign("a", fold("sum", load("w"))))
    before = kernel(S0, Assign("a", full(3.0)), loop(*body), put(row("s")))
    assert "a" in names(loops_of(both(before))[0].body)
    assert "a" in names(loops_of(keeps_meaning(hoist, before))[0].body)


def test_two_loops_with_a_change_in_between() -> None:
    body = (Assign("d", map_("mul", row("f"), row("f"))), add("s", row("d")))
    before = kernel(
        S0, Assign("f", fold("sum", load("w"))), loop(*body), add("f", row("f")), loop(*body), put(row("s"))
    )
    after = both(before)
    assert len(assigned(after, "d")) == 2


def test_a_loop_that_changes_what_an_earlier_one_was_given() -> None:
    first = loop(Assign("d", map_("mul", row("f"), row("f"))), add("s", row("d")))
    second = loop(Assign("d", map_("mul", row("f"), row("f"))), add("s", row("d")), add("f", row("f")))
    both(kernel(S0, Assign("f", fold("sum", load("w"))), first, second, put(row("s"))))


def test_a_load_of_what_the_loop_stores_stays() -> None:
    body = (Assign("d", fold("sum", load("z"))), put(map_("add", load("w"), column(row("d")))))
    before = kernel(put(load("w")), loop(*body), S0, put(row("s")))
    assert "d" in names(loops_of(both(before))[0].body)


def test_a_scalar_load_of_what_the_loop_stores_stays() -> None:
    """z[0, 0] as a loop-IR expression inside the tile expression."""
    scalar = Scalar(Load("z", (Const(0, "int32"), Const(0, "int32")), "float32"))
    body = (Assign("d", map_("add", row("f"), scalar)), put(map_("add", load("w"), column(row("d")))))
    before = kernel(put(load("w")), Assign("f", fold("sum", load("w"))), loop(*body), put(row("f")))
    assert "d" in names(loops_of(keeps_meaning(hoist, before))[0].body)


def test_a_name_assigned_twice_in_the_loop_stays() -> None:
    body = (
        Assign("d", fold("sum", load("x"))),
        add("s", row("d")),
        Assign("d", fold("sum", load("w"))),
        add("s", row("d")),
    )
    after = both(kernel(S0, loop(*body), put(row("s"))))
    assert names(loops_of(after)[0].body) == ["d", "s", "d", "s"]
    after = keeps_meaning(hoist, kernel(S0, loop(*body), put(row("s"))))
    assert names(loops_of(after)[0].body) == ["d", "s", "d", "s"]


def test_a_loop_that_overwrites_what_was_hoisted() -> None:
    """The branch must compute d again."""
    body = (Assign("d", fold("sum", load("w"))), add("s", row("d")))
    other = (Assign("d", weighted(load("w", shift=J))), add("s", row("d")))
    keeps_meaning(hoist, kernel(S0, loop(*body), loop(*other), Branch(N > 1, body), put(row("s"))))


@pytest.mark.parametrize("loop_first", [True, False])
def test_a_branch_reuses_but_does_not_hoist(loop_first: bool) -> None:
    body = add("s", fold("sum", map_("mul", load("x"), load("w", shift=N))))
    parts: tuple[TStmt, ...] = (loop(body), Branch(N > 1, (body,)))
    after = both(kernel(S0, *(parts if loop_first else parts[::-1]), put(row("s"))))
    branch = next(s for s in body_of(after) if isinstance(s, Branch))
    assert names(branch.body) == (["s"] if loop_first else ["x", "w", "s"])


def test_a_branch_in_a_loop() -> None:
    branch = Branch(J > 0, (add("s", fold("sum", load("x"))),))
    after = both(kernel(S0, loop(branch), put(row("s"))))
    assert names(body_of(after)) == ["s"]


def test_a_branch_that_assigns_a_name_twice() -> None:
    first = loop(Assign("d", fold("sum", load("x"))), add("s", row("d")))
    twice = (
        Assign("d", fold("sum", load("w"))),
        add("s", row("d")),
        Assign("d", fold("sum", load("x"))),
        add("s", row("d")),
    )
    both(kernel(S0, first, Branch(N > 0, twice), put(row("s"))))
