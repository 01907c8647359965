"""Programs that no µGraph has, and µGraphs that are not valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from neptune.errors import ExpressionError
from neptune.frontend import builder as nb
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.mirage.builder import GraphBuilder, KernelBuilder, Value
from neptune.mirage.ir import Graph, Load, Node, Output, Save
from neptune.mirage.parser import parse_graph
from neptune.mirage.reference import reference
from neptune.mirage.types import graph_types
from neptune.mirage.verifier.verdict import verify
from neptune.ops.attention import prefill_causal
from neptune.ops.route import softmax_top_k
from neptune.ops.softmax import softmax
from tests.errors.table import case
from tests.unit.mirage.graphs import rms_norm_linear

# --- programs ------------------------------------------------------------------------------------------

N = var("n")
X, K = placeholder((N, N), "float32", "x"), reduce_axis((0, N), "k")


def elements(value: Callable[[Expr, Expr], Expr]) -> Program:
    return build(compute((N, N), value, "y"))


def text(index: str = "i, j", length: str = "n", action: str = "= ", tail: str = "") -> Program:
    return parse_program(
        f"program p\n  in x: f32[n, n]\n  in start: i32[n]\n  out y: f32[n, n]\n  scalar n: i32 lo 1\nbody:\n"
        f"  for i in [0, n):\n    for j in [0, {length}):\n      y: y[i, j] {action}x[{index}]{tail}\n"
    )


TWICE = """program p
  in x: f32[n]
  out y: f32[n]
  scalar n: i32 lo 1
body:
  for i in [0, n):
    a: y[i] = x[i]
  for i in [0, n):
    b: y[i] = x[i] + 1.0
"""


REFUSED: dict[str, Callable[[], Program]] = {
    "masks": lambda: prefill_causal(depth=64),
    "a_select": lambda: elements(lambda i, j: nb.select(X[i, j] > 0.0, X[i, j], 0.0)),
    "an_index_as_a_value": lambda: elements(lambda i, j: X[i, j] * j.astype("float32")),
    "a_constant_result": lambda: elements(lambda i, j: nb.const(1.0)),
    "a_row_repeated": lambda: elements(lambda i, j: placeholder((N,), "float32", "b")[i]),
    "a_stage_that_reads_itself": lambda: parse_program(str(text()).replace("x[i, j]", "y[j, i]")),
    "a_result_made_twice": lambda: parse_program(TWICE),
    "an_index_with_a_sum": lambda: text(index="i, (j + 1) % n"),
    "a_fixed_index": lambda: text(index="i, 0"),
    "an_index_from_a_tensor": lambda: text(index="i, start[j] % n"),
    "a_diagonal": lambda: text(index="i, i"),
    "a_part_of_an_axis": lambda: text(length="n // 2"),
    "a_length_from_a_tensor": lambda: text(length="start[i]"),
    "a_guard": lambda: text(tail=" when j < i"),
    "a_sum_that_starts_from_1": lambda: build(_started(1.0)),
    "a_product_of_elements": lambda: build(compute((N,), lambda i: nb.prod(X[i, K], axis=K), "y")),
    "integers": lambda: elements(lambda i, j: placeholder((N, N), "int32", "z")[i, j].astype("float32")),
    "eight_bits": lambda: elements(lambda i, j: X[i, j].astype("float8_e5m2")),
    "a_cast_to_integers": lambda: elements(lambda i, j: nb.floor(X[i, j]).astype("int32").astype("float32")),
    "a_choice": softmax_top_k,
    "five_dimensions": lambda: build(compute((N,) * 5, lambda *i: placeholder((N,) * 5, "float32", "z")[i] * 2.0, "y")),
    "a_number_to_a_power": lambda: elements(lambda i, j: nb.pow(nb.const(2.0), X[i, j])),
}


def _started(start: float) -> nb.Tensor:
    return compute((N,), lambda i: nb.sum(X[i, K], axis=K, init=start), "y")


for _name, _program in REFUSED.items():
    case(ExpressionError, _name)(lambda program=_program: reference(program()))


@case(ExpressionError)
def a_schedule():
    sch = Schedule(softmax())
    sch.split(sch.loops("y")[0], sch.param("BLOCK_M", [16, 32]))
    reference(sch.program)


# --- graphs ---------------------------------------------------------------------------------------------

GRAPH = rms_norm_linear()
KERNEL = GRAPH.kernels[0]


def changed(**fields: object) -> Graph:
    return GRAPH.with_steps(replace(KERNEL, **fields))  # type: ignore[arg-type]


def behind(*nodes: Node) -> Graph:
    return changed(body=(*KERNEL.body, *nodes))


def library(*nodes: Node) -> Graph:
    return GRAPH.with_steps(*nodes)


INVALID: dict[str, Callable[[], Graph]] = {
    "no_accumulator": lambda: changed(saves=(Save("Y", "xw"),)),
    "programs_that_write_the_same": lambda: changed(saves=(Save("Y", "root"),)),
    "a_saved_value_that_is_not_there": lambda: changed(saves=(Save("Y", "z"),)),
    "a_loop_that_reads_what_is_behind_it": lambda: behind(Node("z", "mul", ("y", "x"))),
    "a_fold_of_a_part_that_is_gone": lambda: behind(Node("z", "sum", ("xw",), axis="k")),
    "an_axis_cut_in_one_operand": lambda: changed(loads=(Load("x", "X", whole=("k",)), Load("w", "W"))),
    "an_accumulator_over_another_axis": lambda: behind(Node("z", "acc", ("x",), axis="i")),
    "a_sum_rescaled_by_no_maximum": lambda: changed(
        body=(*KERNEL.body[:2], Node("z", "acc_rescaled", ("xw", "product"), axis="k", constant=N))
    ),
    "a_tensor_that_is_not_there": lambda: changed(loads=(Load("x", "X"), Load("w", "V"))),
    "four_axes_of_a_grid": lambda: replace(
        changed(grid=("i", "j", "k", "l")), axes={**GRAPH.axes, "l": GRAPH.axes["k"]}
    ),
    "an_axis_twice_in_a_grid": lambda: changed(grid=("i", "j", "i")),
    "a_fold_without_an_axis": lambda: behind(Node("z", "sum", ("y",))),
    "a_scale_without_a_number": lambda: behind(Node("z", "scale", ("y",))),
    "a_cast_to_eight_bits": lambda: behind(Node("z", "cast", ("y",), dtype="float8_e5m2")),
    "no_such_function": lambda: behind(Node("z", "opaque", ("y",), function="foo")),
    "a_function_of_too_many": lambda: behind(Node("z", "opaque", ("y", "y"), function="tanh")),
    "a_fold_of_no_part": lambda: behind(Node("z", "sum", ("y",), axis="j", parts=frozenset())),
    "an_opaque_function_without_a_name": lambda: behind(Node("z", "opaque", ("y",))),
    "a_loop_over_another_axis": lambda: changed(loop="q"),
    "two_values_of_a_name": lambda: library(Node("X", "exp", ("W",))),
    "what_an_accumulator_has_left": lambda: changed(
        body=(*KERNEL.body, Node("z", "acc", ("x",), axis="k")), saves=(Save("Y", "z"),)
    ),
    "what_is_left_with_the_whole": lambda: changed(
        loads=(*KERNEL.loads, Load("q", "X", whole=("k",))),
        body=(*KERNEL.body, Node("z", "acc", ("x",), axis="k"), Node("zz", "mul", ("z", "q"))),
    ),
    "an_operator_that_is_not_there": lambda: behind(Node("z", "tan", ("y",))),
    "an_operand_too_few": lambda: behind(Node("z", "mul", ("y",))),
    "an_operand_that_is_not_there": lambda: behind(Node("z", "exp", ("q",))),
    "a_name_twice": lambda: behind(Node("y", "exp", ("root",))),
    "an_accumulator_outside_of_kernels": lambda: library(Node("Y", "acc", ("X",), axis="k")),
    "a_value_that_is_not_there": lambda: library(Node("Y", "exp", ("Z",))),
    "an_output_of_other_axes": lambda: library(Node("Y", "sum", ("X",), axis="k")),
    "an_output_that_nothing_makes": lambda: replace(
        library(Node("Z", "matmul", ("X", "W"), axis="k")), outputs=(Output("Y", ("i", "j"), "float16", "Y"),)
    ),
}
for _name, _graph in INVALID.items():
    case(ExpressionError, _name)(lambda graph=_graph: graph_types(graph()))


# --- their text -----------------------------------------------------------------------------------------

TEXT = """graph g
  axis i: n
  in x: f32[i]
  out y: f32[i] = y
  scalar n: i32 lo 1
