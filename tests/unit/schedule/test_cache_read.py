"""cache_read: a copy that is a stage like any other."""

from __future__ import annotations

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from tests.examples.lowering import check_matmul
from tests.examples.schedule_examples import Frozen, check_same, gram, maps, matmul


def test_the_stage_reads_a_copy() -> None:
    sch = Schedule(matmul())
    copy = sch.cache_read("c", "a")
    assert copy == "a_read" and sch.stages == ("a_read", "c", "d")
    text = str(sch.program)
    assert "a_read: a_read[i, p] = a[i, p]" in text and "c[i, j] += a_read[i, p] * b[p, j]" in text
    assert sch.producers("c") == ["a_read"]
    check_same(matmul(), sch.program)


@pytest.mark.parametrize("buffer", ["a", "b"])
def test_brought_under_a_loop(buffer: str) -> None:
    sch = Schedule(matmul())
    copy = sch.cache_read("c", buffer)
    _, _, k0, *_ = sch.tile(sch.loops("c"), [2, 4, 2])
    sch.compute_at(copy, k0)
    check_same(matmul(), sch.program)


def test_a_result_of_another_stage_and_two_places() -> None:
    sch = Schedule(maps())
    assert sch.cache_read("w", "t") == "t_read"
    assert sch.cache_read("u", "t") == "t_read_1"
    assert sch.stages == ("t", "t_read_1", "u", "t_read", "w")
    check_same(maps(), sch.program)
    sch = Schedule(gram())
    sch.cache_read("g", "s")
    check_same(gram(), sch.program)


def test_behind_tiling_and_fusion() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    _, j0, *_ = sch.tile([i, j], [2, 4])
    sch.fuse_at("d", j0)
    copy = sch.cache_read("c", "a")
    sch.compute_at(copy, j0)
    check_same(matmul(), sch.program)


def test_staged_tiles_compile() -> None:
    def arrange(sch: Schedule) -> None:
        copies = [sch.cache_read("c", b) for b in "ab"]
        sizes = [sch.param("BM", [16]), sch.param("BN", [16]), sch.param("BK", [16])]
        i0, j0, k0, *_ = sch.tile(sch.loops("c"), sizes)
        sch.bind([i0, j0], ["grid.y", "grid.x"])
        for copy in copies:
            sch.compute_at(copy, k0)
            sch.set_scope(copy, "tile")
        sch.fuse_at("d", j0)

    tiles = check_matmul(arrange, "BM", "BN", "BK")
    assert len(tiles.kernels) == 1 and not tiles.temporaries


def test_what_several_programs_compute_stays_on_chip() -> None:
    """Every column of tiles reads the same tile of a: each program has its own."""
    sch = Schedule(matmul())
    copy = sch.cache_read("c", "a")
    i0, j0, *_ = sch.tile(sch.loops("c")[:2], [2, 4])
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    sch.compute_at(copy, j0)
    assert "temp a_read: f32[m, k] @tile" in str(sch.program)
    check_same(matmul(), sch.program)
    with (
        pytest.raises(ScheduleError, match="every program of grid loop `j0` computes elements of it again"),
        Frozen(sch),
    ):
        sch.set_scope(copy, "global")
