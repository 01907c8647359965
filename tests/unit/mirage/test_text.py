"""The text of graphs: what is printed reads back as the same graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.mirage_programs import BENCHMARKS, Benchmark
from neptune.errors import ExpressionError
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Var, binary, cast, op
from neptune.ir.program import Scalar
from neptune.mirage.ir import WHOLE, Graph, Kernel, Load, Node, Output, Save, Tensor, Thread
from neptune.mirage.ops import OPS
from neptune.mirage.parser import parse_graph
from neptune.mirage.printer import PARTS, print_graph
from neptune.mirage.reference import reference

TEXT = """graph split
  axis i: m
  axis k: k
  axis j: n // 2
  in X: f16[i, k]
  in X_1: f16[j, k] of X
  out Y: f16[i, j] = Y
  scalar m: i32 lo 1
  scalar k: i32 lo 1 hi 4096 divisor 8
  scalar n: i32 lo 1
steps:
  t = opaque tanh(X)
  kernel part grid (i, k) loop k:
    x = load X
    w = load X_1 whole (j)
    xw = matmul(x, w) over k
    acc = acc(xw) over k
    thread:
      half = scale(acc) by 1.0 / cast(f32, k)
      p = cast(half) to f16
    save P = p
  Y = sum(P) over k grid
"""


def test_a_text_reads_back() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(graph) == str(graph) == TEXT
    assert graph._repr_html_().startswith("<pre>graph split\n") and "<" not in graph._repr_html_()[5:-6]
    (kernel,) = graph.kernels
    assert isinstance(kernel.body[-1], Thread) and kernel.body[-1].name == "p"
    assert graph.inputs[1].source == "X" and kernel.loads[1].whole == ("j",)
    assert graph.steps[-1] == Node("Y", "sum", ("P",), axis="k", parts=frozenset({"grid"}))
    assert graph.scalars[1] == Scalar("k", "int32", 1, 4096, 8)


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=str)
def test_graphs_of_programs_read_back(benchmark: Benchmark) -> None:
    graph = reference(benchmark.program())
    assert parse_graph(print_graph(graph)) == graph


# Names that are words of the text as well.
NAMES = st.sampled_from(["x", "y1", "kernel", "save", "thread", "load", "over", "grid", "sum", "to", "by", "steps"])
LABELS = st.sampled_from(["i", "k_1", "grid", "loop", "tile", "m"])
SCALARS = (Scalar("m", "int32", 1), Scalar("n", "int64"), Scalar("alpha", "float32", divisor=1))


@st.composite
def numbers(draw: st.DrawFn) -> Expr:
    leaf = st.sampled_from(
        [Const(0.1, "float32"), Const(-2.0, "float16"), cast(Var("m"), "float32"), Var("alpha", "float32"), op("ln2")]
    )
    a, b = draw(leaf), draw(leaf)
    return draw(st.sampled_from([a, op("neg", a), binary(draw(st.sampled_from(["mul", "div", "sub"])), a, a), b]))


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    some = st.lists(NAMES, max_size=3).map(tuple)
    axis = draw(st.just("") | LABELS)
    parts = draw(st.frozensets(st.sampled_from(PARTS), min_size=1)) if axis else WHOLE
    dtype = draw(st.just("") | st.sampled_from(sorted(DTYPES)))
    name, kind, function = draw(NAMES), draw(st.sampled_from(sorted(OPS))), draw(st.just("") | NAMES)
    return Node(name, kind, draw(some), axis, parts, draw(st.none() | numbers()), dtype, function)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    threads = st.lists(nodes(), min_size=1, max_size=2).map(lambda x: Thread(tuple(x)))
    return Kernel(
        draw(NAMES),
        draw(st.lists(LABELS, max_size=3).map(tuple)),
        draw(st.none() | LABELS),
        draw(st.lists(st.builds(Load, NAMES, NAMES, st.lists(LABELS, max_size=2).map(tuple)), max_size=2).map(tuple)),
        draw(st.lists(nodes() | threads, max_size=3).map(tuple)),
        draw(st.lists(st.builds(Save, NAMES, NAMES), max_size=2).map(tuple)),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    dims, dtypes = st.lists(LABELS, max_size=3).map(tuple), st.sampled_from(sorted(DTYPES))
    sizes = st.sampled_from([Var("m"), Const(8, "int32"), Var("m") // 2 + 1])
    return Graph(
        draw(NAMES),
        draw(st.dictionaries(LABELS, sizes, max_size=3)),
        draw(st.lists(st.builds(Tensor, NAMES, dims, dtypes, st.just("") | NAMES), max_size=2).map(tuple)),
        draw(st.lists(nodes() | kernels(), max_size=3).map(tuple)),
        draw(st.lists(st.builds(Output, NAMES, dims, dtypes, NAMES), max_size=2).map(tuple)),
        SCALARS,
    )


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph_reads_back(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("graph split", "", "a graph starts with"),
        (TEXT[TEXT.index("steps") :], "", "the graph ends before"),
        ("opaque tanh(X)", "tan(X)", "there is no operator `tan`"),
        ("over k grid", "over", "expected a name"),
        ("  axis i: m", "  axe i: m", "unknown declaration 'axe'"),
        ("axis i: m", "axis i: q", "unknown variable 'q'"),
        ("by 1.0 / cast(f32, k)", "by q", "unknown variable 'q'"),
        ("save P = p", "keep P = p", "expected 'save'"),
        ("grid (i, k)", "grid i, k", "expected '('"),
        ("to f16", "to f17", "unknown dtype 'f17'"),
        ("  Y = sum(P) over k grid", "Y = sum(P) over k grid", "nothing stands behind"),
        ("  scalar n: i32 lo 1", "  scalar n: i32 lo one", "expected an integer"),
        ("= load X\n", "= load X whole\n", "expected '('"),
    ],
)
def test_text_that_is_no_graph(old: str, new: str, wrong: str) -> None:
    assert old in TEXT
    with pytest.raises(ExpressionError) as info:
        parse_graph(TEXT.replace(old, new, 1))
    assert wrong in info.value.wrong and info.value.where
