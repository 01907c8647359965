"""fuse, compute_at, cache_read, cache_write, set_scope, decompose_reduction: requests that are refused."""

from __future__ import annotations

from typing import Any

import neptune
from neptune.errors import FusionError, ScheduleError
from neptune.frontend.builder import argmax, build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ops.softmax import softmax
from neptune.schedule.state import Loop
from tests.errors.cases.schedules import TRIANGLE, program
from tests.errors.table import case
from tests.examples.kernel_examples import rows_apart, rows_program
from tests.examples.schedule_examples import maps, matmul, row_sums, started

M, N = var("m"), var("n")


def in_pieces() -> Schedule:
    """A product whose reduction loop is partitioned."""
    sch = Schedule(matmul())
    p0, _ = sch.split(sch.loops("c")[2], 4)
    sch.partition(p0)
    return sch


def decomposed() -> Schedule:
    sch = Schedule(matmul())
    sch.decompose_reduction("c", sch.loops("c")[2])
    return sch


# --- rename ----------------------------------------------------------------------------------------


@case(ScheduleError)
def rename_to_a_name_that_is_taken():
    sch = Schedule(matmul())
    sch.rename(sch.loops("c")[0], "p")


# --- fuse ----------------------------------------------------------------------------------------


@case(ScheduleError)
def fuse_loops_of_two_stages():
    sch = Schedule(matmul())
    sch.fuse(sch.loops("d")[0], sch.loops("c")[1])


@case(ScheduleError)
def fuse_loops_with_another_between():
    sch = Schedule(matmul())
    i, _, p = sch.loops("c")
    sch.fuse(i, p)


@case(ScheduleError)
def fuse_loops_with_a_statement_between():
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    sch.fuse_at("d", i)
    sch.fuse(i, j)


@case(ScheduleError)
def fuse_bound_loops():
    sch = Schedule(maps())
    i, j = sch.loops("t")
    sch.bind(i, "grid.x")
    sch.fuse(i, j)


@case(ScheduleError)
def fuse_pieces():
    sch = in_pieces()
    sch.fuse(*sch.loops("c")[1:3])


@case(ScheduleError)
def fuse_a_triangle():
    sch = Schedule(program(TRIANGLE))
    sch.fuse(*sch.loops("y"))


@case(ScheduleError)
def fuse_rows_with_a_reduction():
    sch = Schedule(matmul())
    sch.fuse(*sch.loops("c")[1:])


@case(ScheduleError)
def fuse_at_a_fused_loop():
    sch = Schedule(row_sums())
    both = sch.fuse(*sch.loops("e"))
    sch.fuse_at("r", both)


@case(ScheduleError)
def fuse_at_before_its_init_is_there():
    Schedule(started()).fuse_at("z", Loop("t", "j"))


# --- pack ----------------------------------------------------------------------------------------


