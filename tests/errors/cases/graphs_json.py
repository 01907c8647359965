"""Files of Mirage's graphs that are torn, foreign, invalid, or on axes that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable

from bench.mirage_programs import BENCHMARKS
from neptune.errors import ExpressionError
from neptune.frontend import builder as nb
from neptune.ir.program import Program
from neptune.mirage.foreign import read_mirage
from tests.errors.table import case
from tests.unit.mirage import mirage_json
from tests.unit.mirage.mirage_json import Block, File, Json

NORM = BENCHMARKS["RMSNorm"].program()


@case(ExpressionError)
def no_json():
    read_mirage(json.dumps([mirage_json.rms_norm()])[:-3], NORM)


@case(ExpressionError)
def json_of_another_kind():
    read_mirage('{"version": 3}', NORM)


@case(ExpressionError)
def a_graph_that_is_not_there():
    read_mirage(json.dumps([mirage_json.rms_norm()]), NORM, number=3)


@case(ExpressionError)
def the_wrong_graph_of_qk_norm():
    read_mirage(json.dumps(mirage_json.qk_norm()), BENCHMARKS["QKNorm"].program())


@case(ExpressionError)
def an_expression_that_reads_an_input_twice():
    x, k = nb.placeholder((16, 16), "float16", "x"), nb.reduce_axis((0, 16), "k")
    y = nb.compute((16, 16), lambda i, j: nb.sum(x[i, k] * x[j, k], axis=k), "y")
    read_mirage(json.dumps(mirage_json.rms_norm()), nb.build(y))


@case(ExpressionError)
def lengths_that_do_not_tell_axes_apart():
    read_mirage(json.dumps(mirage_json.gated_mlp()))


# --- the norm and the product, changed ----------------------------------------------------------------------


def changed(change: Callable[[Json, list[Json]], object]) -> Callable[[], None]:
    """The file after a change of its kernel and that kernel's operators: two loads, four nodes, a save."""

    def act() -> None:
        file = mirage_json.rms_norm()
        change(file[2], file[2]["bgraph"]["operators"])
        read_mirage(json.dumps(file), NORM)

    return act


def renamed(at: int, kind: str) -> Callable[[Json, list[Json]], object]:
    return lambda kernel, ops: ops[at].update(op_type=kind)


CHANGED: dict[str, Callable[[Json, list[Json]], object]] = {
    "an_operator_without_a_type": lambda kernel, ops: ops[3].pop("op_type"),
    "a_tensor_without_a_guid": lambda kernel, ops: ops[3]["output_tensors"][0].pop("guid"),
    "a_tensor_without_lengths": lambda kernel, ops: ops[3]["output_tensors"][0].update(num_dims=5),
    "a_map_without_z": lambda kernel, ops: ops[1]["input_map"].pop("z"),
    "an_operator_with_two_results": lambda kernel, ops: ops[3].update(output_tensors=ops[3]["output_tensors"] * 2),
    "a_tensor_of_another_rank": lambda kernel, ops: ops[3]["output_tensors"][0].update(num_dims=3, dim=[1, 16, 24, 0]),
    "a_tile_that_nothing_makes": lambda kernel, ops: ops[3].update(
        input_tensors=[{**ops[3]["input_tensors"][0], "guid": 7}, ops[3]["input_tensors"][1]]
    ),
    "a_tensor_that_nothing_makes": lambda kernel, ops: ops[0].update(dtensor={**ops[0]["dtensor"], "guid": 7}),
    "an_operator_of_another_level": renamed(3, "kn_matmul_op"),
    "an_operator_that_no_graph_has": renamed(4, "tb_gelu_op"),
    "an_accumulator_that_no_graph_has": renamed(4, "tb_forloop_accum_no_red_rescale_op"),
    "an_operand_too_many": renamed(3, "tb_exp_op"),
    "an_accumulator_of_two": renamed(3, "tb_forloop_accum_nored_op"),
    "a_reduction_of_another_dimension": renamed(4, "tb_reduction_2_op"),
    "parts_that_are_none": lambda kernel, ops: (
        ops[4].update(op_type="tb_reduction_1_to_dimx_op"),
        kernel["bgraph"].update(reduction_dimx=7),
    ),
    "a_mean_of_a_dimension_of_one": lambda kernel, ops: ops[5].update(
        op_type="tb_forloop_accum_red_ld_rms_op", input_tensors=ops[5]["input_tensors"][1:]
    ),
    "a_mean_along_another_axis_than_the_loop": lambda kernel, ops: ops[2].update(
        input_tensors=ops[1]["output_tensors"]
    ),
    "a_product_along_two_axes": lambda kernel, ops: ops[3].update(input_tensors=ops[3]["input_tensors"][::-1]),
    "operands_of_other_axes": renamed(3, "tb_add_op"),
    "programs_that_overlap": lambda kernel, ops: ops[6]["output_map"].update(x=-1),
    "parts_of_rows_beside_columns": lambda kernel, ops: ops[6]["output_map"].update(x=0),
    "a_save_of_two_values": lambda kernel, ops: ops[6].update(input_tensors=ops[6]["input_tensors"] * 2),
    "a_grid_that_cuts_nothing": lambda kernel, ops: kernel["bgraph"]["grid_dim"].update(y=2),
    "a_grid_over_two_axes": lambda kernel, ops: ops[0]["input_map"].update(x=0),
    "a_loop_over_two_axes": lambda kernel, ops: ops[1].update(forloop_dim=1),
    "a_dimension_that_is_not_there": lambda kernel, ops: ops[1]["input_map"].update(x=2),
    "an_axis_cut_by_the_loop_alone": lambda kernel, ops: (
        kernel["bgraph"]["grid_dim"].update(y=4),
        ops[0]["input_map"].update(y=1),
    ),
}
for _name, _change in CHANGED.items():
    case(ExpressionError, _name)(changed(_change))


