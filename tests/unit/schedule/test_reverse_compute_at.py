"""reverse_compute_at: fuse_at that owes nothing."""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from tests.examples.schedule_examples import check_same, matmul, row_sums


def test_under_a_loop_where_all_is_complete() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    _, j0, *_ = sch.tile([i, j], [2, 4])
    sch.reverse_compute_at("d", j0)
    assert not sch.program.owes
    check_same(matmul(), sch.program)


def test_a_reduction_of_maps() -> None:
    sch = Schedule(row_sums())
    sch.reverse_compute_at("r", sch.loops("e")[1])
    check_same(row_sums(), sch.program)
