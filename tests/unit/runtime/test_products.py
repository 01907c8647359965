"""A loop over a product of sizes counts in 32 bits: a call for which that is too few is refused."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.runtime.calls.products import products
from neptune.templates.flash_attention import flash_attention


def sums() -> Program:
    """y[i] = Σ x[i, a, b] over a and b."""
    x = placeholder((var("m"), var("n"), var("k")), name="x")
    a, b = reduce_axis((0, var("n")), "a"), reduce_axis((0, var("k")), "b")
    return build(compute((var("m"),), lambda i: sum(x[i, a, b], axis=[a, b]), "y"), name="sums")


def fused(sch: Schedule) -> None:
    i, a, b = sch.loops("y")
    sch.bind(i, "grid.x")
    sch.split(sch.fuse(a, b), sch.param("BLOCK", [64]))


def test_products_are_found() -> None:
    sch = Schedule(sums())
    fused(sch)
    assert [print_expr(e) for e in products(sch.program)] == ["n * k"]
    for program, template in ((prefill_causal(), flash_attention), (matmul(), lambda sch: None)):
        sch = Schedule(program)
        template(sch)
        assert products(sch.program) == ()


def test_a_call_that_is_too_large() -> None:
    kernel = neptune.compile(sums(), fused, target="llvm")
    x = torch.randn(3, 5, 7)
    torch.testing.assert_close(kernel(x), x.sum((1, 2)))
    large = torch.ones(1, 1, 1 << 16).expand(1, 1 << 15, 1 << 16)
    with pytest.raises(ShapeError, match=r"one loop over n \* k, which is 2147483648 here"):
        kernel(large)
