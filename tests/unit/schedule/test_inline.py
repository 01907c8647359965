"""inline: a map is computed where it is read."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.fusion.schedule import Schedule
from neptune.ops.softmax import softmax
from tests.examples.schedule_examples import check_same, gram, maps, outputs, row_sums


@pytest.mark.parametrize("shift", [0, 1])
def test_a_map_goes_into_its_readers(shift: int) -> None:
    sch = Schedule(maps(shift))
    sch.inline("u")
    assert sch.stages == ("t", "w")
    assert [b.name for b in sch.program.temporaries] == []
    check_same(maps(shift), sch.program)


def test_two_readers_and_two_places() -> None:
    for program, stage in ((row_sums(), "e"), (gram(), "s")):
        sch = Schedule(program)
        sch.inline(stage)
        assert stage not in sch.stages
        check_same(program, sch.program)


def test_inline_after_tiling_and_fusion() -> None:
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    j0, _ = sch.split(j, 2)
    sch.fuse_at("r", j0)
    sch.inline("e")
    check_same(row_sums(), sch.program)


def test_inline_after_partition() -> None:
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    j0, _ = sch.split(j, 2)
    sch.fuse_at("r", j0)
    sch.partition(j0)
    sch.inline("e")
    check_same(row_sums(), sch.program)


def test_inline_inside_a_rolled_loop() -> None:
    sch = Schedule(softmax())
    _, j = sch.loops("m")
    sch.rolling_update("l", j)
    sch.inline("e")
    assert not sch.program.owes
    check_rolled(sch)


def check_rolled(sch: Schedule) -> None:
    for rows, cols in ((1, 1), (3, 5)):
        sizes = {"rows": rows, "cols": cols}
        np.testing.assert_allclose(outputs(sch.program, sizes)["y"], outputs(softmax(), sizes)["y"], rtol=1e-12)
