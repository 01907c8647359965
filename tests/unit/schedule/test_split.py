"""split, tile and cover keep the meaning, at sizes that divide and at sizes that do not."""

from __future__ import annotations

import pytest

from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule, replay
from neptune.ir.expr import Var, maximum
from neptune.ir.program import Program, for_loops, paths, stages
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.runtime.modules import covers
from tests.examples.schedule_examples import check_same, maps, matmul, row_max, row_sums


def loops_of(program: Program, stage: str) -> list[str]:
    return next([f.var for f in for_loops(path)] for path, s in paths(program.body) if s.name == stage)


@pytest.mark.parametrize("factor", [1, 3, "BLOCK"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_split_a_matmul(axis: int, factor: int | str) -> None:
    sch = Schedule(matmul())
    loop = sch.loops("c")[axis]
    size = sch.param(factor, [2, 4]) if isinstance(factor, str) else factor
    outer, inner = sch.split(loop, size)
    assert (outer.var, inner.var) == (f"{loop.var}0", f"{loop.var}1")
    assert sch.loops("c")[axis : axis + 2] == [outer, inner]
    check_same(matmul(), sch.program)


def test_guard_only_where_the_factor_may_not_divide() -> None:
    x = placeholder((8, var("n")), name="x")
    p = build(compute((8, var("n")), lambda i, j: x[i, j] + 1.0, "y"))
    sch = Schedule(p)
    i, j = sch.loops("y")
    sch.split(i, 4)
    assert stages(sch.program.body)[0].when is None
    sch.split(j, 4)
    assert "when j0 * 4 + j1 < n" in str(sch.program)
    check_same(p, sch.program)


def test_a_known_divisor_needs_no_guard() -> None:
    text = str(maps()).replace("scalar n: i32 lo 1", "scalar n: i32 lo 1 divisor 16")
    sch = Schedule(parse_program(text))
    sch.split(sch.loops("t")[1], 8)
    assert stages(sch.program.body)[0].when is None


def test_split_twice_and_the_halves() -> None:
    sch = Schedule(row_sums())
    j0, j1 = sch.split(sch.loops("r")[1], 4)
    sch.split(j0, 2)
    sch.split(j1, 3)
    assert loops_of(sch.program, "r") == ["i", "j00", "j01", "j10", "j11"]
    check_same(row_sums(), sch.program)


def test_split_under_fused_stages() -> None:
    sch = Schedule(maps())
    i, j = sch.loops("t")
    sch.fuse_at("u", j)
    sch.fuse_at("w", i)
    sch.split(j, 2)
    sch.split(i, 4)
    check_same(maps(), sch.program)


def test_names_below_and_of_sizes_are_not_taken_again() -> None:
    n = var("i0")
    x = placeholder((n, n), name="x")
    p = build(compute((n, n), lambda i, i1: x[i, i1] + 1.0, "y"), name="p")
    sch = Schedule(p)
    outer, inner = sch.split(sch.loops("y")[0], 2)
    assert len({"i0", "i1", outer.var, inner.var}) == 4
    verify(sch.program)


def test_a_loop_that_does_not_start_at_zero_is_shifted() -> None:
    sch = Schedule(row_max())
    check_same(row_max(), sch.program)
    sch.split(sch.loops("y")[1], 2)
    check_same(row_max(), sch.program)


def test_tile() -> None:
    sch = Schedule(matmul())
    i, j, k = sch.loops("c")
    order = sch.tile([i, k], [sch.param("BM", [2, 4]), 2])
    assert [f.var for f in order] == ["i0", "p0", "i1", "p1"]
    # The loop between them follows the tile.
    assert loops_of(sch.program, "c") == ["i0", "p0", "i1", "p1", j.var]
    check_same(matmul(), sch.program)


@pytest.mark.parametrize("axis", [0, 1])
def test_cover(axis: int) -> None:
    sch = Schedule(row_sums())
    loop = sch.loops("r")[axis]
    assert sch.cover(loop, "WIDE") == loop
    assert sch.program.tunables[0].covers == Var("mn"[axis])
    check_same(row_sums(), sch.program)


def test_a_tile_that_covers_a_side_of_a_product_is_at_least_that_long() -> None:
    sch = Schedule(row_sums())
    sch.cover(sch.loops("r")[1], "WIDE", 16)
    (tile,) = sch.program.tunables
    assert tile.covers == maximum(Var("n"), 16) and tile.least == 16
    assert covers(sch.program, {"n": 5})["WIDE"] == 16 and covers(sch.program, {"n": 33})["WIDE"] == 64
    check_same(row_sums(), sch.program)
    assert replay(row_sums(), sch.trace).program == sch.program


def test_cover_under_fused_stages() -> None:
    sch = Schedule(row_sums())
    i, j = sch.loops("e")
    sch.cover(j, "WIDE")
    sch.fuse_at("r", i)
    sch.fuse_at("y", i)
    check_same(row_sums(), sch.program)


def test_reduction_over_a_split_axis_of_one_element() -> None:
    x = placeholder((1,), name="x")
    j = reduce_axis((0, 1), "j")
    p = build(compute((), lambda: sum(x[j], axis=j), "y"))
    sch = Schedule(p)
    sch.split(sch.loops("y")[0], 4)
    check_same(p, sch.program)


def test_what_was_divided_by_the_factor_is_the_outer_loop() -> None:
    x = placeholder((2, var("n")), name="x")
    t = compute((8, var("n")), lambda h, i: x[h // 4, i] + 1.0, "t")
    program = build(compute((8, var("n")), lambda h, i: t[h, i] * x[h // 4, i], "y"))
    sch = Schedule(program)
    _, h1 = sch.split(sch.loop("t", "h"), 4)
    sch.fuse_at("y", h1)
    text = str(sch.program)
    assert "x[h0, i] + 1.0" in text and "* x[h0, i]" in text and "//" not in text
    check_same(program, sch.program)
