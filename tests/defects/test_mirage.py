"""µGraphs: verdicts that state their domain, searches that survive their own mistakes, maxima, splits and budgets."""

from __future__ import annotations

import json
import math
import time
import warnings
from itertools import islice

import numpy as np
import pytest
import torch

import neptune
from bench.mirage_wild import WILD
from neptune.errors import ExpressionError, InternalError, NeptunePerformanceWarning
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.frontend.builder import exp as fexp
from neptune.frontend.builder import log as flog
from neptune.frontend.builder import max as fmax
from neptune.frontend.builder import sqrt as fsqrt
from neptune.ir.expr import Const, Expr, Var, binary, cast
from neptune.ir.program import Program
from neptune.mirage import optimize
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.cost import estimate
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.foreign import read_mirage
from neptune.mirage.ir import SPLIT, Graph, nodes
from neptune.mirage.lower import lowered
from neptune.mirage.lowering.safe import without_maxima
from neptune.mirage.optimize import Candidate, Goal, Optimizer, predicted
from neptune.mirage.reference import reference
from neptune.mirage.search import search
from neptune.mirage.types import graph_types
from neptune.mirage.verifier.candidates import Candidates
from neptune.mirage.verifier.verdict import verify
from neptune.ops.parts import wide
from neptune.tune.model.machine import DEFAULT
from qa.fuzz_mirage import trial
from qa.mirage_axioms import W, X, Y, Z, exp, graph, sqrt, times, total
from tests.unit.mirage import mirage_json
from tests.unit.mirage.verified import RMS, RMS_FUSED, kernel, n, one, program, swapped

# --- M10: equality has a domain ------------------------------------------------------------------------

S = total("k", X)
NOWHERE = {
    "Σx·(d/d), d = Σx − z": (S, S * ((S - Z) / (S - Z))),
    "Σ x·(z/z)": (S, total("k", X * (Z / Z))),
    "x + (z/y − z/y)": (X + Y, X + Y + (Z / Y - Z / Y)),
    "√x·√x": (X + Y, sqrt(X) * sqrt(X) + Y),
    "√x·√y of √(x·y)": (sqrt(X * Y), sqrt(X) * sqrt(Y)),
    "x/(y/z) of x·z/y": (X * Z / Y, X / (Y / Z)),
    "w/w anywhere along k, of w at one k": (X / W, X / W * (total("k", W / W) / total("k", W / W))),
}


@pytest.mark.parametrize("name", NOWHERE)
def test_m10_a_graph_has_a_value_wherever_the_expression_has(name: str) -> None:
    expression, made = NOWHERE[name]
    found = verify(graph(made), graph(expression))
    assert not found.equal and not found.accepted
    assert "no value" in found.why


@pytest.mark.parametrize(
    ("expression", "made"),
    [
        (X / Y / Z, X / (Y * Z)),
        (X / (Z * exp(W)), X / Z / exp(W)),
        (Z / total("k", exp(X)), Z / (total("k", exp(X - W) * exp(W)))),
        (sqrt(X) * sqrt(Y), sqrt(X * Y)),
        (X / (Y / Z), X * Z / Y),
        (X / (Z - W), times(-1.0, X) / (W - Z)),
    ],
)
def test_m10_the_needs_of_the_expression_are_allowed(expression: object, made: object) -> None:
    found = verify(graph(made), graph(expression))  # type: ignore[arg-type]
    assert found.equal, found


def test_m10_in_a_kernel_and_under_a_fold() -> None:
    divided = one(
        RMS,
        kernel(
            "i j",
            "k",
            "x=X w=W",
            "y",
            n("ww", "div", "w w"),
            n("w1", "mul", "w ww"),
            n("xw", "matmul", "x w1", "k"),
            n("product", "acc", "xw", "k"),
            *RMS_FUSED.kernels[0].nodes[2:],
        ),
    )
    found = verify(divided, RMS)
    assert not found.equal and "no value" in found.why


def _product(size: Expr, roots: range) -> Expr:
    """1 + (n − a)(n − b)…: 1 where n is one of the roots."""
    made: Expr = Const(1.0, "float32")
    for k in roots:
        made = binary("mul", made, binary("sub", cast(size, "float32"), Const(float(k), "float32")))
    return binary("add", Const(1.0, "float32"), made)


