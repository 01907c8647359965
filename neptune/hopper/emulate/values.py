"""Tiles in registers, as numpy arrays with a dtype: what the operators of Gluon make of them.

Numbers are kept in float64. Results of float16, bfloat16 and float8 are rounded; those of float32 are after
`round_float32(True)`, else they only overflow as float32 does, so that a kernel can be compared with the exact result.
Integer division truncates, as on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from neptune.ir.dtypes import DTYPES
from neptune.ir.evaluate.floats import round_to

Array = np.ndarray[Any, Any]


class _Mode:
    """One for all threads, of which one runs at a time."""

    single = False


_LARGEST = 3.4028235677973366e38  # what float32 rounds to infinity
_ORDER = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "int8", "bool")


def is_float(dtype: str) -> bool:
    """True for dtypes of floats, among those of tiles."""
    return dtype != "int16" and DTYPES[dtype].kind == "float"


def rounded(data: Array, dtype: str) -> Array:
    """Values as a register of this dtype holds them."""
    if not is_float(dtype):
        return data.astype(bool) if dtype == "bool" else data
    data = np.asarray(data, np.float64)
    if dtype != "float32":
        return round_to(data, dtype)
    if _Mode.single:
        return data.astype(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        beyond = np.abs(data) >= _LARGEST
    return np.where(beyond, np.copysign(np.inf, data), data) if beyond.any() else data


class Tile:
    """A tile (or, with no dims, a scalar) in registers. `layout` is what it was made with, where that is known."""

    __slots__ = ("data", "dtype", "layout")

    def __init__(self, data: Any, dtype: str, layout: object = None) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self.data: Array = rounded(np.asarray(data), dtype)
        self.dtype, self.layout = dtype, layout

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=self.layout, shape=self.shape, element_ty=self.dtype, scalar=self.dtype)

    def to(self, dtype: str, bitcast: bool = False, **_: object) -> Tile:
        data = self.data
        if bitcast and is_float(self.dtype):
            return Tile(to_bits(self).astype(np.uint16).view(np.int16).astype(np.int64), dtype)
        if bitcast:
            return of_bits(data & 0xFFFF, dtype)
        if not is_float(dtype) and is_float(self.dtype):
            data = np.trunc(data).astype(np.int64)
        return Tile(data, dtype, self.layout)

    def reshape(self, *shape: Any) -> Tile:
        return Tile(self.data.reshape(_dims(shape)), self.dtype)

    def permute(self, *order: Any) -> Tile:
        return Tile(self.data.transpose(_dims(order)), self.dtype)

    def trans(self, *order: Any) -> Tile:
        return self.permute(*order) if order else Tile(self.data.T, self.dtype)

    def split(self) -> tuple[Tile, Tile]:
        return Tile(self.data[..., 0], self.dtype), Tile(self.data[..., 1], self.dtype)

    def __getitem__(self, index: Any) -> Tile:
        return Tile(self.data[index], self.dtype)

    def __bool__(self) -> bool:
        if self.data.ndim:
            raise TypeError("a condition on a tile: only scalars branch")
        return bool(self.data)

    def __index__(self) -> int:
        if self.data.ndim or is_float(self.dtype):
            raise TypeError("a tile is no bound of a loop")
        return int(self.data)

    def __neg__(self) -> Tile:
        return Tile(-self.data, self.dtype, self.layout)

    def __invert__(self) -> Tile:
        return Tile(~self.data, self.dtype, self.layout)


def _dims(given: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given


def wider(a: str, b: str) -> str:
    """The dtype of an operation on two, as Triton promotes."""
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return min(a, b, key=_ORDER.index)


def operands(a: Any, b: Any) -> tuple[Any, Any, str]:
    """The arrays of two operands, one of which may be a number, and the dtype that they are promoted to."""
    if isinstance(a, Tile) and isinstance(b, Tile):
        return a.data, b.data, wider(a.dtype, b.dtype)
    tile, number = (a, b) if isinstance(a, Tile) else (b, a)
    dtype = tile.dtype
    if isinstance(number, float | np.floating) and not is_float(dtype):
        dtype = "float32"
    elif dtype == "bool" and not isinstance(number, bool | np.bool_):
        dtype = "int32"
    return (a.data, b, dtype) if tile is a else (a, b.data, dtype)


def truncated(a: Any, b: Any) -> Any:
    """a // b of the device: the quotient of integers without what is behind the point."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def binary(function: Callable[..., Any], dtype: str | None = None) -> Callable[[Any, Any], Tile]:
    """A function of two arrays as one of tiles, in `dtype` or that of the operands."""

    def apply(a: Any, b: Any) -> Tile:
        x, y, joined = operands(a, b)
        with np.errstate(all="ignore"):
            layout = a.layout if isinstance(a, Tile) else b.layout
            return Tile(function(x, y), dtype or joined, layout)

    return apply


