"""Templates: what they declare is what their functions get."""

from __future__ import annotations

from typing import Any

import pytest

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.schedule.checked import attempt
from neptune.schedule.template import Template, template
from neptune.tune.choose import shipped_templates
from tests.examples.kernel_examples import rows_program


@template(BLOCK_M=[16, 32], BLOCK_N=[8], choices={"bound": [True, False]})
def rows(sch: Schedule, block_m: Any, block_n: Any, bound: bool) -> None:
    """Tiles of rows.

    More of it.
    """
    i0, _, _, _ = sch.tile(sch.loops("t"), [block_m, block_n])
    if bound:
        sch.bind(i0, "grid.x")
    sch.fuse_at("y", i0)


def test_a_template_says_what_it_is() -> None:
    assert isinstance(rows, neptune.Template) and rows.name == "rows" and rows.doc == "Tiles of rows."
    assert rows.tunables == {"BLOCK_M": (16, 32), "BLOCK_N": (8,)} and rows.choices == {"bound": (True, False)}


def test_it_declares_its_tunables_and_takes_the_default_choices() -> None:
    sch = Schedule(rows_program())
    rows(sch)
    assert [(t.name, t.candidates) for t in sch.program.tunables] == [("BLOCK_M", (16, 32)), ("BLOCK_N", (8,))]
    assert "grid.x" in str(sch.program)


def test_combinations_are_those_of_the_structural_choices() -> None:
    found = []
    for combination in rows.combinations():
        sch = Schedule(rows_program())
        combination(sch)
        found.append("grid.x" in str(sch.program))
        assert combination.tunables == rows.tunables
    assert found == [True, False]
    assert [v.choices for v in rows.combinations()] == [{"bound": (True,)}, {"bound": (False,)}]


def test_compile_takes_it_and_any_power_of_two() -> None:
    kernel = neptune.compile(rows_program(), rows, target="llvm", params={"BLOCK_M": 64})
    assert kernel.params["BLOCK_M"] == 64 and "by template rows" in kernel.explain()
    with pytest.raises(ScheduleError, match="power of two"):
        neptune.compile(rows_program(), rows, target="llvm", params={"BLOCK_M": 48})


def test_every_shipped_template_is_one() -> None:
    for name, shipped in shipped_templates().items():
        assert isinstance(shipped, Template) and shipped.name == name and shipped.doc
        # This one declares what the stages that it meets need.
        assert shipped.tunables or name == "stagewise"


def test_a_choice_is_one_of_the_candidates() -> None:
    """Templates ask `is True`, for which 1 is not."""
    (bound,) = rows.with_choices(bound=1).choices["bound"]
    assert bound is True


async def _waits(sch: Any) -> None: ...


@pytest.mark.parametrize("wrong", [_waits, lambda: None, lambda *, sch: None])
def test_functions_that_would_not_run_are_refused(wrong: Any) -> None:
    with pytest.raises(ScheduleError):
        neptune.compile(rows_program(), wrong, target="llvm")


def test_what_a_template_returns_says_nothing() -> None:
    refused: list[object] = []

    def tiled(sch: Schedule) -> object:
        """Rows, and a fusion that is tried where it is not legal."""
        i0, *_ = sch.tile(sch.loops("t"), [16, 8])
        sch.fuse_at("y", i0)
        refused.append(attempt(sch.fuse_at, "y", i0))
        return refused[-1]

    assert isinstance(neptune.compile(rows_program(), tiled, target="cuda:90"), neptune.Kernel)
    assert isinstance(refused[0], ScheduleError)
    assert attempt(lambda: ScheduleError("a", "b")) is None
