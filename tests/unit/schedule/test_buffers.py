"""cache_read: a copy that is a stage like any other.

cache_write: a stage computes into a buffer of its own.

set_scope: a demand that is held when the program is placed.
"""

from __future__ import annotations

import pytest

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.text.parser import parse_program
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program
from tests.examples.lowering import check_matmul
from tests.examples.schedule_examples import Frozen, check_same, gram, maps, matmul, row_max, row_sums


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


# --- cache write --------------------------------------------------------------------------------


@pytest.mark.parametrize("make, stage", [(matmul, "c"), (matmul, "d"), (row_max, "y"), (maps, "t"), (row_sums, "r")])
def test_the_meaning_stays(make: object, stage: str) -> None:
    assert callable(make)
    sch = Schedule(make())
    copy = sch.cache_write(stage)
    assert sch.stages.index(copy) == sch.stages.index(stage) + 1
    assert sch.consumers(stage) == [copy]
    check_same(make(), sch.program)
    sch.reverse_compute_at(copy, sch.loops(stage)[0])
    check_same(make(), sch.program)


def test_names() -> None:
    sch = Schedule(row_max())
    assert sch.cache_write("y") == "y_write"
    text = str(sch.program)
    assert "temp y_local: f32[m]" in text and "y: y_local[i] max= x" in text and "y_write: y[i] = y_local[i]" in text
    assert sch.cache_write("y") == "y_local_write"
    check_same(row_max(), sch.program)


def test_an_output_tile_compiles() -> None:
    def arrange(sch: Schedule) -> None:
        sch.inline("d") if "d" not in {b.name for b in sch.program.outputs} else None
        copy = sch.cache_write("d")
        sizes = [sch.param("BM", [16]), sch.param("BN", [16]), sch.param("BK", [16])]
        i0, j0, *_ = sch.tile(sch.loops("c"), sizes)
        sch.bind([i0, j0], ["grid.y", "grid.x"])
        sch.fuse_at("d", j0)
        sch.reverse_compute_at(copy, j0)
        sch.set_scope("d_local", "tile")

    tiles = check_matmul(arrange, "BM", "BN", "BK")
    assert len(tiles.kernels) == 1 and not tiles.temporaries


# --- set scope ----------------------------------------------------------------------------------


def test_a_tile_that_is_one() -> None:
    def arrange(sch: Schedule) -> None:
        sch.set_scope("t", "tile")
        rows_fused(sch)

    kernel = neptune.compile(rows_program(), arrange, target="llvm")
    assert not kernel.facts.temporaries


def test_a_tile_that_cannot_be() -> None:
    def arrange(sch: Schedule) -> None:
        rows_apart(sch)
        sch.set_scope("t", "tile")

    with pytest.raises(ScheduleError) as error:
        neptune.compile(rows_program(), arrange, target="llvm")
    for words in ("keep `t` on chip", "in 2 kernels: ", " | y", 'set_scope("t", "global")'):
        assert words in str(error.value)

    def taken_back(sch: Schedule) -> None:
        arrange(sch)
        sch.set_scope("t", "global")

    assert neptune.compile(rows_program(), taken_back, target="llvm").facts.temporaries == ("t",)


def test_it_prints_and_parses() -> None:
    sch = Schedule(row_sums())
    sch.set_scope("e", "tile")
    assert "temp e: f32[m, n] @tile" in str(sch.program)
    assert parse_program(str(sch.program)) == sch.program
    check_same(row_sums(), sch.program)