def divided(a: Any, b: Any) -> Tile:
    """a / b, of integers in float32."""
    x, y, dtype = operands(a, b)
    with np.errstate(all="ignore"):
        return Tile(np.true_divide(x, y), dtype if is_float(dtype) else "float32")


def quotient(a: Any, b: Any) -> Any:
    """`//`, of scalars and tiles."""
    if type(a) is int and type(b) is int and a >= 0 and b > 0:
        return a // b
    if isinstance(a, Tile) or isinstance(b, Tile):
        return binary(truncated)(a, b)
    if not isinstance(a, int) or not isinstance(b, int):
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: Any, b: Any) -> Any:
    """`%`, of scalars and tiles: its sign is that of the dividend."""
    if type(a) is int and type(b) is int and a >= 0 and b > 0:
        return a % b
    if isinstance(a, Tile) or isinstance(b, Tile):
        return binary(lambda x, y: np.fmod(x, y))(a, b)
    return a - b * quotient(a, b) if isinstance(a, int) and isinstance(b, int) else a % b


_OPERATORS: dict[str, Callable[[Any, Any], Tile]] = {
    "add": binary(np.add),
    "sub": binary(np.subtract),
    "mul": binary(np.multiply),
    "truediv": divided,
    "floordiv": binary(truncated),
    "mod": binary(np.fmod),
    "and": binary(lambda x, y: x & y),
    "or": binary(lambda x, y: x | y),
    "xor": binary(lambda x, y: x ^ y),
    "lshift": binary(lambda x, y: x << y),
    "rshift": binary(lambda x, y: x >> y),
}
_COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _install() -> None:
    def method(function: Callable[[Any, Any], Tile], swapped: bool) -> Callable[[Any, Any], Any]:
        def apply(self: Tile, other: Any) -> Any:
            if not isinstance(other, Tile | int | float | bool | np.generic):
                return NotImplemented
            return function(other, self) if swapped else function(self, other)

        return apply

    for name, function in _OPERATORS.items():
        setattr(Tile, f"__{name}__", method(function, False))
        setattr(Tile, f"__r{name}__", method(function, True))
    for name, compare in _COMPARISONS.items():
        setattr(Tile, f"__{name}__", method(binary(compare, "bool"), False))
    Tile.__hash__ = object.__hash__  # type: ignore[method-assign]


_install()


def converted(x: Any, dtype: str, **named: Any) -> Any:
    """`x.to(dtype)`, of scalars and tiles."""
    if isinstance(x, int | float):
        return float(x) if is_float(dtype) else int(x)
    return x.to(dtype, **named)


def round_float32(on: bool) -> None:
    """From here on float32 results are rounded to float32, or not."""
    _Mode.single = on


def to_bits(x: Tile) -> Array:
    """The 16 bits of each element."""
    if x.dtype == "float16":
        return x.data.astype(np.float16).view(np.uint16).astype(np.int64)
    assert x.dtype == "bfloat16", f"elements of {x.dtype} have no 16 bits"
    return x.data.astype(np.float32).view(np.uint32).astype(np.int64) >> 16


def of_bits(bits: Array, dtype: str) -> Tile:
    """The elements that 16 bits are."""
    if dtype == "float16":
        return Tile(bits.astype(np.uint16).view(np.float16).astype(np.float64), dtype)
    assert dtype == "bfloat16", f"elements of {dtype} have no 16 bits"
    return Tile((bits << 16).astype(np.uint32).view(np.float32).astype(np.float64), dtype)
