"""norm_linear, norm_linear_rolling, and several products in one `matmul`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neptune
from neptune.errors import ExpressionError, FusionError, ScheduleError
from neptune.ir.program import Program
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.ops.softmax import softmax
from tests.tiers import sampled
from tests.unit.schedule.test_replicate import norm_linear

EPS = 1e-6
Oracle = Callable[..., torch.Tensor]


def _normal(x: torch.Tensor, g: torch.Tensor | None = None) -> torch.Tensor:
    unit = x / torch.sqrt((x * x).mean(1, keepdim=True) + EPS)
    return unit if g is None else unit * g


def _gated(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ w) * (x @ u)


def _two(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return (_normal(x) @ w) * (_normal(x) @ u)


CASES: dict[str, tuple[Callable[[], Program], str, Oracle, int]] = {
    "norm": (rms_norm_linear, "norm_linear", lambda x, g, w: _normal(x, g) @ w, 1),
    "transposed": (
        lambda: rms_norm_linear(trans_b=True), "norm_linear", lambda x, g, w: _normal(x, g) @ w.T, 1,
    ),
    "two products": (lambda: norm_linear("float16", gated=True, rounded=True), "norm_linear", _two, 2),
    "rolling": (lambda: norm_linear("float16"), "norm_linear_rolling", lambda x, w: _normal(x) @ w, 1),
    "two rolling": (lambda: norm_linear("float16", gated=True), "norm_linear_rolling", _two, 2),
    "gated": (gated_linear, "matmul", _gated, 2),
    "gated, transposed": (lambda: gated_linear(trans_b=True), "matmul", lambda x, w, u: _gated(x, w.T, u.T), 2),
}  # fmt: skip
SIZES = {"m": 37, "n": 75, "k": 100}


def _tensors(program: Program, sizes: dict[str, int], scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(1)
    shapes = [[sizes[getattr(d, "name", "")] for d in b.shape] for b in program.inputs]
    return [torch.randn(s).mul(scale).half() for s in shapes]


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_on_the_matrix_unit(case: str) -> None:
    make, template, oracle, products = CASES[case]
    kernel = neptune.compile(make(), template, target="llvm")
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    # The whole loop, and what is left of it.
    assert kernel.source.count("tl.dot(") == 2 * products
    for sizes in (SIZES, dict.fromkeys("mnk", 1), {"m": 16, "n": 32, "k": 64}, {"m": 3, "n": 5, "k": 0}):
        tensors = _tensors(make(), sizes)
        wanted = oracle(*(t.double() for t in tensors))
        found = kernel(*tensors).double()
        assert (found - wanted).norm() <= 1e-3 * wanted.norm()


@pytest.mark.parametrize("case", sampled(CASES, 2))
def test_the_text_says_the_same(case: str) -> None:
    make, template, _, _ = CASES[case]
    kernel = neptune.compile(make(), template, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 32})
    tensors = _tensors(make(), SIZES)
    found = kernel.for_target("interpret")(*tensors).double()
    wanted = kernel(*tensors).double()
    assert (found - wanted).norm() <= 1e-3 * wanted.norm()


@pytest.mark.parametrize("case", sampled(["norm", "rolling", "gated"], 1))
def test_it_compiles_for_hopper(case: str) -> None:
    make, template, _, _ = CASES[case]
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
    (needs,) = neptune.compile(make(), template, target="cuda:90", params=params).resources("cuda:90")
    assert needs.matrix == "wgmma" and not needs.spill_bytes


def test_rows_of_zeros_and_of_large_values() -> None:
    kernel = neptune.compile(rms_norm_linear(), "norm_linear", target="llvm")
    x, g, w = _tensors(rms_norm_linear(), SIZES)
    x[0], x[1], x[2] = 0.0, 60000.0, 6e-8
    found = kernel(x, g, w)
    wide = x.double()
    wanted = _normal(wide, g.double()) @ w.double()
    assert not found[0].any()
    assert torch.allclose(found.double()[1:], wanted[1:], rtol=1e-2, atol=2e-2)


def test_what_is_rounded_is_not_moved() -> None:
    """The scale of a row that was rounded to float16 may be beyond its range before the row has ended."""
    with pytest.raises(FusionError, match="may leave the range of float16"):
        neptune.compile(rms_norm_linear(), "norm_linear_rolling", target="llvm")


@pytest.mark.parametrize("template", ["norm_linear", "norm_linear_rolling"])
def test_it_needs_a_statistic_and_a_product(template: str) -> None:
    for program in (matmul(), softmax(), gated_linear()):
        with pytest.raises(ScheduleError, match="it needs reductions of rows, behind them"):
            neptune.compile(program, template, target="llvm")


def test_parts_of_the_depth_are_of_one_product() -> None:
    with pytest.raises(ScheduleError, match="it needs one sum of products"):
        neptune.compile(gated_linear(), "matmul_split", target="llvm")


def test_options_are_checked() -> None:
    with pytest.raises(ExpressionError, match="unknown activation"):
        gated_linear(activation="swish")
    with pytest.raises(ExpressionError, match="no dtype of a product"):
        rms_norm_linear("int8")
