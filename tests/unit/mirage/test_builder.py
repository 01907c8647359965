"""Graphs written by hand: they are what is written, mean what their programs do, and mistakes are told at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bench.mirage_programs import BENCHMARKS
from neptune.errors import ExpressionError
from neptune.mirage.builder import GraphBuilder, KernelBuilder
from neptune.mirage.ir import Graph, Thread
from neptune.mirage.parser import parse_graph
from neptune.mirage.printer import print_graph, print_step
from neptune.mirage.reference import reference
from neptune.mirage.verifier.evaluate import Evaluator, Reals
from neptune.mirage.verifier.indexed import prove_equal
from neptune.mirage.verifier.witness import draw_inputs, witness
from tests.unit.mirage.graphs import GRAPHS, SPLITS, n_trans, rms_norm_linear

EVERY = [(name, graph) for of in (GRAPHS, SPLITS) for name, graph in of.items()]
every = pytest.mark.parametrize(("name", "graph"), EVERY, ids=[f.__name__ for _, f in EVERY])


@every
def test_a_graph_means_what_its_program_does(name: str, graph: Callable[..., Graph]) -> None:
    wanted, numbers = reference(BENCHMARKS[name].program()), Reals(3)
    at = witness(wanted)
    inputs, scalars = draw_inputs(numbers, wanted, at, np.random.default_rng(5))
    evaluator = Evaluator(numbers, at, inputs, scalars)
    (expected,), (found,) = (evaluator.outputs(g).values() for g in (wanted, graph()))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@every
def test_a_graph_is_proved_equal_to_its_program(name: str, graph: Callable[..., Graph]) -> None:
    assert prove_equal(graph(), reference(BENCHMARKS[name].program())).proved


@every
def test_a_graph_reads_back(name: str, graph: Callable[..., Graph]) -> None:
    made = graph()
    assert parse_graph(print_graph(made)) == made
    fixed = graph(**BENCHMARKS[name].sizes(1))
    assert parse_graph(print_graph(fixed)) == fixed and not fixed.scalars
    assert made.scalars == reference(BENCHMARKS[name].program()).scalars


@every
def test_kernels_and_loads(name: str, graph: Callable[..., Graph]) -> None:
    kernels = graph().kernels
    assert len(kernels) == (1 if graph is GRAPHS[name] else 2)
    # Each input once, but for the norm of a split product.
    assert len(kernels[0].loads) == len(BENCHMARKS[name].program().inputs)


def test_what_is_written_is_what_is_made() -> None:
    assert list(print_step(rms_norm_linear().kernels[0])) == [
        "kernel fused grid (i, j) loop k:",
        "  x = load X",
        "  w = load W",
        "  xw = matmul(x, w) over k",
        "  product = acc(xw) over k",
        "  xx = sqr(x)",
        "  squares = acc_sum(xx) over k",
        "  mean = scale(squares) by 1.0 / cast(f32, k)",
        "  root = sqrt(mean)",
        "  y = div(product, root)",
        "  save Y = y",
    ]
    assert [(s.name, s.lo) for s in rms_norm_linear().scalars] == [("m", 1), ("k", 1), ("n", 1)]


def test_a_block_of_a_thread_is_one() -> None:
    (kernel,) = n_trans().kernels
    (thread,) = (x for x in kernel.body if isinstance(x, Thread))
    assert [n.op for n in thread.body] == ["div", "add", "mul", "add"] and thread.name == "add_1"
    assert [n.op for n in kernel.body if not isinstance(n, Thread)][-3:] == ["scale", "sqrt", "div"]


def test_operators() -> None:
    g = GraphBuilder("maps", i=8)
    x, y = g.input("x", "i"), g.input("y", "i", "float32")
    z = (-x.silu() + y.sigmoid().maximum(x)).minimum(y) * 2.0 - 3
    z = z.rsqrt().power(1.5).cast("float16").opaque("tanh").opaque("max", constant=0) / g.size("i")
    graph = g.output("z", "i", z, "float32").graph()
    assert [line for step in graph.steps for line in print_step(step)] == [
        "silu = silu(x)",
        "neg = neg(silu)",
        "sigmoid = sigmoid(y)",
        "maximum = maximum(sigmoid, x)",
        "add = add(neg, maximum)",
        "minimum = minimum(add, y)",
        "scale = scale(minimum) by 2.0",
        "shift = shift(scale) by -3.0",
        "rsqrt = rsqrt(shift)",
        "power = power(rsqrt) by 1.5",
        "cast = cast(power) to f16",
        "opaque = opaque tanh(cast)",
        "opaque_1 = opaque max(opaque) by 0.0",
        "scale_1 = scale(opaque_1) by 1.0 / cast(f32, 8)",
    ]
    assert (graph.outputs[0].dtype, graph.scalars) == ("float32", ())


def mistake(write: Callable[[GraphBuilder, KernelBuilder], object], loop: str = "k") -> str:
    g = GraphBuilder("g", i="m", k="k", j="n")
    x, w = g.input("x", "i k"), g.input("w", "k j")
    with pytest.raises(ExpressionError) as info, g.kernel("fused", grid="i j", loop=loop) as f:
        f.load(x), f.load(w)
        write(g, f)
    return f"{info.value.asked}: {info.value.wrong}"


def test_mistakes_name_the_operator_and_the_axis() -> None:
    assert mistake(lambda g, f: g.tensors[0].matmul(f.load(g.tensors[1], name="b"), "k")) == (
        "`matmul(x, b)` in the graph: `b` is a value of kernel `fused`"
    )
    assert "takes the tile part of axis `j` away" in mistake(lambda g, f: f.load(g.tensors[0], name="a").sum("j"))
    assert "no accumulator is on its way" in mistake(lambda g, f: f.save("y", f.load(g.tensors[0], name="a")))
    assert "the loop is over nothing" in mistake(lambda g, f: f.load(g.tensors[0], name="a").acc(), loop="")
    assert "the graph has no axis `q`" in mistake(lambda g, f: g.input("y", "i q"))
    assert "another value has its name" in mistake(lambda g, f: f.load(g.tensors[0]))
    assert "another value has its name" in mistake(lambda g, f: g.input("x", "i"))


def test_a_kernel_that_failed_is_no_part_of_the_graph() -> None:
    g = GraphBuilder("g", i=8)
    x = g.input("x", "i")
    with pytest.raises(ExpressionError), g.kernel("fused", grid="i") as f:
        f.load(x).sum("q")
    assert g.output("y", "i", x.exp()).graph().kernels == ()