@pytest.mark.parametrize("roots", [range(5, 6), range(3, 8), range(1, 10)])
def test_m10_a_graph_that_is_right_at_some_sizes(roots: range) -> None:
    sums = program("i k", "X:ik", "y:i", n("y", "sum", "X", "k"))
    more = n("y", "scale", "s", constant=_product(Var("k"), roots))
    odd = program("i k", "X:ik", "y:i", n("s", "sum", "X", "k"), more)
    assert not verify(odd, sums).equal
    kept = n("y", "scale", "s", constant=_product(Var("i"), roots))
    assert not verify(program("i k", "X:ik", "y:i", n("s", "sum", "X", "k"), kept), sums).equal


def test_m10_a_difference_that_floats_do_not_see_at_small_sizes() -> None:
    sums = program("i k", "X:ik", "y:i", n("y", "sum", "X", "k"))
    tiny = binary(
        "mul", Const(1e-30, "float32"), binary("sub", _product(Var("k"), range(1, 10)), Const(1.0, "float32"))
    )
    more = n("y", "scale", "s", constant=binary("add", Const(1.0, "float32"), tiny))
    odd = program("i k", "X:ik", "y:i", n("s", "sum", "X", "k"), more)
    assert not verify(odd, sums).equal


# --- M6: one size is the length of two axes -------------------------------------------------------------


def _square(size: Expr, *steps: object, order: str) -> Graph:
    made = program("i k", "X:ik", "y:i", *steps)  # type: ignore[arg-type]
    sizes = {"i": Var("m"), "k": size}
    return Graph(made.name, {a: sizes[a] for a in order}, made.inputs, made.steps, made.outputs)


@pytest.mark.parametrize("order", ["ik", "ki"])
@pytest.mark.parametrize("size", [Var("m"), binary("mul", Const(2, "int32"), Var("m")), Const(3, "int32")])
def test_m6_the_number_of_a_size_is_the_length_of_its_axes(size: Expr, order: str) -> None:
    """Σₖ (x + 1) = Σₖ x + n, where n is the length of i as well, twice that, or a number."""
    first = _square(size, n("t", "shift", "X", constant=Const(1.0, "float32")), n("y", "sum", "t", "k"), order=order)
    behind = _square(size, n("t", "sum", "X", "k"), n("y", "shift", "t", constant=cast(size, "float32")), order=order)
    found = verify(behind, first)
    assert found.equal, found
    wrong = binary("add", cast(size, "float32"), Const(1.0, "float32"))
    assert not verify(swapped(behind, y=n("y", "shift", "t", constant=wrong)), first).equal


# --- M1: the search survives its own mistakes ------------------------------------------------------------


def low_rank() -> Program:
    """x (a b)."""
    m, k, r, c = (var(x) for x in "mkrn")
    x, a, b = (placeholder(s, "float16", name) for name, s in (("x", (m, k)), ("a", (k, r)), ("b", (r, c))))
    p, e = reduce_axis((0, r), "p"), reduce_axis((0, k), "e")
    ab = compute((k, c), lambda i, j: sum(wide(a[i, p]) * wide(b[p, j]), axis=p), "ab")
    y = compute((m, c), lambda i, j: sum(wide(x[i, e]) * ab[e, j], axis=e), "c")
    return build(compute((m, c), lambda i, j: y[i, j].astype("float16"), "y"), inputs=[x, a, b], name="low_rank")


def _goal(of: Program, sizes: dict[str, int], operators: int, kernels: int = 3) -> Goal:
    return Goal(reference(of), sizes, DEFAULT, Bounds(operators, kernels))


@pytest.mark.parametrize("short", ["r", "m"])
def test_m1_an_axis_that_is_split_stays_in_the_grid(short: str) -> None:
    sizes = {"m": 64, "k": 4096, "r": 16, "n": 4096} | {short: 16}
    found = Optimizer(_goal(low_rank(), sizes, 7), time.process_time() + 10)
    assert len(list(found)) > 10
    for c in found.candidates:
        graph_types(c.graph)


