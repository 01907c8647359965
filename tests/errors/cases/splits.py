"""split_k, write_directly, and calls that choose numbers of parts or own a workspace: requests that are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import neptune
from neptune.errors import FusionError, NeptuneError, ScheduleError, ShapeError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, select, var
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.schedule.state import Loop
from tests.errors.cases.schedules import TRIANGLE, program
from tests.errors.table import case
from tests.examples.chains import cells, matrix, per_row
from tests.unit.fusion.test_split_k import best_above, log_sum_exp, row

R, N = var("r"), var("n")


def guarded() -> Schedule:
    program = log_sum_exp()
    text = str(program).replace("m[i] max= x[i, j] init -3.4028234663852886e+38",
                                "m[i] max= x[i, j] init -3.4028234663852886e+38 when j < 3")  # fmt: skip
    return Schedule(parse_program(text))


def started_elsewhere() -> Schedule:
    text = str(row(te.sum, "s")).replace(" init 0.0", "")
    return Schedule(parse_program(text))


def started_high() -> Schedule:
    return Schedule(parse_program(str(best_above()).replace("init -inf", "init 0.5")))


def index_of_a_part() -> Schedule:
    text = str(best_above()).replace("/ l[i], j init", "/ l[i], j + cast(i32, l[i]) init")
    return Schedule(parse_program(text))


def scheduled() -> Schedule:
    sch = Schedule(log_sum_exp())
    sch.split(sch.loops("m")[0], 4)
    return sch


def not_repairable() -> Schedule:
    x = matrix("x")
    top = per_row(lambda i, j: x[i, j], "top", te.max)
    return Schedule(build(per_row(lambda i, j: te.tanh(x[i, j] - top[i]), "t"), name="bounded"))


def per_row_between() -> Schedule:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    top = compute((R,), lambda i: select(m[i] > 0, m[i], 0), "top")
    return Schedule(build(per_row(lambda i, j: exp(x[i, j] - top[i]), "l"), name="between"))


def reduced_per_element() -> Schedule:
    x, w = matrix("x"), placeholder((4,), "float32", "w")
    d = reduce_axis((0, 4), "d")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    t = cells(lambda i, j: te.sum(exp(x[i, j] - m[i]) * w[d], axis=d), "t")
    return Schedule(build(per_row(lambda i, j: t[i, j], "l"), inputs=[x, w], name="inner"))


def _refused(make: Callable[[], Schedule], stage: str) -> Callable[[], object]:
    def act() -> object:
        sch = make()
        return sch.split_k(sch.loops(stage)[-1], "NUM_SPLITS")

    return act


REFUSED: list[tuple[Callable[[], Schedule], str, type[NeptuneError], str]] = [
    (guarded, "m", FusionError, "guarded"),
    (started_elsewhere, "s", FusionError, "no_init"),
    (started_high, "l", FusionError, "start_behind"),
    (index_of_a_part, "l", FusionError, "index"),
    (scheduled, "m", ScheduleError, "scheduled"),
    (not_repairable, "top", FusionError, "no_repair"),
    (per_row_between, "m", FusionError, "per_row"),
    (reduced_per_element, "m", FusionError, "inner"),
]
for _make, _stage, _error, _name in REFUSED:
    case(_error, f"split_{_name}")(_refused(_make, _stage))


def _split(program: Program, stage: str) -> tuple[Schedule, Loop]:
    sch = Schedule(program)
    return sch, sch.split_k(sch.loops(stage)[-1], "NUM_SPLITS", sch.param("BLOCK_N", [4]))


@case(ScheduleError)
def split_rows():
    sch = Schedule(log_sum_exp())
    sch.split_k(sch.loops("m")[0], "NUM_SPLITS")


@case(ScheduleError)
def split_into_nothing():
    sch = Schedule(log_sum_exp())
    sch.split_k(sch.loops("m")[1], 0)


@case(ScheduleError)
def split_into_a_taken_name():
    sch = Schedule(log_sum_exp())
    sch.split_k(sch.loops("m")[1], "x")


@case(FusionError)
def split_a_triangle():
    sch = Schedule(program(TRIANGLE))
    sch.split_k(sch.loops("y")[-1], 4)


@case(FusionError)
def split_an_axis_as_long_as_a_tensor_says():
    x, length = matrix("x"), placeholder((R,), "int32", "length")
    sums = compute((R,), lambda i: te.sum(x[i, j := reduce_axis((0, length[i]), "j")], axis=j), "sums")
    sch = Schedule(build(sums, name="ragged"))
    sch.split_k(sch.loops("sums")[-1], 4)


@case(FusionError)
def split_an_axis_that_comes_twice():
    x, j = placeholder((N, N), "float32", "x"), reduce_axis((0, N), "j")
    s = compute((N,), lambda i: te.sum(x[i, j], axis=j), "s")
    y = compute((N, N), lambda i, k: x[i, k] + x[k, i] * s[i], "y")
    sch = Schedule(build(y, name="twice"))
    sch.split_k(sch.loops("s")[-1], 4)


@case(FusionError)
def split_what_is_read_in_reverse():
    x = matrix("x")
    e = cells(lambda i, j: exp(x[i, j]), "e")
    sch = Schedule(build(per_row(lambda i, j: e[i, j] * e[i, N - 1 - j] * x[i, j], "l"), name="reverse"))
    sch.split_k(sch.loops("l")[-1], 4)


@case(FusionError)
def split_what_is_written_apart():
    x = matrix("x")
    e = cells(lambda i, j: exp(x[i, j]), "e")
    text = str(build(per_row(lambda i, j: e[i, j] * x[i, j], "l"), name="apart"))
    text = text.replace("temp e: f32[r, n]", "temp e: f32[r, 2 * n]").replace("e[i, j]", "e[i, 2 * j]")
    sch = Schedule(parse_program(text))
    sch.split_k(sch.loops("l")[-1], 4)


@case(FusionError)
def split_what_waits_for_the_whole():
    x, y = matrix("x"), matrix("y")
    c = per_row(lambda i, j: y[i, j], "c", te.max)
    top = per_row(lambda i, j: x[i, j] - c[i], "top", te.max)
    sch = Schedule(build(per_row(lambda i, j: exp(x[i, j] - top[i]) * y[i, j], "l"), name="waits"))
    sch.split_k(sch.loops("c")[-1], 4)


@case(FusionError)
def split_what_is_about_a_weighted_mean():
    x, w = matrix("x"), matrix("w")
    s, weight = per_row(lambda i, j: te.abs(w[i, j]) * x[i, j], "s"), per_row(lambda i, j: te.abs(w[i, j]), "weight")
    first = per_row(lambda i, j: (x[i, j] - s[i] / weight[i]) * w[i, j], "first")
    sch = Schedule(build(first, inputs=[x, w], name="weighted"))
    sch.split_k(sch.loops("s")[-1], 4)


# --- loops over parts of an axis ---------------------------------------------------------------------


@case(ScheduleError)
def cut_parts_by_another_tile():
    sch, part = _split(log_sum_exp(), "m")
    sch.split(sch.loop(part.stage, "j"), 3)


@case(ScheduleError)
def bind_elements_of_parts():
    x = matrix("x")
    e = cells(lambda i, j: exp(x[i, j]), "e")
    sch, _ = _split(build(per_row(lambda i, j: e[i, j], "l"), name="elements"), "l")
    sch.bind(sch.loops("e"), ["grid.z", "grid.y", "grid.x"])


@case(ScheduleError)
def fuse_elements_of_parts():
    sch, part = _split(log_sum_exp(), "m")
    sch.fuse(*sch.loops(part.stage)[1:])


# --- one part ----------------------------------------------------------------------------------------


@case(ScheduleError)
def write_directly_over_another_loop():
    sch, part = _split(log_sum_exp(), "m")
    sch.write_directly(sch.loop(part.stage, "i"))


@case(ScheduleError)
def write_directly_where_the_number_is_constant():
    sch = Schedule(log_sum_exp())
    sch.write_directly(sch.split_k(sch.loops("m")[-1], 4))


@case(ScheduleError)
def write_directly_without_a_grid():
    sch, part = _split(log_sum_exp(), "m")
    sch.write_directly(part)


@case(FusionError)
def write_directly_what_is_folded_again():
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    i = reduce_axis((0, R), "i")
    sch, part = _split(build(compute((), lambda: te.sum(m[i], axis=i), "total"), name="again"), "m")
    sch.bind(part, "grid.x")
    sch.write_directly(part)


# --- calls -------------------------------------------------------------------------------------------

X = torch.zeros(3, 40)
BYTES = 256 + 5 * 3 * 4
MEMORY = torch.zeros(BYTES, dtype=torch.uint8)


@cache
def kernel() -> neptune.Kernel:
    return neptune.compile(log_sum_exp(), "flash_decoding", target="llvm", params={"BLOCK_N": 16, "NUM_SPLITS": 5})


def _call(**options: Any) -> Callable[[], object]:
    return lambda: kernel()(X, **options)


def _bytes(**sizes: Any) -> Callable[[], object]:
    return lambda: kernel().workspace(**sizes)


CALLS: dict[str, Callable[[], object]] = {
    "no_number_of_parts": _call(params={"NUM_SPLITS": 0}),
    "numbers_without_names": _call(params=8),
    "no_such_number": _call(params={"BLOCK_N": 64}),
    "workspace_of_another_kind": _call(workspace=7),
    "workspace_of_floats": _call(workspace=torch.zeros(BYTES)),
    "workspace_elsewhere": _call(workspace=MEMORY.to("meta")),
    "workspace_too_small": _call(workspace=MEMORY[:-1]),
    "workspace_off_its_alignment": _call(workspace=torch.zeros(BYTES + 1, dtype=torch.uint8)[1:]),
    "workspace_on_an_argument": lambda: kernel()(X, workspace=X.view(-1).view(torch.uint8)),
    "bytes_of_an_unknown_size": _bytes(rows=3),
    "bytes_of_no_size": _bytes(r=0, n=1),
    "bytes_without_a_size": _bytes(r=3),
}
for _name, _act in CALLS.items():
    case(ShapeError, _name)(_act)


@case(ScheduleError)
def compile_for_no_parts():
    neptune.compile(log_sum_exp(), "flash_decoding", target="llvm", params={"NUM_SPLITS": 0})


@case(FusionError)
def a_place_that_needs_no_reduction():
    x = matrix("x")
    top = per_row(lambda i, j: x[i, j], "top", te.max)
    a = reduce_axis((0, N), "a")
    best = compute((R,), lambda i: te.argmax(exp(x[i, a] - top[i]), axis=a), "best")
    sch = Schedule(build([best[1]], name="place"))
    sch.split_k(sch.loops("top")[1], "NUM_SPLITS")
