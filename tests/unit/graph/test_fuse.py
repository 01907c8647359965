"""neptune.fuse: plain torch functions end to end, on the CPU through LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neptune
from neptune.graph.fuse import Fused

pytestmark = [pytest.mark.compared, pytest.mark.cached]


def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The textbook form, with a causal mask out of two aranges."""
    s = (q @ k.mT) * 0.25 + bias
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=q.device)[None]
    return s.masked_fill(j > i, float("-inf")).softmax(-1) @ v


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def agrees(fused: Callable[..., Any], plain: Callable[..., Any], *args: torch.Tensor, factor: float = 1.1) -> None:
    """Hold a function against float64, beside the plain one in the dtype of its arguments."""
    exact = plain(*(a.double() if a.is_floating_point() else a for a in args))
    with torch.no_grad():
        found, eager = fused(*args), plain(*args)
    assert found.dtype == eager.dtype and found.shape == eager.shape
    eps = torch.finfo(found.dtype).eps
    assert error(found, exact) <= max(factor * error(eager, exact), eps)


def operands(m: int, n: int, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = (2, 4, m, 16), (2, 4, n, 16), (2, 4, n, 16), (4, m, n)
    return tuple(torch.randn(s, dtype=dtype) for s in shapes)


@pytest.fixture(scope="module")
def fused() -> Fused:
    torch._dynamo.reset()
    made = neptune.fuse(attention, target="llvm", take="all")
    agrees(made, attention, *operands(33, 47))
    return made


def test_textbook_attention_is_the_kernel_that_the_template_makes(fused: Fused) -> None:
    (report,) = fused.reports
    (choice,) = report.taken
    kernel = choice.kernel
    assert kernel is not None and kernel.executable.artifact.template == "flash_attention"
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    assert set(kernel.facts.traversals.values()) == {1}
    # Two pieces: the clean one ends at the diagonal, the masked one as well, so that what lies beyond is skipped.
    clean, masked = kernel.facts.kernels[0].loops
    assert "BLOCK_M * i20 + 1" in clean.trips and "BLOCK_M * i20" in masked.trips
    assert all(r.matrix for r in kernel.for_target("cuda:80").resources("cuda:80"))


def test_another_length_does_not_trace_anew_and_another_dtype_does(fused: Fused) -> None:
    before = len(fused.reports)
    for m, n in ((1, 47), (64, 64), (130, 65)):
        if m > 1:
            agrees(fused, attention, *operands(m, n))
    assert len(fused.reports) == before
    agrees(fused, attention, *operands(8, 9, torch.float32), factor=10)
    assert len(fused.reports) == before + 1


def test_explain_names_the_kernel_of_every_node_and_both_numbers(fused: Fused) -> None:
    text = fused.explain(*operands(33, 47))
    assert "predicted for Neptune's kernel: " in text and "at least, for Inductor's: " in text
    report = fused.reports[0]
    lines = text.splitlines()
    for name in report.nodes:
        assert any(line.split()[:1] == [name] for line in lines), name
    assert "bmm_1: the quotient of the softmax is taken behind the product" in text
