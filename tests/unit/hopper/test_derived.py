"""Kernels derived from their tile programs, printed as Gluon and run by the emulator beside float64."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neptune.hopper.emulate import load
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import AsyncKernel, Finish, Levers, walk_async
from neptune.hopper.parser import parse_async
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.hopper.validate.compile import compile_gluon
from neptune.ir.expr import Expr, op
from neptune.tile.ir import TileProgram
from tests.examples.walks import tiles_of, walked

HALF = 5e-4
"""Of results in float16 whose operands were rounded to it on the way."""


@pytest.fixture(autouse=True)
def three_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of three multiprocessors, so that programs have several groups."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))


def derived(name: str, template: str, levers: Levers, **options: Any) -> tuple[AsyncKernel, TileProgram]:
    _, tiles = tiles_of(name, template, **options)
    made = roles(walked(tiles, levers), tiles, levers)
    verify_async(made, tiles)
    assert str(parse_async(str(made), tiles)) == str(made)
    return made, tiles


def ran(
    kernel: AsyncKernel, tiles: TileProgram, *inputs: torch.Tensor, shape: tuple[int, ...], **how: Any
) -> torch.Tensor:
    out = torch.full(shape, float("nan"), dtype=inputs[0].dtype)
    load(generate(tiles, kernel).text, **how)[tiles.name](*inputs, out)
    return out


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert not found.isnan().any()
    return float((found.double() - wanted).norm() / wanted.norm())


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention in float64; a row without keys is 0."""
    s = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if causal:
        rows, cols = s.shape[-2:]
        s = s.masked_fill(~torch.ones(rows, cols, dtype=torch.bool).tril(cols - rows), -torch.inf)
    return torch.softmax(s, -1).nan_to_num() @ v.double()


ATTENTION = [
    ("prefill_causal", Levers(2, 2, "once", True, False), 200, 200, "late"),
    ("prefill_causal", Levers(2, 2, "reverse", True, False), 330, 330, "late"),
    ("prefill_causal", Levers(3, 2, "table", True, True), 200, 260, "random"),
    ("prefill_causal", Levers(2, 3, "table", False, False), 130, 70, "late"),
    ("prefill_global", Levers(2, 2, "stride", False, False), 130, 65, "random"),
    ("prefill_global", Levers(2, 4, "stride", True, True), 1, 200, "eager"),
]


@pytest.mark.parametrize(("name", "levers", "s_q", "s_kv", "order"), ATTENTION)
@pytest.mark.parametrize("hard", [False, True])
def test_attention(name: str, levers: Levers, s_q: int, s_kv: int, order: str, hard: bool) -> None:
    torch.manual_seed(s_q)
    q, k, v = (torch.randn(1, 2, n, 64).half() for n in (s_q, s_kv, s_kv))
    if hard:
        q, v[:, :, -1] = q * 40, 300  # one key takes all weight; the last value is large
    levers = Levers(levers.consumers, levers.stages, levers.persistent, levers.own_out, levers.pin, {"BLOCK_N": 64})
    kernel, tiles = derived(name, "flash_attention", levers, depth=64, heads=2)
    out = ran(kernel, tiles, q, k, v, shape=tuple(q.shape), seed=3, order=order)
    assert error(out, softmax(q, k, v, name == "prefill_causal")) < HALF


PRODUCTS = [
    ({}, Levers(2, 3, "once"), (200, 136, 72), "late"),
    ({"trans_b": True}, Levers(3, 2, "stride"), (300, 72, 64), "random"),
    ({}, Levers(2, 2, "stride"), (64, 64, 8), "late"),
]


@pytest.mark.parametrize(("options", "levers", "sizes", "order"), PRODUCTS)
def test_products(options: dict[str, bool], levers: Levers, sizes: tuple[int, int, int], order: str) -> None:
    m, n, k = sizes
    torch.manual_seed(m)
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    tiles_of_form = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    levers = Levers(levers.consumers, levers.stages, levers.persistent, tiles=tiles_of_form)
    kernel, tiles = derived("matmul", "matmul", levers, **options)
    given = b.mT.contiguous() if options else b
    assert error(ran(kernel, tiles, a, given, shape=(m, n), order=order), a.double() @ b.double()) < HALF


def test_a_gated_product() -> None:
    torch.manual_seed(0)
    x, w, u = torch.randn(130, 40).half(), torch.randn(40, 72).half(), torch.randn(40, 72).half()
    levers = Levers(2, 2, "stride", tiles={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32})
    kernel, tiles = derived("gated_linear", "matmul", levers)
    gate = x.double() @ w.double()
    wanted = gate * torch.sigmoid(gate) * (x.double() @ u.double())
    assert error(ran(kernel, tiles, x, w, u, shape=(130, 72)), wanted) < HALF


def test_a_product_beside_a_statistic_of_its_operand() -> None:
    """The rows' tile is multiplied where it lies, and read into registers beside."""
    torch.manual_seed(0)
    x, w = torch.randn(130, 80).half(), torch.randn(80, 72).half()
    levers = Levers(2, 2, "stride", tiles={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64})
    kernel, tiles = derived("l2_normalise_matmul", "norm_linear_rolling", levers)
    norm = x.double().square().sum(1, keepdim=True).add(1e-12).sqrt()
    assert error(ran(kernel, tiles, x, w, shape=(130, 72)), x.double() / norm @ w.double()) < HALF


def test_the_loop_that_the_page_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hopper.md").read_text()
    shown = page.partition("## Roles")[2].split("```")[1].strip().splitlines()
    levers = Levers(2, 2, "table", tiles={"BLOCK_N": 128})
    kernel, _ = derived("prefill_causal", "flash_attention", levers, depth=128)
    assert "\n".join(f"    {line}" for line in shown) in str(kernel)


def test_three_consumers_of_depth_64_spill_nothing() -> None:
    """What holds row sums in place stands in the loop without masks alone: in the other, registers would spill."""
    levers = Levers(3, 2, "table", True, True, {"BLOCK_N": 128})
    kernel, tiles = derived("prefill_causal", "flash_attention", levers, depth=64)
    waits = [s.also for s in walk_async(kernel.consumer) if isinstance(s, Finish) and s.also]
    assert waits == [("p",), ("m", "p", "m_rescale", "l")]
    made = generate(tiles, kernel)
    built = compile_gluon(made.text, made.kernel)
    assert built.spill_bytes == 0 and not built.warnings and built.lint.overlapped > 0


def test_functions_of_cudas_library() -> None:
    """They are called by name, also from Gluon: by the compiler, and by the emulator."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, n, 64).half() for n in (70, 130, 130))

    def score(b: Expr, h: Expr, i: Expr, j: Expr, s: Expr) -> Expr:
        return op("atan2", op("log1p", op("abs", s)), op("erfc", s))

    levers = Levers(2, 2, "once", True, False, {"BLOCK_N": 64})
    kernel, tiles = derived("prefill_global", "flash_attention", levers, depth=64, heads=2, score=score)
    text = generate(tiles, kernel)
    assert "libdevice.atan2(libdevice.log1p" in text.text and compile_gluon(text.text, text.kernel).cubin
    s = q.double() @ k.double().mT / 8
    wanted = torch.softmax(torch.atan2(torch.log1p(s.abs()), torch.erfc(s)), -1) @ v.double()
    assert error(ran(kernel, tiles, q, k, v, shape=tuple(q.shape)), wanted) < HALF
