"""How many iterations of a loop show all turns of its rings."""

from __future__ import annotations

from math import lcm

import pytest

from neptune.hopper.ir import AStmt, AsyncKernel, Fill, Levers, Ring
from neptune.hopper.protocol.trials import window
from neptune.ir.expr import Const, Var
from neptune.tile.ir import Branch, LoadTile, Loop

STAGES = 4
N = Var("n", "int32")
FILL = Fill("x", Const(0, "int32"), LoadTile("x", (), None, None, (), "float16"))


def loop(trips: int | Var, *body: AStmt) -> Loop:
    hi = trips if isinstance(trips, Var) else Const(trips, "int32")
    return Loop("t", Const(0, "int32"), hi, body)  # type: ignore[arg-type]


def lengths(*producer: AStmt) -> int:
    ring = Ring("x", "x", (), "float16", STAGES, False)
    return window(AsyncKernel("k", (), "i", "g", (), (ring,), (), (), producer, (), Levers()))


def test_a_loop_that_loads_itself_goes_through_all_turns() -> None:
    assert lengths(loop(N, FILL)) == 2 * STAGES + 1


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 6, 8, 63, 64])
def test_a_loop_around_a_constant_one_comes_back_earlier(trips: int) -> None:
    period = lcm(trips, 2 * STAGES) // trips
    turns = [trips * k % (2 * STAGES) for k in range(2 * STAGES)]
    assert turns.index(0, 1) == period if 0 in turns[1:] else period == 2 * STAGES
    assert lengths(loop(N, loop(trips, FILL))) == max(period + 1, 3)


def test_what_is_not_the_same_each_time_goes_through_all() -> None:
    branch = Branch(Var("c", "bool"), (FILL,))  # type: ignore[arg-type]
    assert lengths(loop(N, loop(64, FILL), branch)) == 2 * STAGES + 1
    assert lengths(loop(N, loop(64, FILL), loop(N, FILL))) == 2 * STAGES + 1


def test_what_groups_load_goes_through_all() -> None:
    assert lengths(FILL, loop(N, loop(64, FILL))) == 2 * STAGES + 1