def test_m1_one_bad_graph_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: Graph) -> list[Graph]:
        raise ExpressionError("a graph", "a mistake of the search")

    monkeypatch.setattr(optimize, "splits", bad)
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    sizes = {"m": 64, "k": 4096, "r": 16, "n": 4096}
    found = Optimizer(_goal(low_rank(), sizes, 6), time.process_time() + 5)
    assert list(found)
    assert found.mistakes and "a mistake of the search" in found.mistakes[0]
    monkeypatch.setenv("NEPTUNE_STRICT", "1")
    with pytest.raises(InternalError, match="a mistake of the search"):
        list(Optimizer(_goal(low_rank(), sizes, 6), time.process_time() + 5))


# --- M9: budgets are the processor's time ---------------------------------------------------------------


def test_m9_a_busy_machine_finds_the_same_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = reference(low_rank())
    quiet = [f.key for f in search(expression, Bounds(6), deadline=time.process_time() + 30)]
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    busy = [f.key for f in search(expression, Bounds(6), deadline=time.process_time() + 30)]
    assert busy == quiet and quiet


# --- M4: what fits no machine does not rank -------------------------------------------------------------


def test_m4_a_kernel_that_fits_nothing_takes_for_ever() -> None:
    """Rows and columns of 4096 whole in one program."""
    whole = one(RMS, kernel("", "k", "x=X w=W", "y", *RMS_FUSED.kernels[0].nodes))
    sizes = {"i": 4096, "j": 4096, "k": 4096}
    assert math.isinf(estimate(whole, sizes, DEFAULT).us)
    assert estimate(RMS_FUSED, sizes, DEFAULT).us < 1e5


# --- M2: results come from any kernel -------------------------------------------------------------------


def _found(of: Program, sizes: dict[str, int], operators: int, seconds: float = 40.0) -> list[Candidate]:
    found = Optimizer(_goal(of, sizes, operators), time.process_time() + seconds)
    assert list(found) and not found.mistakes
    return list(islice(found.ranking(), 20))


def test_m2_a_norm_before_three_products() -> None:
    best = _found(WILD["norm_qkv"].build(), {"m": 16, "k": 4096, "n": 4096}, 10)
    saved = [[s.name for s in k.saves] for k in best[0].graph.kernels]
    assert sorted(map(tuple, saved)) == [("ywk",), ("ywq",), ("ywv",)]
    assert verify(best[0].graph, WILD["norm_qkv"].build()).equal


def test_m2_a_result_that_another_one_reads() -> None:
    """low = x a is a result, and so is low b."""
    m, k, r, c = (var(x) for x in "mkrn")
    x, a, b = (placeholder(s, "float16", name) for name, s in (("x", (m, k)), ("a", (k, r)), ("b", (r, c))))
    p, e = reduce_axis((0, k), "p"), reduce_axis((0, r), "e")
    low = compute((m, r), lambda i, j: sum(wide(x[i, p]) * wide(a[p, j]), axis=p), "low")
    h = compute((m, r), lambda i, j: low[i, j].astype("float16"), "h")
    up = compute((m, c), lambda i, j: sum(wide(h[i, e]) * wide(b[e, j]), axis=e), "up")
    y = compute((m, c), lambda i, j: up[i, j].astype("float16"), "y")
    of = build([h, y], inputs=[x, a, b], name="both")
    found = Optimizer(_goal(of, {"m": 64, "k": 4096, "r": 64, "n": 4096}, 6), time.process_time() + 30)
    graphs = [c.graph for c in found]
    reads = [g for g in graphs if len(g.kernels) == 2 and any(x.tensor == "h" for x in g.kernels[1].loads)]
    assert reads
    assert verify(reads[0], of).equal


# --- M7: a step that is folded to some columns ------------------------------------------------------------


def shares(dtype: str = "float16") -> Program:
    """x[i, k] / Σₖ x[i, k]."""
    m, k = var("m"), var("k")
    x, p = placeholder((m, k), dtype, "x"), reduce_axis((0, k), "p")
    s = compute((m,), lambda i: sum(wide(x[i, p]), axis=p), "s")
    return build(compute((m, k), lambda i, j: (wide(x[i, j]) / s[i]).astype(dtype), "y"), inputs=[x], name="shares")


