"""Casts to 8-bit floats and their codes, on arrays; `neptune.ir.float8` says what they mean."""

from __future__ import annotations

import numpy as np

from neptune.ir.dtypes import DTYPES, FLOAT8, DType
from neptune.ir.evaluate.domains import Array
from neptune.ir.float8 import BITS, NAN, values8

VALUES = {name: np.array(values8(name), np.float32) for name in FLOAT8}
"""What each code stands for."""


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
    """The codes of numbers, rounded as a cast rounds them.

    >>> encode(np.array([1.0, -1e9]), "float8_e4m3fn").tolist()
    [56, 254]
    """
    most, near = BITS[dtype].most, round_float8(values, dtype)
    # Numbers of one sign stand in the order of their codes.
    code = np.searchsorted(VALUES[dtype][: most + 1], np.abs(near))
    codes: Array = np.where(np.isnan(near), NAN, code).astype(np.uint8)
    return codes | np.where(np.signbit(near), 0x80, 0).astype(np.uint8)
