"""rename: a loop by another name, wherever it is read."""

from __future__ import annotations

import pytest

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule, replay
from neptune.ops.softmax import softmax
from tests.examples.kernel_examples import rows_fused, rows_program
from tests.examples.random_schedules import random_schedule
from tests.examples.schedule_examples import check_same, maps, matmul, row_sums


def test_bounds_indices_and_guards_follow() -> None:
    sch = Schedule(matmul())
    outer, inner = sch.split(sch.loops("c")[0], 4)
    assert sch.rename(outer, "row").var == "row" and sch.loops("c")[0].var == "row"
    sch.rename(inner, "lane")
    assert "row * 4 + lane" in str(sch.program) and "i0" not in str(sch.program)
    check_same(matmul(), sch.program)
    assert replay(matmul(), sch.trace).program == sch.program


def test_an_axis_is_found_under_its_new_name() -> None:
    sch = Schedule(matmul())
    axis = sch.loops("c")[0].var
    sch.rename(sch.loops("c")[0], "row")
    assert sch.loop_of("c", axis).var == "row"


def test_what_is_owed_there_is_owed_under_the_new_name() -> None:
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    sch.fuse_at("r", j)
    before = sch.program.owes
    sch.rename(sch.loop("e", j.var), "col")
    assert [o.loop.replace("col", j.var) for o in sch.program.owes] == [o.loop for o in before]
    check_same(row_sums(), sch.program)


def test_generated_code_calls_it_so() -> None:
    def template(sch: Schedule) -> None:
        rows_fused(sch)
        loop = sch.loops("t")[-2]
        sch.rename(loop, "chunk")

    source = neptune.compile(rows_program(), template, target="llvm").source
    assert "for chunk in range(" in source


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_means_the_same(seed: int) -> None:
    for program in (maps(), row_sums(), softmax()):
        sch = random_schedule(program, seed)
        for stage in sch.stages:
            for k, loop in enumerate(sch.loops(stage)):
                try:
                    sch.rename(loop, f"loop_{k}")
                except ScheduleError as error:
                    # Of stages in pieces, and where another stage has given it that name already.
                    assert "is in pieces" in str(error) or "taken" in str(error)
        check_same(program, sch.program) if not sch.program.owes else None


@pytest.mark.parametrize("name", ["c", "a", "j", "lambda", "tl", "m", "two words"])
def test_names_that_it_cannot_have(name: str) -> None:
    sch = Schedule(matmul())
    before = sch.program
    with pytest.raises(ScheduleError, match="the name is taken"):
        sch.rename(sch.loops("c")[0], name)
    assert sch.program is before
