"""The relation between axes: over definitions, and over loops as they are."""

from __future__ import annotations

from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ops.attention import prefill_global
from neptune.ops.softmax import softmax
from neptune.schedule.alignment import Axes, align, fused_loops, nest_of
from neptune.schedule.state import Loop, State
from tests.examples.schedule_examples import check_same, gram, maps, matmul, row_sums


def axes_of(sch: Schedule) -> Axes:
    return Axes({s: sch.definition(s) for s in sch.stages})


def state_of(sch: Schedule) -> State:
    return sch._state


def test_axes_meet_through_results() -> None:
    axes = axes_of(Schedule(softmax()))
    for stage in ("m", "e", "l", "y"):
        assert axes.of(stage, ("m", "i")) == "i"
    # e is computed from x; only l and y read e, and m reads x.
    assert axes.same(("e", "j"), ("l", "j")) and axes.same(("e", "j"), ("y", "j"))
    assert not axes.same(("m", "j"), ("e", "j"))
    axes.join_through_inputs()
    assert axes.same(("m", "j"), ("e", "j")) and not axes.same(("m", "j"), ("m", "i"))


def test_a_product_keeps_its_axes_apart() -> None:
    axes = axes_of(Schedule(prefill_global(depth=64)))
    assert axes.same(("acc", "j"), ("p", "j")) and axes.same(("acc", "e"), ("o", "e"))
    assert not axes.same(("acc", "e"), ("s", "d")) and not axes.same(("s", "i"), ("s", "j"))


def test_one_axis_of_a_host_runs_along_once() -> None:
    sch = Schedule(gram())
    state = state_of(sch)
    nest = nest_of(state, Loop("s", "i"))
    # g reads s[i, p] and s[j, p]: both rows are rows of s, and only one of them can share its loop.
    found = align(state, state.definitions["g"], nest)
    assert [a for a, to in found.items() if to == ("s", "i")] == ["i"]


def test_quotient_and_remainder_of_a_fused_loop() -> None:
    sch = Schedule(maps())
    both = sch.fuse(*sch.loops("t"))
    state = state_of(sch)
    assert fused_loops(state.axes["t"]["i"]) == {both.var}
    found = align(state, state.definitions["u"], nest_of(state, both))
    assert found == {"i": ("t", "i"), "j": ("t", "j")}
    sch = Schedule(row_sums())
    both = sch.fuse(*sch.loops("e"))
    state = state_of(sch)
    assert set(align(state, state.definitions["r"], nest_of(state, both)).values()) == {("e", "i"), ("e", "j")}


def test_a_fused_loop_below_the_nest_is_not_copied() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    i0, _, i1, j1 = sch.tile([i, j], [2, 4])
    sch.fuse(i1, j1)
    state = state_of(sch)
    assert align(state, state.definitions["d"], nest_of(state, i0)) == {}


def test_what_meets_nothing_of_a_nest_goes_by_what_follows() -> None:
    """Two products without a common operand are rows and columns of what adds them."""
    m, n = var("m"), var("n")
    p = reduce_axis((0, 8), "p")

    def product(name: str) -> Tensor:
        a, b = placeholder((m, 8), name=f"{name}a"), placeholder((n, 8), name=f"{name}b")
        return compute((m, n), lambda i, j: sum(a[i, p] * b[j, p], axis=p), name)

    s, t = product("s"), product("t")
    before = build(compute((m, n), lambda i, j: s[i, j] + t[i, j], "u"))
    sch = Schedule(before)
    state = state_of(sch)
    found = align(state, state.definitions["t"], nest_of(state, Loop("s", "j")))
    assert found == {"i": ("s", "i"), "j": ("s", "j")}
    i0, j0, *_ = sch.tile(sch.loops("s")[:2], [4, 2])
    sch.fuse_at("t", j0)
    sch.fuse_at("u", j0)
    assert [x.var for x in sch.loops("t")][:2] == [x.var for x in (i0, j0)]
    check_same(before, sch.program)


def test_of_two_axes_in_one_class_the_nearest_are_each_others() -> None:
    """Queries and keys are made of the rows of one matrix: i and j of the scores are one axis, from afar."""
    m = var("m")
    x, rows = placeholder((m, 8), name="x"), reduce_axis((0, 8), "p")
    j = reduce_axis((0, m), "j")
    a = compute((m, 8), lambda i, d: x[i, d] * 2.0, "a")
    q, k, v = (compute((m, 8), lambda i, d, s=s: a[i, d] * s, n) for s, n in ((3.0, "q"), (4.0, "k"), (5.0, "v")))
    s = compute((m, m), lambda i, j: sum(q[i, rows] * k[j, rows], axis=rows), "s")
    o = compute((m, 8), lambda i, d: sum(s[i, j] * v[j, d], axis=j), "o")
    axes = axes_of(Schedule(build(o, inputs=[x])))
    assert axes.same(("o", "i"), ("o", "j"))
    assert axes.of("v", ("o", "j")) == "i" and axes.of("v", ("o", "i")) is None
    assert axes.of("q", ("s", "i")) == "i" and axes.of("k", ("s", "j")) == "i"
    assert axes.of("s", ("o", "i")) == "i" and axes.of("s", ("o", "j")) == "j"
    assert axes.of("o", ("v", "i")) == "j" and axes.of("o", ("q", "i")) == "i"


def test_what_a_loop_carries_is_whole_though_a_product_reads_its_matrix_in_blocks() -> None:
    """Of s = x·xᵀ and o = s·x, columns of o are depth of s: its blocks are no blocks of the sum that keys carry."""
    m = var("m")
    x, p, j = placeholder((m, 8), name="x"), reduce_axis((0, 8), "p"), reduce_axis((0, m), "j")
    s = compute((m, m), lambda i, k: sum(x[i, p] * x[k, p], axis=p), "s")
    before = build(compute((m, 8), lambda i, c: sum(s[i, j] * x[j, c], axis=j), "o"))
    sch = Schedule(before)
    _, j0, *_ = sch.tile(sch.loops("s"), [4, 2, 2])
    state = state_of(sch)
    assert align(state, state.definitions["o"], nest_of(state, j0)) == {"i": ("s", "i"), "j": ("s", "k")}
    sch.fuse_at("o", j0)
    assert [f.var for f in sch.loops("o")] == ["i0", "k0", "i1", "c", "k1"]
    check_same(before, sch.program)
