"""reorder: any order within a perfect nest, and none that changes the result."""

from __future__ import annotations

from itertools import permutations

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.parser import parse_program
from neptune.schedule.reorder import reorder
from neptune.schedule.state import Loop, initial
from tests.schedule_examples import check_same, maps, matmul, row_sums


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_one_stage_runs_in_any_order(order: tuple[int, ...]) -> None:
    sch = Schedule(matmul())
    loops = sch.loops("c")
    sch.reorder(*(loops[k] for k in order))
    assert sch.loops("c") == [loops[k] for k in order]
    check_same(matmul(), sch.program)


def test_some_loops_only_keep_the_places_of_the_others() -> None:
    sch = Schedule(matmul())
    i, j, k = sch.loops("c")
    sch.reorder(k, i)
    assert sch.loops("c") == [k, j, i]
    check_same(matmul(), sch.program)


def test_fused_stages_with_independent_loops() -> None:
    sch = Schedule(maps())
    i, j = sch.loops("t")
    sch.fuse_at("u", j)
    sch.fuse_at("w", j)
    sch.reorder(j, i)
    check_same(maps(), sch.program)


def test_a_reduction_may_move_past_an_independent_loop() -> None:
    sch = Schedule(row_sums())
    i, j = sch.loops("e")
    sch.fuse_at("r", j)
    sch.reorder(j, i)
    check_same(row_sums(), sch.program)


HAND_OVER = """\
program p
  in x: f32[m, n]
  out a: f32[]
  out b: f32[]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m):
    for j in [0, n):
      a: a[] max= x[i, j] init -3.0
      b: b[] += a[] * x[i, j] init 0.0
"""


def test_what_is_handed_on_over_two_loops_keeps_its_order() -> None:
    state = initial(parse_program(HAND_OVER))
    with pytest.raises(ScheduleError, match="hand values on over both `i` and `j`"):
        reorder(state, (Loop("a", "j"), Loop("a", "i")))
