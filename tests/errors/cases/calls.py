"""Calls of kernels that are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import neptune
from neptune.codegen.llvm import compile_llvm
from neptune.errors import FusionError, NeptuneError, ScheduleError, ShapeError
from neptune.frontend.builder import compute, placeholder, select, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import cast
from neptune.ops.softmax import figure1, softmax
from tests.errors.table import case
from tests.examples.kernel_examples import pair_apart, pair_program, rows_fused, rows_program
from tests.unit.runtime.test_products import fused, sums

X, W = torch.zeros(4, 6), torch.zeros(6)


@cache
def rows() -> neptune.Kernel:
    return neptune.compile(rows_program(), rows_fused, target="llvm", bounds={"m": 8})


@cache
def pair() -> neptune.Kernel:
    return neptune.compile(pair_program(), pair_apart, target="llvm")


@cache
def blocks() -> neptune.Kernel:
    """The sizes of x[g * h, n] are arguments, but for n."""
    g, h, n = var("g"), var("h"), var("n")
    x = placeholder((g * h, n), "float32", "x")
    return neptune.compile(compute((g, n), lambda i, k: x[i * h, k], "y"), target="llvm")


@cache
def quarters() -> neptune.Kernel:
    """w[4 * h + 1] gives h, which x has as well."""
    h = var("h")
    x, w = placeholder((h, 6), "float32", "x"), placeholder((4 * h + 1,), "float32", "w")
    z = placeholder((2 * var("k") + 2,), "float32", "z")
    return neptune.compile(compute((h,), lambda i: x[i, 0] * w[4 * i] * z[0], "y"), target="llvm")


def _of(kernel: Callable[[], neptune.Kernel], *args: Any, out: Any = None) -> Callable[[], object]:
    return lambda: kernel()(*args, out=out)


H, B = torch.zeros(2, 4, 64, dtype=torch.float16), torch.zeros(2, 4, dtype=torch.float16)
case(ShapeError, "too_few")(_of(rows, X))
case(ShapeError, "too_few_with_sizes_that_no_shape_gives")(_of(blocks, X))
case(ShapeError, "a_remainder")(_of(quarters, X, torch.zeros(17), torch.zeros(5)))
case(ShapeError, "less_than_no_size")(_of(quarters, X, torch.zeros(17), torch.zeros(0)))
case(ShapeError, "a_size_in_two_dimensions")(_of(quarters, X, torch.zeros(21), torch.zeros(4)))
case(ShapeError, "a_list")(_of(rows, [1.0], W, 1.0, 0))
case(ShapeError, "sparse")(_of(rows, X.to_sparse(), W, 1.0, 0))
case(ShapeError, "negated")(_of(rows, torch._neg_view(X), W, 1.0, 0))
case(ShapeError, "gradient")(_of(rows, X.clone().requires_grad_(), W, 1.0, 0))
case(ShapeError, "device")(_of(rows, X.to("meta"), W, 1.0, 0))
case(ShapeError, "dtype")(_of(rows, X.half(), W, 1.0, 0))
case(ShapeError, "rank")(_of(rows, X, X, 1.0, 0))
case(ShapeError, "strides")(_of(rows, torch.zeros(6, 4).t(), W, 1.0, 0))
case(ShapeError, "two_sizes")(_of(rows, X, torch.zeros(5), 1.0, 0))
case(ShapeError, "a_bound")(_of(rows, torch.zeros(9, 6), W, 1.0, 0))
case(ShapeError, "scalar_text")(_of(rows, X, W, "a", 0))
case(ShapeError, "scalar_tensor")(_of(rows, X, W, torch.tensor(1.0), 0))
case(ShapeError, "scalar_fraction")(_of(rows, X, W, 1.0, 0.5))
case(ShapeError, "scalar_range")(_of(rows, X, W, 1.0, 10))
case(ShapeError, "depth")(_of(pair, H[..., :32], B))
case(ShapeError, "odd_rows")(_of(pair, H[:, :3], B[:, :3]))
case(ShapeError, "out_count")(_of(pair, H, B, out=torch.zeros(2, 4)))
case(ShapeError, "out_kind")(_of(pair, H, B, out=3))
case(ShapeError, "out_overlap")(_of(rows, X, W, 1.0, 0, out=W[:4]))
case(ShapeError, "out_itself")(_of(pair, H, B, out=(torch.zeros(4).expand(2, 4), torch.zeros(2, 8, 64).half())))


@case(ScheduleError)
def another_form():
    rows().ir("ptx")


@case(NeptuneError)
def a_report_that_cannot_be_written(tmp_path):
    rows().report(tmp_path / "missing" / "report.html")


@case(ShapeError)
def an_element_of_nothing():
    x = placeholder((var("n"),), "float32", "x")
    neptune.compile(compute((var("m"),), lambda i: x[0], "y"), target="llvm")(torch.ones(0), 3)


@case(ShapeError)
def a_product_of_sizes_beyond_32_bits():
    neptune.compile(sums(), fused, target="llvm")(torch.ones(1, 1, 1 << 16).expand(1, 1 << 15, 1 << 16))


@case(ShapeError)
def sizes_at_which_an_index_has_no_room():
    n, large = var("n"), 1 << 22
    x = placeholder((n,), "float32", "x")
    y = compute((n,), lambda i: select(cast(i, "int64") * 2**42 < 7, x[i], 0.0), "y")
    neptune.compile(y, target="interpret")(torch.ones(large))


# --- the LLVM backend by itself --------------------------------------------------------------------

SIZES = {"scale": 1.0, "shift": 0}
TILES = {"BLOCK_M": 4, "BLOCK_N": 4}
Y = torch.zeros(4)


def _llvm(inputs: list[Any], outputs: list[Any], scalars: Any = SIZES, tunables: Any = TILES) -> Callable[[], object]:
    def act() -> None:
        sch = Schedule(rows_program())
        rows_fused(sch)
        compile_llvm(sch.program)(inputs, outputs, scalars, tunables)

    return act


case(ShapeError, "llvm_count")(_llvm([X], [Y]))
case(ShapeError, "llvm_device")(_llvm([X.to("meta"), W], [Y]))
case(ShapeError, "llvm_dtype")(_llvm([X.half(), W], [Y]))
case(ShapeError, "llvm_rank")(_llvm([X, X], [Y]))
case(ShapeError, "llvm_missing")(_llvm([X, W], [Y], {"scale": 1.0}))
case(ShapeError, "llvm_tile")(_llvm([X, W], [Y], tunables={"BLOCK_M": 0, "BLOCK_N": 4}))
case(ShapeError, "llvm_shape")(_llvm([X, W], [torch.zeros(5)]))
case(ShapeError, "llvm_overlap")(_llvm([X, W], [X[0, :4]]))


@case(FusionError)
def llvm_owes():
    sch = Schedule(figure1())
    _, j = sch.loops("xmax")
    sch.fuse_at("xexp", j)
    sch.fuse_at("xsum", j)
    compile_llvm(sch.program)


@case(ShapeError)
def an_index_that_leads_out(monkeypatch):
    monkeypatch.setenv("NEPTUNE_CHECK", "1")
    x, idx = placeholder((var("n"),), "float32", "x"), placeholder((var("m"),), "int32", "idx")
    kernel = neptune.compile(compute(idx.shape, lambda i: x[idx[i]], "y"), target="llvm")
    kernel(torch.zeros(5), torch.tensor([0, 4, -1], dtype=torch.int32))


@case(ShapeError)
def an_unknown_name():
    rows()(X, weights=W, scale=1.0, shift=0)


@case(ShapeError)
def a_name_given_twice():
    rows()(X, W, 1.0, x=X)


@case(ShapeError)
def a_name_that_is_missing():
    rows()(X, scale=1.0)


@case(ShapeError)
def too_many_with_names():
    rows()(X, W, 1.0, 0, 5, scale=1.0)


# --- variants ----------------------------------------------------------------------------------------


def _chosen(**sizes: Any) -> Callable[[], object]:
    return lambda: neptune.compile(softmax(), target="llvm").chosen(**sizes)


case(ShapeError, "chosen_unknown_size")(_chosen(rows=1, columns=4))
case(ShapeError, "chosen_no_size")(_chosen(rows=1, cols=-4))
case(ShapeError, "chosen_size_missing")(_chosen(rows=1))
