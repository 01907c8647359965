"""Scalar types as a table.

A dtype is named by a plain string in the IR ("float16", "int32", ...); everything a pass may want to
know about one is a row here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One row: `kind` is "float", "int" or "bool"; `lowest` and `highest` are the finite extremes."""

    name: str
    short: str
    kind: str
    bits: int
    lowest: float
    highest: float
    mantissa: int = 0

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with a full mantissa, 2⁻¹⁴ of float16."""
        exponents = self.bits - 1 - self.mantissa
        return math.ldexp(1.0, 2 - 2 ** (exponents - 1))


_F32 = 3.4028234663852886e38
_ROWS = (
    DType("float64", "f64", "float", 64, -1.7976931348623157e308, 1.7976931348623157e308, 52),
    DType("float32", "f32", "float", 32, -_F32, _F32, 23),
    DType("bfloat16", "bf16", "float", 16, -3.3895313892515355e38, 3.3895313892515355e38, 7),
    DType("float16", "f16", "float", 16, -65504.0, 65504.0, 10),
    DType("int64", "i64", "int", 64, -(2**63), 2**63 - 1),
    DType("int32", "i32", "int", 32, -(2**31), 2**31 - 1),
    DType("int8", "i8", "int", 8, -128, 127),
    DType("uint8", "u8", "int", 8, 0, 255),
    DType("bool", "bool", "bool", 8, 0, 1),
)

DTYPES = {row.name: row for row in _ROWS}
BY_SHORT = {row.short: row for row in _ROWS}


def is_float(dtype: str) -> bool:
    """True for the floating-point dtypes."""
    return DTYPES[dtype].kind == "float"


def is_int(dtype: str) -> bool:
    """True for the integer dtypes (bool is not one)."""
    return DTYPES[dtype].kind == "int"
