"""8-bit floats on a GPU: every code, every cast of float16, products, decoding."""

from __future__ import annotations

import math

import pytest
import torch

import neptune
from neptune.frontend import builder as nb
from neptune.ir.dtypes import DTYPES, FLOAT8
from tests.examples.float8_programs import decode, scaled_matmul

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def has_them(gpu: None) -> None:
    if torch.version.hip is None and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no float8_e4m3fn")


def converted(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a kernel casts `x` to."""
    n = nb.var("n")
    source = nb.placeholder((n,), str(x.dtype).removeprefix("torch."), "x")
    return neptune.compile(nb.build(nb.compute((n,), lambda i: source[i].astype(dtype), "y")), target="cuda")(x)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32", "float64"])
def test_every_code(dtype: str, wide: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").view(getattr(torch, dtype))
    torch.testing.assert_close(
        converted(codes, wide), codes.float().to(getattr(torch, wide)), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32"])
def test_casts_are_the_cpus(dtype: str, source: str) -> None:
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16).to(getattr(torch, source))
    x = torch.cat([x, x * 1.0001, x * 0.9999])
    # What is too large for float8_e4m3fn was NaN before torch 2.13.
    wide = x.float().clamp(-448, 448) if dtype == "float8_e4m3fn" else x.float()
    got, want = converted(x.cuda(), dtype).cpu(), wide.to(getattr(torch, dtype))
    number = ~x.isnan()
    assert torch.equal(got.view(torch.uint8)[number], want.view(torch.uint8)[number])
    assert got.float()[~number].isnan().all()


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("wide", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [(256, 512, 4096), (37, 130, 100), (1, 64, 8192)])
def test_products(dtype: str, wide: str, sizes: tuple[int, int, int]) -> None:
    """Of 8 bits, within what 14 bits of sums of 32, or of a tile, lose; of 16 bits, as exact as float32."""
    m, n, k = sizes
    made = torch.Generator(device="cuda").manual_seed(0)
    a, b = (torch.randn(s, k, device="cuda", generator=made).to(getattr(torch, dtype)) for s in (m, n))
    ones = torch.ones(max(m, n), device="cuda")
    kernel = neptune.compile(scaled_matmul(dtype, out="float32", wide=wide), "matmul", target="cuda")
    got, want = kernel(a, b, ones[:m], ones[:n]).double(), a.double() @ b.double().T
    error = ((got - want).norm() / want.norm()).item()
    assert error < (2.0**-11 if wide == "float32" else 1e-5), error


@pytest.mark.parametrize("dtype", FLOAT8)
def test_decoding(dtype: str) -> None:
    kernel = neptune.compile(decode(dtype, heads=8, kv_heads=2, depth=128), target="cuda")
    made = torch.Generator(device="cuda").manual_seed(0)
    q = torch.randn(3, 8, 1, 128, device="cuda", generator=made).half()
    k, v = (torch.randn(3, 2, 2000, 128, device="cuda", generator=made).to(getattr(torch, dtype)) for _ in range(2))
    ks, vs = (torch.tensor([1.0, 0.3], device="cuda") for _ in range(2))
    wide_k, wide_v = (x.double().repeat_interleave(4, 1) for x in (k, v))
    scores = q.double() @ wide_k.mT * ks.double().repeat_interleave(4)[:, None, None] / math.sqrt(128)
    want = torch.softmax(scores, -1) @ wide_v * vs.double().repeat_interleave(4)[:, None, None]
    got = kernel(q, k, ks, v, vs).double()
    assert ((got - want).norm() / want.norm()).item() < 2.0 ** -DTYPES["float16"].mantissa
