"""Schedule requests that are refused: the message says what was asked, what is wrong, and what would be legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ops.softmax import softmax
from neptune.schedule.state import Loop
from tests.schedule_examples import Frozen, maps, matmul

ROW, COL, DOT = (Loop("c", v) for v in "ijp")

HALF: Any = 2.5


def bound() -> Schedule:
    sch = Schedule(matmul())
    sch.bind(ROW, "grid.x")
    return sch


def fused() -> Schedule:
    sch = Schedule(matmul())
    sch.fuse_at("d", COL)
    return sch


def cut() -> Schedule:
    sch = Schedule(matmul())
    p0, _ = sch.split(DOT, 4)
    sch.partition(p0)
    return sch


def plain() -> Schedule:
    return Schedule(matmul())


def rolled() -> Schedule:
    sch = Schedule(softmax())
    sch.rolling_update("l", Loop("m", "j"))
    return sch


def halves() -> Schedule:
    return Schedule(maps())


CASES: list[tuple[Callable[[], Schedule], Callable[[Schedule], object], list[str]]] = [
    # names
    (plain, lambda s: s.loops("cc"), ["unknown stage `cc`", "legal here: c, d", "did you mean `c`?"]),
    (plain, lambda s: s.stage("zzz"), ["unknown stage `zzz`", "legal here: c, d"]),
    (plain, lambda s: s.split(Loop("c", "z"), 2), ["unknown loop `z` of stage `c`", "legal here: i, j, p"]),
    (plain, lambda s: s.fuse_at("e", ROW), ["unknown stage `e`"]),
    (rolled, lambda s: s.inline("m_prev"), ["`m_prev`", "a helper of another stage", "legal here: m, "]),
    # parameters
    (plain, lambda s: s.param("BM", []), ["powers of two", "legal here: 16"]),
    (plain, lambda s: s.param("BM", [48]), ["powers of two"]),
    (plain, lambda s: s.param("m", [2]), ["`m` is taken"]),
    (plain, lambda s: s.param("i", [2]), ["`i` is taken"]),
    (plain, lambda s: s.param("c", [2]), ["`c` is taken"]),
    (plain, lambda s: s.param("a b", [2]), ["no plain identifier"]),
    (plain, lambda s: s.param("for", [2]), ["no plain identifier"]),
    # split, tile, cover
    (plain, lambda s: s.split(ROW, 0), ["split(`i` of `c`, 0)", "at least one iteration"]),
    (plain, lambda s: s.split(ROW, -4), ["at least one iteration"]),
    (plain, lambda s: s.split(ROW, Var("BM")), ["`BM` is not a tunable of this schedule", 'sch.param("BM"']),
    (plain, lambda s: s.split(ROW, HALF), ["a factor of 2.5", "a number or a param"]),
    (plain, lambda s: s.split(ROW, True), ["a factor of True"]),
    (bound, lambda s: s.split(ROW, 2), ["bound to grid.x", "split before you bind"]),
    (cut, lambda s: s.split(Loop("c", "p0"), 2), ["in pieces", "before partition"]),
    (plain, lambda s: s.tile([ROW, COL], [2]), ["2 loops and 1 factors"]),
    (plain, lambda s: s.tile([], []), ["one factor per loop"]),
    (plain, lambda s: s.tile([ROW, Loop("d", "j")], [2, 2]), ["different stages"]),
    (plain, lambda s: s.tile([ROW, ROW], [2, 2]), ["unknown loop `i`"]),
    (plain, lambda s: s.cover(ROW, "m"), ["`m` is taken"]),
    (bound, lambda s: s.cover(ROW, "WIDE"), ["bound to grid.x"]),
    # reorder
    (plain, lambda s: s.reorder(), ["no loop is named"]),
    (plain, lambda s: s.reorder(ROW, ROW), ["named twice"]),
    (plain, lambda s: s.reorder(ROW, Loop("d", "j")), ["`j` is not around stage `c`", "legal here: i, j, p"]),
    (fused, lambda s: s.reorder(DOT, ROW), ["not perfectly nested", "before you fuse"]),
    (bound, lambda s: s.reorder(COL, ROW), ["`i` is bound to grid.x", "would run serially"]),
    # bind
    (plain, lambda s: s.bind(DOT, "grid.x"), ["loop `i` outside of it runs serially", "bind `i` first"]),
    (bound, lambda s: s.bind(ROW, "grid.y"), ["bound to grid.x already"]),
    (plain, lambda s: s.bind(ROW, "grid.w"), ["'grid.w' is not a grid axis", "legal here: grid.x, grid.y, grid.z"]),
    (
        plain,
        lambda s: s.bind([ROW, COL, DOT], ["grid.x", "grid.y", "grid.z"]),
        ["`c` reduces over `p`", "at: c: c[i, j] +="],
    ),
    (plain, lambda s: s.bind([ROW, COL], ["grid.x"]), ["1 grid axes, not 2"]),
    # inline
    (plain, lambda s: s.inline("c"), ["inline(`c`)", "a reduction cannot be inlined"]),
    (plain, lambda s: s.inline("d"), ["`d` is an output"]),
    # fuse_at
    (plain, lambda s: s.fuse_at("d", DOT), ["does not run over loop `p`", "legal here: i, j"]),
    (fused, lambda s: s.fuse_at("d", COL), ["inside `j` already"]),
    (plain, lambda s: s.fuse_at("c", Loop("d", "i")), ["`d` reads `c` before that place"]),
    (halves, lambda s: s.fuse_at("w", Loop("t", "i")), ["reads `u`", "computes only later", 'try: fuse_at("u"']),
    (cut, lambda s: s.fuse_at("d", Loop("c", "p0")), ["in pieces"]),
    # partition
    (plain, lambda s: s.partition(ROW), ["no predicate under `i`", "leave the loop whole"]),
    (bound, lambda s: s.partition(ROW), ["spread over the grid"]),
    (cut, lambda s: s.partition(Loop("c", "p0")), ["in pieces"]),
    # privatize
    (plain, lambda s: s.privatize("d", ROW), ["`d` is a map"]),
    (plain, lambda s: s.privatize("c", ROW), ["`c` does not reduce over `i`", "legal here: p"]),
    (plain, lambda s: s.privatize("c", DOT), ["no reduction loop inside `p`", "split it first"]),
]


@pytest.mark.parametrize(("make", "call", "parts"), CASES)
def test_message(make: Callable[[], Schedule], call: Callable[[Schedule], object], parts: list[str]) -> None:
    sch = make()
    with pytest.raises(ScheduleError) as info, Frozen(sch):
        call(sch)
    text = str(info.value)
    for part in parts:
        assert part in text, text
    assert len(text.splitlines()) <= 20
