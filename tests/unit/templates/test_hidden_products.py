"""Products behind factors that do not move keep their matrix unit (B2); a gathered score needs no whole row (B4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neptune
from neptune.codegen.llvm import compile_llvm
from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncover, uncovered
from neptune.ir.contraction import Contraction, NoProduct
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.tile.parser import parse_tiles
from neptune.tile.registers import dots
from neptune.verify.numerics import allowance, rel_error
from tests.examples.hidden_products import (
    EPS,
    gathered_loss,
    rms_linear,
    scaled_product,
    through_a_map,
    weighted_rms_linear,
    wide,
)

DEPTHS = {"symbolic": None, "64": 64, "256": 256, "4096": 4096}


def products(kernel: Kernel) -> set[tuple[str, str]]:
    """The dtypes of the operands of the products on the matrix unit."""
    tiles = parse_tiles(kernel.ir("tile"), kernel.program)
    return {(d.a.dtype, d.b.dtype) for k in tiles.kernels for d in dots(k)}


# --- the matrix unit --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
def test_plain_rms_norm_and_product_are_on_the_matrix_unit(depth: str) -> None:
    """In one kernel; or where rows are long the statistic may be one of its own, if that is predicted to be faster."""
    kernel = neptune.compile(rms_linear(k=DEPTHS[depth]), target="cuda:90")
    one = len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    alone = len(kernel.facts.kernels) == 2 and kernel.facts.temporaries == ("ss",) and depth in ("4096", "symbolic")
    assert (one or alone) and not kernel.warnings
    assert products(kernel) == {("float16", "float16")} and "tl.dot(x, w" in kernel.source
    assert kernel.explain(json=True)["assumptions"] == []
    assert {v.template for v in kernel.variants} <= {"norm_linear", "norm_linear_rolling", "stagewise"}


@pytest.mark.parametrize("template", ["matmul", "matmul_split", "stagewise"])
@pytest.mark.parametrize("through", [False, True])
def test_every_template_for_products_takes_the_factor_out(template: str, through: bool) -> None:
    program = through_a_map(kept=False) if through else scaled_product(lambda x, w, r, c: x * r * w, "float16")
    kernel = neptune.compile(program, template, target="cuda:90")
    assert products(kernel) == {("float16", "float16")} and not kernel.warnings


def test_two_scales_are_taken_out_under_an_assumption() -> None:
    """r c is a number that the expression does not compute: `stagewise`, which assumes nothing, leaves them."""
    program = scaled_product(lambda x, w, r, c: x * r * w * c, "float16")
    kernel = neptune.compile(program, "matmul", target="cuda:90")
    assert products(kernel) == {("float16", "float16")} and not kernel.warnings
    assert [a["name"] for a in kernel.explain(json=True)["assumptions"]] == ["range(y)"]
    left = neptune.compile(program, "stagewise", target="cuda:90")
    assert [w.code for w in left.warnings] == ["lost-product"] and not left.explain(json=True)["assumptions"]


def test_a_weight_that_moves_is_multiplied_in_float32() -> None:
    """x g of float16 has 22 bits: no exact product of 16 bits is left, and explain() says so."""
    for term in (lambda x, g, w, r: x * w * r * g, lambda x, g, w, r: g * (r * x) * w):
        kernel = neptune.compile(weighted_rms_linear(term), "norm_linear", target="cuda:90")
        assert products(kernel) == {("float32", "float32")}
        assert [w.code for w in kernel.warnings] == ["widened-product"]
    rounded = neptune.compile(
        weighted_rms_linear(lambda x, g, w, r: wide((x * r * g).astype("float16")) * w), "norm_linear", target="cuda:90"
    )
    assert products(rounded) == {("float16", "float16")}


def test_what_uncover_leaves_alone() -> None:
    """A rounding, a product that is one already, and one that is no better without its factor."""
    rounded = rms_linear(lambda x, r, w: wide((x * r).astype("float16")) * w)
    single = scaled_product(lambda x, w, r, c: (x * r) * (w * c))
    for program in (rounded, scaled_product(lambda x, w, r, c: x * w, "float16"), single):
        sch = Schedule(program)
        uncover(sch)
        assert not sch.trace
    # In float32 the range of the sum is assumed, and the template for every program assumes nothing.
    for program, expected in ((rms_linear(dtype="float32"), []), (rms_linear(), ["hoist_factor"])):
        sch = Schedule(program)
        uncover(sch, assuming=False)
        assert [x.primitive for x in sch.trace] == expected
    found = {s: Schedule(rms_linear()).definition(s) for s in Schedule(rms_linear()).stages}
    product = uncovered(found, "y")
    assert isinstance(product, Contraction) and (product.a.dtype, product.b.dtype) == ("float16", "float16")
    assert isinstance(uncovered(found, "ss"), NoProduct)


# --- values ---------------------------------------------------------------------------------------


def norm64(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + EPS) @ w


def hard(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of zeros, of the largest and the smallest numbers, a needle, and both signs that cancel; the largest w."""
    torch.manual_seed(3)
    x, w = torch.randn(m, k), torch.randn(k, n)
    x[0], x[1], x[2] = 0.0, 65504.0, 6e-8
    x[3], x[3, k // 2] = 0.0, 60000.0
    x[4, ::2], x[4, 1::2] = 40000.0, -40000.0
    w[:, 0] = 65504.0
    return x.half(), w.half()


def poison(dtype: str, like: torch.Tensor) -> torch.Tensor:
    """A result full of NaN, of the shape of another one."""
    return torch.full_like(like, float("nan"), dtype=getattr(torch, dtype))


def alone(program: Program, like: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    """What the unfused expression gives, with all its casts."""
    out = poison(program.outputs[0].dtype, like)
    compile_llvm(program)(tensors, [out])
    return out


def agrees(program: Program, kernel: Kernel, wanted: torch.Tensor, *tensors: torch.Tensor) -> None:
    """A kernel is as near to float64 as the expression, unfused, is."""
    dtype = program.outputs[0].dtype
    unfused = rel_error(alone(program, wanted, *tensors), wanted)
    out = poison(dtype, wanted)
    kernel(*tensors, out=out)
    found = rel_error(out, wanted)
    assert all(a <= allowance(dtype, b) for a, b in zip(found, unfused, strict=True)), (found, unfused)


@pytest.mark.parametrize("template", ["norm_linear", "norm_linear_rolling", "stagewise"])
@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_hard_rows(template: str, target: str) -> None:
    program = rms_linear()
    kernel = neptune.compile(program, template, target=target, params={"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16})
    for m, k, n in ((21, 37, 19), (5, 64, 16)):
        x, w = hard(m, k, n)
        agrees(program, kernel, norm64(x.double(), w.double()), x, w)


def test_float16_results_and_given_depths() -> None:
    for k in (64, 256):
        program = rms_linear(k=k, stored="float16")
        x, w = hard(19, k, 33)
        agrees(
            program,
            neptune.compile(program, target="llvm"),
            norm64(x.double(), w.double() / 65504),
            x,
            (w / 65504).half(),
        )


def test_scales_that_are_zero_infinite_and_tiny() -> None:
    """0, and numbers so small or large that what they scale must not be scaled early; inf gives nothing finite."""
    program = scaled_product(lambda x, w, r, c: x * r * w, "float16")
    kernel = neptune.compile(program, "matmul", target="llvm")
    x, w = hard(9, 40, 17)
    r, c = torch.tensor([1.0, 0.0, 1e-30, 1e20, -2.0, 3e-38, 0.5, float("inf"), float("nan")]), torch.ones(17)
    wanted = (x.double() @ w.double()) * r.double()[:, None]
    agrees(program, kernel, wanted[:7], x[:7], w, r[:7], c)
    for found in (kernel(x, w, r, c), alone(program, wanted, x, w, r, c)):
        assert not torch.isfinite(found[7:]).any()


# --- gathered columns -------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [None, 32000, 128256])
def test_a_gathered_score_does_not_ask_for_the_whole_row(classes: int | None) -> None:
    kernel = neptune.compile(gathered_loss(64, classes), target="cuda:90")
    assert kernel.explain(json=True)["template"] in ("flash_attention", "flash_decoding", "softmax_online")
    assert products(kernel) == {("float16", "float16")} and kernel.params["BLOCK_N"] < 1024


def loss64(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    s = x @ w.T
    return torch.logsumexp(s, 1) - s[torch.arange(len(x)), t]


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "random": lambda x: x,
    "needle": lambda x: x * torch.linspace(0.0, 30.0, len(x))[:, None],
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("template", ["flash_attention", "flash_decoding", "softmax_online", "softmax_row"])
@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_losses_of_gathered_scores(template: str, target: str) -> None:
    program = gathered_loss(16)
    kernel = neptune.compile(program, template, target=target)
    torch.manual_seed(4)
    for make in LOSSES.values():
        x, w = make(torch.randn(19, 16)).half(), torch.randn(301, 16).half()
        t = torch.randint(0, 301, (19,), dtype=torch.int32)
        t[0], t[1] = 0, 300
        agrees(program, kernel, loss64(x.double(), w.double(), t.long()), x, w, t)


@pytest.mark.parametrize("classes", [32000, 128256])
def test_losses_of_a_vocabulary(classes: int) -> None:
    program = gathered_loss(64, classes)
    kernel = neptune.compile(program, target="llvm")
    torch.manual_seed(5)
    x, w = torch.randn(3, 64).half(), torch.randn(classes, 64).half()
    t = torch.tensor([0, classes - 1, 777], dtype=torch.int32)
    agrees(program, kernel, loss64(x.double(), w.double(), t.long()), x, w, t)
