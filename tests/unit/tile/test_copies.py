"""copies: originals instead of plain copies, and nothing that is not read."""

from __future__ import annotations

from neptune.ir.expr import Var
from neptune.tile.ir import Assign, Branch, Loop, TStmt, walk_stmts
from neptune.tile.passes.copies import copies
from tests.kernels import N, assigned, body_of, fold, full, keeps_meaning, kernel, load, loop, map_, put, row, tile


def test_a_copy_is_read_through() -> None:
    before = kernel(Assign("a", load()), Assign("b", tile("a")), Assign("d", tile("b")), put(fold("max", tile("d"))))
    after = keeps_meaning(copies, before)
    assert [s.name for s in body_of(after) if isinstance(s, Assign)] == ["a"]


def test_the_original_changes_before_the_use() -> None:
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        Assign("b", row("a")),
        Assign("a", map_("add", row("a"), row("a"))),
        put(map_("sub", row("a"), row("b"))),
    )
    assert assigned(keeps_meaning(copies, before), "b")


def test_the_copy_is_reassigned_before_the_use() -> None:
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        Assign("b", row("a")),
        Assign("b", map_("mul", row("b"), row("b"))),
        put(row("b")),
    )
    keeps_meaning(copies, before)


def test_a_copy_made_before_a_loop_that_changes_the_original() -> None:
    step = Assign("a", map_("add", row("a"), row("b")))
    before = kernel(
        Assign("a", fold("sum", load("w"))), Assign("b", row("a")), loop(step), put(map_("add", row("a"), row("b")))
    )
    assert assigned(keeps_meaning(copies, before), "b")


def test_a_copy_in_a_loop_is_not_known_in_the_next_iteration() -> None:
    body = (
        Assign("y1", map_("add", row("y1"), row("b"))),
        Assign("a", map_("mul", row("a"), row("a"))),
        Assign("b", row("a")),
    )
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        Assign("b", full(1.0)),
        Assign("y1", full(0.0)),
        loop(*body),
        put(row("y1")),
    )
    keeps_meaning(copies, before)


def test_a_copy_made_in_a_branch_is_not_known_behind_it() -> None:
    branch = Branch(N > 1, (Assign("b", row("a")), Assign("d", row("b"))))
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        Assign("b", full(1.0)),
        Assign("d", full(2.0)),
        branch,
        put(map_("add", row("b"), row("d"))),
    )
    keeps_meaning(copies, before)


def test_copies_pass_through_loops_that_leave_both_alone() -> None:
    body = Assign("s", map_("add", row("s"), row("b")))
    before = kernel(
        Assign("a", fold("sum", load("w"))), Assign("b", row("a")), Assign("s", full(0.0)), loop(body), put(row("s"))
    )
    assert not assigned(keeps_meaning(copies, before), "b")


def test_a_copy_that_the_loop_changes() -> None:
    body = (Assign("s", map_("add", row("s"), row("b"))), Assign("b", map_("add", row("b"), row("a"))))
    before = kernel(
        Assign("a", fold("sum", load("w"))), Assign("b", row("a")), Assign("s", full(0.0)), loop(*body), put(row("s"))
    )
    assert assigned(keeps_meaning(copies, before), "b")[0] == row("a")


def test_a_store_that_the_next_iteration_reads_is_not_dead() -> None:
    body = (Assign("s", map_("add", row("s"), row("prev"))), Assign("prev", map_("mul", row("prev"), row("prev"))))
    before = kernel(Assign("prev", fold("sum", load("w"))), Assign("s", full(0.0)), loop(*body), put(row("s")))
    assert len(assigned(keeps_meaning(copies, before), "prev")) == 2


def test_a_chain_through_iterations_is_not_dead() -> None:
    body = (
        Assign("s", map_("add", row("s"), row("p2"))),
        Assign("p2", map_("mul", row("p1"), row("p1"))),
        Assign("p1", map_("add", row("p1"), row("p1"))),
    )
    start = (Assign("p1", fold("sum", load("w"))), Assign("p2", full(0.0)), Assign("s", full(0.0)))
    assert len(assigned(keeps_meaning(copies, kernel(*start, loop(*body), put(row("s")))), "p1")) == 2


def test_dead_assignments_and_empty_bodies_go() -> None:
    inner: tuple[TStmt, ...] = (Assign("dead", map_("add", row("a"), row("a"))),)
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        loop(*inner),
        Branch(N > 0, (loop(*inner, var="i"),)),
        Assign("dead", full(0.0)),
        put(row("a")),
    )
    after = keeps_meaning(copies, before)
    assert not any(isinstance(s, Loop | Branch) for s in walk_stmts(body_of(after))) and not assigned(after, "dead")


def test_an_overwritten_start_is_dead_only_if_the_loop_always_runs() -> None:
    before = kernel(Assign("a", full(3.0)), loop(Assign("a", fold("sum", load("w", shift=Var("j"))))), put(row("a")))
    assert len(assigned(keeps_meaning(copies, before), "a")) == 2


def test_a_name_read_only_in_a_nested_loop_stays() -> None:
    inner = loop(Assign("s", map_("add", row("s"), row("b"))), var="i")
    before = kernel(
        Assign("a", fold("sum", load("w"))),
        Assign("s", full(0.0)),
        loop(Assign("b", row("a")), inner, Assign("a", map_("add", row("a"), row("s")))),
        put(map_("add", row("s"), row("a"))),
    )
    keeps_meaning(copies, before)
