"""cache_write: a stage computes into a buffer of its own."""

from __future__ import annotations

import pytest

from neptune.fusion.schedule import Schedule
from tests.examples.lowering import check_matmul
from tests.examples.schedule_examples import check_same, maps, matmul, row_max, row_sums


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
