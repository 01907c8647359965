"""How many elements a loop has folded, and where that is not known."""

from __future__ import annotations

import pytest

from neptune.fusion.rewriting.running import folded
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ir.text.printer import print_expr
from neptune.ops.softmax import softmax
from neptune.schedule.state import Loop


def counts(sch: Schedule, loop: Loop) -> tuple[str, str] | None:
    state = sch._state
    axis = state.axes["m"]["j"]
    found = folded(state.program, state.loops("m"), state.loop(loop), axis, Var("n"))
    return None if found is None else (print_expr(found[0]), print_expr(found[1]))


def test_one_by_one() -> None:
    sch = Schedule(softmax())
    assert counts(sch, sch.loops("m")[1]) == ("j", "min(j + 1, n)")


@pytest.mark.parametrize("size", [4, None])
def test_tiles(size: int | None) -> None:
    sch = Schedule(softmax())
    block = sch.param("BLOCK_N", [4, 8]) if size is None else size
    j0, _ = sch.split(sch.loops("m")[1], block)
    name = "BLOCK_N" if size is None else "4"
    assert counts(sch, j0) == (f"j0 * {name}", f"min(j0 * {name} + {name}, n)")


def test_tiles_of_tiles() -> None:
    sch = Schedule(softmax())
    j0, j1 = sch.split(sch.loops("m")[1], 8)
    sch.split(j1, 2)
    assert counts(sch, j0) == ("j0 * 8", "min(j0 * 8 + 8, n)")


def test_strides() -> None:
    """With the inner loop outside neither takes all elements in order."""
    sch = Schedule(softmax())
    j0, j1 = sch.split(sch.loops("m")[1], 4)
    sch.reorder(j1, j0)
    assert counts(sch, j1) is None and counts(sch, j0) is None
