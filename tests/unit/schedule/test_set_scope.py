"""set_scope: a demand that is held when the program is placed."""

from __future__ import annotations

import pytest

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.text.parser import parse_program
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program
from tests.examples.schedule_examples import check_same, row_sums


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