def _columns(how: str) -> list[mirage_json.Json]:
    f = mirage_json.File()
    x = f.input(16, 4096)
    if how == "kernel level":
        few = f.op("kn_reduction_1_op", [x], (16, 64))
        s = f.op("kn_reduction_1_op", [f.op("kn_reduction_1_op", [few], (16, 8))], (16, 1))
        return f.output(f.op("kn_div_op", [x, s], (16, 4096)))
    b = mirage_json.Block(f, (4, 1, 1), loop=64, dimx=16)
    a = b.load(x, loop=1, x=0)
    if how == "in the step":
        few = b.op("tb_reduction_1_to_dimx_op", [a], (4, 16))
        few = b.op("tb_forloop_accum_nored_op", [few], (4, 16))
    else:
        few = b.op("tb_forloop_accum_redtox_ld_sum_op", [a], (4, 16))
    if how == "linear":
        one = b.op("tb_div_op", [few, b.op("tb_reduction_1_op", [few], (4, 1))], (4, 16))
        few = b.op("tb_mul_op", [one, b.op("tb_reduction_1_op", [few], (4, 1))], (4, 16))
    if how != "saved":
        few = b.op("tb_reduction_1_op", [few], (4, 1))
    if how == "exponential":
        few = b.op("tb_exp_op", [b.op("tb_forloop_accum_redtox_ld_sum_op", [a], (4, 16))], (4, 16))
    b.save(few, x=0)
    (s,) = f.kernel([x], b)
    if how == "saved":
        s = f.op("kn_reduction_1_op", [s], (16, 1))
    return f.output(f.op("kn_div_op", [x, s], (16, 4096)))


@pytest.mark.parametrize("how", ["kernel level", "in the step", "by the accumulator", "linear", "saved"])
def test_m7_columns_that_are_summed_are_read(how: str) -> None:
    found = verify(read_mirage(json.dumps([_columns(how)]), shares()), shares())
    assert found.equal, found


def test_m7_what_is_not_linear_in_columns_is_refused() -> None:
    with pytest.raises(ExpressionError, match="folds them first"):
        read_mirage(json.dumps([_columns("exponential")]), shares())


# --- M8: products in float32 are not chosen --------------------------------------------------------------


def test_m8_a_product_at_the_rate_of_float32_is_refused() -> None:
    """(x a) b + x w in one product of sums cannot be rounded by any proof, and `compile` would warn of it."""
    of = WILD["two_adapters"].build()
    goal = _goal(of, dict(WILD["two_adapters"].sizes), 8, 2)
    found = Optimizer(goal, time.process_time() + 20)
    assert list(found)
    made = [predicted(c, of, goal) for c in islice(found.ranking(), 8)]
    assert any(isinstance(way, str) and "rate of float32" in way for way in made)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NeptunePerformanceWarning)
        for way in [w for w in made if not isinstance(w, str)][:1]:
            neptune.compile(of, template=way.lowered.template, shapes=goal.sizes, target="cuda:90")


# --- M3: maxima are taken off, and put back ---------------------------------------------------------------


def attention() -> Program:
    """softmax(q k) v with its maximum."""
    r, c, d = var("rows"), var("keys"), var("d")
    q, k, v = (placeholder(s, "float16", name) for name, s in (("q", (r, d)), ("k", (c, d)), ("v", (c, d))))
    e, z, p1, p2 = reduce_axis((0, d), "e"), *(reduce_axis((0, c), name) for name in ("z", "p1", "p2"))
    s = compute((r, c), lambda i, j: sum(wide(q[i, e]) * wide(k[j, e]), axis=e), "s")
    top = compute((r,), lambda i: fmax(s[i, p1], axis=p1), "top")
    w = compute((r, c), lambda i, j: fexp(s[i, j] - top[i]), "w")
    total = compute((r,), lambda i: sum(w[i, p2], axis=p2), "total")
    p = compute((r, c), lambda i, j: (w[i, j] / total[i]).astype("float16"), "p")
    o = compute((r, d), lambda i, x: sum(wide(p[i, z]) * wide(v[z, x]), axis=z), "acc")
    return build(compute((r, d), lambda i, x: o[i, x].astype("float16"), "o"), inputs=[q, k, v], name="attention")


