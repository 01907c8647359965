"""A trace saved as JSON, replayed, and printed as code gives an equal program; a damaged one a RecordError."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import pytest

from neptune.errors import FusionError, NeptuneError, RecordError, ScheduleError
from neptune.fusion.schedule import PRIMITIVES, Schedule, replay
from neptune.ir.expr import Var
from neptune.ops.attention import attention, prefill_causal, prefill_global
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.state import Loop
from neptune.schedule.trace import Step, as_code, trace_from_json, trace_to_json
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
