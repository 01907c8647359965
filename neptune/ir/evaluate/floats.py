"""Floating-point domains: float64 without casts, and every node rounded to its dtype.

Casts to 8-bit floats and their codes stand here on arrays; `neptune.ir.dtypes` says what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neptune.ir.dtypes import BITS, DTYPES, FLOAT8, NAN, DType, values8
from neptune.ir.evaluate.domains import Array, Elementwise, Value
from neptune.ir.ops import OPS


def _of_python(function: Callable[[float], float]) -> Callable[..., Array]:
    """What numpy lacks, element by element."""
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x), np.float64)


def _lgamma(x: float) -> float:
    if not math.isfinite(x) or abs(x) > 1e305 or (x <= 0 and x == math.floor(x)):
        return abs(x) * math.inf if x else math.inf
    return math.lgamma(x)


_OWN: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh_approx": np.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": _of_python(math.erf),
    "erfc": _of_python(math.erfc),
    "lgamma": _of_python(_lgamma),
    "round": np.rint,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,  # of NaN and a number the number: neptune.ir.edges
    "max": np.fmax,
    "pow": np.power,
}
"""What numpy has not, or under another name."""
_UNARY, _BINARY = (
    {
        name: _OWN.get(name) or getattr(np, name)
        for name, row in OPS.items()
        if row.arity == arity and (name in _OWN or row.kind == "math")
    }
    for arity in (1, 2)
)
_COMPARE: dict[str, Callable[..., Array]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_CONSTANTS = {"log2e": math.log2(math.e), "ln2": math.log(2.0)}
_FOLD: dict[str, Callable[..., Array]] = {"sum": np.sum, "prod": np.prod, "max": np.fmax.reduce, "min": np.fmin.reduce}


def round_bfloat16(x: Array) -> Array:
    """Round float64 to the nearest bfloat16, ties to even, in one rounding (as float64 values).

    >>> float(round_bfloat16(np.float64(1.0 + 2.0**-8)))
    1.0
    """
    x = np.asarray(x, np.float64)
    # The 45 mantissa bits that bfloat16 lacks: add half (less one where the kept part is even), cut.
    bits = x.view(np.uint64)
    odd = (bits >> np.uint64(45)) & np.uint64(1)
    near = ((bits + np.uint64((1 << 44) - 1) + odd) & ~np.uint64((1 << 45) - 1)).view(np.float64)
    tiny = np.rint(x * 2.0**133) * 2.0**-133
    near = np.where(np.abs(x) < 2.0**-126, tiny, near)
    near = np.where(np.abs(near) > 3.3895313892515355e38, np.copysign(np.inf, x), near)
    return np.where(np.isfinite(x), near, x)


def round_to(x: Array, dtype: str) -> Array:
    """Round float64 values to a float dtype, kept as float64."""
    if dtype == "float32":
        return np.asarray(x).astype(np.float32).astype(np.float64)
    if dtype == "float16":
        return np.asarray(x).astype(np.float16).astype(np.float64)
    if dtype == "bfloat16":
        return round_bfloat16(x)
    return round_float8(x, dtype) if dtype in FLOAT8 else x


class Float64:
    """The numerical oracle: IEEE float64 throughout, float casts ignored, uninitialised memory NaN."""

    name = "float64"

    def round(self, x: Array, dtype: str) -> Array:
        return x

    def parts(self, v: Value) -> tuple[Array, ...]:
        return (v,)

    def make(self, parts: Sequence[Array]) -> Value:
        return parts[0]

    def undefined(self, shape: tuple[int, ...]) -> Value:
        return np.full(shape, np.nan)

    def const(self, value: float, dtype: str) -> Value:
        return self.round(np.asarray(value, np.float64), dtype)

    def lift(self, value: Any, dtype: str) -> Value:
        return self.round(np.array(value, np.float64), dtype)

    def embed(self, value: Array, dtype: str) -> Value:
        return self.round(np.asarray(value, np.float64), dtype)

    def truncate(self, v: Value, dtype: str) -> Array:
        if dtype == "bool":
            return np.asarray(np.asarray(v) != 0)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.trunc(v)).astype(np.int64)

    def cast(self, v: Value, dtype: str) -> Value:
        return self.round(v, dtype)

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        if not args:
            return self.const(_CONSTANTS[name], dtype)
        function = _UNARY[name] if len(args) == 1 else _BINARY[name]
        return self.round(function(*args), dtype)

    def compare(self, name: str, a: Value, b: Value) -> Array:
        return np.asarray(_COMPARE[name](a, b))

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        return _FOLD[reducer](v, axis=axis)

    def dot(self, a: Value, b: Value, dtype: str) -> Value:
        return a @ b

    def check(self, name: str, v: Value) -> None:
        """NaN is visible by itself."""


class Rounded(Float64):
    """Every float node rounded to its dtype; sums fold neighbours pairwise, each step rounded.

    Inputs are rounded to their buffers' dtypes. What it returns is one legitimate result of the program
    as it is written: the error of an unfused program is read off it.
    """

    name = "rounded"

    def round(self, x: Array, dtype: str) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return round_to(x, dtype)

    fold = Elementwise.fold

    def dot(self, a: Value, b: Value, dtype: str) -> Value:
        return self.fold("sum", self.apply("mul", (a[:, :, None], b[None, :, :]), dtype), 1, dtype)


class Stochastic(Rounded):
    """`Rounded`, up or down at random, in proportion to what is nearer: how much results depend on roundings."""

    name = "rounded at random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng((seed, 0x570C))

    def round(self, x: Array, dtype: str) -> Array:
        if dtype == "float64":
            return x
        row = DTYPES[dtype]
        x = np.asarray(x, np.float64)
        with np.errstate(all="ignore"):
            exponent = np.maximum(np.frexp(x)[1] - 1, int(math.log2(row.smallest_normal)))
            unit = np.ldexp(1.0, exponent - row.mantissa)
            near = np.floor(x / unit + self._rng.random(x.shape)) * unit
            near = np.where(np.isfinite(x), near, x)
        return beyond(near, row)


# --- 8-bit floats -----------------------------------------------------------------------------------

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
