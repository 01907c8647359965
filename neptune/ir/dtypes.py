"""Scalar types as a table.

A dtype is named by a plain string in the IR ("float16", "int32", ...); everything a pass may want to
know about one is a row here.

8-bit floats stand here by their bits: what a cast to one makes, and what its codes stand for.

    448.0 → 0x7e      464.1, inf → 0x7e (float8_e4m3fn)      61440.0, inf → 0x7c (float8_e5m2)

One meaning on all targets, torch's (2.13): to the nearest, ties to even, and NaN stays NaN. float8_e4m3fn has no
infinity, and what is too large, infinities too, becomes ±448; in float8_e5m2 it becomes infinite, as in IEEE formats.
Hardware differs (some of it rounds twice, or saturates both), so kernels do it in integers (`BITS`). What is wider than
float32, and an integer, is cast to float32 first: `neptune.ir.expr.cast` writes that out.

On arrays: `neptune.ir.evaluate.floats`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class DType:
    """One row: `kind` is "float", "int" or "bool"; `lowest` and `highest` are the finite extremes.

    `saturates`: no infinity, and what is too large is rounded to an extreme. `computes`: operators and reducers take
    it; what does not compute is loaded, stored, chosen and cast. `capability`: the least compute capability of an
    NVIDIA GPU for which Triton compiles it.
    """

    name: str
    short: str
    kind: str
    bits: int
    lowest: float
    highest: float
    mantissa: int = 0
    saturates: bool = False
    computes: bool = True
    capability: int = 0

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa, 2⁻¹⁴ of float16."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def bias(self) -> int:
        """What the bits of an exponent are more than the exponent: 15 of float16."""
        return (1 << (self.bits - 2 - self.mantissa)) - 1


_F32 = 3.4028234663852886e38
_ROWS = (
    DType("float64", "f64", "float", 64, -1.7976931348623157e308, 1.7976931348623157e308, 52),
    DType("float32", "f32", "float", 32, -_F32, _F32, 23),
    DType("bfloat16", "bf16", "float", 16, -3.3895313892515355e38, 3.3895313892515355e38, 7),
    DType("float16", "f16", "float", 16, -65504.0, 65504.0, 10),
    DType("float8_e4m3fn", "f8e4m3", "float", 8, -448.0, 448.0, 3, saturates=True, computes=False, capability=89),
    DType("float8_e5m2", "f8e5m2", "float", 8, -57344.0, 57344.0, 2, computes=False),
    DType("int64", "i64", "int", 64, -(2**63), 2**63 - 1),
    DType("int32", "i32", "int", 32, -(2**31), 2**31 - 1),
    DType("int8", "i8", "int", 8, -128, 127),
    DType("uint8", "u8", "int", 8, 0, 255),
    DType("bool", "bool", "bool", 8, 0, 1),
)

DTYPES = {row.name: row for row in _ROWS}
BY_SHORT = {row.short: row for row in _ROWS}


FLOAT8 = tuple(row.name for row in _ROWS if row.kind == "float" and row.bits == 8)
"""The 8-bit floats: all of their numbers are numbers of float16, bfloat16 and float32."""


def is_float(dtype: str) -> bool:
    """True for the floating-point dtypes."""
    return DTYPES[dtype].kind == "float"


def is_int(dtype: str) -> bool:
    """True for the integer dtypes (bool is not one)."""
    return DTYPES[dtype].kind == "int"


@cache
def limits(dtype: str) -> tuple[int, int]:
    """The smallest and the largest number of an integer dtype, or of bool."""
    row = DTYPES[dtype]
    return int(row.lowest), int(row.highest)


def holds(dtype: str, values: tuple[int, int]) -> bool:
    """True where an integer dtype has all numbers of an interval."""
    low, high = limits(dtype)
    return low <= values[0] and values[1] <= high


def wrapped(value: Any, dtype: str) -> Any:
    """A Python integer or an int64 array as the integer dtype holds it: two's complement.

    >>> wrapped(2**31, "int32"), wrapped(300, "uint8"), wrapped(7, "int8")
    (-2147483648, 44, 7)
    """
    low, high = limits(dtype)
    if isinstance(value, int):
        return value if low <= value <= high else (value - low) % (high - low + 1) + low
    return value if dtype == "int64" else value.astype(dtype).astype("int64")


def by_float32(source: str, target: str) -> bool:
    """True where a cast has a float32 in between: to and from an 8-bit float, of what is no float of 16 or 32 bits.

    >>> by_float32("float64", "float8_e5m2"), by_float32("float16", "float8_e5m2")
    (True, False)
    """
    both = {source, target}
    return not both.isdisjoint(FLOAT8) and both.isdisjoint(("float16", "bfloat16", "float32"))


# --- 8-bit floats -----------------------------------------------------------------------------------


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
