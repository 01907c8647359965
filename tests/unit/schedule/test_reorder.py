"""reorder: any order within a perfect nest, and none that changes the result."""

from __future__ import annotations

from itertools import permutations

import pytest

from neptune.fusion.schedule import Schedule
from tests.examples.schedule_examples import check_same, maps, matmul, row_sums


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
