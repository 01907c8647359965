"""Rings whose tiles come and go together share their barriers, and others do not.

Counters that advance together become one; others stay what they are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from neptune.errors import InternalError
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import AStmt, AsyncKernel, Await, Fill, Levers, Release, Ring, with_inside
from neptune.hopper.printer import print_astmt
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.ring_groups import advanced, apart, shared, together, turn_of
from neptune.hopper.roles.verify import verify_async
from neptune.ir.expr import Const, Expr, Load, Var, op
from neptune.tile.ir import Branch, LoadTile, Loop, TileProgram
from tests.examples.hopper_examples import attention, product
from tests.examples.walks import tiles_of, walked

A, B, C = (Ring(n, n, ("i", "j"), "float16", 3, own=False) for n in "abc")
TURN = Load("turn", (), "int32")
NEXT = op("add", TURN, 1)


def fills(*names: str) -> tuple[Fill, ...]:
    return tuple(Fill(n, TURN, LoadTile(n, (), None, 0.0, ("i", "j"), "float16")) for n in names)


def awaits(*names: str, turn: Expr = TURN) -> tuple[Await, ...]:
    return tuple(Await(n, turn) for n in names)


def releases(*names: str) -> tuple[Release, ...]:
    return tuple(Release(n, TURN) for n in names)


def of_product() -> tuple[AsyncKernel, TileProgram]:
    walk, program = product()
    levers = Levers(2, 3, "table", tiles={"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64})
    return roles(walk, program, levers), program


def test_tiles_of_a_product_share_and_those_of_two_points_do_not() -> None:
    assert [r.barrier for r in of_product()[0].rings] == [None, "a"]
    walk, program = attention()
    levers = Levers(2, 2, "table", tiles={"BLOCK_M": 64, "BLOCK_N": 64})
    assert [r.barrier for r in roles(walk, program, levers).rings] == [None, None, None]
    # The second product of a gate waits for its own tile: the first runs while that comes.
    _, tiles = tiles_of("gated_linear", "matmul")
    levers = Levers(2, 3, "table", tiles={"BLOCK_N": 64, "BLOCK_K": 64})
    assert [(r.name, r.barrier) for r in roles(walked(tiles, levers), tiles, levers).rings] == [
        ("x", None), ("w", "x"), ("u", None),
    ]  # fmt: skip


def test_the_text_waits_once_for_the_bytes_of_both() -> None:
    kernel, program = of_product()
    text = generate(program, kernel).text
    assert text.count("mbarrier.expect(") == 1 and text.count("(a_b_full.index(turn % STAGES), CONSUMERS") == 1
    assert "CONSUMERS * 64 * BLOCK_K * 2 + BLOCK_K * BLOCK_N * 2" in text
    assert text.count("mbarrier.init(") == 2 and not re.search(r"\b(a|b)_(full|empty)\b", text)


@pytest.mark.parametrize(
    ("rings", "consumer", "shared"),
    [
        ((A, B), (*awaits("a", "b"), *releases("b", "a")), ["a"]),
        ((A, B), (*awaits("a"), *releases("a"), *awaits("b"), *releases("b")), []),
        ((A, B), (*awaits("a"), *awaits("b", turn=NEXT), *releases("a", "b")), []),
        ((A, B), (*awaits("a", "b"), *releases("a"), *awaits("a"), *releases("a", "b")), []),
        ((A, replace(B, stages=2)), (*awaits("a", "b"), *releases("a", "b")), []),
        ((A, B, C), (*awaits("a", "b", "c"), *releases("c", "a", "b")), ["a", "a"]),
        ((A, B, C), (*awaits("a", "b", "c"), *releases("c", "a"), *awaits("c"), *releases("b")), []),
    ],
)
def test_what_shares_follows_from_the_bodies(rings: tuple[Ring, ...], consumer: Any, shared: list[str]) -> None:
    producer = fills(*(r.name for r in rings))
    made, bodies = together(rings, (producer, consumer))
    assert [r.barrier for r in made if r.barrier] == shared
    assert not [n for body in bodies for n in apart(made, body)]
    assert all(
        sorted(map(str, new)) == sorted(map(str, old)) for new, old in zip(bodies, (producer, consumer), strict=True)
    )


def test_members_stand_side_by_side_in_their_order() -> None:
    order = releases("b", "c", "a"), awaits("c", "a", "b")
    made, (first, second) = together((A, B, replace(C, stages=2)), order)
    assert [r.barrier for r in made] == [None, "a", None]
    assert [s.ring for s in (*first, *second)] == ["a", "b", "c"] * 2  # type: ignore[union-attr]
    for wrong in (awaits("a"), awaits("b", "a"), awaits("a", "c", "b"), (*awaits("a"), *awaits("b", turn=NEXT))):
        assert list(apart(made, wrong))


def test_sharing_that_the_bodies_do_not_bear_out_is_found() -> None:
    kernel, program = of_product()
    a, b = kernel.rings
    for rings in ((a, replace(b, barrier="c")), (a, replace(b, stages=4)), (replace(a, barrier="b"), b)):
        with pytest.raises(InternalError, match="cannot share the barriers"):
            verify_async(replace(kernel, rings=rings), program)
    walk, program = attention()
    levers = Levers(2, 2, "table", tiles={"BLOCK_M": 64, "BLOCK_N": 64})
    made = roles(walk, program, levers)
    q, k, v = made.rings
    with pytest.raises(InternalError, match="consumer: k shares barriers, and somewhere stands by itself"):
        verify_async(replace(made, rings=(q, k, replace(v, barrier="k"))), program)


# --- counters -----------------------------------------------------------------------------------

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