def grouped() -> Schedule:
    """Scores of 8 query heads of which every 4 share a key head, doubled."""
    q, k = placeholder((8, M, 4), name="q"), placeholder((2, N, 4), name="k")
    d = reduce_axis((0, 4), "d")
    s = compute((8, M, N), lambda h, i, j: sum(q[h, i, d] * k[h // 4, j, d], axis=d), "s")
    return Schedule(build(compute((8, M, N), lambda h, i, j: s[h, i, j] * 2.0, "y")))


@case(ScheduleError)
def pack_loops_of_two_stages():
    sch = grouped()
    sch.pack(sch.loop("s", "h"), sch.loop("y", "i"))


@case(ScheduleError)
def pack_a_loop_with_itself():
    sch = grouped()
    sch.pack(sch.loop("s", "i"), sch.loop("s", "i"))


@case(ScheduleError)
def pack_a_tile():
    sch = grouped()
    i0, _ = sch.split(sch.loop("s", "i"), 16)
    sch.pack(sch.loop("s", "h"), i0)


@case(ScheduleError)
def pack_what_is_fused():
    sch = grouped()
    sch.fuse_at("y", sch.loop("s", "j"))
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))


@case(ScheduleError)
def pack_a_reduction_loop():
    sch = grouped()
    sch.pack(sch.loop("s", "h"), sch.loop("s", "d"))


@case(ScheduleError)
def pack_a_triangle():
    sch = Schedule(program("  for i in [0, n):\n    for j in [0, i + 1):\n      y: y[i + j] = x[j]"))
    i, j = sch.loops("y")
    sch.pack(i, j)


@case(ScheduleError)
def pack_what_lies_along_a_diagonal():
    text = "program p\n  in x: f32[2, 3]\n  out y: f32[2, 3]\n  temp t: f32[2, 3, 4]\nbody:\n"
    text += "  for h in [0, 2):\n    for i in [0, 3):\n      t: t[h, i, h + i] = x[h, i]\n"
    text += "  for h in [0, 2):\n    for i in [0, 3):\n      y: y[h, i] = t[h, i, h + i]\n"
    sch = Schedule(parse_program(text))
    sch.pack(sch.loop("t", "h"), sch.loop("t", "i"))


@case(ScheduleError)
def widen_a_tunable():
    sch = grouped()
    sch.param("BLOCK", [16, 32])
    sch.param("BLOCK", [64])


@case(ScheduleError)
def pack_rows_with_keys_of_their_own():
    sch = grouped()
    sch.pack(sch.loop("s", "j"), sch.loop("s", "i"))


@case(ScheduleError)
def pack_groups_of_two_sizes():
    q, k = placeholder((8, M, 4), name="q"), placeholder((4, N, 4), name="k")
    d = reduce_axis((0, 4), "d")
    s = compute((8, M, N), lambda h, i, j: sum(q[h, i, d] * (k[h // 4, j, d] + k[h // 2, j, d]), axis=d), "s")
    sch = Schedule(build(s))
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))


@case(ScheduleError)
def pack_what_others_read_by_rows_alone():
    x = placeholder((8, M), name="x")
    t = compute((8, M), lambda h, i: exp(x[h, i]), "t")
    sch = Schedule(build(compute((M,), lambda i: t[0, i] + 1.0, "y")))
    sch.pack(sch.loop("t", "h"), sch.loop("t", "i"))


@case(ScheduleError)
def pack_a_result_in_reverse():
    x = placeholder((8, M), name="x")
    t = compute((8, M), lambda h, i: x[h, i] * 2.0, "t")
    sch = Schedule(build(compute((8, M), lambda h, i: t[h, i] + t[7 - h, i], "y")))
    sch.pack(sch.loop("t", "h"), sch.loop("t", "i"))


def one_query(keys: int) -> Schedule:
    """Scores of 8 query heads with so many key heads, of a query without an axis."""
    q, k = placeholder((8, 4), name="q"), placeholder((keys, N, 4), name="k")
    d = reduce_axis((0, 4), "d")
    return Schedule(build(compute((8, N), lambda h, j: sum(q[h, d] * k[h // (8 // keys), j, d], axis=d), "s")))


@case(ScheduleError)
def pack_heads_that_share_nothing():
    sch = one_query(keys=8)
    sch.pack(sch.loop("s", "h"))


@case(ScheduleError)
def pack_heads_with_keys_of_their_own():
    q, k, scale = placeholder((8, 4), name="q"), placeholder((8, N, 4), name="k"), placeholder((2,), name="scale")
    d = reduce_axis((0, 4), "d")
    s = compute((8, N), lambda h, j: sum(q[h, d] * k[h, j, d], axis=d), "s")
    sch = Schedule(build(compute((8, N), lambda h, j: s[h, j] * scale[h // 4], "y")))
    sch.pack(sch.loop("s", "h"))


@case(ScheduleError)
def pack_heads_of_which_another_number_follows():
    sch = Schedule(program("  for i in [0, n):\n    for j in [0, i + 1):\n      y: y[i + j] = x[j]"))
    sch.pack(sch.loop("y", "j"))


@case(ScheduleError)
def pack_heads_along_a_diagonal():
    text = "program p\n  in x: f32[4]\n  in w: f32[2]\n  out y: f32[4]\n  temp t: f32[4, 4]\nbody:\n"
    text += "  for h in [0, 4):\n    t: t[h, h] = x[h] * w[h // 2]\n"
    text += "  for h in [0, 4):\n    y: y[h] = t[h, h]\n"
    sch = Schedule(parse_program(text))
    sch.pack(sch.loop("t", "h"))


@case(ScheduleError)
def pack_heads_that_another_stage_sums_up():
    q, k = placeholder((8, 4), name="q"), placeholder((2, N, 4), name="k")
    d, h = reduce_axis((0, 4), "d"), reduce_axis((0, 8), "h")
    s = compute((8, N), lambda g, j: sum(q[g, d] * k[g // 4, j, d], axis=d), "s")
    sch = Schedule(build(compute((N,), lambda j: sum(s[h, j], axis=h), "y")))
    sch.pack(sch.loop("s", "g"))


@case(ScheduleError)
def pack_heads_that_are_tiled():
    sch = one_query(keys=2)
    sch.split(sch.loop("s", "j"), 16)
    sch.pack(sch.loop("s", "h"))


# --- compute_at ----------------------------------------------------------------------------------


@case(ScheduleError)
def compute_at_inside_already():
    sch = Schedule(matmul())
    sch.compute_at("c", sch.loops("c")[0])


@case(ScheduleError)
def compute_at_in_pieces():
    sch = in_pieces()
    sch.compute_at("c", sch.loops("d")[0])


@case(ScheduleError)
def compute_at_with_a_repair_owed():
    sch = Schedule(softmax())
    sch.fuse_at("e", sch.loops("m")[1])
    sch.compute_at("m", sch.loops("l")[0])


@case(ScheduleError)
def compute_at_with_a_helper():
    sch = decomposed()
    sch.compute_at("c", sch.loops("d")[0])


@case(ScheduleError)
def compute_at_of_a_result():
    sch = Schedule(matmul())
    sch.compute_at("d", sch.loops("c")[0])


@case(ScheduleError)
def compute_at_of_a_shifted_index():
    body = "  for i in [0, n):\n    e: e[i // 2] = x[i]\n  for i in [0, n):\n    y: y[i] = e[i // 2]"
    sch = Schedule(program(body, "temp e: f32[n]"))
    sch.compute_at("e", sch.loops("y")[0])


@case(ScheduleError)
def compute_at_of_an_axis_too_many():
    body = "  for i in [0, n):\n    for j in [0, n):\n      e: e[i] = x[j]\n  for i in [0, n):\n    y: y[i] = e[i]"
    sch = Schedule(program(body, "temp e: f32[n]"))
    sch.compute_at("e", sch.loops("y")[0])


@case(ScheduleError)
def compute_at_with_readers_elsewhere():
    sch = Schedule(row_sums())
    sch.compute_at("e", sch.loops("r")[0])


@case(ScheduleError)
def compute_at_of_what_a_range_reads():
    start, x = placeholder((M + 1,), "int32", "start"), placeholder((N,), name="x")
    twice = compute((M + 1,), lambda i: start[i] * 2, "twice")

    def row(i: Any) -> Any:
        k = reduce_axis((twice[i], twice[i + 1]), "k")
        return sum(x[k], axis=k)

    sch = Schedule(build(compute((M,), row, "y")))
    sch.compute_at("twice", sch.loops("y")[0])


@case(ScheduleError)
def compute_at_without_readers():
    body = "  for i in [0, n):\n    e: e[i] = x[i]\n  for i in [0, n):\n    y: y[i] = x[i]"
    sch = Schedule(program(body, "temp e: f32[n]"))
    sch.compute_at("e", sch.loops("y")[0])


@case(ScheduleError)
def compute_at_of_a_gather():
    x, at = placeholder((N,), name="x"), placeholder((M,), "int32", "at")
    t = compute((N,), lambda j: x[j] + 1.0, "t")
    sch = Schedule(build(compute((M,), lambda i: t[at[i]], "y")))
    sch.compute_at("t", sch.loops("y")[0])


@case(ScheduleError)
def compute_at_of_a_fold_that_would_repeat():
    sch = Schedule(row_sums())
    sch.inline("e")
    sch.compute_at("r", sch.loops("y")[1])


# --- reverse_compute_at ---------------------------------------------------------------------------


@case(ScheduleError)
def reverse_compute_at_before_a_producer():
    sch = Schedule(maps())
    sch.reverse_compute_at("w", sch.loops("t")[0])


@case(ScheduleError)
def reverse_compute_at_of_what_still_changes():
    sch = Schedule(softmax())
    sch.reverse_compute_at("e", sch.loops("m")[1])


# --- caches and scopes ----------------------------------------------------------------------------


@case(ScheduleError)
def cache_read_in_one_nest():
    sch = Schedule(row_sums())
    sch.fuse_at("r", sch.loops("e")[0])
    sch.cache_read("r", "e")


@case(ScheduleError)
def cache_read_of_another_buffer():
    Schedule(row_sums()).cache_read("r", "x")


@case(ScheduleError)
def cache_read_in_pieces():
    in_pieces().cache_read("c", "a")


@case(ScheduleError)
def cache_write_in_one_nest():
    sch = Schedule(row_sums())
    sch.fuse_at("r", sch.loops("e")[0])
    sch.cache_write("e")


def _best(after: bool = False) -> Program:
    """`best`, an argmax over rows of x, alone or after another reduction that it reads."""
    x, axes = placeholder((M, N), name="x"), [reduce_axis((0, N), "j") for _ in range(2)]
    if not after:
        return build(compute((M,), lambda i: argmax(x[i, axes[0]], axis=axes[0]), "best"))
    top = compute((M,), lambda i: max(x[i, axes[0]], axis=axes[0]), "top")
    return build(compute((M,), lambda i: argmax(exp(x[i, axes[1]] - top[i]), axis=axes[1]), "best"), name="best")


@case(ScheduleError)
def cache_write_of_a_choice():
    Schedule(_best()).cache_write("best")


@case(ScheduleError)
def cache_write_of_what_is_guarded():
    body = "  for i in [0, n):\n    e: e[i] = x[i] when i < 3\n  for i in [0, n):\n    y: y[i] = e[i]"
    Schedule(program(body, "temp e: f32[n]")).cache_write("e")


@case(ScheduleError)
def cache_write_with_a_helper():
    decomposed().cache_write("c")


@case(ScheduleError)
def a_scope_that_there_is_not():
    Schedule(row_sums()).set_scope("e", "shared")


@case(ScheduleError)
def the_scope_of_an_argument():
    Schedule(row_sums()).set_scope("y", "tile")


@case(ScheduleError)
def the_scope_of_no_buffer():
    Schedule(row_sums()).set_scope("z", "tile")


@case(ScheduleError)
def the_scope_of_what_several_programs_compute():
    sch = Schedule(matmul())
    copy = sch.cache_read("c", "a")
    i0, j0, *_ = sch.tile(sch.loops("c")[:2], [2, 4])
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    sch.compute_at(copy, j0)
    sch.set_scope(copy, "global")


@case(ScheduleError)
def a_tile_of_two_kernels():
    def mine(sch: Schedule) -> None:
        rows_apart(sch)
        sch.set_scope("t", "tile")

    neptune.compile(rows_program(), mine, target="llvm")


# --- decompose_reduction --------------------------------------------------------------------------


@case(ScheduleError)
def decompose_at_a_loop_elsewhere():
    sch = Schedule(matmul())
    sch.decompose_reduction("c", sch.loops("d")[0])


@case(ScheduleError)
def decompose_a_map():
    sch = Schedule(matmul())
    sch.decompose_reduction("d", sch.loops("d")[0])


@case(ScheduleError)
def decompose_twice():
    sch = decomposed()
    sch.decompose_reduction("c", sch.loops("c")[0])


@case(ScheduleError)
def decompose_inside_the_reduction():
    sch = Schedule(matmul())
    i, j, p = sch.loops("c")
    sch.reorder(p, i, j)
    sch.decompose_reduction("c", j)


@case(ScheduleError)
def decompose_outside_of_a_range():
    body = "  for j in [0, n):\n    for i in [0, j + 1):\n      y: y[i] += x[j] init 0.0"
    sch = Schedule(program(body))
    sch.decompose_reduction("y", sch.loops("y")[0])


@case(ScheduleError)
def decompose_before_it_starts():
    sch = Schedule(started())
    sch.fuse_at("z", sch.loops("t")[0])
    sch.decompose_reduction("z", sch.loops("z")[0])


@case(ScheduleError)
def decompose_on_the_grid():
    sch = Schedule(matmul())
    i = sch.loops("c")[0]
    sch.bind(i, "grid.x")
    sch.decompose_reduction("c", i)


# --- reductions on tuples -------------------------------------------------------------------------


@case(ScheduleError)
def privatize_a_choice():
    sch = Schedule(_best())
    j0, _ = sch.split(sch.loops("best")[1], 4)
    sch.privatize("best", j0)


@case(FusionError)
def roll_a_choice_by_an_index_that_changes():
    x, axes = placeholder((M, N), name="x"), [reduce_axis((0, N), "j") for _ in range(2)]
    value, at = compute((M,), lambda i: argmax(x[i, axes[0]], axis=axes[0]), "best")
    s = compute((M,), lambda i: sum(x[i, axes[1]] * x[i, at[i]], axis=axes[1]), "s")
    sch = Schedule(build([s, value]))
    sch.rolling_update("s", sch.loops("best")[1])
