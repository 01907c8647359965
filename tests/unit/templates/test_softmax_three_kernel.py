"""softmax_three_kernel: three kernels through memory."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import figure1, softmax
from neptune.templates.softmax_three_kernel import softmax_three_kernel
from tests.tiers import sampled

pytestmark = pytest.mark.compared
TOLERANCE = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@cache
def compiled(dtype: str) -> neptune.Kernel:
    return neptune.compile(softmax(dtype), "softmax_three_kernel", target="llvm", params={"BLOCK_M": 4, "BLOCK_N": 64})


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_softmax(target: str, dtype: str) -> None:
    kernel = compiled(dtype).for_target(target)
    assert len(kernel.facts.kernels) == 3 and set(kernel.facts.temporaries) == {"m", "e", "l"}
    for rows, cols in ((1, 1), (17, 130), (5, 64)):
        for scale in (1, 30):
            x = (torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows)) * scale).to(
                getattr(torch, dtype)
            )
            x[0, cols // 2] = float("-inf") if cols > 1 else 0
            out = torch.full_like(x, float("nan"))
            want = torch.softmax(x.double(), 1)
            got = kernel(x, out=out).double()
            assert ((got - want).abs() <= 4 * TOLERANCE[dtype] * want + 1e-7).all()


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
def test_it_compiles(target: str) -> None:
    kernel = neptune.compile(softmax("float16"), "softmax_three_kernel", target="llvm")
    found = kernel.resources(target)
    assert [r.spill_bytes for r in found] == [0, 0, 0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (prefill_causal, "two reductions over one axis; there are: m, l, acc"),
        (figure1, "nothing is computed from `xsum`: there is no third kernel"),
    ],
)
def test_refusals(make: object, words: str) -> None:
    assert callable(make)
    program: Program = make()
    with pytest.raises(ScheduleError, match=words):
        softmax_three_kernel(Schedule(program))