steps:
  kernel fused grid (i):
    a = load x
    thread:
      b = exp(a)
    save y = b
"""
MISREAD = {
    "text_that_begins_otherwise": ("graph g", "program g"),
    "text_that_ends_early": (TEXT[TEXT.index("steps") :], ""),
    "a_declaration_that_is_none": ("axis i", "dim i"),
    "an_operator_in_the_text": ("exp(a)", "tan(a)"),
    "an_empty_thread": ("      b = exp(a)\n", ""),
    "a_line_behind_the_steps": ("    save y = b\n", "    save y = b\nscalar m: i32\n"),
}
for _name, (_old, _new) in MISREAD.items():
    case(ExpressionError, _name)(lambda old=_old, new=_new: parse_graph(TEXT.replace(old, new)))


# --- written by hand --------------------------------------------------------------------------------------


def written(write: Callable[[GraphBuilder, KernelBuilder, Value], object]) -> Callable[[], None]:
    def act() -> None:
        g = GraphBuilder("g", i="m", k="k")
        x = g.input("x", "i k")
        with g.kernel("fused", grid="i", loop="k") as f:
            write(g, f, f.load(x, name="a"))

    return act


WRITTEN: dict[str, Callable[[GraphBuilder, KernelBuilder, Value], object]] = {
    "an_operand_from_another_kernel": lambda g, f, a: a + g.tensors[0],
    "a_fold_along_another_axis": lambda g, f, a: a.exp().sum("j"),
    "a_save_without_an_accumulator": lambda g, f, a: f.save("y", a.sqr().sum("k")),
    "a_name_given_too_late": lambda g, f, a: [a.exp(), a.sqr()][0].called("e"),
    "a_load_of_a_value": lambda g, f, a: f.load(a.exp()),
    "a_load_twice": lambda g, f, a: f.load(g.tensors[0], name="a"),
    "an_input_twice": lambda g, f, a: g.input("x", "i"),
    "an_axis_that_the_graph_has_not": lambda g, f, a: g.kernel("other", grid="i j"),
}
for _name, _write in WRITTEN.items():
    case(ExpressionError, _name)(written(_write))


@case(ExpressionError)
def an_expression_to_verify_that_is_none():
    verify(GRAPH, "rms(x)·w")  # type: ignore[arg-type]
