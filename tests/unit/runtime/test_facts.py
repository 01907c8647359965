"""Facts against programs whose loops and reads are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import neptune
from neptune.ir.expr import Const, Op, Var
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.softmax import softmax
from neptune.tile.ir import Assign, GridAxis, Iota, LoadTile, Loop, Reduce, Scalar, StoreTile, TileKernel, TileProgram
from neptune.tune.facts import LoopFacts, read_facts
from tests import tile_examples
from tests.kernel_examples import rows_apart, rows_fused, rows_program

X = tile_examples.softmax().inputs[0]
ROW_VAR, J, N = Var("i"), Var("j"), Var("cols")
ONE = Const(1, "int32")


def index(base, axis="c"):
    return Op("add", (Scalar(base), Iota(axis)), "int32")


def load(*at):
    return LoadTile("x", at, None, 0.0, ("c",), "float32")


def program(*body):
    """Programs i < rows over x[rows, cols] that store one number each."""
    x = replace(X, dtype="float32")
    y = replace(x, name="y", shape=x.shape[:1])
    store = StoreTile("y", (Scalar(ROW_VAR),), Scalar(Const(1.0, "float32")), None, (), "y")
    kernel = TileKernel("k", (GridAxis("i", Var("rows"), "x"),), (("c", Const(16, "int32")),), (*body, store))
    return TileProgram("p", (x,), (y,), (), tile_examples.softmax().scalars, (), (kernel,))


def assign(name, *at):
    return Assign(name, Reduce("sum", "c", load(*at)))


def loop(lo, hi, *body, var="j"):
    return Loop(var, lo, hi, tuple(body))


def passes(*body):
    return read_facts(program(*body)).traversals["x"]


ROW = Scalar(ROW_VAR)
MOVING = index(J * Const(16, "int32"))


def test_nothing_read():
    assert passes() == 0


def test_one_read_outside_of_loops():
    assert passes(assign("a", ROW, index(Const(0, "int32")))) == 1


def test_a_loop_whose_index_moves_is_one_pass():
    assert passes(loop(Const(0, "int32"), N, assign("a", ROW, MOVING))) == 1


def test_a_second_loop_is_a_second_pass():
    one = loop(Const(0, "int32"), N, assign("a", ROW, MOVING))
    assert passes(one, one) == 2
    other = loop(Const(0, "int32"), N, assign("a", ROW, index(Var("k"))), var="k")
    assert passes(one, other, one) == 3


def test_pieces_of_one_range_are_one_pass():
    first = loop(Const(0, "int32"), ROW_VAR, assign("a", ROW, MOVING))
    second = loop(ROW_VAR, N, assign("a", ROW, MOVING))
    assert passes(first, second) == 1
    assert passes(first, assign("b", ROW, MOVING), second) == 2
    # A gap or an overlap is no seam.
    assert passes(first, loop(ROW_VAR + ONE, N, assign("a", ROW, MOVING))) == 2


def test_what_a_loop_reads_again_in_every_iteration():
    still = assign("a", ROW, index(Const(0, "int32")))
    assert passes(loop(Const(0, "int32"), N, still)) == math.inf
    assert passes(loop(Const(0, "int32"), Const(3, "int32"), still)) == 3
    nested = loop(Const(0, "int32"), N, assign("a", ROW, MOVING))
    assert passes(loop(Const(0, "int32"), Const(2, "int32"), nested, var="k")) == 2


def test_equal_reads_in_one_iteration_are_one_and_others_add():
    a, b = assign("a", ROW, MOVING), assign("b", ROW, MOVING)
    assert passes(loop(Const(0, "int32"), N, a, b)) == 1
    shifted = assign("b", ROW, index(J * Const(16, "int32") + ONE))
    assert passes(loop(Const(0, "int32"), N, a, shifted)) == 2


def test_disjoint_parts_of_a_row_are_one_pass():
    low, high = index(Const(0, "int32")), index(Const(16, "int32"))
    assert passes(assign("a", ROW, low), assign("b", ROW, high)) == 1
    assert passes(assign("a", ROW, low), assign("b", ROW, index(Const(15, "int32")))) == 2


def test_an_index_that_comes_from_memory_moves_with_its_loop():
    page = Assign("page", LoadTile("x", (Scalar(J), index(Const(0, "int32"))), None, 0.0, ("c",), "float32"))
    gathered = neptune.ir.expr.Cast(neptune.tile.ir.Local("page", ("c",), "float32"), "int32")
    body = (page, assign("a", Scalar(Const(0, "int32")), gathered))
    assert passes(loop(Const(0, "int32"), N, *body)) == 2


@pytest.mark.parametrize("make", [prefill_causal, prefill_global])
def test_fused_attention_is_one_kernel_and_one_pass(make):
    facts = neptune.compile(make(depth=16), "flash_attention", target="llvm").facts
    (kernel,) = facts.kernels
    assert facts.traversals == {"q": 1, "k": 1, "v": 1}
    assert facts.temporaries == () and kernel.temporaries == ()
    assert set(kernel.grid) == {"x", "y", "z"} and kernel.grid["y"] == "heads"
    # The masked piece of a causal kernel is a loop of its own; a tail alone is not.
    assert [x.axis for x in kernel.loops] == (["j0", "j0"] if make is prefill_causal else ["j0"])
    assert "s_kv // BLOCK_N" in kernel.loops[0].trips


def test_softmax_in_one_and_in_two_passes():
    row = neptune.compile(softmax(), "softmax_row", target="llvm").facts
    online = neptune.compile(softmax(), "softmax_online", target="llvm").facts
    assert row.traversals == {"x": 1} and row.kernels[0].loops == ()
    assert online.traversals == {"x": 2} and len(online.kernels[0].loops) == 2


def test_kernels_with_a_temporary_between_them():
    facts = neptune.compile(rows_program(), rows_apart, target="llvm").facts
    assert [k.name for k in facts.kernels] == ["rows_t_kernel", "rows_y_kernel"]
    assert facts.temporaries == ("t",) and all(k.temporaries == ("t",) for k in facts.kernels)
    assert facts.traversals == {"x": 1, "w": 1}
    fused = neptune.compile(rows_program(), rows_fused, target="llvm").facts
    assert fused.temporaries == () and len(fused.kernels) == 1
    assert fused.kernels[0].loops == (LoopFacts("j0", "(n + (BLOCK_N - 1)) // BLOCK_N"),)
    assert fused.kernels[0].grid == {"x": "(m + (BLOCK_M - 1)) // BLOCK_M"}
