"""Counters that advance together become one; others stay what they are."""

from __future__ import annotations

from neptune.hopper.ir import AStmt, Await, Release, with_inside
from neptune.hopper.printer import print_astmt
from neptune.hopper.roles.ring_groups import advanced, shared, turn_of
from neptune.ir.expr import Const, Var, op
from neptune.tile.ir import Branch, Loop

Body = tuple[AStmt, ...]


def used(ring: str) -> Body:
    """A turn of a ring, counted."""
    turn = turn_of(f"{ring}s")
    return Await(ring, turn), Release(ring, turn), advanced(f"{ring}s")


def loop(*body: AStmt) -> AStmt:
    return with_inside(Loop("i", Const(0, "int32"), Var("n"), ()), body)


def lines(body: Body) -> list[str]:
    return [line.strip() for s in body for line in print_astmt(s, 0)]


def test_a_ring_that_lags_behind() -> None:
    body = (*used("a"), loop(*used("a"), *used("b")), *used("b"))
    counters, (made,) = shared(("as", "bs"), (body,), "turn")
    assert counters == ("turn",)
    assert lines(made) == [
        "await a(turn[])", "release a(turn[])",
        "for i in [0, n):",
        "await a(turn[] + 1)", "release a(turn[] + 1)", "await b(turn[])", "release b(turn[])", "turn<> = (turn + 1)",
        "await b(turn[])", "release b(turn[])", "turn<> = (turn + 1)",
    ]  # fmt: skip


def test_rings_of_other_rates_stay_apart() -> None:
    body = (*used("q"), loop(*used("a"), *used("a"), *used("b")), loop(*used("b")))
    assert shared(("qs", "as", "bs"), (body,), "turn") == (("qs", "as", "bs"), (body,))


def test_both_roles_must_agree() -> None:
    together: Body = (loop(*used("a"), *used("b")),)
    apart: Body = (loop(*used("a")), loop(*used("b")))
    assert shared(("as", "bs"), (together, apart), "turn")[0] == ("as", "bs")
    assert shared(("as", "bs"), (together, together), "turn")[0] == ("turn",)


def test_either_side_of_a_condition_advances() -> None:
    pred = op("lt", Const(0, "int32"), Var("n"))
    inner = (*used("a"), *used("b"))
    either = [with_inside(Branch(p, ()), inner) for p in (pred, op("not", pred))]
    counters, (made,) = shared(("as", "bs"), (tuple(either),), "turn")
    assert counters == ("turn",) and lines(made).count("turn<> = (turn + 1)") == 2
    one_sided = (with_inside(either[0], used("a")), with_inside(either[1], used("b")))
    assert shared(("as", "bs"), (one_sided,), "turn")[0] == ("as", "bs")


def test_several_groups_have_several_names() -> None:
    body = (*used("q"), *used("r"), loop(*used("a"), *used("b")))
    counters, _ = shared(("qs", "rs", "as", "bs"), (body,), "turn")
    assert counters == ("turn", "as")
