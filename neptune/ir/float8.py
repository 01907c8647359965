"""8-bit floats by their bits: what a cast to one makes, and what its codes stand for.

    448.0 → 0x7e      464.1, inf → 0x7e (float8_e4m3fn)      61440.0, inf → 0x7c (float8_e5m2)

One meaning on all targets, torch's (2.13): to the nearest, ties to even, and NaN stays NaN. float8_e4m3fn has no
infinity, and what is too large, infinities too, becomes ±448; in float8_e5m2 it becomes infinite, as in IEEE formats.
Hardware differs (some of it rounds twice, or saturates both), so kernels do it in integers (`BITS`). What is wider than
float32, and an integer, is cast to float32 first: `neptune.ir.expr.cast` writes that out.

On arrays: `neptune.ir.evaluate.float8`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from math import inf

from neptune.ir.dtypes import DTYPES, FLOAT8, DType


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
    shift = 23 - row.mantissa
    most = 0x7F - (1 if row.saturates else (1 << row.mantissa) - 1)
    normal, magic = (_float32_bits(x) for x in (row.smallest_normal, math.ldexp(row.smallest_normal, shift)))
    return Bits(normal, magic, shift, (127 - row.bias) << row.mantissa, most)


def _float32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


BITS = {name: _bits(DTYPES[name]) for name in FLOAT8}
NAN = 0x7F
"""A code that is NaN in every format."""
INFINITE = 0x7F800000
"""The bits of an infinite float32."""


def rounded8(x: float, dtype: str) -> float:
    """A number as an 8-bit float.

    >>> rounded8(-1.0625, "float8_e4m3fn"), rounded8(inf, "float8_e4m3fn"), rounded8(1e5, "float8_e5m2")
    (-1.0, 448.0, inf)
    """
    row = DTYPES[dtype]
    if math.isfinite(x):
        unit = math.ldexp(1.0, max(math.frexp(x)[1] - 1, 1 - row.bias) - row.mantissa)
        x = math.copysign(round(x / unit) * unit, x)
    if abs(x) > row.highest:
        return math.copysign(row.highest if row.saturates else inf, x)
    return x


def code_of(value: float, dtype: str) -> int:
    """The code of a number, rounded as a cast rounds it.

    >>> hex(code_of(1.0, "float8_e5m2"))
    '0x3c'
    """
    near = rounded8(value, dtype)
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    # Numbers of one sign stand in the order of their codes.
    return sign | (NAN if near != near else _SIZES[dtype].index(abs(near)))


def values8(dtype: str) -> list[float]:
    """What each code stands for."""
    sizes = [*_SIZES[dtype], *[math.nan] * (0x80 - len(_SIZES[dtype]))]
    return [*sizes, *(-x for x in sizes)]


def _sizes(row: DType) -> list[float]:
    """The numbers that are not negative, by their codes."""

    def size(code: int) -> float:
        exponent, fraction = code >> row.mantissa, code & ((1 << row.mantissa) - 1)
        one = 1 << row.mantissa if exponent else 0
        return math.ldexp(one + fraction, max(exponent, 1) - row.bias - row.mantissa)

    most = BITS[row.name].most
    return [*map(size, range(most)), size(most) if row.saturates else inf]


_SIZES = {name: _sizes(DTYPES[name]) for name in FLOAT8}
