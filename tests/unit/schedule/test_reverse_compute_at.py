"""reverse_compute_at: fuse_at that owes nothing."""

from __future__ import annotations

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ops.softmax import softmax
from tests.schedule_examples import Frozen, check_same, maps, matmul, row_sums


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


def test_what_is_still_changing_is_refused() -> None:
    sch = Schedule(softmax())
    j = sch.loops("m")[1]
    with pytest.raises(ScheduleError) as error, Frozen(sch):
        sch.reverse_compute_at("e", j)
    for words in ("reverse_compute_at(`e`", "`e` reads `m`", "loop `j` still changes it", "a loop outside of `j`"):
        assert words in str(error.value)
    sch.fuse_at("e", j)
    assert sch.program.owes


def test_refusals_say_what_was_asked() -> None:
    sch = Schedule(maps())
    with (
        pytest.raises(ScheduleError, match=r"reverse_compute_at\(`w`, `i` of `t`\)\n.*computes only later"),
        Frozen(sch),
    ):
        sch.reverse_compute_at("w", sch.loops("t")[0])
