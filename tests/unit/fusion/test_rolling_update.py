"""rolling_update: the texts of what it makes, and that this says what the original said."""

import pytest

from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, exp, log, placeholder, reduce_axis, rsqrt, select, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Expr
from neptune.ir.program import Program, stages
from neptune.ops.softmax import figure1, softmax
from tests.examples.chains import attention, cells, check_same, matrix, per_row, tiled
from tests.goldens import check_golden

ODD = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8})
WIDE = tuple({**s, "c": 3} for s in ODD)
HEAD = ({"s_q": 5, "s_kv": 11}, {"s_q": 1, "s_kv": 1}, {"s_q": 4, "s_kv": 8}, {"s_q": 7, "s_kv": 3})
FIGURE = ({"m": 2, "n": 4}, {"m": 3, "n": 7}, {"m": 1, "n": 1})


def names(sch: Schedule) -> list[str]:
    return [s.name for s in stages(sch.program.body)]


# --- Figure 1 --------------------------------------------------------------------------------------


def test_figure_1_stage_by_stage() -> None:
    sch = Schedule(figure1())
    parts = [("original", sch.program)]
    j = sch.loops("xmax")[1]
    sch.fuse_at("xexp", j)
    sch.fuse_at("xsum", j)
    parts.append(("naive fusion (wrong, and said to be)", sch.program))
    sch = Schedule(figure1())
    sch.rolling_update("xsum", sch.loops("xmax")[1])
    parts += [("repaired", sch.program), ("decomposed", decompose(sch.program))]
    (decision,) = sch.decisions
    assert decision.details[:4] == ("g = exp(c - r)", "h = t*exp(r - r')", "c = inp[i, j]", "r = xmax[i]")
    check_same(figure1(), sch, *FIGURE)
    check_golden("figure1.txt", "\n".join(f"# {title}\n{program}" for title, program in parts))


def test_figure_11_privatized() -> None:
    sch = Schedule(figure1())
    _, j = sch.loops("xmax")
    j0, _ = sch.split(j, 2)
    sch.rolling_update("xsum", j0)
    sch.privatize("xmax", j0)
    sch.privatize("xsum", j0)
    check_same(figure1(), sch, *FIGURE)


# --- attention -------------------------------------------------------------------------------------


def flash(program: Program, target: str) -> Schedule:
    sch, i0, j0 = tiled(program, "s")
    sch.fuse_at("score", j0)
    sch.fuse_at("m", j0)
    sch.rolling_update("l", j0)
    sch.rolling_update(target, j0)
    if target != "o":
        sch.fuse_at("o", i0)
    return sch


@pytest.mark.parametrize("form", ["p", "acc"])
@pytest.mark.parametrize(("causal", "cap"), [(False, None), (True, None), (True, 5.0)])
def test_attention(form: str, causal: bool, cap: float | None) -> None:
    program = attention(form, causal, cap)
    sch = flash(program, "o" if form == "p" else "acc")
    # Without a key a row is 0/0 in the textbook form.
    sizes = [s for s in HEAD if s["s_q"] <= s["s_kv"] or not causal or form == "acc"]
    check_same(program, sch, *sizes)
    assert names(sch).count("m_prev") == names(sch).count("m_rescale") == names(sch).count("e") == 1
    sch.partition(sch.loops("m")[1])
    check_same(program, sch, *sizes)


def test_sigmoid_attention_has_nothing_to_repair() -> None:
    program = attention("sigmoid")
    sch, _, j0 = tiled(program, "s")
    sch.fuse_at("score", j0)
    sch.fuse_at("g", j0)
    sch.rolling_update("o", j0)
    assert sch.decisions[-1].verdict == "fused"
    assert not [n for n in names(sch) if n.endswith(("_prev", "_repair"))]
    check_same(program, sch, *HEAD)


# --- other chains ----------------------------------------------------------------------------------


def test_softmax_duplicates_what_the_second_loop_reads() -> None:
    sch, i0, j0 = tiled(softmax(), "m")
    sch.rolling_update("l", j0)
    assert {"e", "e_in_j0"} <= set(names(sch))
    sizes = [{"rows": s["r"], "cols": s["n"]} for s in ODD]
    check_same(softmax(), sch, *sizes)
    sch.fuse_at("e", i0)
    sch.fuse_at("y", i0)
    check_same(softmax(), sch, *sizes)


def test_a_chain_of_maps_that_something_outside_reads() -> None:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    d = cells(lambda i, j: x[i, j] - m[i], "d")
    e = cells(lambda i, j: exp(d[i, j]), "e")
    l = per_row(lambda i, j: e[i, j], name="l")  # noqa: E741
    program = build([cells(lambda i, j: e[i, j] / l[i], "y"), e], name="p")
    sch = Schedule(program)
    sch.rolling_update("l", sch.loops("m")[1])
    # The e that stays reads d outside: d must stay too.
    assert {"d", "e", "d_in_j", "e_in_j"} <= set(names(sch))
    check_same(program, sch, *ODD)


