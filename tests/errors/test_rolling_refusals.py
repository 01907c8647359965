"""What rolling_update refuses: the reason, on one screen, and a schedule that is as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.errors import FusionError, InternalError, ScheduleError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, tanh, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.ops.softmax import figure1, softmax
from tests.chains import attention, cells, matrix, per_row

Value = Callable[[Expr, Expr], Expr]
Fold = Callable[..., te.Reduction]


def refused(sch: Schedule, target: str, stage: str, loop: int = 1) -> str:
    """The message; nothing may have changed."""
    before = (sch.program, sch.trace, sch.decisions, sch._state)
    with pytest.raises(FusionError) as info:
        sch.rolling_update(target, sch.loops(stage)[loop])
    assert before == (sch.program, sch.trace, sch.decisions, sch._state)
    message = str(info.value)
    assert len(message.splitlines()) <= 20 and max(map(len, message.splitlines())) < 200
    return message


def over(value: Value, fold: Fold = te.sum, of: str = "max") -> Program:
    """t[i] = fold over j of value(x[i, j], m[i]), m being the max, the sum or the largest |·| of x."""
    x = matrix("x")
    folds: dict[str, Fold] = {"max": te.max, "sum": te.sum, "abs": _abs_max}
    m = per_row(lambda i, j: x[i, j], "m", folds[of])
    return build(per_row(lambda i, j: value(x[i, j], m[i]), fold=fold), name="p")


def _abs_max(e: Expr, axis: te.Axis) -> te.Reduction:
    return te.max(te.abs(e), axis=axis)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (over(lambda c, r: tanh(c - r)), "tanh mixes r and c"),
        (over(lambda c, r: (c - r / 8.0) * (c - r / 8.0), of="sum"), "r is added to what is folded"),
        (over(lambda c, r: te.abs(c - r), of="sum"), "abs of a sum that mixes r and c"),
        (over(lambda c, r: (c / r * 127.0).astype("int8").astype("float32"), of="abs"), "rounds in absolute steps"),
        (over(lambda c, r: exp(c - r).astype("int32").astype("float32")), "rounds in absolute steps"),
        (over(lambda c, r: c * r, te.max), "the sign of r is unknown"),
        (over(lambda c, r: exp(c - r), of="sum"), "m is a sum: exp of it may overflow"),
        (over(lambda c, r: exp(c * 2.0 - r)), "what m folds in does not bound it"),
        (over(lambda c, r: c * r, te.prod), "is not known to be positive"),
    ],
)
def test_no_repair(program: Program, reason: str) -> None:
    message = refused(Schedule(program), "t", "m")
    assert reason in message
    assert "`t` reads `m`" in message and "g = " in message and "legal here: " in message


def test_an_open_obligation_cannot_be_lowered() -> None:
    sch = Schedule(figure1())
    j = sch.loops("xmax")[1]
    sch.fuse_at("xexp", j)
    sch.fuse_at("xsum", j)
    with pytest.raises(InternalError, match="stage xsum still owes a repair for xmax, which loop j changes"):
        verify(sch.program, lowered=True)


def test_what_is_asked_for() -> None:
    sch = Schedule(softmax())
    assert "`e` is a map, not a reduction" in refused(sch, "e", "m")
    assert "`m` is inside `j` already" in refused(sch, "m", "m")
    with pytest.raises(ScheduleError, match="unknown stage `nothing`"):
        sch.rolling_update("nothing", sch.loops("m")[1])
    sch.rolling_update("l", sch.loops("m")[1])
    with pytest.raises(ScheduleError, match="it is a helper of another stage"):
        sch.rolling_update("m_prev", sch.loops("m")[0])


def test_starts() -> None:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    five = per_row(lambda i, j: exp(x[i, j] - m[i]), fold=lambda e, axis: te.sum(e, axis=axis, init=5.0))
    assert "`t` starts from 5.0" in refused(Schedule(build(five, name="p")), "t", "m")
    low = per_row(lambda i, j: x[i, j], "m", lambda e, axis: te.max(e, axis=axis, init=float("inf")))
    t = per_row(lambda i, j: exp(x[i, j] - low[i]))
    assert "`m` starts from inf" in refused(Schedule(build(t, name="p")), "t", "m")


def grouped(fold_rows: bool) -> Program:
    """m = max over k and j of x[i, k, j]; t keeps k, or folds it too and reads a map u of x."""
    shape = (var("r"), var("g"), var("n"))
    x = placeholder(shape, "float32", "x")
    k, j = reduce_axis((0, var("g")), "k"), reduce_axis((0, var("n")), "j")
    m = compute((var("r"),), lambda i: te.max(x[i, k, j], axis=[k, j]), "m")
    u = compute(shape, lambda i, k, j: x[i, k, j] * 2.0, "u")
    if fold_rows:
        t = compute((var("r"),), lambda i: te.sum(exp(x[i, k, j] - m[i]) * u[i, k, j], axis=[k, j]), "t")
    else:
        t = compute((var("r"), var("g")), lambda i, k: te.sum(exp(x[i, k, j] - m[i]), axis=j), "t")
    return build(t, name="grouped")


@pytest.mark.parametrize("loop", [1, 2])
def test_elements_of_earlier_iterations_would_not_be_repaired(loop: int) -> None:
    assert "`t` keeps an element for each of its iterations" in refused(Schedule(grouped(False)), "t", "m", loop)


def test_the_predecessor_is_not_updated_in_that_loop() -> None:
    sch = Schedule(grouped(True))
    sch.fuse_at("u", sch.loops("m")[1])
    message = refused(sch, "t", "u", 2)
    assert "`m`, which it has to follow, is not inside `j`" in message and "legal here: k" in message


def test_a_deferred_read_of_another_row() -> None:
    x = matrix("x")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    program = build(per_row(lambda i, j: x[i, j] / l[var("r") - 1 - i]), name="p")
    assert "l[r - 1 - i]" in refused(Schedule(program), "t", "l")


def test_a_reduction_of_its_own_between() -> None:
    x, q = matrix("x"), placeholder((3,), "float32", "q")
    d = reduce_axis((0, 3), "d")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    e = cells(lambda i, j: exp(x[i, j] - m[i]), "e")
    c = compute((var("r"), var("n")), lambda i, j: te.sum(e[i, j] * q[d], axis=d), "c")
    sch = Schedule(build(per_row(lambda i, j: c[i, j]), name="p"))
    loop = sch.loops("m")[1]
    sch.fuse_at("e", loop)
    sch.fuse_at("c", loop)
    assert "a reduction of its own inside `j` makes of `m`" in refused(sch, "t", "m")


def test_an_accumulator_that_is_itself_repaired_may_move_both_ways() -> None:
    x, w = matrix("x"), matrix("w")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    top = per_row(lambda i, j: exp(x[i, j] - m[i]) * te.abs(w[i, j]), name="top", fold=te.max)
    sch = Schedule(build(per_row(lambda i, j: exp(te.abs(w[i, j]) - top[i])), name="p"))
    sch.rolling_update("top", sch.loops("m")[1])
    assert "top is itself repaired in this loop" in refused(sch, "t", "m")


def test_a_stage_that_shares_no_axis_with_the_loop() -> None:
    x, w = matrix("x"), matrix("w")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    program = build(per_row(lambda i, j: w[i, j] / l[i]), name="p")
    assert "does not run over loop `j`" in refused(Schedule(program), "t", "l")


def test_the_loop_of_another_operator() -> None:
    sch = Schedule(attention("p"))
    # The loop over the depth of the dot is none that o runs over.
    assert "does not run over loop `d`" in refused(sch, "o", "s", 2)


def test_after_a_partition_elsewhere_the_inits_stand_on_their_own() -> None:
    x, w = matrix("x"), matrix("w")
    a = per_row(lambda i, j: w[i, j], name="a")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    sch = Schedule(build([a, per_row(lambda i, j: exp(x[i, j] - m[i]))], name="p"))
    j0, _ = sch.split(sch.loops("a")[1], 4)
    sch.partition(j0)
    assert "`t_init` works on the result of `t` where it is now" in refused(sch, "t", "m")
