"""Wrong kinds of arguments to primitives are ScheduleErrors, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ops.softmax import figure1

CALLS: list[Callable[[Any], object]] = [
    lambda s: s.split("i", 16),
    lambda s: s.split(None, 16),
    lambda s: s.split(s.loops("xmax")[0]),
    lambda s: s.loops(3),
    lambda s: s.inline(None),
    lambda s: s.tile(s.loops("xmax")[0], [16]),
    lambda s: s.reorder([s.loops("xmax")[0]]),
    lambda s: s.bind(None, "grid.x"),
    lambda s: s.bind(s.loops("xmax")[0], 0),
    lambda s: s.fuse_at("xexp", None),
    lambda s: s.fuse_at(None, s.loops("xmax")[0]),
    lambda s: s.rolling_update("xsum", "j"),
    lambda s: s.privatize("xsum", "j"),
    lambda s: s.partition(None),
    lambda s: s.param("B", 16),
    lambda s: s.param(3, [16]),
    lambda s: s.cover(s.loops("xmax")[0], 5),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_wrong_kinds(call: Callable[[Any], object]) -> None:
    sch = Schedule(figure1())
    before = str(sch.program), sch.trace
    with pytest.raises(ScheduleError) as e:
        call(sch)
    assert len(str(e.value).splitlines()) <= 8
    assert (str(sch.program), sch.trace) == before


def test_a_tile_cannot_cover_a_tile() -> None:
    sch = Schedule(figure1())
    j0, _ = sch.split(sch.loops("xmax")[1], sch.param("B", [16]))
    with pytest.raises(ScheduleError, match="not a size that is known before a launch"):
        sch.cover(j0, "WIDE")
