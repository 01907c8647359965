"""crosswise: folds of loaded rows in the form that every Triton compiles, and compiles right."""

from __future__ import annotations

import pytest

import neptune
from neptune import Program, Schedule
from neptune.frontend import builder as te
from neptune.tile.ir import Assign, Local, Loop, Reduce, TExpr, TileProgram
from neptune.tile.passes.crosswise import crosswise
from tests.examples.kernels import TILE, apply, fold, full, keeps_meaning, kernel, load, loop, map_, nodes, put, row

X = Assign("x", load())
LOADED = Local("x", TILE, "float32")


def added(value: TExpr) -> Assign:
    return Assign("s", map_("add", row("s"), value))


def axes(program: TileProgram) -> list[tuple[str, ...]]:
    """The dimensions of what is folded, in order."""
    return [n.arg.dims for n in nodes(program) if isinstance(n, Reduce)]


@pytest.mark.parametrize("value", [LOADED, map_("mul", LOADED, full(1.0, ()))], ids=["loaded", "times_one"])
def test_a_running_fold_of_loaded_rows_is_turned(value: TExpr) -> None:
    before = kernel(Assign("s", full(0.0)), loop(X, added(fold("sum", value))), put(row("s")))
    assert axes(keeps_meaning(crosswise, before)) == [("c", "r")]


def test_what_else_is_folded_stays() -> None:
    """What is computed, what the loop reads anew, and what no loop runs over: Triton leaves these alone."""
    squares = kernel(Assign("s", full(0.0)), loop(X, added(fold("sum", map_("mul", LOADED, LOADED)))), put(row("s")))
    read = Assign("t", map_("add", row("t"), row("s")))
    reread = kernel(
        Assign("s", full(0.0)), Assign("t", full(0.0)), loop(X, added(fold("sum", LOADED)), read), put(row("t"))
    )
    once = kernel(X, Assign("s", fold("sum", LOADED)), put(row("s")))
    for before in (squares, reread, once):
        assert apply(crosswise, before) == before


def test_a_loop_that_reads_the_old_sum_is_turned() -> None:
    """The sum before this tile: Triton 3.6 would give zero for it."""
    old = Assign("t", map_("add", row("t"), row("s")))
    before = kernel(
        Assign("s", full(0.0)), Assign("t", full(0.0)), loop(X, old, added(fold("sum", LOADED))), put(row("t"))
    )
    after = keeps_meaning(crosswise, before)
    assert axes(after) == [("c", "r")] and any(isinstance(s, Loop) for s in after.kernels[0].body)


def folded(reducer: str, results: int) -> Program:
    rows, cols = te.var("rows"), te.var("cols")
    x = te.placeholder((rows, cols), "float32", "x")
    j = te.reduce_axis((0, cols), "j")
    s = te.compute((rows,), lambda i: getattr(te, reducer)(x[i, j], axis=j), "s")
    more = [te.compute((rows,), lambda i: s[i] * s[i], "squared")] if results == 2 else []
    return te.build([s, *more], inputs=[x], name="rows")


def partitioned(sch: Schedule) -> None:
    i, j = sch.loops("s")
    i0, j0, *_ = sch.tile([i, j], [16, 128])
    sch.bind(i0, "grid.x")
    if "squared" in sch.stages:
        sch.fuse_at("squared", i0)
    sch.partition(j0)


@pytest.mark.parametrize("reducer", ["sum", "max"])
@pytest.mark.parametrize("results", [1, 2])
def test_a_partitioned_row_compiles(reducer: str, results: int) -> None:
    made = neptune.compile(folded(reducer, results), partitioned, target="interpret")
    assert "tl.trans(x), axis=0)" in made.source
    for target in ("cuda:80", "hip:gfx942"):
        assert [r.spill_bytes for r in made.resources(target)] == [0]