# --- whole graphs ---------------------------------------------------------------------------------------


def whole(write: Callable[[File], list[Json]], program: Program = NORM) -> Callable[[], None]:
    return lambda: read_mirage(json.dumps(write(File())), program)


def inputs(f: File) -> list[Json]:
    return [f.input(16, 4096), f.input(4096, 6144)]


def after(f: File, *operators: object) -> list[Json]:
    """The file once its operators are made."""
    return f.operators


WHOLE: dict[str, Callable[[File], list[Json]]] = {
    "an_input_of_other_rank": lambda f: after(f, f.input(16)),
    "an_input_of_another_length": lambda f: after(f, f.input(16, 4096), f.input(4097, 6144)),
    "an_input_too_few": lambda f: after(f, f.input(16, 4096)),
    "an_input_too_many": lambda f: after(f, inputs(f), f.input(8)),
    "no_output": lambda f: after(f, inputs(f)),
    "an_output_of_other_axes": lambda f: f.output(inputs(f)[0]),
    "an_output_too_many": lambda f: after(f, [f.output(t) for t in [f.op("kn_matmul_op", inputs(f), (16, 6144))] * 2]),
}
for _name, _write in WHOLE.items():
    case(ExpressionError, _name)(whole(_write))


def with_gain(kind: str) -> Callable[[File], list[Json]]:
    """x of two dimensions and g of one."""
    return lambda f: after(f, f.op(kind, [f.input(16, 4096), f.input(4096)], (16, 4096)))


def trace() -> Program:
    """y[i] = Σ_k x[i, k] z[k, i]"""
    x, z, k = (
        nb.placeholder((8, 4), "float16", "x"),
        nb.placeholder((4, 8), "float16", "z"),
        nb.reduce_axis((0, 4), "k"),
    )
    return nb.build(nb.compute((8,), lambda i: nb.sum(x[i, k] * z[k, i], axis=k), "y"))


def product_of_splits(f: File) -> list[Json]:
    """Sums of weights and of values over a program's keys, multiplied as if programs were an axis."""
    q, k, v = f.input(16, 256, 64), f.input(16, 64, 4096), f.input(16, 4096, 64)
    b = Block(f, (16, 16, 1))
    a, c, d = b.load(q, x=0), b.load(k, x=0, y=2), b.load(v, x=0, y=1)
    scores = b.op("tb_matmul_op", [a, c], (1, 256, 256))
    b.save(b.op("tb_reduction_2_op", [scores], (1, 256, 1)), x=0, y=2)
    b.save(b.op("tb_reduction_1_op", [d], (1, 1, 64)), x=0, y=1)
    return f.output(f.op("kn_matmul_op", f.kernel([q, k, v], b), (16, 256, 64)))


case(ExpressionError, "operands_of_other_rank")(whole(with_gain("kn_add_op"), BENCHMARKS["RMSNorm-gain"].program()))
case(ExpressionError, "a_product_of_a_vector")(whole(with_gain("kn_matmul_op"), BENCHMARKS["RMSNorm-gain"].program()))
case(ExpressionError, "rows_that_are_columns")(
    whole(lambda f: after(f, f.op("kn_matmul_op", [f.input(8, 4), f.input(4, 8)], (8, 8))), trace())
)
case(ExpressionError, "a_product_of_splits")(whole(product_of_splits, BENCHMARKS["GQA"].program()))


# --- the split of attention, changed ------------------------------------------------------------------------


def split(change: Callable[[list[Json]], object]) -> Callable[[], None]:
    """The file after a change of its second kernel's operators: two loads, two sums, a quotient, a save."""

    def act() -> None:
        file = mirage_json.gqa(steps=4)
        change(file[4]["bgraph"]["operators"])
        read_mirage(json.dumps(file), BENCHMARKS["GQA"].program())

    return act


def mean_of_a_tile(f: File) -> list[Json]:
    x, w = inputs(f)
    b = Block(f, (1, 1, 1), loop=4)
    a = b.load(x, loop=1)
    b.op("tb_rms_norm_op", [a], (16, 1024))
    return after(f, f.kernel([x, w], b))


SPLIT: dict[str, Callable[[list[Json]], object]] = {
    "tiles_that_are_left": lambda ops: ops[2].update(op_type="tb_exp_op"),
    "a_round_added_up_by_itself": lambda ops: ops[2].update(op_type="tb_reduction_2_op"),
    "an_accumulator_that_keeps_rounds": lambda ops: ops[3].update(op_type="tb_forloop_accum_nored_op"),
    "a_round_that_ends_within_a_part": lambda ops: ops[1]["output_tensors"][0].update(dim=[1, 16, 100, 0]),
}
for _name, _change in SPLIT.items():
    case(ExpressionError, _name)(split(_change))
case(ExpressionError, "a_mean_of_a_tile")(whole(mean_of_a_tile))
