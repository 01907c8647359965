"""Nearest incomplete reductions and the maps on the way to them."""

from neptune.frontend import builder as te
from neptune.frontend.builder import build, exp
from neptune.fusion.rewriting.frontier import Frontier, changing_loops, frontier, sees_the_same
from neptune.fusion.schedule import Schedule
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.alignment import nest_of
from neptune.schedule.state import Loop, State, initial
from tests.examples.chains import matrix, per_row


def at(state: State, target: str, stage: str, var: str) -> Frontier:
    return frontier(state, target, nest_of(state, Loop(stage, var)))


def test_softmax() -> None:
    state = initial(softmax())
    assert at(state, "l", "m", "j") == Frontier(("m",), ("e",))
    # Outside of the reduction loop everything is complete.
    assert at(state, "l", "m", "i") == Frontier((), ())
    # l has a loop of its own: what it sums is complete.
    assert at(state, "y", "m", "j") == Frontier(("m",), ("e",))


def test_the_nearest_reduction_stops_the_search() -> None:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    l = per_row(lambda i, j: exp(x[i, j] - m[i]), name="l")  # noqa: E741
    sch = Schedule(build(per_row(lambda i, j: x[i, j] / l[i]), name="p"))
    sch.rolling_update("l", sch.loops("m")[1])
    assert at(sch._state, "t", "m", "j") == Frontier(("l",), ())


def test_standing_in_a_deeper_loop_is_not_the_same() -> None:
    sch = Schedule(figure1())
    j = sch.loops("xmax")[1]
    sch.split(j, 4)
    _, j0, j1 = sch.loops("xmax")
    sch.rolling_update("xsum", j1)
    state = sch._state
    outer, inner = (nest_of(state, f) for f in (j0, j1))
    assert [f.var for f in changing_loops(state, "xmax", inner)] == ["j0", "j1"]
    assert sees_the_same(state, "xmax_prev", inner, ("xmax",))
    assert not sees_the_same(state, "xmax_prev", outer, ("xmax",))
