"""replicate: requests that are refused."""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from tests.errors.table import case
from tests.examples.schedule_examples import matmul, row_sums

M, N, K = var("m"), var("n"), var("k")


def scaled() -> Schedule:
    """t = Σ x over columns, r = 2 t, y[i, j] = r[i] w[j]."""
    x, w = placeholder((M, K), name="x"), placeholder((N,), name="w")
    k = reduce_axis((0, K), "k")
    t = compute((M,), lambda i: sum(x[i, k], axis=k), "t")
    r = compute((M,), lambda i: t[i] * 2.0, "r")
    return Schedule(build(compute((M, N), lambda i, j: r[i] * w[j], "y")))


@case(ScheduleError)
def replicate_for_lanes_of_a_tile():
    sch = scaled()
    sch.replicate("r", sch.split(sch.loop("y", "j"), 4)[1])


@case(ScheduleError)
def replicate_a_result():
    sch = scaled()
    sch.replicate("y", sch.loop("y", "j"))


@case(ScheduleError)
def replicate_what_is_fused():
    sch = Schedule(row_sums())
    sch.fuse_at("r", sch.loops("e")[0])
    sch.replicate("r", sch.loop("y", "j"))


@case(ScheduleError)
def replicate_what_runs_over_the_axis():
    sch = Schedule(matmul())
    sch.replicate("c", sch.loop("d", "j"))


@case(ScheduleError)
def replicate_what_a_range_reads():
    start, x = placeholder((M + 1,), "int32", "start"), placeholder((K, N), name="x")
    twice = compute((M + 1,), lambda i: start[i] * 2, "twice")

    def row(i: Expr, j: Expr) -> Expr:
        k = reduce_axis((twice[i], twice[i + 1]), "k")
        return sum(x[k, j], axis=k)

    sch = Schedule(build(compute((M, N), row, "y")))
    sch.replicate("twice", sch.loop("y", "j"))


@case(ScheduleError)
def replicate_in_pieces():
    sch = scaled()
    sch.inline("r")
    outer, _ = sch.split(sch.loop("y", "j"), 4)
    sch.partition(outer)
    sch.replicate("t", sch.loops("y")[1])


@case(ScheduleError)
def replicate_for_a_reader_without_the_axis():
    sch = scaled()
    sch.replicate("t", sch.loop("y", "j"))
