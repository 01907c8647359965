"""8-bit floats by their bits, against torch: every code, every float16, and float32 about every number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neptune.ir.dtypes import BITS, DTYPES, FLOAT8, code_of, rounded8
from neptune.ir.evaluate.floats import VALUES, decode, encode, round_to

CODES = np.arange(256, dtype=np.uint8)
dtypes = pytest.mark.parametrize("dtype", FLOAT8)


def of_torch(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """What torch casts float32 to: the codes, and their values."""
    made = torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(getattr(torch, dtype))
    return made.view(torch.uint8).numpy(), made.float().numpy()


def hostile(dtype: str) -> np.ndarray:
    """All float16; every number of `dtype`, the middles of two, and their neighbours; the ends of float32."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    numbers = np.unique(VALUES[dtype][np.isfinite(VALUES[dtype])])
    step = numbers[-1] - numbers[-2]
    numbers = np.concatenate([numbers, [numbers[-1] + step, numbers[-1] + 2 * step]]).astype(np.float32)
    centres = np.concatenate([numbers, (numbers[:-1] + numbers[1:]) / 2])
    beside = [np.nextafter(centres, np.float32(way)) for way in (-np.inf, np.inf)]
    ends = np.array([np.inf, np.nan, 0.0, 1e-45, 1.2e-38, 3.4e38, 1e9, 65504, 65520], np.float32)
    every = np.concatenate([halves, centres, *beside, ends])
    return np.concatenate([every, -every])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal, NaN as NaN, and zeros with their signs."""
    return bool(np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


@dtypes
def test_every_code_has_the_value_that_torch_gives_it(dtype):
    assert same(decode(CODES, dtype), torch.from_numpy(CODES).view(getattr(torch, dtype)).float().numpy())


@dtypes
def test_casts_round_as_torchs(dtype):
    x = hostile(dtype)
    codes, values = of_torch(x, dtype)
    assert same(round_to(x.astype(np.float64), dtype), values)
    assert same(decode(encode(x, dtype), dtype), values)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(encode(x, dtype)[number], codes[number])


@dtypes
def test_the_integer_form_is_the_same(dtype):
    """What kernels compute (`BITS`), step by step in numpy."""
    x, b = hostile(dtype), BITS[dtype]
    raw = x.view(np.uint32).astype(np.int64)
    size = raw & 0x7FFFFFFF
    magic = np.array(b.magic, np.uint32).view(np.float32)
    small = (size.astype(np.uint32).view(np.float32) + magic).view(np.uint32).astype(np.int64) - b.magic
    normal = ((size + (1 << (b.shift - 1)) - 1 + (size >> b.shift & 1)) >> b.shift) - b.rebias
    code = np.minimum(np.where(size < b.normal, small, normal), b.most)
    code = np.where(size > 0x7F800000, 0x7F, code) | (raw >> 24 & 0x80)
    assert same(decode(code, dtype), of_torch(x, dtype)[1])


@dtypes
def test_one_number_is_rounded_as_many_are(dtype):
    x = hostile(dtype)[::97].astype(np.float64)
    x = x[~np.isnan(x)]
    assert [rounded8(float(v), dtype) for v in x] == round_to(x, dtype).tolist()
    assert [code_of(float(v), dtype) for v in x] == encode(x, dtype).tolist()


@dtypes
def test_float64_is_rounded_once(dtype):
    beside = 1 + 2.0 ** -(DTYPES[dtype].mantissa + 1) * (1 + 2.0**-40)  # as float32, in the middle of two
    assert round_to(np.array(beside), dtype) == 1 + 2.0 ** -DTYPES[dtype].mantissa


def test_extremes():
    assert [code_of(float("inf"), d) for d in FLOAT8] == [0x7E, 0x7C]
    for d in FLOAT8:
        assert (decode(CODES, d)[np.isfinite(decode(CODES, d))].max()) == DTYPES[d].highest
        assert DTYPES[d].smallest_normal == {"float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14}[d]