def test_m3_softmax_with_its_maximum_has_a_graph_of_one_loop() -> None:
    of = attention()
    goal = _goal(of, {"rows": 1024, "keys": 1024, "d": 64}, 10, 1)
    found = Optimizer(goal, time.process_time() + 40)
    assert list(found)
    best = next(found.ranking())
    (kernel,) = best.graph.kernels
    assert kernel.loop and "max" not in {n.op for n in kernel.nodes}
    assert verify(best.graph, of).equal
    way = predicted(best, of, goal)
    assert not isinstance(way, str), way
    assert any((d.kind, d.verdict) == ("safe softmax", "shifted") for d in way.lowered.decisions)
    made = neptune.compile(of, template=way.lowered.template, target="interpret")
    rng = np.random.default_rng(0)
    q, k, v = (torch.from_numpy(rng.standard_normal((n, 16)) * by).half() for n, by in ((9, 30), (21, 30), (21, 1)))
    exact = torch.softmax(q.double() @ k.double().T, 1) @ v.double()
    assert (made(q, k, v).double() - exact).abs().max() < 4e-3


def test_m3_a_maximum_that_results_depend_on_stays() -> None:
    m, c = var("m"), var("k")
    x, p, q = placeholder((m, c), "float16", "x"), reduce_axis((0, c), "p"), reduce_axis((0, c), "q")
    top = compute((m,), lambda i: fmax(wide(x[i, p]), axis=p), "top")
    below = compute((m, c), lambda i, j: fexp(wide(x[i, j]) - top[i]), "below")
    total = compute((m,), lambda i: sum(below[i, q], axis=q), "total")
    alone = compute((m,), lambda i: flog(total[i]) + top[i], "lse")
    for out in (below, total, alone):
        of = reference(build(out, inputs=[x], name="kept"))
        assert without_maxima(of, Candidates(of).accept) is of
    both = reference(build(compute((m, c), lambda i, j: below[i, j] / total[i], "y"), inputs=[x], name="off"))
    assert "max" not in {n.op for n in nodes(without_maxima(both, Candidates(both).accept))}


# --- M5: splits that lower --------------------------------------------------------------------------------


def _lowers(made: Graph, of: Program) -> int:
    """The kernels of a graph as it is compiled, with the compiler's checks."""
    assert verify(made, of).equal
    kernel = neptune.compile(of, template=lowered(made, of).template, target="interpret")
    return len(kernel.explain(json=True)["kernels"])


@pytest.mark.parametrize("loop", ["p", ""])
def test_m5_what_combines_parts_may_have_a_fold_of_its_own(loop: str) -> None:
    """x a in parts of k; then their sum times b, folded over r."""
    of = low_rank()
    g = GraphBuilder.like(reference(of))
    x, a, b = g.tensors
    with g.kernel("parts", grid="i e", loop="e") as k:
        parts = k.save("parts", k.load(x).matmul(k.load(a), "e").acc())
    with g.kernel("all", grid="i j", loop=loop) as k:
        y = k.load(parts).sum("e", SPLIT).matmul(k.load(b), "p")
        y = k.save("y", y.acc() if loop else y)
    g.output("y", "i j", y)
    assert _lowers(g.graph(), of) >= 2


def normed(dtype: str = "float16") -> Program:
    """(x / √Σx²) w."""
    m, k, c = var("m"), var("k"), var("n")
    x, w = placeholder((m, k), dtype, "x"), placeholder((k, c), dtype, "w")
    p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")
    s = compute((m,), lambda i: sum(wide(x[i, q]) * wide(x[i, q]), axis=q), "s")
    z = compute((m, k), lambda i, j: (wide(x[i, j]) / fsqrt(s[i])).astype(dtype), "z")
    y = compute((m, c), lambda i, j: sum(wide(z[i, p]) * wide(w[p, j]), axis=p), "c")
    return build(compute((m, c), lambda i, j: y[i, j].astype(dtype), "y"), inputs=[x, w], name="normed")


@pytest.mark.parametrize("grid", ["i", "i p"])
def test_m5_a_split_fold_of_what_another_kernel_tiles(grid: str) -> None:
    of = normed()
    g = GraphBuilder.like(reference(of))
    x, w = g.tensors
    with g.kernel("squares", grid="i", loop="p") as k:
        s = k.save("s", k.load(x).sqr().acc_sum())
    with g.kernel("norm", grid=grid) as k:
        z = k.save("z", k.load(x) / k.load(s).sqrt())
    with g.kernel("parts", grid="i j p", loop="p") as k:
        parts = k.save("parts", k.load(z).matmul(k.load(w), "p").acc())
    g.output("y", "i j", parts.sum("p", SPLIT))
    assert _lowers(g.graph(), of) >= 3


