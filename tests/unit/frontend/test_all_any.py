"""Reductions of predicates."""

from __future__ import annotations

from builtins import all as all_of_them
from functools import cache

import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.frontend.builder import all, any, compute, isfinite, placeholder, reduce_axis, sum, var
from neptune.ir.text.parser import parse_program

M, N = var("m"), var("n")


def both():
    x = placeholder((M, N), "float32", "x")
    j, k = (reduce_axis((0, N), v) for v in "jk")
    finite = compute((M,), lambda i: all(isfinite(x[i, j]), axis=j), "finite")
    large = compute((M,), lambda i: any(x[i, k] > 2.0, axis=k, where=k > 0), "large")
    return [finite, large]


@cache
def compiled(template=None):
    return neptune.compile(both(), template, target="llvm")


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("template", [None, "stagewise"])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_all_and_any(target, template, n):
    x = torch.randn(9, n)
    x[0, -1], x[1, 0], x[2, n // 2], x[3, 0] = float("inf"), float("nan"), 3.0, 5.0
    finite, large = compiled(template).for_target(target)(x)
    assert torch.equal(finite, torch.isfinite(x).all(1))
    assert torch.equal(large, (x[:, 1:] > 2).any(1))


def test_a_reduction_that_reads_one_is_fused_or_refused():
    """A row is summed where all of it is positive."""
    x = placeholder((M, N), "float32", "x")
    j, k = (reduce_axis((0, N), v) for v in "jk")
    good = compute((M,), lambda i: all(x[i, j] > 0.0, axis=j), "good")
    total = compute((M,), lambda i: sum(x[i, k] * good[i].astype("float32"), axis=k), "total")
    x = torch.rand(5, 70) + 0.1
    x[1, 60] = -1.0
    kernel = neptune.compile(total, target="llvm")
    for target in ("llvm", "interpret"):
        found = kernel.for_target(target)(x)
        torch.testing.assert_close(found, torch.where((x > 0).all(1), x.sum(1), 0.0))


def test_texts_round_trip():
    program = compiled().build.loops
    assert "and=" in str(program) and "or=" in str(program)
    assert str(parse_program(str(program))) == str(program)


def test_numbers_are_no_predicates():
    x = placeholder((M, N), "float32", "x")
    j = reduce_axis((0, N), "j")
    with pytest.raises(ExpressionError, match="not bool"):
        compute((M,), lambda i: all(x[i, j], axis=j), "y")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_they_compile_for_gpus(target):
    assert all_of_them(r.registers for r in compiled().resources(target))
