"""Make bfloat16, 8-bit floats, and maxima with NaN, right in Triton's interpreter.

The interpreter (3.6) keeps a bfloat16 as the uint16 of its bits. Loads, stores, selections and shape
operations only move bits and are right; arithmetic, dots, comparisons, casts and reductions work on the
raw integers, and float32 → bfloat16 truncates. `install()` replaces exactly those: bfloat16 operands are
widened to float32 (exact), the operation runs as it did, and a bfloat16 result is rounded once, to
nearest even. Everything else goes to the original methods, and where an interpreter does not keep
bfloat16 as uint16, nothing is touched.

An 8-bit float is the uint8 of its bits there; of those, casts (NaN and infinities come out as numbers) and dots are put
right. Nothing else computes with them.

A comparison of scalars keeps the scalars' dtype there, and is spread over a tile as that: also put right.

`tl.maximum` and `tl.minimum` of a number and NaN are the number on every GPU (`neptune.ir.edges`), as reductions are
in the interpreter too; element by element it gives NaN, which is put right for every dtype.

Dots of float32 need nothing here: the interpreter ignores `input_precision` and multiplies in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune.ir.evaluate import floats
from neptune.ir.evaluate.floats import Float64
from neptune.ir.ops import LIBM

Array = npt.NDArray[Any]
BITWISE = frozenset({np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift})


def decode(bits: Array) -> Array:
    """The float32 values of bfloat16 bit patterns; exact.

    >>> decode(np.array([0x3F80, 0xC000], dtype=np.uint16)).tolist()
    [1.0, -2.0]
    """
    values: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def encode(values: Array, nearest: bool = True) -> Array:
    """bfloat16 bit patterns, rounded to nearest even (or towards zero); NaN stays NaN.

    >>> [hex(x) for x in encode(np.array([1.00390625, 1.01171875], dtype=np.float32))]
    ['0x3f80', '0x3f82']
    """
    narrow = _to_odd(values) if nearest else _towards_zero(values)
    bits = np.ascontiguousarray(narrow).view(np.uint32)
    # Adding half an ulp, less one where the last kept bit is even, carries exactly when it must.
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1) if nearest else bits
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(narrow), quiet, rounded >> 16).astype(np.uint16).reshape(np.shape(values))


def _to_odd(values: Array) -> Array:
    """Wider numbers as float32, rounded to odd, so that the second rounding is as good as one."""
    if values.dtype in (np.float16, np.float32):
        return values.astype(np.float32)
    wide = values.astype(np.float64)
    cut = _towards_zero(wide)
    bits = np.ascontiguousarray(cut).view(np.uint32)
    inexact = (cut.astype(np.float64) != wide) & np.isfinite(wide)
    odd: Array = (bits | inexact.astype(np.uint32)).view(np.float32)
    return odd.reshape(values.shape)


def _towards_zero(values: Array) -> Array:
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(values.astype(np.float64))
    cut: Array = np.where(over, np.nextafter(near, np.float32(0)), near)
    return cut


class _Shim:
    """The replacements; `original` methods of `builder` serve everything that is not bfloat16."""

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self.handle, self.np_dtype, self.bf16 = interpreter.TensorHandle, interpreter._get_np_dtype, tl.bfloat16
        self.int1 = tl.int1
        self.fp8 = {tl.float8e4nv: "float8_e4m3fn", tl.float8e5: "float8_e5m2"}

    def is_bf16(self, handle: Any) -> bool:
        # Pointers to bfloat16 are handles too, their data addresses; a comparison's data are bools.
        return handle is not None and handle.dtype == self.bf16 and handle.data.dtype != np.bool_

    def is_fp8(self, handle: Any) -> bool:
        return handle is not None and handle.dtype in self.fp8 and handle.data.dtype == np.uint8

    def is_narrow(self, handle: Any) -> bool:
        return self.is_bf16(handle) or self.is_fp8(handle)

    def widen(self, handle: Any) -> Any:
        if self.is_fp8(handle):
            return floats.decode(handle.data, self.fp8[handle.dtype])
        return decode(handle.data) if self.is_bf16(handle) else handle.data

    def result(self, values: Array, dtype: Any) -> Any:
        """A handle for values of a computation whose nominal type is `dtype`."""
        if dtype == self.bf16 and values.dtype.kind == "f":
            values = encode(values)
        return self.handle(values, dtype)

    def elementwise(self, original: Callable[..., Any], operands: int) -> Callable[..., Any]:
        """unary_op, binary_op, ternary_op: (self, operand…, op). The last operand gives the type."""

        def method(builder: Any, *args: Any) -> Any:
            handles, op = args[:operands], args[operands]
            if op in BITWISE or op is np.where or not any(self.is_bf16(h) for h in handles):
                return original(builder, *args)
            return self.result(op(*(self.widen(h) for h in handles)), self.bf16)

        return method

    def cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """cast_impl, create_fp_to_fp: (self, source, type, …rounding)."""

        def method(builder: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
            dst = dst_type.scalar
            if not self.is_narrow(src) and dst != self.bf16 and dst not in self.fp8:
                return original(builder, src, dst_type, *rest)
            if src.dtype.scalar == dst:
                return src
            values = self.widen(src)
            if dst == self.bf16:
                towards_zero = any(str(r).endswith("RTZ") for r in rest)
                return self.handle(encode(values, nearest=not towards_zero), dst)
            if dst in self.fp8:
                return self.handle(floats.encode(values, self.fp8[dst]), dst)
            with np.errstate(all="ignore"):
                return self.handle(values.astype(self.np_dtype(dst)), dst)

        return method

    def dot(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """create_dot: products of bfloat16 and of 8-bit floats are exact in float32, sums are float32."""

        def method(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
            if not any(self.is_narrow(h) for h in (a, b, d)):
                return original(builder, a, b, d, *rest)
            values = np.matmul(self.widen(a), self.widen(b), dtype=np.float32) + self.widen(d)
            return self.result(values, d.dtype.scalar)

        return method

    def fma(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(builder: Any, x: Any, y: Any, z: Any) -> Any:
            if not self.is_bf16(z):
                return original(builder, x, y, z)
            # The product of two bfloat16 is exact in float64, and so nearly is the sum: one rounding.
            x, y, z = (self.widen(h).astype(np.float64) for h in (x, y, z))
            return self.handle(encode(x * y + z), self.bf16)

        return method

    def splat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """create_splat of a comparison: a tile of bools."""

        def method(builder: Any, type_: Any, arg: Any) -> Any:
            return original(builder, type_, self.handle(arg.data, self.int1) if arg.data.dtype == np.bool_ else arg)

        return method

    def fold(self, original: Callable[..., Any], tl: Any) -> Callable[..., Any]:
        """Reductions and scans of one operand: in float32, rounded at the end."""

        def method(op: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            first = value[0] if isinstance(value, tuple) else value
            if not self.is_bf16(first.handle):
                return original(op, value, *args, **kwargs)
            wide = tl.tensor(self.handle(decode(first.handle.data), tl.float32), _retyped(first.type, tl.float32, tl))
            result = original(op, wide, *args, **kwargs)
            if isinstance(result, tuple | list):
                return type(result)(self.narrow(x, tl) for x in result)
            return self.narrow(result, tl)

        return method

    def narrow(self, x: Any, tl: Any) -> Any:
        if x.handle.dtype.scalar != tl.float32:
            return x
        return tl.tensor(self.handle(encode(x.handle.data), self.bf16), _retyped(x.type, self.bf16, tl))


def _retyped(type_: Any, scalar: Any, tl: Any) -> Any:
    """A scalar or block type over another element type."""
    return tl.block_type(scalar, list(type_.shape)) if type_.is_block() else scalar


def _of_library(name: str, handle: Any, tl: Any) -> Callable[..., Any]:
    """A function of CUDA's library, which the interpreter has not got, in float64."""

    def function(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            exact = Float64().apply(name, [x.handle.data.astype(np.float64) for x in args], "float64")
        scalar, wide = args[0].type.scalar, max(args, key=lambda x: x.handle.data.ndim)
        return tl.tensor(handle(exact.astype(args[0].handle.data.dtype), scalar), _retyped(wide.type, scalar, tl))

    return function


_installed = False


def install() -> bool:
    """Patch the interpreter of the installed triton, once; True where there was something to correct."""
    global _installed
    import triton.language as tl
    import triton.runtime.interpreter as interpreter
    from triton.language.extra import libdevice

    builder = interpreter.InterpreterBuilder
    for name in LIBM:
        setattr(libdevice, name, _of_library(name, interpreter.TensorHandle, tl))
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    if interpreter._get_np_dtype(tl.bfloat16) != np.dtype(np.uint16):
        return False
    if _installed:
        return True
    shim = _Shim(interpreter, tl)
    wrappers: dict[tuple[Any, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        (builder, "unary_op"): lambda f: shim.elementwise(f, 1),
        (builder, "binary_op"): lambda f: shim.elementwise(f, 2),
        (builder, "ternary_op"): lambda f: shim.elementwise(f, 3),
        (builder, "cast_impl"): shim.cast,
        (builder, "create_fp_to_fp"): shim.cast,
        (builder, "create_dot"): shim.dot,
        (builder, "create_fma"): shim.fma,
        (builder, "create_splat"): shim.splat,
        (interpreter.ReduceOps, "sum"): lambda f: shim.fold(f, tl),
        (interpreter.ReduceOps, "min_max"): lambda f: shim.fold(f, tl),
        (interpreter.ScanOps, "cumsum"): lambda f: shim.fold(f, tl),
        (interpreter.ScanOps, "cumprod"): lambda f: shim.fold(f, tl),
    }
    for (owner, name), wrapper in wrappers.items():
        if hasattr(owner, name):
            setattr(owner, name, wrapper(getattr(owner, name)))
    if not hasattr(builder, "get_bf16"):
        builder.get_bf16 = lambda self, value: shim.handle(encode(np.array([value], dtype=np.float64)), tl.bfloat16)
    _installed = True
    return True
