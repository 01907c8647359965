"""fuse_at: what may move under a loop, what it owes there, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.errors import NeptuneError, ScheduleError
from neptune.frontend.builder import build, compute, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.program import Owe
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.ops.softmax import softmax
from neptune.schedule.state import Loop
from neptune.verify.evaluate import evaluate
from tests.examples.schedule_examples import Frozen, check_same, gram, maps, matmul, row_sums, started

M, N, K = var("m"), var("n"), var("k")


def refused(sch: Schedule, stage: str, loop: Loop, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason), Frozen(sch):
        sch.fuse_at(stage, loop)


# --- what works --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("tiled", [False, True])
def test_maps_under_any_loop(depth: int, tiled: bool) -> None:
    sch = Schedule(maps())
    loops = sch.loops("t")
    if tiled:
        loops = sch.tile(loops, [sch.param("BM", [2]), 3])
    sch.fuse_at("u", loops[depth])
    sch.fuse_at("w", loops[depth])
    assert len({str(sch.loops(s)[depth]) for s in sch.stages}) == 1
    check_same(maps(), sch.program)


def test_a_map_behind_a_finished_reduction() -> None:
    sch = Schedule(matmul())
    i, j, k = sch.loops("c")
    i0, _, _, _ = sch.tile([i, j], [2, 3])
    sch.split(k, 2)
    sch.fuse_at("d", i0)
    assert not sch.program.owes
    check_same(matmul(), sch.program)


def test_two_axes_that_both_run_over_one_buffer() -> None:
    """g[i, j] = Σ s[i, p] s[j, p] under the loop of p: all rows of s are there."""
    sch = Schedule(gram())
    i, p = sch.loops("s")
    sch.reorder(p, i)
    p0, _ = sch.split(p, 2)
    sch.fuse_at("g", p0)
    check_same(gram(), sch.program)


def test_several_shared_buffers() -> None:
    x, y = placeholder((M, N), name="x"), placeholder((N, M), name="y")
    a = compute((M, N), lambda i, j: x[i, j] + y[j, i], "a")
    b = compute((N, M), lambda i, j: y[i, j] * a[j, i], "b")  # the names of the axes are exchanged
    p = build([a, b])
    sch = Schedule(p)
    i, j = sch.loops("a")
    _, j0, _, _ = sch.tile([i, j], [2, 3])
    sch.fuse_at("b", j0)
    check_same(p, sch.program)


def test_axes_of_one_name() -> None:
    x = placeholder((M, N), name="x")
    i = reduce_axis((0, M), "i")
    t = compute((M, N), lambda i, j: x[i, j] + 1.0, "t")
    p = build(compute((N,), lambda j: sum(t[i, j], axis=i), "y"))
    sch = Schedule(p)
    a, b = sch.loops("t")
    sch.reorder(b, a)
    b0, _ = sch.split(b, 2)
    sch.fuse_at("y", b0)
    check_same(p, sch.program)


def test_stages_that_meet_at_an_input() -> None:
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    a = compute((M,), lambda i: sum(x[i, j], axis=j), "a")
    b = compute((M,), lambda i: max(x[i, j], axis=j), "b")
    p = build([a, b])
    sch = Schedule(p)
    rows, cols = sch.loops("a")
    sch.tile([rows, cols], [2, 2])
    sch.fuse_at("b", sch.loops("a")[1])
    check_same(p, sch.program)


def test_under_a_covered_loop_the_guard_stays() -> None:
    sch = Schedule(maps())
    i, j = sch.loops("t")
    sch.cover(j, "WIDE")
    sch.fuse_at("u", j)
    sch.fuse_at("w", i)
    check_same(maps(), sch.program)


def test_reading_at_an_offset_within_a_finished_dimension() -> None:
    sch = Schedule(maps(shift=1))
    i, _ = sch.loops("t")
    sch.fuse_at("u", i)
    sch.fuse_at("w", i)
    check_same(maps(shift=1), sch.program)


# --- what is owed ------------------------------------------------------------------------------


def test_obligations_go_through_maps() -> None:
    sch = Schedule(softmax())
    i, j = sch.loops("m")
    sch.fuse_at("e", j)
    sch.fuse_at("l", j)
    assert sch.program.owes == (Owe("e", "m", "j"), Owe("l", "m", "j"))
    refused(sch, "l", i, "inside `i` already")
    refused(sch, "l", sch.loops("y")[0], "`y` reads `l` before that place")


def test_a_row_that_is_complete_owes_nothing() -> None:
    sch = Schedule(softmax())
    i, _ = sch.loops("m")
    for stage in ("e", "l", "y"):
        sch.fuse_at(stage, i)
    assert not sch.program.owes
    verify(decompose(sch.program))


# --- what is refused ---------------------------------------------------------------------------


def test_reading_at_an_offset() -> None:
    """Also inside a tile an offset reaches into another iteration."""
    text = """\
program p
  in x: f32[n]
  out u: f32[n]
  temp t: f32[n]
  scalar n: i32 lo 1
body:
  for i in [0, n):
    t: t[i] = x[i]
  for i in [0, n):
    u: u[i] = t[i] + select(i < n - 1, t[i + 1], 0.0)
