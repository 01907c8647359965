"""Whatever the expression and however little a template does, `compile` gives a correct kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.frontend import builder as te
from neptune.frontend.builder import compute, placeholder, reduce_axis
from neptune.ops.attention import prefill_causal
from tests.examples.any_programs import BY_NAME, CASES, SOME, TEMPLATES, Case, fold, inp, m, n, run
from tests.tiers import in_turn, sampled

TARGETS = ("llvm", "interpret")


@cache
def compiled(name: str, template: str = "automatic") -> neptune.Kernel:
    return neptune.compile(BY_NAME[name].make(), TEMPLATES[template], target="llvm", name="prog")


def check(case: Case, template: str) -> None:
    """One compilation, run on every target."""
    made = compiled(case.name, template)
    assert all(r.accepted for r in made.build.checks.values()), made.explain()
    for target in TARGETS:
        run(case, made.for_target(target), target)


@pytest.mark.parametrize("case", sampled(CASES, 2), ids=lambda c: c.name)
def test_every_program_finds_a_schedule(case: Case) -> None:
    check(case, "automatic")


# All have the automatic choice; every second one, which is half of each kind, an empty template as well.
@pytest.mark.parametrize("case", sampled(CASES[::2], 2), ids=lambda c: c.name)
def test_an_empty_template_is_enough(case: Case) -> None:
    check(case, "identity")


@pytest.mark.parametrize(("name", "template"), sampled(in_turn([*SOME, *SOME], ["bound", "cut", "turned"]), 4))
def test_and_so_is_half_a_template(name: str, template: str) -> None:
    check(BY_NAME[name], template)


# --- what the schedule is ----------------------------------------------------------------------------


def test_a_product_uses_the_matrix_unit_and_takes_its_epilogue_along() -> None:
    kernel = compiled("matmul_bias_relu")
    (only,) = kernel.facts.kernels
    assert kernel.build.template in ("matmul", "stagewise") and not kernel.facts.temporaries
    assert kernel.source.count("tl.dot(") == 2 and len(only.loops) == 1  # whole tiles, and what is left
    assert set(kernel.params) >= {"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"}


def test_a_convolution_is_products_in_a_loop_over_its_window() -> None:
    kernel = compiled("conv2d_channels")
    assert not kernel.facts.temporaries and kernel.source.count("tl.dot(") == 2
    assert not any(d.kind == "lowering" for d in kernel.build.decisions)


def test_a_chain_of_maps_is_one_kernel() -> None:
    assert len(compiled("chained").facts.kernels) == 1


@pytest.mark.compared
def test_what_was_given_up_is_explained() -> None:
    def rows(sch: Any) -> None:
        sch.bind(sch.loops("y")[0], "grid.x")

    x = inp((m, 3000, 2))
    kernel = neptune.compile(fold(te.sum, (m, 3000), (2,), lambda i, d, r: x[i, d, r]), rows, target="llvm")
    big = neptune.compile(prefill_causal(depth=2048), "flash_attention", target="llvm")
    assert not any(d.kind == "lowering" for d in kernel.build.decisions)
    (given_up,) = [d for d in big.build.decisions if d.kind == "lowering"]
    assert "2048 elements" in given_up.reason


def test_memory_that_a_kernel_reads_back_is_behind_barriers() -> None:
    def columns_first(sch: Any) -> None:
        i, r = sch.loops("s")
        sch.reorder(r, i)
        sch.split(i, sch.param("B", [4]))
        sch.split(r, 2)

    x = inp((m, n))
    kernel = neptune.compile(fold(te.sum, (m,), (n,), lambda i, r: x[i, r], "s"), columns_first, target="interpret")
    torch.testing.assert_close(kernel(torch.ones(5, 9)), torch.full((5,), 9.0))


# --- GPUs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
def test_kernels_compile_for_gpus(target: str) -> None:
    for name in ("transpose", "gather_rows", "sum_last", "sum_first", "matmul_half", "conv2d", "prefix_sum"):
        # With the values that are chosen for this GPU: those for a larger one may spill.
        made = neptune.compile(BY_NAME[name].make(), TEMPLATES["automatic"], target=target, name="prog")
        found = made.resources(target)
        assert all(r.spill_bytes == 0 for r in found), f"{name}: {found}"
        assert name != "matmul_half" or found[0].matrix


def test_an_error_of_a_template_is_the_callers_own() -> None:
    def stops(sch: Any) -> None:
        next(iter(()))

    with pytest.raises(StopIteration):
        neptune.compile(BY_NAME["sum_last"].make(), stops, target="llvm")


# --- nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_empty_tensors(target: str) -> None:
    kernel = compiled("softmax").for_target(target)
    assert kernel(torch.ones(0, 3)).shape == (0, 3) and kernel(torch.ones(3, 0)).shape == (3, 0)
    product = compiled("matmul").for_target(target)
    torch.testing.assert_close(product(torch.ones(2, 0), torch.ones(0, 3)), torch.zeros(2, 3))
    assert product(torch.ones(0, 4), torch.ones(4, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    "f, start", [(te.sum, 0.0), (te.prod, 1.0), (te.max, torch.finfo().min), (te.min, torch.finfo().max)]
)
def test_a_reduction_over_nothing_is_its_start(f: Callable[..., Any], start: float) -> None:
    x = inp((m, n))
    kernel = neptune.compile(fold(f, (m,), (n,), lambda i, j: x[i, j]), target="llvm")
    for target in TARGETS:
        out = torch.full((3,), float("nan"))
        kernel.for_target(target)(torch.ones(3, 0), out=out)
        assert out.tolist() == [start] * 3


@pytest.mark.compared
def test_attention_without_keys() -> None:
    kernel = neptune.compile(prefill_causal(depth=16, lse=True), target="llvm")
    q, kv = torch.ones(1, 2, 3, 16, dtype=torch.float16), torch.ones(1, 2, 0, 16, dtype=torch.float16)
    o, lse = kernel(q, kv, kv)
    assert (o == 0).all() and (lse == -torch.inf).all()


def test_constant_dimensions_of_zero() -> None:
    x, r = placeholder((m, 0), "float32", "x"), reduce_axis((0, 0), "r")
    total = compute((m,), lambda i: te.sum(x[i, r], axis=r), "y")
    assert neptune.compile(total, target="llvm")(torch.ones(4, 0)).tolist() == [0.0] * 4


def test_reading_what_is_not_there_is_the_callers_error() -> None:
    x = inp((n,))
    kernel = neptune.compile(compute((m,), lambda i: x[0], "y"), target="llvm")
    with pytest.raises(ShapeError, match="reads what is not there"):
        kernel(torch.ones(0), 3)


def test_tiles_of_a_fused_loop() -> None:
    """Indices in which a quotient of a tile axis stands beside another axis."""

    def schedule(sch: Any) -> None:
        i0, j0, i1, _ = sch.tile(sch.loops("y"), [2, 4])
        k0, _ = sch.split(sch.fuse(j0, i1), 4)
        _, i01 = sch.split(i0, 2)
        sch.reorder(k0, i01, *sch.loops("y")[3:])

    x, w = inp((m, n)), inp((m,), name="w")
    y = compute((m, n), lambda i, j: x[i, j] * w[i], "y")
    kernel = neptune.compile(y, schedule, target="llvm")
    for shape in ((5, 19), (8, 8), (1, 1)):
        a, b = torch.randn(shape), torch.randn(shape[0])
        for target in TARGETS:
            out = torch.full(shape, float("nan"))
            kernel.for_target(target)(a, b, out=out)
            assert torch.equal(out, a * b[:, None]), target
