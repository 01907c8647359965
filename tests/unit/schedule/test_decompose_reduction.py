"""decompose_reduction: the init stands where it is asked for, or nowhere."""

from __future__ import annotations

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from tests.examples.lowering import check_matmul
from tests.examples.schedule_examples import Frozen, check_same, matmul, row_max, row_sums


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_before_any_loop_around_the_fold(depth: int) -> None:
    sch = Schedule(matmul())
    sch.decompose_reduction("c", sch.loops("c")[depth])
    assert [f.var for f in sch.loops("c_init")] == ["i", "j"]
    check_same(matmul(), sch.program)


def test_before_the_fold_it_is_where_it_runs_anyway() -> None:
    sch = Schedule(row_max())
    sch.decompose_reduction("y", sch.loops("y")[1])
    assert sch.program == decompose(Schedule(row_max()).program)


def test_in_tiles_and_beside_other_stages() -> None:
    for place in ("i0", "j0", "k0", "i1", "p0"):
        sch = Schedule(matmul())
        i, j, _ = sch.loops("c")
        _, j0, *_ = sch.tile([i, j], [2, sch.param("BN", [2, 4])])
        sch.split(sch.loops("c")[-1], 2)
        sch.fuse_at("d", j0)
        names = [f.var for f in sch.loops("c")]
        if place in names:
            sch.decompose_reduction("c", sch.loop("c", place))
            check_same(matmul(), sch.program)


def test_a_tile_with_its_init_compiles() -> None:
    def arrange(sch: Schedule) -> None:
        sizes = [sch.param("BM", [16]), sch.param("BN", [16]), sch.param("BK", [16])]
        i0, j0, k0, *_ = sch.tile(sch.loops("c"), sizes)
        sch.bind([i0, j0], ["grid.y", "grid.x"])
        sch.fuse_at("d", j0)
        sch.decompose_reduction("c", k0)

    check_matmul(arrange, "BM", "BN", "BK")


def test_what_follows_still_knows_the_fold() -> None:
    sch = Schedule(row_sums())
    sch.decompose_reduction("r", sch.loops("r")[1])
    sch.split(sch.loops("r")[1], 4)
    with pytest.raises(ScheduleError, match="`r_init` works on the result of `r`"), Frozen(sch):
        sch.fuse_at("r", sch.loops("e")[0])
    sch.fuse_at("y", sch.loops("r")[0])
    check_same(row_sums(), sch.program)