def test_m5_two_axes_of_one_name_have_tiles_of_their_own() -> None:
    """Columns p, which another kernel folds, beside a loop over p_1 of more candidates."""
    of = WILD["swiglu"].build()
    g = GraphBuilder.like(reference(of))
    x, w, u, down = g.tensors
    with g.kernel("up", grid="i0 p", loop="p_1") as k:
        x0, w0, u0 = k.load(x), k.load(w), k.load(u)
        h = k.save("h", x0.matmul(w0, "p_1").acc().silu() * x0.matmul(u0, "p_1").acc())
    with g.kernel("down", grid="i0 i1", loop="p") as k:
        y = k.save("y", k.load(h).matmul(k.load(down), "p").acc())
    g.output("y", "i0 i1", y)
    assert _lowers(g.graph(), of) == 2


@pytest.mark.parametrize("stats", ["one kernel", "two kernels"])
@pytest.mark.parametrize("loop", ["j", pytest.param("", marks=pytest.mark.slow)])
def test_m5_a_softmax_whose_maximum_is_split(stats: str, loop: str) -> None:
    m, c = var("m"), var("k")
    x, p, q = placeholder((m, c), "float16", "x"), reduce_axis((0, c), "p"), reduce_axis((0, c), "q")
    top = compute((m,), lambda i: fmax(wide(x[i, p]), axis=p), "top")
    e = compute((m, c), lambda i, j: fexp(wide(x[i, j]) - top[i]), "e")
    total = compute((m,), lambda i: sum(e[i, q], axis=q), "total")
    of = build(compute((m, c), lambda i, j: (e[i, j] / total[i]).astype("float16"), "y"), inputs=[x], name="softmax")
    g = GraphBuilder.like(reference(of))
    (x0,) = g.tensors
    with g.kernel("parts", grid="i j", loop=loop) as k:
        top0 = k.load(x0).max("j")
        parts = k.save("parts", top0.acc_max() if loop else top0)
    if stats == "two kernels":
        with g.kernel("top", grid="i") as k:
            parts = k.save("tops", k.load(parts).max("j", SPLIT))
    with g.kernel("sums", grid="i", loop="j") as k:
        top0 = k.load(parts) if stats == "two kernels" else k.load(parts).max("j", SPLIT)
        e0 = (k.load(x0) - top0).exp()
        sums, tops = k.save("sums", e0.acc_sum()), k.save("top_again", top0) if stats == "one kernel" else parts
    with g.kernel("behind", grid="i j") as k:
        y0 = k.save("y", (k.load(x0) - k.load(tops)).exp() / k.load(sums))
    g.output("y", "i j", y0)
    assert _lowers(g.graph(), of) >= 2


@pytest.mark.parametrize("behind", ["one kernel", "library"])
def test_m5_the_maximum_of_a_split(behind: str) -> None:
    """x − max x, and the maximum by itself, with k shared out among programs."""
    m, c = var("m"), var("k")
    x, p = placeholder((m, c), "float16", "x"), reduce_axis((0, c), "p")
    top = compute((m,), lambda i: fmax(wide(x[i, p]), axis=p), "top")
    y = compute((m, c), lambda i, j: wide(x[i, j]) - top[i], "y")
    of = build(y, inputs=[x], name="below")
    g = GraphBuilder.like(reference(of))
    (x0,) = g.tensors
    with g.kernel("parts", grid="i j", loop="j") as k:
        parts = k.save("parts", k.load(x0).max("j").acc_max())
    if behind == "library":
        whole = parts.max("j", SPLIT)
        g.output("y", "i j", x0 - whole, "float32")
    else:
        with g.kernel("behind", grid="i j") as k:
            y0 = k.save("y", k.load(x0) - k.load(parts).max("j", SPLIT))
        g.output("y", "i j", y0, "float32")
    assert _lowers(g.graph(), of) >= 2


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_m10_a_slice_of_the_fuzzer(seed: int) -> None:
    """Rewritten expressions are equal, those with a mistake in their domain or at most sizes are not."""
    found = trial(seed)
    assert found.kind == "right" or (found.kind == "refused" and "no tier decides" in found.reason), found