"""
    sch = Schedule(parse_program(text))
    (i,) = sch.loops("t")
    refused(sch, "u", i, "has written only")
    i0, _ = sch.split(i, 4)
    refused(sch, "u", i0, "has written only")


def test_a_reader_that_would_see_only_one_iteration() -> None:
    """r is needed in full by a reader under the same loop."""
    x = placeholder((M, N), name="x")
    i = reduce_axis((0, M), "i")
    t = compute((M, N), lambda i, j: x[i, j] + 1.0, "t")
    c = compute((N,), lambda j: sum(t[i, j], axis=i), "c")
    y = compute((M, N), lambda i, j: t[i, j] * c[j], "y")
    sch = Schedule(build(y))
    rows, _ = sch.loops("t")
    refused(sch, "y", rows, "computes only later")
    sch.fuse_at("c", rows)
    sch.fuse_at("y", rows)
    assert Owe("y", "c", "i") in sch.program.owes


def test_an_unrelated_stage() -> None:
    x, z = placeholder((M,), name="x"), placeholder((K,), name="z")
    a, b = compute((M,), lambda i: x[i] + 1.0, "a"), compute((K,), lambda i: z[i], "b")
    sch = Schedule(build([a, b]))
    refused(sch, "b", sch.loops("a")[0], "shares no axis")


# --- loops that only share a name, and pieces --------------------------------------------------


def tiled_twice() -> Schedule:
    """t and u each in tiles of their own width, with equal loop names, side by side under i."""
    sch = Schedule(maps())
    i, j = sch.loops("t")
    sch.split(j, 2)
    _, k = sch.loops("u")
    sch.split(k, 4)
    sch.fuse_at("u", i)
    return sch


def test_loops_of_one_name_and_different_ranges() -> None:
    sch = tiled_twice()
    sch.fuse_at("w", sch.loops("u")[1])
    check_same(maps(), sch.program)


def test_stages_behind_a_partitioned_loop_run_in_full() -> None:
    """The loops of a piece are not the axis: a stage behind it gets loops of its own."""
    x = placeholder((M, N), name="x")
    p = build([compute((M, N), lambda i, j: x[i, j] + 1.0, name) for name in ("t0", "t1")])
    sch = Schedule(p)
    i, j = sch.loops("t0")
    j0, _ = sch.split(j, 2)
    sch.partition(j0)
    sch.fuse_at("t1", i)
    assert [f.var for f in sch.loops("t1")] == ["i", "j"]
    check_same(p, sch.program)


def test_ragged_rows() -> None:
    """Extents that load: t and y run over len[i] columns of row i."""
    text = """\
program p
  in x: f32[m, n]
  in len: i32[m]
  out y: f32[m]
  temp t: f32[m, n]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m):
    for j in [0, len[i]):
      t: t[i, j] = x[i, j] * 2.0
  for r in [0, m):
    for c in [0, len[r]):
      y: y[r] += t[r, c] init 0.0
"""
    program = parse_program(text)
    inputs = {"x": np.arange(12.0).reshape(3, 4), "len": np.array([2, 0, 4])}
    for depth in (0, 1, 2):
        sch = Schedule(program)
        i, j = sch.loops("t")
        loops = [i, j] if depth < 2 else [i, sch.split(j, 3)[0]]
        sch.fuse_at("y", loops[min(depth, 1)])
        verify(decompose(sch.program))
        found, expected = (evaluate(p, inputs, {"m": 3, "n": 4})["y"] for p in (sch.program, program))
        np.testing.assert_allclose(found, expected)


def test_tiles_of_tiles_do_not_overlap() -> None:
    """A tile of 3 in tiles of 2: the guard that keeps them apart comes along."""
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    j0, j1 = sch.split(j, 3)
    sch.split(j1, 2)
    sch.fuse_at("r", j0)
    assert str(sch.program).count("j10 * 2 + j11 < 3") == 2
    check_same(row_sums(), sch.program)


def test_a_split_carries_obligations() -> None:
    sch = Schedule(softmax())
    _, j = sch.loops("m")
    sch.fuse_at("e", j)
    sch.split(j, 4)
    assert sch.program.owes == (Owe("e", "m", "j0"), Owe("e", "m", "j1"))
    verify(decompose(sch.program))


def test_an_axis_that_a_private_fold_has_taken() -> None:
    sch = Schedule(softmax())
    _, j = sch.loops("m")
    j0, _ = sch.split(j, 4)
    sch.privatize("m", j0)
    refused(sch, "e", j0, "does not run over loop `j0`")


def test_a_guard_of_the_user_moves_along() -> None:
    text = """\
program p
  in x: f32[n]
  out u: f32[n]
  temp t: f32[n]
  scalar n: i32 lo 1
body:
  for i in [0, n):
    t: t[i] = x[i] when i < 1
  for i in [0, n):
    u: u[i] = select(i < 1, t[i], x[i])
"""
    program = parse_program(text)
    sch = Schedule(program)
    i0, _ = sch.split(sch.loops("t")[0], 2)
    sch.fuse_at("u", i0)
    check_same(program, sch.program)


def test_what_a_reduction_starts_from_is_there_before_its_loops() -> None:
    """An init runs in front of the outermost loop that is reduced over."""
    refused(Schedule(started()), "z", Loop("t", "j"), "starts from `t`, which is computed only inside loop `j`")
    sch = Schedule(started())
    assert sch.producers("z") == ["t"]
    with pytest.raises(NeptuneError, match="starts from `t`"), Frozen(sch):
        sch.rolling_update("z", sch.loops("t")[1])
    sch.fuse_at("z", sch.loops("t")[0])
    with pytest.raises(ScheduleError, match="computed only inside `i`"), Frozen(sch):
        sch.decompose_reduction("z", sch.loops("z")[0])
    check_same(started(), sch.program)
    sch = Schedule(started())
    sch.compute_at("t", sch.loops("z")[0])
    check_same(started(), sch.program)
    sch = Schedule(started())
    sch.cache_read("z", "t")
    check_same(started(), sch.program)
