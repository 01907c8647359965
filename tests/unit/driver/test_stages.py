"""A compilation is a chain of frozen values: nothing that one attempt makes is left in what it was made of."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

import neptune
from neptune.driver import compilation, passes
from neptune.driver.cache import Request
from neptune.driver.stages import Differs, Lowered, Prepared
from neptune.ops.softmax import softmax
from neptune.runtime.launching.launch import parse_target
from neptune.tune.model.machine import DEFAULT


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    loops, target = softmax(), parse_target("interpret")
    asked = Request(loops, None, str(target), {}, {}, {}, neptune.config.read())
    return Prepared(asked, target, DEFAULT, loops, counting=True)


def test_stages_are_frozen_and_passes_leave_them_as_they_were(prepared: Prepared) -> None:
    before, trail = replace(prepared), []
    made = compilation.run_all(prepared, trail)
    assert prepared == before and isinstance(made, Lowered) and made.text and made.checks
    for stage in (prepared, made):
        with pytest.raises(FrozenInstanceError):
            stage.notes = ()
    again = compilation.run_all(prepared, [])
    assert (again.text, again.params, again.notes) == (made.text, made.params, made.notes)


def test_what_a_rejected_attempt_has_made_is_not_in_the_next(prepared: Prepared, monkeypatch) -> None:
    first = compilation.run_all(prepared, [])
    check, seen = passes._checked, []

    def checked(stage, what, made):
        seen.append((stage.scheduled.template, dict(stage.checks), len(stage.shared)))
        found = check(stage, what, made)
        if stage.scheduled.template == first.scheduled.template and what == "tile program":
            wrong = replace(first.checks[what], verdict="rejected", model="field pair")
            return Differs(what, wrong)
        return found

    monkeypatch.setattr(passes, "_checked", checked)
    trail = []
    made = compilation.run_all(prepared, trail)
    assert made.scheduled.template != first.scheduled.template
    (refused,) = made.prepared.rejections
    assert refused.subject == first.scheduled.template and prepared.rejections == ()
    # The next attempt begins with no checks and nothing that was evaluated, and the trail has its steps alone.
    begun = next((checks, shared) for name, checks, shared in seen if name == made.scheduled.template)
    assert begun == ({}, 0)
    assert [s.name for s in trail].count("place") == 1
