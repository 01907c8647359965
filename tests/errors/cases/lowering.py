"""Graphs that no code can be made of."""

from __future__ import annotations

import neptune
from bench.mirage_programs import BENCHMARKS
from neptune.errors import FusionError, ScheduleError
from neptune.frontend import builder
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.lower import lowered
from neptune.mirage.reference import reference
from neptune.mirage.splits import splits
from neptune.ops.parts import wide
from tests.errors.table import case
from tests.unit.mirage.graphs import GRAPHS, with_kernel


def _with(*nodes: str) -> None:
    """Lower rms(x) w with other nodes in its kernel."""
    program = BENCHMARKS["RMSNorm"].program()
    graph = with_kernel(reference(program), "i, j", "p", *nodes)
    neptune.compile(program, template=lowered(graph, program).template, target="interpret")


@case(FusionError)
def graph_of_squares():
    _with("xw = matmul(x, w) over p", "s = sqr(xw)", "z = acc(s) over p")


@case(FusionError)
def graph_of_tiles():
    _with("xw = matmul(x, w) over p", "xs = sum(x) over p", "s = mul(xw, xs)", "z = acc(s) over p")


@case(FusionError)
def graph_of_elements_and_tiles():
    _with("xs = sum(x) over p", "xx = mul(x, xs)", "xw = matmul(xx, w) over p", "z = acc(xw) over p")


@case(FusionError)
def graph_of_maxima():
    _with("xw = matmul(x, w) over p", "z = acc_max(xw) over p")


@case(ScheduleError)
def graph_of_another():
    program = BENCHMARKS["GatedMLP"].program()
    template = lowered(GRAPHS["GatedMLP"](), program).template
    neptune.compile(BENCHMARKS["RMSNorm"].program(), template=template, target="interpret")


@case(ScheduleError)
def graph_with_a_grid_of_axes_that_no_value_in_the_loop_has():
    m, k, n = (builder.var(x) for x in "mkn")
    x, w = builder.placeholder((m,), "float16", "x"), builder.placeholder((k, n), "float16", "w")
    p = builder.reduce_axis((0, k), "p")
    b = builder.compute((n,), lambda j: builder.sum(wide(w[p, j]), axis=p), "b")
    program = builder.build(builder.compute((m, n), lambda i, j: (wide(x[i]) * b[j]).astype("float16"), "y"))
    graph = with_kernel(reference(program), "i", "p", "b = acc_sum(w) over p", "z = mul(x, b)")
    neptune.compile(program, template=lowered(graph, program).template, target="interpret")


@case(ScheduleError)
def graph_with_parts_that_programs_have_in_common():
    program = BENCHMARKS["LoRA"].program()
    g = GraphBuilder.like(reference(program))
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, w, a, b = map(f.load, g.tensors)
        f.save("y", (x.matmul(w, "p") + x.matmul(a, "p").matmul(b, "e")).acc())
    (graph,) = splits(g.graph())
    neptune.compile(program, template=lowered(graph, program).template, target="interpret")
