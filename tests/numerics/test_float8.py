"""Kernels on 8-bit floats, interpreted and compiled for the CPU, against float64 and torch's own casts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import neptune
from neptune.frontend import builder as nb
from neptune.ir.dtypes import FLOAT8
from tests.examples.float8_programs import decode, quantised, scaled_matmul

TARGETS = ("interpret", "llvm")


def drawn(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers, with one of the largest, the smallest and a subnormal of an 8-bit float among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    x.view(-1)[:3] = torch.tensor([448.0, 2.0**-9, -(2.0**-6)])
    return x.to(getattr(torch, dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "other", "wide"),
    [
        *((d, d, "float32") for d in FLOAT8),
        ("float8_e4m3fn", "float8_e5m2", "float32"),
        ("float16", "float8_e4m3fn", "float32"),
        ("float8_e4m3fn", "float8_e4m3fn", "float16"),
    ],
)
def test_a_product_with_scales(dtype: str, other: str, wide: str, target: str) -> None:
    kernel = neptune.compile(scaled_matmul(dtype, other, wide=wide), "matmul", target=target)
    a, b = drawn((37, 51), dtype, 0), drawn((20, 51), other, 1)
    sa, sb = torch.rand(37) / 448, torch.rand(20)
    want = (a.double() @ b.double().T) * sa.double()[:, None] * sb.double()
    got = kernel(a, b, sa, sb)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), want, rtol=2.0**-10, atol=1e-6)


@pytest.mark.parametrize("depth", [16, 32])
def test_a_product_of_less_than_32_at_a_time_is_the_same(depth: int) -> None:
    kernel = neptune.compile(scaled_matmul("float8_e4m3fn"), "matmul", target="interpret", params={"BLOCK_K": depth})
    a, b, ones = drawn((16, 80), "float8_e4m3fn", 0), drawn((16, 80), "float8_e4m3fn", 1), torch.ones(16)
    want = a.double() @ b.double().T / 1024
    torch.testing.assert_close(kernel(a, b, ones, ones / 1024).double(), want, rtol=2.0**-10, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("template", ["flash_decoding", "flash_attention"])
def test_decoding_with_a_cache(dtype: str, template: str, target: str) -> None:
    kernel = neptune.compile(decode(dtype), template, target=target)
    q, k, v = drawn((2, 4, 1, 32), "float16", 0), drawn((2, 2, 70, 32), dtype, 1), drawn((2, 2, 70, 32), dtype, 2)
    ks, vs = torch.tensor([0.5, 0.01]), torch.tensor([1.0, 1.0 / 448])
    wide_k, wide_v = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ wide_k.mT * ks.double().repeat_interleave(2)[:, None, None] / math.sqrt(32)
    want = torch.softmax(scores, -1) @ wide_v * vs.double().repeat_interleave(2)[:, None, None]
    got = kernel(q, k, ks, v, vs).double()
    assert ((got - want).norm() / want.norm()).item() < 2.0**-10


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_is_torchs(dtype: str, target: str) -> None:
    x = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)).half()
    x[1], x[2, 3], x[3, 5], x[4, 0] = 0.0, math.nan, 1000.0, 6e-8
    y, scale = neptune.compile(quantised(dtype), target=target)(x)
    want = (x.float() / scale[:, None]).to(getattr(torch, dtype))
    finite = ~want.float().isnan()
    assert torch.equal(y.float().isnan(), ~finite)
    assert torch.equal(y.view(torch.uint8)[finite], want.view(torch.uint8)[finite])


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("strided", [False, True])
def test_layouts(dtype: str, strided: bool) -> None:
    a = drawn((12, 64), dtype, 0)
    a = a[::2, :40] if strided else a[:6, :40].contiguous()
    b, ones = drawn((5, 40), dtype, 1), torch.ones(6)
    for target in TARGETS:
        kernel = neptune.compile(scaled_matmul(dtype, out=dtype), "matmul", target=target)
        got = kernel(a, b, ones / 4096, ones[:5])
        want = ((a.float() @ b.float().T) / 4096).to(getattr(torch, dtype))
        assert got.dtype == want.dtype and got.shape == (6, 5)
        torch.testing.assert_close(got.float(), want.float(), rtol=0.25, atol=1e-6)


def test_an_empty_depth() -> None:
    kernel = neptune.compile(scaled_matmul("float8_e4m3fn", out="float8_e4m3fn"), target="llvm")
    empty = torch.empty((3, 0), dtype=torch.float8_e4m3fn)
    assert kernel(empty, empty, torch.ones(3), torch.ones(3)).float().eq(0).all()


def test_a_saved_kernel(tmp_path) -> None:
    kernel = neptune.compile(scaled_matmul("float8_e5m2"), "matmul", target="llvm")
    kernel.save(tmp_path / "k.neptune")
    a, ones = drawn((8, 32), "float8_e5m2", 0), torch.ones(8)
    assert torch.equal(neptune.load(tmp_path / "k.neptune")(a, a, ones, ones / 4096), kernel(a, a, ones, ones / 4096))


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("template", [None, lambda sch: None], ids=["tiles", "scalars"])
def test_choices_and_literals(dtype: str, template: Any) -> None:
    """Codes are moved as they are; literals are rounded as casts are."""
    n = nb.var("n")
    x, y = (nb.placeholder((n,), dtype, v) for v in "xy")
    outs = [
        nb.compute((n,), lambda i: nb.select(i % 3 < 1, x[i], y[i]), "chosen"),
        nb.compute((n,), lambda i: nb.select(i % 2 < 1, x[i], nb.const(0.3, dtype)), "beside"),
        nb.compute((n,), lambda i: nb.select(i < 200, x[i], 0.0), "zeros"),
        nb.compute((n,), lambda i: nb.select(i >= 4, x[i - nb.minimum(i, 4)], nb.const(-math.inf, dtype)), "moved"),
        nb.compute((n,), lambda i: (i * 37 - 4000).astype(dtype), "counted"),
    ]
    codes = torch.arange(256, dtype=torch.uint8)
    a, b = codes.view(getattr(torch, dtype)), codes.flip(0).view(getattr(torch, dtype))
    at, low = torch.arange(256), torch.tensor(-math.inf).to(a.dtype).float()
    wide = a.float()
    want = {
        "chosen": torch.where(at % 3 < 1, wide, b.float()),
        "beside": torch.where(at % 2 < 1, wide, torch.tensor(0.3).to(a.dtype).float()),
        "zeros": torch.where(at < 200, wide, 0.0),
        "moved": torch.cat([low.expand(4), wide[:-4]]),
        "counted": (at * 37 - 4000).float().to(a.dtype).float(),
    }
    kernel = neptune.compile(nb.build(outs), template, target="interpret")
    for target in ("interpret",) if template else TARGETS:
        for got, (name, expected) in zip(kernel.for_target(target)(a, b), want.items(), strict=True):
            torch.testing.assert_close(got.float(), expected, rtol=0, atol=0, equal_nan=True, msg=f"{target}: {name}")


def test_tensor_expressions() -> None:
    te = pytest.importorskip("tvm.te")
    n, k = te.var("n"), te.reduce_axis((0, 48), name="k")
    a, b = (te.placeholder((n, 48), "float8_e4m3fn", name=name) for name in "ab")
    wide = [lambda i, x=x: x[i, k].astype("float16").astype("float32") for x in (a, b)]
    c = te.compute((n, n), lambda i, j: te.sum(wide[0](i) * wide[1](j), axis=k), name="c")
    o = te.compute((n, n), lambda i, j: (c[i, j] * 0.125).astype("float8_e5m2"), name="o")
    x, y = drawn((9, 48), "float8_e4m3fn", 0), drawn((9, 48), "float8_e4m3fn", 1)
    want = ((x.float() @ y.float().T) * 0.125).to(torch.float8_e5m2)
    for target in TARGETS:
        got = neptune.compile(o, target=target)(x, y)
        torch.testing.assert_close(got.float(), want.float(), rtol=0.25, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_no_repair_passes_through_a_cast_to_8_bits(dtype: str) -> None:
    """exp(s - m) is rounded when m is final, and not before."""
    program = decode("float16", weights=dtype)
    with pytest.raises(neptune.FusionError, match="keeps few digits"):
        neptune.compile(program, "flash_attention", target="llvm")
    q, k, v = (
        drawn((2, 4, 1, 32), "float16", 0),
        drawn((2, 2, 40, 32), "float16", 1),
        drawn((2, 2, 40, 32), "float16", 2),
    )
    one = torch.ones(2)
    scores = (q.float() @ k.float().repeat_interleave(2, 1).mT) / math.sqrt(32)
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    acc = p.to(getattr(torch, dtype)).double() @ v.double().repeat_interleave(2, 1)
    want = acc / p.double().sum(-1, keepdim=True)
    for target in TARGETS:
        got = neptune.compile(program, target=target)(q, k, one, v, one).double()
        # A probability beside the middle of two numbers may go to either.
        assert ((got - want).norm() / want.norm()).item() < 2.0**-8
