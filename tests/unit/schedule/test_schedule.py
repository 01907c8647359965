"""The schedule as a whole: it is a value that replays, and a call that fails changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.errors import NeptuneError, ScheduleError
from neptune.fusion.schedule import PRIMITIVES, Schedule, replay
from neptune.ir.decompose import decompose
from neptune.ir.expr import Var
from neptune.ir.program import Program, Tunable
from neptune.ir.verify import verify
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.state import Loop
from neptune.tile.localize import localize
from tests.examples.random_schedules import random_schedule
from tests.examples.schedule_examples import (
    Frozen,
    check_round_trips,
    check_same,
    gram,
    maps,
    matmul,
    row_max,
    row_sums,
    started,
)


def test_a_trace_does_not_share_the_lists_of_the_caller() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    loops, axes = [i, j], ["grid.y", "grid.x"]
    sch.bind(loops, axes)
    loops.clear()
    axes.clear()
    assert replay(matmul(), sch.trace).program == sch.program


# --- a call that fails -------------------------------------------------------------------------

SCOPES = ["tile", "global", "shared"]
PROGRAMS = [matmul, gram, maps, row_sums, row_max, started, softmax, figure1]


@st.composite
def calls(draw: st.DrawFn, sch: Schedule) -> Callable[[], object]:
    """Some primitive with arguments that may or may not be legal."""
    names = [*sch.stages, "nothing"]
    stage = draw(st.sampled_from(names))
    loops = [f for n in sch.stages for f in sch.loops(n)] + [Loop("nothing", "i"), Loop(sch.stages[0], "z")]
    one, two = draw(st.sampled_from(loops)), draw(st.sampled_from(loops))
    buffer = draw(st.sampled_from(sorted(sch.program.globals)))
    factors: list[int | Var] = [0, 1, 2, 3, Var("BM"), Var("foreign")]
    factor = draw(st.sampled_from(factors))
    axis = draw(st.sampled_from(["grid.x", "grid.y", "grid.w"]))
    return draw(
        st.sampled_from(
            [
                lambda: sch.split(one, factor),
                lambda: sch.cover(one, draw(st.sampled_from(["WIDE", "BM", "m", "not a name"]))),
                lambda: sch.tile([one, two], [factor, 2]),
                lambda: sch.tile([one], [2, 2]),
                lambda: sch.reorder(one, two),
                lambda: sch.bind(one, axis),
                lambda: sch.bind([one, two], ["grid.x", axis]),
                lambda: sch.bind([one, two], ["grid.x"]),
                lambda: sch.inline(stage),
                lambda: sch.fuse_at(stage, one),
                lambda: sch.fuse(one, two),
                lambda: sch.rename(one, draw(st.sampled_from(["row", "i", "m"]))),
                lambda: sch.reverse(one),
                lambda: sch.pack(one, two),
                lambda: sch.pack(one),
                lambda: sch.split_k(one, draw(st.sampled_from([0, 2, "PARTS", "m"]))),
                lambda: sch.write_directly(one),
                lambda: sch.hoist_factor(stage),
                lambda: sch.compute_at(stage, one),
                lambda: sch.reverse_compute_at(stage, one),
                lambda: sch.cache_read(stage, buffer),
                lambda: sch.cache_write(stage),
                lambda: sch.set_scope(
                    draw(st.sampled_from(sorted(sch.program.globals))), draw(st.sampled_from(SCOPES))
                ),
                lambda: sch.decompose_reduction(stage, one),
                lambda: sch.partition(one),
                lambda: sch.privatize(stage, one),
                lambda: sch.rolling_update(stage, one),
                lambda: sch.param("BM", draw(st.sampled_from([[2, 4], [3], []]))),
            ]
        )
    )


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_sequence_of_calls_is_sound_and_atomic(data: st.DataObject) -> None:
    make = data.draw(st.sampled_from(PROGRAMS))
    sch = Schedule(make())
    if data.draw(st.booleans()):
        sch.param("BM", [2, 4])
    for _ in range(data.draw(st.integers(1, 6))):
        call = data.draw(calls(sch))
        frozen = Frozen(sch)
        before = frozen.seen()
        try:
            call()
        except NeptuneError as error:
            assert frozen.seen() == before, error
            assert len(str(error).splitlines()) <= 20
        verify(decompose(sch.program))
    if not sch.program.owes:
        check_same(make(), sch.program, tiles=(2,))
    assert replay(make(), sch.trace).program == sch.program


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_arguments_of_the_wrong_kind(name: str) -> None:
    """Each parameter in turn, the others being as they should."""
    sch = Schedule(figure1())
    first, second = sch.loops("xmax")
    fits = {"stage": "xexp", "name": "new", "buffer": "inp", "scope": "tile", "axis": "grid.x", "loop": second}
    method = getattr(sch, name)
    parameters = inspect.signature(method).parameters
    for wrong in parameters:
        with pytest.raises(ScheduleError), Frozen(sch):
            method(*(object() if n == wrong else fits.get(n, first) for n in parameters))


# --- schedules that mostly succeed -------------------------------------------------------------


@pytest.mark.parametrize("make", PROGRAMS)
def test_random_schedules_keep_the_meaning(make: Callable[[], Program]) -> None:
    """Also after localize, where it has a tile form; and as JSON and code."""
    for seed in range(6):
        sch = random_schedule(make(), seed)
        verify(decompose(sch.program))
        check_round_trips(sch, make())
        if sch.program.owes:
            continue
        check_same(make(), sch.program, tiles=(2,))
        try:
            placed = localize(decompose(sch.program))
        except ScheduleError:
            continue
        verify(placed, lowered=True)
        check_same(make(), placed, tiles=(2,))


# --- looking -----------------------------------------------------------------------------------


def test_what_templates_ask() -> None:
    sch = Schedule(softmax())
    assert sch.stages == ("m", "e", "l", "y")
    assert sch.stage("m") == "m"
    assert sch.producers("y") == ["e", "l"] and sch.consumers("m") == ["e"]
    assert sch.definition("m").reduced == ("j",)
    i, j = sch.loops("m")
    assert sch.loop_of("m", "j") == j
    sch.split(i, 2)
    with pytest.raises(ScheduleError, match="no single loop runs it"):
        sch.loop_of("m", "i")


def test_helpers_are_told_from_stages() -> None:
    sch = Schedule(figure1())
    sch.rolling_update("xsum", sch.loops("xmax")[1])
    assert sch.loops("xmax_prev")
    for ask in (sch.definition, sch.producers, sch.consumers, lambda s: sch.loop_of(s, "i")):
        with pytest.raises(ScheduleError, match="helper"):
            ask("xmax_prev")


def test_helpers_are_split_with_their_loop() -> None:
    sch = Schedule(figure1())
    i, j = sch.loops("xmax")
    sch.rolling_update("xsum", j)
    sch.split(i, 2)
    verify(decompose(sch.program))


def test_a_param_is_declared_once() -> None:
    sch = Schedule(matmul())
    assert sch.param("BM", [2, 4]) == sch.param("BM", [2, 4])
    assert len(sch.trace) == 1
    with pytest.raises(ScheduleError, match="`BM` is declared, without 8"), Frozen(sch):
        sch.param("BM", [4, 8])


def test_the_candidates_of_a_param_are_narrowed() -> None:
    program, sch = matmul(), Schedule(matmul())
    sch.split(sch.loop("c", "i"), sch.param("BM", [8, 4, 2]))
    assert sch.param("BM", [2, 4]) == Var("BM") and sch.program.tunables == (Tunable("BM", (2, 4)),)
    check_round_trips(sch, program)
    sch.cover(sch.loop("c", "j"), "BN")
    with pytest.raises(ScheduleError, match="taken"), Frozen(sch):
        sch.param("BN", [8])
