"""Programs as kernel graphs: the nodes, the axes, and that both mean the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.mirage_programs import BENCHMARKS, Benchmark
from neptune.errors import ExpressionError
from neptune.frontend import builder as nb
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.reference import reference
from neptune.mirage.types import graph_types
from neptune.verify.evaluate import evaluate
from tests.unit.mirage.arrays import run

N = var("n")
LENGTHS = {"heads": 2, "queries": 3, "keys": 5, "depth": 4, "m": 3, "k": 7, "n": 4, "r": 2, "rows": 3, "cols": 7}


def agree(program: Program, low: float = -2.0, high: float = 2.0) -> Graph:
    """The graph of a program; it is valid and gives the program's results in float64."""
    graph = reference(program)
    graph_types(graph)
    rng, sizes = np.random.default_rng(3), {s.name: LENGTHS[s.name] for s in program.scalars}
    shapes = {b.name: [sizes[d.name] if hasattr(d, "name") else d.value for d in b.shape] for b in program.inputs}
    given_ = {name: rng.uniform(low, high, shape) for name, shape in shapes.items()}
    wanted = evaluate(program, given_, sizes)
    for name, y in run(graph, given_, sizes).items():
        np.testing.assert_allclose(y, wanted[name], rtol=1e-12, atol=1e-12)
    return graph


def lines(graph: Graph) -> list[str]:
    return [f"{n.name} = {n.op}({', '.join(n.operands)}){' over ' + n.axis if n.axis else ''}" for n in graph.steps]


def maps(value: Callable[..., Expr], dtype: str = "float32") -> list[str]:
    """The nodes of y[i] = value(x[i], z[i])."""
    x, z = placeholder((N,), dtype, "x"), placeholder((N,), dtype, "z")
    y = compute((N,), lambda i: value(x[i], z[i]), "y")
    return lines(agree(build(y, inputs=[x, z]), 0.1))


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=str)
def test_benchmarks(benchmark: Benchmark) -> None:
    agree(benchmark.program())
    agree(benchmark.program("bfloat16", **{s: LENGTHS[s] for s in benchmark.symbols}))


def test_the_norm_in_front_of_a_product() -> None:
    graph = reference(BENCHMARKS["RMSNorm"].program())
    assert lines(graph) == [
        "sqr = sqr(x)",
        "x_squares = sum(sqr) over p",
        "scale = scale(x_squares)",
        "x_root = sqrt(scale)",
        "div = div(x, x_root)",
        "x_norm = cast(div)",
        "c = matmul(x_norm, w) over p",
    ]
    assert [t.axes for t in graph.inputs] == [("i", "p"), ("p", "j")]
    assert [(o.name, o.axes, o.value) for o in graph.outputs] == [("y", ("i", "j"), "c")]


def test_keys_of_two_reductions_are_one_axis() -> None:
    graph = reference(BENCHMARKS["GQA"].program())
    assert [t.axes for t in graph.inputs] == [("h", "i", "d_1"), ("h", "d_1", "j"), ("h", "j", "d")]


@pytest.mark.parametrize(
    ("value", "nodes"),
    [
        (lambda x, z: x * x, ["sqr"]),
        (lambda x, z: x / (1.0 + nb.exp(-x)), ["neg", "exp", "shift", "silu"]),
        (lambda x, z: 1.0 / (1.0 + nb.exp(0.0 - x)), ["sigmoid"]),
        (lambda x, z: 1.0 / (nb.exp(x * -1.0) + 1.0), ["sigmoid"]),
        (lambda x, z: x * nb.sigmoid(x), ["silu"]),
        (lambda x, z: z * nb.sigmoid(x), ["sigmoid", "mul"]),
        (lambda x, z: 1.0 / nb.sqrt(x), ["rsqrt"]),
        (lambda x, z: 3.0 / nb.sqrt(x), ["rsqrt", "scale"]),
        (lambda x, z: 2.0 / x, ["power", "scale"]),
        (lambda x, z: nb.pow(x, 2.0) + nb.pow(x, 0.5) + nb.pow(x, 1.5), ["sqr", "sqrt", "add", "power", "add"]),
        (lambda x, z: nb.exp2(x), ["scale", "exp"]),
        (lambda x, z: (x + z) * (z + x), ["add", "sqr"]),
        (lambda x, z: (x - z) * (z - x), ["sub", "sub", "mul"]),
        (lambda x, z: (5.0 - x) / 4.0 - 3.0, ["neg", "shift", "scale", "shift"]),
        (lambda x, z: nb.maximum(x, z) * 1.0 + 0.0, ["maximum"]),
        (lambda x, z: nb.maximum(x, 1.0) - nb.minimum(z, x), ["opaque", "minimum", "sub"]),
        (lambda x, z: nb.tanh(x) + nb.log(z), ["opaque", "opaque", "add"]),
    ],
)
def test_forms(value: Callable[..., Expr], nodes: list[str]) -> None:
    needed = [n for n in nodes if "silu" not in nodes or n == "silu"]
    assert [line.split(" = ")[1].split("(")[0] for line in maps(value)] == needed


def test_roundings_are_nodes_and_widenings_are_none() -> None:
    assert maps(lambda x, z: x.astype("float32") * z.astype("float32"), "float16") == ["y = mul(x, z)"]
    assert maps(lambda x, z: (x + z) * z, "float16") == ["add = add(x, z)", "cast = cast(add)", "y = mul(cast, z)"]
    assert maps(lambda x, z: nb.maximum(x, z), "float16") == ["y = maximum(x, z)"]
    assert maps(lambda x, z: x.astype("float64") + z.astype("float64")) == [
        "cast = cast(x)",
        "cast_1 = cast(z)",
        "y = add(cast, cast_1)",
    ]


