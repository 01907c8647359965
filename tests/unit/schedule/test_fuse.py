"""fuse keeps the meaning, and what comes behind it still works."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from tests.examples.lowering import check_all, scheduled
from tests.examples.schedule_examples import Frozen, check_same, maps, matmul, row_sums


def test_two_loops_become_one() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    both = sch.fuse(i, j)
    assert [f.var for f in sch.loops("c")] == ["i_j", "p"] and both.var == "i_j"
    text = str(sch.program)
    assert "for i_j in [0, m * n):" in text
    assert "c[i_j // n, i_j % n] += a[i_j // n, p] * b[p, i_j % n]" in text
    check_same(matmul(), sch.program)


def test_split_then_fuse_is_the_loop_again() -> None:
    sch = Schedule(maps())
    i, _ = sch.loops("t")
    both = sch.fuse(*sch.split(i, sch.param("BM", [2, 4])))
    assert "t[i0_i1, j] = x[i0_i1, j] + 1.0:f32 when i0_i1 < m" in str(sch.program).replace("1.0 ", "1.0:f32 ")
    check_same(maps(), sch.program)
    assert sch.loop_of("t", "i") == both


def test_reductions_over_one_loop_are_fused() -> None:
    x = placeholder((var("m"), var("n"), var("k")), name="x")
    a, b = reduce_axis((0, var("n")), "a"), reduce_axis((0, var("k")), "b")
    program = build(compute((var("m"),), lambda i: sum(x[i, a, b], axis=[a, b]), "y"))
    sch = Schedule(program)
    _, p, q = sch.loops("y")
    both = sch.fuse(p, q)
    check_same(program, sch.program)
    p0, _ = sch.split(both, 4)
    sch.privatize("y", p0)
    check_same(program, sch.program)


def test_three_loops_and_a_grid() -> None:
    program, sch = batched(), Schedule(batched())
    b, h, i, _ = sch.loops("s")
    i0, _ = sch.split(i, 4)
    grid = sch.fuse(sch.fuse(b, h), i0)
    sch.bind(grid, "grid.x")
    sch.fuse_at("y", grid)
    assert [f.var for f in sch.loops("y")] == ["b_h_i0", "i1"]
    check_same(program, sch.program)


def batched() -> Program:
    m, n = var("m"), var("n")
    x = placeholder((m, 3, n, 8), name="x")
    j = reduce_axis((0, 8), "j")
    s = compute((m, 3, n), lambda b, h, i: sum(x[b, h, i, j], axis=j), "s")
    return build(compute((m, 3, n), lambda b, h, i: s[b, h, i] * 2.0, "y"), name="batched")


def test_a_fused_grid_compiles() -> None:
    def arrange(sch: Schedule) -> None:
        b, h, i, _ = sch.loops("s")
        i0, _ = sch.split(i, sch.param("BM", [16]))
        grid = sch.fuse(sch.fuse(b, h), i0)
        sch.bind(grid, "grid.x")
        sch.fuse_at("y", grid)

    x = np.random.default_rng(0).standard_normal((2, 3, 17, 8))
    x = x.astype(np.float32).astype(np.float64)
    tiles = check_all(scheduled(batched(), arrange), {"x": x}, {"y": x.sum(3) * 2}, {"m": 2, "n": 17}, {"BM": 16})
    assert len(tiles.kernels) == 1 and len(tiles.kernels[0].grid) == 1 and not tiles.temporaries


def test_what_is_owed_in_either_loop_is_owed_in_the_one() -> None:
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    sch.fuse_at("r", j)
    sch.fuse_at("y", j)
    j0, j1 = sch.split(j, 2)
    assert {o.loop for o in sch.program.owes} == {"j0", "j1"}
    sch.fuse(j0, j1)
    assert {o.loop for o in sch.program.owes} == {"j0_j1"}


def test_a_stage_follows_into_a_fused_nest() -> None:
    sch = Schedule(maps())
    both = sch.fuse(*sch.loops("t"))
    sch.fuse_at("u", both)
    sch.fuse_at("w", both)
    assert [f.var for f in sch.loops("w")] == ["i_j"]
    check_same(maps(), sch.program)


def test_part_of_a_fused_loop_is_no_place() -> None:
    # r keeps rows and folds columns: the fused loop runs over both.
    sch = Schedule(row_sums())
    both = sch.fuse(*sch.loops("e"))
    with pytest.raises(ScheduleError), Frozen(sch):
        sch.fuse_at("r", both)
    # A stage over columns alone would run once for every row.
    m, n = Var("m"), Var("n")
    x, z = placeholder((m, n), name="x"), placeholder((n,), name="z")
    t = compute((m, n), lambda i, j: x[i, j] + z[j], "t")
    program = build([t, compute((n,), lambda j: z[j] * 2.0, "u")])
    sch = Schedule(program)
    both = sch.fuse(*sch.loops("t"))
    with pytest.raises(ScheduleError, match="does not run over loop `i_j`"), Frozen(sch):
        sch.fuse_at("u", both)


def test_a_sum_of_an_input_is_not_counted_twice() -> None:
    """Its axis meets the remainder of a fused loop through an input only."""
    m, n = Var("m"), Var("n")
    x = placeholder((m, n), name="x")
    j = reduce_axis((0, n), "j")
    t = compute((m, n), lambda i, j: x[i, j] + 1.0, "t")
    for shape, f in (((m,), lambda i: sum(x[i, j], axis=j)), ((), lambda: sum(x[0, j], axis=j))):
        program = build([t, compute(shape, f, "u")])
        sch = Schedule(program)
        both = sch.fuse(*sch.loops("t"))
        with pytest.raises(ScheduleError), Frozen(sch):
            sch.fuse_at("u", both)


def test_inner_fused_loops_are_not_shared() -> None:
    sch = Schedule(maps())
    _, _, i1, j1 = sch.tile(sch.loops("t"), [2, 4])
    sch.fuse(i1, j1)
    i0, j0, _ = sch.loops("t")
    for loop in (j0, i0):
        try:
            sch.fuse_at("u", loop)
        except ScheduleError:
            continue
    check_same(maps(), sch.program)


def test_only_both_parts_tell_iterations_apart() -> None:
    text = """program last
  in x: f32[m, n]
  out y: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m):
    for j in [0, n):
      y: y[i] = x[i, j]
"""
    sch = Schedule(parse_program(text))
    both = sch.fuse(*sch.loops("y"))
    check_same(parse_program(text), sch.program)
    with pytest.raises(ScheduleError, match="an iteration of `i_j`"), Frozen(sch):
        sch.bind(both, "grid.x")