def rms_norm(with_maps: bool) -> Program:
    x, g, w = matrix("x"), placeholder((var("n"),), "float32", "g"), matrix("w", "n", "c")
    ss = per_row(lambda i, j: x[i, j] * x[i, j], name="ss")
    k, count = reduce_axis((0, var("n")), "k"), var("n").astype("float32")
    if with_maps:
        inv = compute((var("r"),), lambda i: rsqrt(ss[i] / count + 1e-5), "inv")
        h = cells(lambda i, j: x[i, j] * inv[i] * g[j], "h")
        y = compute((var("r"), var("c")), lambda i, o: te.sum(h[i, k] * w[k, o], axis=k), "y")
    else:
        y = compute(
            (var("r"), var("c")),
            lambda i, o: te.sum(x[i, k] * g[k] * w[k, o] * rsqrt(ss[i] / count + 1e-5), axis=k),
            "y",
        )
    return build(y, name="rms_norm")


@pytest.mark.parametrize("with_maps", [False, True])
def test_rms_norm_and_linear_is_one_pass(with_maps: bool) -> None:
    program = rms_norm(with_maps)
    sch, _, k0 = tiled(program, "ss")
    sch.rolling_update("y", k0)
    assert sch.decisions[-1].verdict == "deferred"
    assert "inv" not in names(sch) and "y_final" in names(sch)
    check_same(program, sch, *WIDE)


def chain_of_three() -> Program:
    x, w = matrix("x"), matrix("w")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    l = per_row(lambda i, j: exp(x[i, j] - m[i]), name="l")  # noqa: E741
    z = per_row(lambda i, j: exp(x[i, j] - m[i]) / l[i] * w[i, j], name="z")
    lse = compute((var("r"),), lambda i: m[i] + log(l[i]), "lse")
    return build([z, lse], name="three")


def test_a_chain_of_three_with_logsumexp() -> None:
    sch, i0, j0 = tiled(chain_of_three(), "m")
    sch.rolling_update("l", j0)
    sch.rolling_update("z", j0)
    sch.fuse_at("lse", i0)
    check_same(chain_of_three(), sch, *ODD)
    sch.partition(j0)
    check_same(chain_of_three(), sch, *ODD)


def test_a_reader_of_a_deferred_result() -> None:
    x, w = matrix("x"), matrix("w")
    ss = per_row(lambda i, j: x[i, j] * x[i, j], name="ss")
    o = per_row(lambda i, j: x[i, j] / ss[i], name="o")
    program = build([o, per_row(lambda i, j: x[i, j] * w[i, j] * o[i], name="z")], name="p")
    sch = Schedule(program)
    j = sch.loops("ss")[1]
    sch.rolling_update("o", j)
    sch.rolling_update("z", j)
    check_same(program, sch, *ODD)


@pytest.mark.parametrize("swapped", [False, True])
def test_equal_repairs_share_one_factor(swapped: bool) -> None:
    h, r, n = var("h"), var("r"), var("n")
    x, w = (placeholder((h, r, n), "float32", name) for name in "xw")
    j = reduce_axis((0, n), "j")
    m = compute((h, r), lambda a, i: te.max(x[a, i, j], axis=j), "m")
    l = compute((h, r), lambda a, i: te.sum(exp(x[a, i, j] - m[a, i]), axis=j), "l")  # noqa: E741
    if swapped:
        z = compute((r, h), lambda i, a: te.sum(exp(x[a, i, j] - m[a, i]) * w[a, i, j], axis=j), "z")
    else:
        z = compute((h, r), lambda a, i: te.sum(exp(x[a, i, j] - m[a, i]) * w[a, i, j], axis=j), "z")
    program = build([l, z], name="shared")
    sch = Schedule(program)
    loop = sch.loops("m")[2]
    sch.rolling_update("l", loop)
    sch.rolling_update("z", loop)
    assert names(sch).count("m_rescale") == names(sch).count("m_prev") == 1
    check_same(program, sch, {"h": 3, "r": 2, "n": 7})


def test_a_max_of_a_shift_where_everything_is_masked() -> None:
    x = matrix("x")
    t = cells(lambda i, j: select(i > 0, x[i, j], float("-inf")), "t")
    m = per_row(lambda i, j: t[i, j], name="m", fold=te.max)
    program = build(per_row(lambda i, j: t[i, j] - m[i], name="z", fold=te.max), name="p")
    sch = Schedule(program)
    j = sch.loops("t")[1]
    sch.fuse_at("m", j)
    sch.rolling_update("z", j)
    check_same(program, sch, *ODD)


def test_a_map_that_is_read_elsewhere_than_along_its_axes_is_written_out() -> None:
    x = matrix("x")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    p = cells(lambda i, j: x[i, j] / l[i], "p")
    program = build(per_row(lambda i, j: p[i, var("n") - 1 - j] * x[i, j], name="z"), name="reversed")
    sch = Schedule(program)
    sch.rolling_update("z", sch.loops("l")[1])
    assert "p" not in names(sch)
    check_same(program, sch, *ODD)


