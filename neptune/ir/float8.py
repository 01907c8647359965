"""8-bit floats by their bits: what a cast to one makes, and what its codes stand for.

    448.0 → 0x7e      464.1, inf → 0x7e (float8_e4m3fn)      61440.0, inf → 0x7c (float8_e5m2)

One meaning on all targets, torch's (2.13): to the nearest, ties to even, and NaN stays NaN. float8_e4m3fn has no
infinity, and what is too large, infinities too, becomes ±448; in float8_e5m2 it becomes infinite, as in IEEE formats.
Hardware differs (some of it rounds twice, or saturates both), so kernels do it in integers (`BITS`). What is wider than
float32, and an integer, is cast to float32 first: `neptune.ir.expr.cast` writes that out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune.ir.dtypes import DTYPES, FLOAT8, DType

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Bits:
    """The numbers that turn the bits of a float32 into a code, after its sign is taken off.

    What is below `normal` is rounded by adding `magic`, whose last bit is worth the smallest number. Else the bits lose
    `shift` bits, rounded, and `rebias`. No code is above `most`.
    """

    normal: int
    magic: int
    shift: int
    rebias: int
    most: int


def _bits(row: DType) -> Bits:
    magic = float(row.smallest_normal) * 2.0 ** (23 - row.mantissa)
    largest = ((1 << 7) - 1) - (1 if row.saturates else (1 << row.mantissa) - 1)
    return Bits(
        _float32_bits(row.smallest_normal), _float32_bits(magic), 23 - row.mantissa, (127 - row.bias) << row.mantissa,
        largest,
    )  # fmt: skip


def _float32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


BITS = {name: _bits(DTYPES[name]) for name in FLOAT8}
NAN = 0x7F
"""A code that is NaN in every format."""
INFINITE = 0x7F800000
"""The bits of an infinite float32."""


def round_float8(x: Array, dtype: str) -> Array:
    """Round float64 to the nearest 8-bit float, ties to even, in one rounding (as float64 values).

    >>> round_float8(np.array([1.0625, 465.0]), "float8_e4m3fn").tolist(), float(round_float8(465.0, "float8_e5m2"))
    ([1.0, 448.0], 448.0)
    """
    row, x = DTYPES[dtype], np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, 1 - row.bias)
        unit = np.ldexp(1.0, exponent - row.mantissa)
        near = np.where(np.isfinite(x), np.rint(x / unit) * unit, x)
    return beyond(near, row)


def beyond(near: Array, row: DType) -> Array:
    """Rounded numbers, with those that are too large for a dtype replaced by what stands for them."""
    most = row.highest if row.saturates else np.inf
    kept: Array = np.where(np.abs(near) > row.highest, np.copysign(most, near), near)
    return kept


def decode(codes: Array, dtype: str) -> Array:
    """The float32 values of codes; exact.

    >>> decode(np.array([0x38, 0xFE], np.uint8), "float8_e4m3fn").tolist()
    [1.0, -448.0]
    """
    values: Array = VALUES[dtype][codes]
    return values


def encode(values: Array, dtype: str) -> Array:
    """The codes of numbers, rounded as a cast rounds them."""
    row, x = DTYPES[dtype], np.asarray(values, np.float64)
    near = np.abs(round_float8(x, dtype))
    unit = row.smallest_normal * 2.0**-row.mantissa
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(near)
        normal = (exponent - 2 + row.bias) * 2.0**row.mantissa + mantissa * 2.0 ** (row.mantissa + 1)
        code = np.where(near < row.smallest_normal, near / unit, normal)
    code = np.where(np.isinf(near), BITS[dtype].most, np.where(np.isnan(near), NAN, code))
    codes: Array = (code.astype(np.int64) | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
    return codes


def code_of(value: float, dtype: str) -> int:
    """The code of one number.

    >>> hex(code_of(1.0, "float8_e5m2"))
    '0x3c'
    """
    return int(encode(np.asarray(value), dtype))


def _values(row: DType) -> Array:
    codes = np.arange(256)
    exponent, fraction = (codes & 0x7F) >> row.mantissa, codes & ((1 << row.mantissa) - 1)
    one = np.where(exponent > 0, 1 << row.mantissa, 0)
    size = np.ldexp((one + fraction).astype(np.float64), np.maximum(exponent, 1) - row.bias - row.mantissa)
    largest = BITS[row.name].most
    size = np.where((codes & 0x7F) > largest, np.nan, size)
    if not row.saturates:
        size = np.where((codes & 0x7F) == largest, np.inf, size)
    return np.where(codes >= 0x80, -size, size).astype(np.float32)


VALUES = {name: _values(DTYPES[name]) for name in FLOAT8}
"""What each code stands for."""
