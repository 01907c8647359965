"""privatize: a local accumulator per iteration, folded into the whole one."""

from __future__ import annotations

import pytest

from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, max, min, placeholder, prod, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, stages
from tests.examples.schedule_examples import Frozen, check_same, matmul, row_max, row_sums

M, N = var("m"), var("n")


def reduction(reducer: str, init: float | None = None) -> Program:
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    fold = {"sum": sum, "prod": prod, "max": max, "min": min}[reducer]
    return build(compute((M,), lambda i: fold(x[i, j], axis=j, init=init), "y"), name="reduction")


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("factor", [1, 3, 16])
def test_every_reducer(reducer: str, factor: int) -> None:
    sch = Schedule(reduction(reducer))
    j0, _ = sch.split(sch.loops("y")[1], factor)
    sch.privatize("y", j0)
    assert [s.name for s in stages(sch.program.body)] == ["y_local", "y"]
    check_same(reduction(reducer), sch.program)


def test_rows_inside_and_around() -> None:
    for outside in (False, True):
        sch = Schedule(matmul())
        i, j, k = sch.loops("c")
        k0, k1 = sch.split(k, sch.param("BK", [2]))
        sch.reorder(*((k0, i, k1) if outside else (i, k0, j, k1)))
        sch.privatize("c", k0)
        check_same(matmul(), sch.program)


def test_two_folds_inside() -> None:
    sch = Schedule(row_sums())
    j0, j1 = sch.split(sch.loops("r")[1], 6)
    sch.split(j1, 2)
    sch.privatize("r", j0)
    check_same(row_sums(), sch.program)


def test_beside_other_stages() -> None:
    sch = Schedule(row_sums())
    j0, _ = sch.split(sch.loops("e")[1], 2)
    sch.fuse_at("r", j0)
    sch.privatize("r", j0)
    check_same(row_sums(), sch.program)


def test_a_shifted_loop() -> None:
    sch = Schedule(row_max())
    j0, _ = sch.split(sch.loops("y")[1], 2)
    sch.privatize("y", j0)
    check_same(row_max(), sch.program)


def test_names_that_are_taken() -> None:
    x = placeholder((M, N), name="y_p")
    j = reduce_axis((0, N), "j")
    p = build(compute((M,), lambda i: sum(x[i, j], axis=j), "y"), name="taken")
    sch = Schedule(p)
    j0, _ = sch.split(sch.loops("y")[1], 2)
    sch.privatize("y", j0)
    check_same(p, sch.program)


def test_pieces_are_refused() -> None:
    sch = Schedule(row_sums())
    j0, _ = sch.split(sch.loops("r")[1], 2)
    sch.partition(j0)
    with pytest.raises(ScheduleError, match="in pieces"), Frozen(sch):
        sch.privatize("r", j0)