def test_a_loop_that_may_be_empty_guards_what_was_deferred() -> None:
    x, count = matrix("x"), var("count")
    j = reduce_axis((0, count), "j")
    l = compute((var("r"),), lambda i: te.sum(exp(x[i, j]), axis=j), "l")  # noqa: E741
    program = build(compute((var("r"),), lambda i: te.sum(x[i, j] / l[i], axis=j), "z"), name="p")
    sch = Schedule(program)
    sch.rolling_update("z", sch.loops("l")[1])
    check_same(program, sch, {"r": 3, "n": 5, "count": 0}, {"r": 3, "n": 5, "count": 4})


# --- several reduction loops -----------------------------------------------------------------------


def two_axes(with_map: bool = False) -> Program:
    shape = (var("r"), var("g"), var("n"))
    x, w = (placeholder(shape, "float32", name) for name in "xw")
    k, j = reduce_axis((0, var("g")), "k"), reduce_axis((0, var("n")), "j")
    m = compute((var("r"),), lambda i: te.max(x[i, k, j], axis=[k, j]), "m")
    e = compute(shape, lambda i, k, j: exp(x[i, k, j] - m[i]), "e")

    def weight(i: Expr) -> Expr:
        return e[i, k, j] if with_map else exp(x[i, k, j] - m[i])

    l = compute((var("r"),), lambda i: te.sum(weight(i), axis=[k, j]), "l")  # noqa: E741
    z = compute((var("r"),), lambda i: te.sum(weight(i) * w[i, k, j], axis=[k, j]), "z")
    return build([l, z], name="two_axes")


@pytest.mark.parametrize("with_map", [False, True])
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_under_either_of_two_reduction_loops(with_map: bool, first: int, second: int) -> None:
    program = two_axes(with_map)
    sch = Schedule(program)
    sch.rolling_update("l", sch.loops("m")[first])
    sch.rolling_update("z", sch.loops("m")[second])
    # What was saved or computed in one loop is of no use in the other.
    assert names(sch).count("m_prev") + names(sch).count("m_prev_1") == (1 if first == second else 2)
    check_same(program, sch, {"r": 3, "g": 4, "n": 5}, {"r": 1, "g": 1, "n": 1})


def test_the_previous_value_is_kept_per_iteration_of_the_fused_loop() -> None:
    shape = (var("r"), var("g"), var("n"))
    x = placeholder(shape, "float32", "x")
    k, j = reduce_axis((0, var("g")), "k"), reduce_axis((0, var("n")), "j")
    t = compute(shape, lambda i, k, j: x[i, k, j] * 2.0, "t")
    m = compute((var("r"),), lambda i: te.max(t[i, k, j], axis=[k, j]), "m")
    program = build(compute((var("r"),), lambda i: te.sum(exp(t[i, k, j] - m[i]), axis=[k, j]), "l"), name="p")
    sch = Schedule(program)
    _, outer, inner = sch.loops("t")
    sch.fuse_at("m", inner)
    sch.rolling_update("l", outer)
    check_same(program, sch, {"r": 3, "g": 4, "n": 5})


# --- obligations -----------------------------------------------------------------------------------


def owed(sch: Schedule) -> set[tuple[str, str]]:
    return {(o.stage, o.on) for o in sch.program.owes}


def test_a_reader_in_a_loop_of_the_same_name_keeps_the_obligation() -> None:
    sch = Schedule(softmax())
    j = sch.loops("m")[1]
    sch.fuse_at("e", j)
    sch.rolling_update("l", j)
    # y reads e in its own loop j, where e holds values of an m that was not final.
    assert owed(sch) == {("e", "m")}


def test_a_reader_inside_the_loop_of_what_was_repaired_owes() -> None:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    l = per_row(lambda i, j: exp(x[i, j] - m[i]), name="l")  # noqa: E741
    sch = Schedule(build(cells(lambda i, j: x[i, j] / l[i], "y"), name="p"))
    j = sch.loops("m")[1]
    sch.rolling_update("l", j)
    sch.fuse_at("y", j)
    assert owed(sch) == {("y", "l")}


def test_naive_fusion_beside_a_repaired_stage_owes() -> None:
    sch = Schedule(two_axes(with_map=True))
    j = sch.loops("m")[2]
    sch.rolling_update("l", j)
    sch.fuse_at("e", j)
    sch.fuse_at("z", j)
    assert owed(sch) == {("e", "m"), ("z", "m")}


def test_a_map_fused_naively_is_repaired_with_its_reader() -> None:
    x, w = matrix("x"), matrix("w")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    e = cells(lambda i, j: x[i, j] / l[i], "e")
    program = build(per_row(lambda i, j: e[i, j] * w[i, j], name="z"), name="p")
    sch = Schedule(program)
    j = sch.loops("l")[1]
    sch.fuse_at("e", j)
    sch.rolling_update("z", j)
    check_same(program, sch, *ODD)
