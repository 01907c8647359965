"""Reductions of the bits of integers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tvm import te

import neptune
from neptune.errors import ExpressionError
from neptune.frontend.builder import bitor, bitxor, build, compute, placeholder, reduce_axis, select, var
from neptune.ir.dtypes import DTYPES
from neptune.ir.text.parser import parse_program
from neptune.verify.exact import check_exact

M, N = var("m"), var("n")
FOLDS = {"bitor": np.bitwise_or.reduce, "bitxor": np.bitwise_xor.reduce}


def program(dtype: str):
    """The union of the flags of a row behind its first column, and the checksum of the row."""
    x = placeholder((M, N), dtype, "x")
    j, k = (reduce_axis((0, N), v) for v in "jk")
    union = compute((M,), lambda i: bitor(x[i, j], axis=j, where=j > 0), "flags")
    return [union, compute((M,), lambda i: bitxor(x[i, k], axis=k), "check")]


@cache
def compiled(dtype: str, template: str | None = None):
    return neptune.compile(program(dtype), template, target="llvm")


def numbers(dtype: str, n: int) -> torch.Tensor:
    row = DTYPES[dtype]
    drawn = np.random.default_rng(n).integers(int(row.lowest), int(row.highest), (9, n), np.int64, endpoint=True)
    drawn[0], drawn[1, -1] = 0, int(row.lowest)
    return torch.from_numpy(drawn).to(getattr(torch, dtype))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("dtype, template", [("int32", None), ("int32", "stagewise"), ("int64", None), ("uint8", None)])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_union_and_checksum(target, dtype, template, n):
    x = numbers(dtype, n)
    flags, check = compiled(dtype, template).for_target(target)(x)
    assert np.array_equal(flags.numpy(), FOLDS["bitor"](x.numpy()[:, 1:], axis=1))
    assert np.array_equal(check.numpy(), FOLDS["bitxor"](x.numpy(), axis=1))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_parts_of_a_row_are_folded_and_combined(target):
    x = numbers("int32", 300)
    made = compiled("int32", "flash_decoding").for_target(target).with_params(NUM_SPLITS=3)
    flags, check = made(x)
    assert np.array_equal(flags.numpy(), FOLDS["bitor"](x.numpy()[:, 1:], axis=1))
    assert np.array_equal(check.numpy(), FOLDS["bitxor"](x.numpy(), axis=1))


@pytest.mark.parametrize("name, op", [("bitor", lambda a, b: a | b), ("bitxor", lambda a, b: a ^ b)])
def test_tensor_expressions_fold_by_the_operators(name, op):
    m, n = te.var("m"), te.var("n")
    x = te.placeholder((m, n), "int32", "x")
    k = te.reduce_axis((0, n), "k")
    fold = te.comm_reducer(op, lambda dtype: te.const(0, dtype), name="by")
    kernel = neptune.compile(te.compute((m,), lambda i: fold(x[i, k], axis=k), "y"), target="llvm")
    given = numbers("int32", 33)
    assert np.array_equal(kernel(given).numpy(), FOLDS[name](given.numpy(), axis=1))
    assert f"{name}=" in str(kernel.build.loops)


def test_a_reader_of_a_union_is_fused_or_refused():
    """A row counts where its flags have a bit; no repair is known for that, and the result is right anyway."""
    x, w = placeholder((M, N), "int32", "x"), placeholder((M, N), "int32", "w")
    j, k = (reduce_axis((0, N), v) for v in "jk")
    flags = compute((M,), lambda i: bitor(x[i, j], axis=j), "flags")
    check = compute((M,), lambda i: bitxor(select(flags[i] > 3, w[i, k], 0), axis=k), "check")
    kernel = neptune.compile(check, target="llvm")
    x, w = numbers("int32", 70) % 9, numbers("int32", 71)[:, :70].contiguous()
    x[2] = 3
    expected = np.where(FOLDS["bitor"](x.numpy(), axis=1) > 3, FOLDS["bitxor"](w.numpy(), axis=1), 0)
    for target in ("llvm", "interpret"):
        assert np.array_equal(kernel.for_target(target)(x, w).numpy(), expected)


def test_texts_round_trip():
    loops = compiled("int32", "stagewise").build.loops
    assert "bitor=" in str(loops) and "bitxor=" in str(loops)
    assert str(parse_program(str(loops))) == str(loops)


@pytest.mark.parametrize("was, now", [("bitxor=", "bitor="), ("bitor=", "bitxor="), ("bitxor=", "+=")])
def test_another_fold_is_seen(was, now):
    """The exact check rejects a kernel that takes the union where the checksum is asked for, and so on."""
    loops = compiled("int32", "stagewise").build.loops
    assert check_exact(build(program("int32")), loops).accepted
    assert check_exact(build(program("int32")), parse_program(str(loops).replace(was, now))).verdict == "rejected"


def test_floats_have_no_bits_and_bools_have_their_own():
    x = placeholder((M, N), "float32", "x")
    j = reduce_axis((0, N), "j")
    with pytest.raises(ExpressionError, match="float32"):
        compute((M,), lambda i: bitor(x[i, j], axis=j), "y")
    with pytest.raises(ExpressionError, match="bool"):
        compute((M,), lambda i: bitxor(x[i, j] > 0.0, axis=j), "y")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_they_compile_for_gpus(target):
    assert all(r.registers for r in compiled("int32").resources(target))
