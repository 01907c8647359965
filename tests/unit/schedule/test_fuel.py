"""NEPTUNE_FUSION_FUEL: every prefix of a template's fusions is a kernel that is right, or a refusal that says why."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

import neptune
from neptune.errors import FusionError, NeptuneError
from neptune.fusion.schedule import Schedule
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.trace import FUSIONS, OutOfFuel


def performed(kernel):
    return sum(t.split("(")[0].removeprefix("sch.") in FUSIONS for t in kernel.build.trace)


@pytest.mark.parametrize("fuel", range(5))
def test_a_kernel_for_every_number_of_fusions(monkeypatch, fuel):
    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", str(fuel))
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    x = torch.randn(5, 37)
    torch.testing.assert_close(kernel(x), torch.softmax(x, 1))
    assert performed(kernel) == min(fuel, 3)
    assert len(kernel.facts.kernels) == 4 - min(fuel, 3)
    said = f"this is fusion {fuel + 1}, and NEPTUNE_FUSION_FUEL={fuel}"
    assert (said in kernel.explain()) == (fuel < 3)


def test_a_repair_that_is_not_performed_is_named(monkeypatch):
    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", "0")
    kernel = neptune.compile(softmax(), "softmax_online", target="llvm")
    (spent,) = [d for d in kernel.build.decisions if d.kind == "fuel"]
    assert spent.subject == 'sch.rolling_update("l", sch.loop("m", "j0"))'
    assert not any(d.verdict == "rolled" for d in kernel.build.decisions)


def test_the_automatic_choice_counts_too(monkeypatch):
    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", "0")
    kernel = neptune.compile(softmax(), target="llvm")
    assert len(kernel.facts.kernels) == 4 and "NEPTUNE_FUSION_FUEL=0" in kernel.explain()


def test_what_is_still_owed_is_refused(monkeypatch):
    def naive(sch):
        _, j = sch.loops("xmax")
        sch.fuse_at("xexp", j)
        sch.rolling_update("xsum", j)

    neptune.compile(figure1(), naive, target="llvm")
    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", "1")
    with pytest.raises(FusionError, match="fused stages still owe repairs"):
        neptune.compile(figure1(), naive, target="llvm")


def test_a_schedule_is_left_as_it_was():
    sch = Schedule(figure1())
    sch.fuel = 0
    sch.split(sch.loops("xmax")[1], 4)
    before = sch.program, sch.trace
    with pytest.raises(OutOfFuel, match="this is fusion 1"):
        sch.rolling_update("xsum", sch.loops("xmax")[1])
    # What a template would do after it rests on it.
    with pytest.raises(OutOfFuel, match="this is fusion 1"):
        sch.bind(sch.loops("xmax")[0], "grid.x")
    assert before == (sch.program, sch.trace)


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "٣"])
def test_a_wrong_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", text)
    with pytest.raises(NeptuneError, match="this is not a number of fusions"):
        neptune.compile(softmax(), "softmax_row", target="llvm")


def test_all_that_count_are_primitives_or_to_come():
    known = {n for n in FUSIONS if hasattr(Schedule, n)}
    assert known >= {"fuse_at", "rolling_update", "privatize", "inline"}
    assert not FUSIONS & {"split", "reorder", "bind", "partition"} and hasattr(ScheduleBase, "fuel")


def test_a_template_that_catches_it_does_nothing_more(monkeypatch):
    def stubborn(sch):
        with suppress(NeptuneError):
            sch.inline("xexp")
        with suppress(NeptuneError):
            sch.split(sch.loops("xmax")[0], 4)

    monkeypatch.setenv("NEPTUNE_FUSION_FUEL", "0")
    kernel = neptune.compile(figure1(), stubborn, target="llvm")
    (spent,) = [d for d in kernel.build.decisions if d.kind == "fuel"]
    assert spent.subject == 'sch.inline("xexp")' and kernel.build.trace == ()
