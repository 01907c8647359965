"""Facts against programs whose loops and reads are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import neptune
from neptune.ir.expr import Cast, Const, Op, Var
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.softmax import softmax
from neptune.tile.ir import (
    Assign,
    GridAxis,
    Iota,
    LoadTile,
    Local,
    Loop,
    Reduce,
    Scalar,
    StoreTile,
    TileKernel,
    TileProgram,
)
from neptune.tune.model.facts import LoopFacts, read_facts
from tests.examples import tile_examples
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program

pytestmark = pytest.mark.compared
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


ZERO, READ = Const(0, "int32"), assign("a", ROW, MOVING)
STILL, SHIFTED = assign("a", ROW, index(ZERO)), assign("b", ROW, index(J * Const(16, "int32") + ONE))
OVER, FIRST, SECOND = loop(ZERO, N, READ), loop(ZERO, ROW_VAR, READ), loop(ROW_VAR, N, READ)
OTHER = loop(ZERO, N, assign("a", ROW, index(Var("k"))), var="k")
PAGE = Assign("page", LoadTile("x", (Scalar(J), index(ZERO)), None, 0.0, ("c",), "float32"))
GATHERED = Cast(Local("page", ("c",), "float32"), "int32")


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ((), 0),
        ((STILL,), 1),
        ((OVER,), 1),
        ((OVER, OVER), 2),
        ((OVER, OTHER, OVER), 3),
        # Pieces of one range; what stands between them, a gap or an overlap is no seam.
        ((FIRST, SECOND), 1),
        ((FIRST, assign("b", ROW, MOVING), SECOND), 2),
        ((FIRST, loop(ROW_VAR + ONE, N, READ)), 2),
        # What a loop reads again in every iteration.
        ((loop(ZERO, N, STILL),), math.inf),
        ((loop(ZERO, Const(3, "int32"), STILL),), 3),
        ((loop(ZERO, Const(2, "int32"), OVER, var="k"),), 2),
        # Equal reads in one iteration are one, others add.
        ((loop(ZERO, N, READ, assign("b", ROW, MOVING)),), 1),
        ((loop(ZERO, N, READ, SHIFTED),), 2),
        # Parts of a row, disjoint or not.
        ((STILL, assign("b", ROW, index(Const(16, "int32")))), 1),
        ((STILL, assign("b", ROW, index(Const(15, "int32")))), 2),
        # An index that comes from memory moves with its loop.
        ((loop(ZERO, N, PAGE, assign("a", Scalar(ZERO), GATHERED)),), 2),
    ],
)
def test_passes(body, number):
    assert passes(*body) == number


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
