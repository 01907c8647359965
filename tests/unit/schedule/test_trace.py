"""A trace saved as JSON, replayed, and printed as code gives an equal program; a damaged one a RecordError.

NEPTUNE_FUSION_FUEL: every prefix of a template's fusions is a kernel that is right, or a refusal that says why.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import pytest
import torch

import neptune
from neptune.errors import FusionError, NeptuneError, RecordError, ScheduleError
from neptune.fusion.schedule import PRIMITIVES, Schedule, replay
from neptune.ir.expr import Var
from neptune.ops.attention import attention, prefill_causal, prefill_global
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.schedule import ScheduleBase
from neptune.schedule.state import Loop
from neptune.schedule.trace import FUSIONS, OutOfFuel, Step, as_code, trace_from_json, trace_to_json
from neptune.tune.choose import shipped_templates
from tests.examples.schedule_examples import check_round_trips, matmul
from tests.unit.schedule.test_replicate import norm_linear


@pytest.mark.parametrize("name", sorted(shipped_templates()))
def test_shipped_templates(name: str) -> None:
    applied = 0
    grouped = partial(attention, heads=4, kv_heads=2)
    for make in (softmax, figure1, prefill_causal, prefill_global, grouped, matmul, lambda: norm_linear("float16")):
        sch = Schedule(make())
        with suppress(NeptuneError):
            shipped_templates()[name](sch)
            applied += 1
        # What it did before it failed is a trace as well.
        check_round_trips(sch, make())
    assert applied


def test_code_reads_as_one_would_write_it() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    i0, j0, *_ = sch.tile([i, j], [sch.param("BM", [2, 4]), 8])
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    assert sch.as_code("tiled") == (
        "def tiled(sch):\n"
        '    BM = sch.param("BM", [2, 4])\n'
        '    sch.split(sch.loop("c", "i"), BM)\n'
        '    sch.split(sch.loop("c", "j"), 8)\n'
        '    sch.reorder(sch.loop("c", "i0"), sch.loop("c", "j0"), sch.loop("c", "i1"), sch.loop("c", "j1"), '
        'sch.loop("c", "p"))\n'
        '    sch.bind([sch.loop("c", "i0"), sch.loop("c", "j0")], ["grid.y", "grid.x"])\n'
    )
    assert as_code(()) == "def schedule(sch):\n    pass\n"


def test_a_param_may_be_called_like_the_schedule() -> None:
    sch = Schedule(matmul())
    sch.split(sch.loops("c")[0], sch.param("sch", [2]))
    check_round_trips(sch, matmul())


def test_an_empty_trace() -> None:
    assert trace_from_json(trace_to_json(())) == ()


def test_every_primitive_is_known() -> None:
    known = {"split", "reorder", "fuse_at", "rolling_update", "privatize", "param", "cover"}
    assert known <= set(PRIMITIVES) and not {"loops", "apply", "tile", "_commit", "__init__"} & set(PRIMITIVES)


GOOD = {"format": "neptune-trace", "version": 1, "steps": [["inline", "c"]]}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        "[]",
        *(json.dumps({**GOOD, "steps": [step]}) for step in ([7], ["a b"], ["split", {"stage": "c"}], ["split", None])),
        json.dumps({**GOOD, "steps": [["split", {"stage": "c", "loop": "i", "x": 1}]]}),
    ],
)
def test_damaged_text(text: str) -> None:
    with pytest.raises(RecordError):
        trace_from_json(text)


@pytest.mark.parametrize("name", ["nothing", "__init__", "_commit", "apply", "loops", "tile"])
def test_a_step_that_is_no_primitive(name: str) -> None:
    with pytest.raises(RecordError, match=r"step 1 of 1.*\n.*no primitive"):
        replay(matmul(), [Step(name, ())])


@pytest.mark.parametrize(
    "step",
    [
        Step("split", (Loop("c", "i"),)),
        Step("split", (Loop("c", "i"), Var("BM"))),
        Step("bind", ((Loop("c", "i"),), ((1, 2),))),
        Step("param", ("BM", (("a", 1),))),
        Step("param", ("BM", "ab")),
        Step("rolling_update", ("d", Loop("c", "p"))),
    ],
)
def test_a_trace_of_another_program_names_the_step(step: Step) -> None:
    with pytest.raises((ScheduleError, FusionError), match="step 2 of 2"):
        replay(matmul(), [Step("param", ("B", (2,))), step])


# --- fuel ---------------------------------------------------------------------------------------


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
