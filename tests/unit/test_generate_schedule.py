"""docs/schedule.md is what its generator writes, and its programs mean what they did before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from neptune.fusion.schedule import PRIMITIVES, Schedule
from tests.examples.schedule_examples import check_same

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_schedule.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_schedule", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PAGE = load()


def test_the_page_is_up_to_date() -> None:
    assert PAGE.main(["--check"]) == 0, "run python docs/generate_schedule.py and read what changed"


def test_every_primitive_has_an_example() -> None:
    assert set(PAGE.EXAMPLES) == set(PRIMITIVES)


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_an_example_keeps_the_meaning(name: str) -> None:
    first = PAGE.EXAMPLES[name]
    for example in (first, *([first.also] if first.also else [])):
        sch = Schedule(example.program())
        example.before(sch)
        example.call(sch)
        assert name in {s.primitive for s in sch.trace}
        if not sch.program.owes:
            check_same(example.program(), sch.program)