def test_a_tensor_with_itself_is_two_tensors() -> None:
    x, k = placeholder((N, N), "float32", "x"), reduce_axis((0, N), "k")
    graph = agree(build(compute((N, N), lambda i, j: nb.sum(x[i, k] * x[j, k], axis=k), "y")))
    assert [(t.name, t.axes, t.source) for t in graph.inputs] == [("x", ("i", "k"), "x"), ("x_1", ("j", "k"), "x")]
    assert lines(graph) == ["y = matmul(x, x_1) over k"]


def test_a_stage_with_itself_is_computed_for_both_axes() -> None:
    x, k = placeholder((N, N), "float32", "x"), reduce_axis((0, N), "k")
    e = compute((N, N), lambda i, j: nb.exp(x[i, j]), "e")
    graph = agree(build(compute((N, N), lambda i, j: nb.sum(e[i, k] * e[k, j], axis=k), "y")))
    assert lines(graph) == ["e = exp(x)", "e_1 = exp(x_1)", "y = matmul(e, e_1) over k"]


def test_transposes_and_broadcasts_are_no_nodes() -> None:
    x, b = placeholder((N, var("m")), "float32", "x"), placeholder((var("m"),), "float32", "b")
    t = compute((var("m"), N), lambda i, j: x[j, i] * 1.0, "t")
    graph = agree(build(compute((N, var("m")), lambda i, j: t[j, i] + b[j], "y")))
    assert lines(graph) == ["y = add(x, b)"]


def test_folds_over_several_axes() -> None:
    x, w = placeholder((N, var("m")), "float32", "x"), placeholder((N, var("m"), var("k")), "float32", "w")
    i, j = reduce_axis((0, N), "i"), reduce_axis((0, var("m")), "j")
    both = compute((var("k"),), lambda c: nb.sum(x[i, j] * w[i, j, c], axis=[i, j]), "y")
    assert lines(agree(build(both))) == ["matmul = matmul(x, w) over i", "y = sum(matmul) over j"]
    top = compute((), lambda: nb.max(x[i, j], axis=[i, j]), "y")
    assert lines(agree(build(top))) == ["max = max(x) over i", "y = max(max) over j"]


def test_a_sum_of_what_does_not_vary_is_a_multiple() -> None:
    x, i = placeholder((N,), "float32", "x"), reduce_axis((0, var("m")), "i")
    assert lines(agree(build(compute((N,), lambda j: nb.sum(x[j] + var("m").astype("float32"), axis=i), "y")))) == [
        "shift = shift(x)",
        "y = scale(shift)",
    ]


def test_three_factors_are_a_product_of_two_operands() -> None:
    x, w = placeholder((N, N), "float32", "x"), placeholder((N, N), "float32", "w")
    g, k = placeholder((N,), "float32", "g"), reduce_axis((0, N), "k")
    graph = agree(build(compute((N, N), lambda i, j: nb.sum(x[i, k] * w[k, j] * g[k], axis=k), "y")))
    assert lines(graph) == ["mul = mul(x, g)", "y = matmul(mul, w) over k"]


def test_an_input_that_nothing_reads_is_passed_all_the_same() -> None:
    x, z = placeholder((N,), "float32", "x"), placeholder((N, N), "int32", "z")
    y = compute((N,), lambda i: x[i] * 2.0, "y")
    graph = agree(build([y], inputs=[z, x]))
    assert [(t.name, t.axes) for t in graph.inputs] == [("z", ("z0", "z1")), ("x", ("i",))]


def test_several_results() -> None:
    x, k = placeholder((N, N), "float16", "x"), reduce_axis((0, N), "k")
    h = compute((N, N), lambda i, j: (x[i, j].astype("float32") * 2.0).astype("float16"), "h")
    s = compute((N,), lambda i: nb.sum(h[i, k].astype("float32"), axis=k), "s")
    graph = agree(build([h, s]))
    assert lines(graph) == ["scale = scale(x)", "h = cast(scale)", "s = sum(h) over j"]
    assert [(o.name, o.value) for o in graph.outputs] == [("h", "h"), ("s", "s")]


# --- any program ------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Program:
    """Stages over square tensors, each reading what there is in any order of axes."""
    made = [placeholder((N,) * rank, "float32", f"x{rank}") for rank in (1, 2)]
    inputs = list(made)
    for number in range(draw(st.integers(1, 4))):
        rank, folds = draw(st.integers(1, 2)), draw(st.booleans())
        k = reduce_axis((0, N), "k")

        def value(*axes: Expr, folds: bool = folds, k: Expr = k) -> object:
            every = (*axes, k) if folds else axes
            read = []
            for _ in range(2):
                t = draw(st.sampled_from([t for t in made if len(t.shape) <= len(every)]))
                read.append(t[tuple(draw(st.permutations(every))[: len(t.shape)])])
            a, b = read
            joined = draw(st.sampled_from([a * b, a + b, a - b, nb.sigmoid(a) * b, a / (nb.exp(b * 0.01) + 1.0), a]))
            fold = draw(st.sampled_from([nb.sum, nb.max]))
            return fold(joined, axis=k) if folds else joined

        made.append(compute((N,) * rank, value, f"s{number}"))
    return build(made[-1], inputs=inputs)


@settings(max_examples=60, deadline=None)
@given(chains())
def test_any_program_of_supported_operators(program: Program) -> None:
    try:
        agree(program, -1.0, 1.0)
    except ExpressionError as error:
        assert "does not vary along" in error.wrong
