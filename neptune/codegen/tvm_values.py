"""Values in TVMScript: what carries a dtype, literals by their bits, names, and roundings between carriers."""

from __future__ import annotations

import keyword
import math
import re
import struct
from collections.abc import Callable

from neptune.ir.dtypes import BITS, DTYPES, FLOAT8, INFINITE, NAN, is_float, is_int, rounded8

# What holds a dtype inside an expression, and in memory (bfloat16, 8-bit floats and bool have no usable TVM type).
CARRIER = {"float16": "float32", "bfloat16": "float32", "int32": "int64", "int8": "int64", "uint8": "int64"}
STORAGE = {"bfloat16": "uint16", "bool": "uint8"}
CARRIER |= dict.fromkeys(FLOAT8, "float32")
STORAGE |= dict.fromkeys(FLOAT8, "uint8")
_RESERVED = {"T", "I", "R", "tvm", "ir", "tir", "relax", "tirx", "Tx", "Axis", "TypeVar", "main", "range"}


def carrier(dtype: str) -> str:
    """The TVM dtype in which a value of `dtype` is computed."""
    return CARRIER.get(dtype, dtype)


def storage(dtype: str) -> str:
    """The TVM dtype of a buffer of `dtype`."""
    return STORAGE.get(dtype, dtype)


# --- literals and roundings ------------------------------------------------------------------------


def _bf16_nearest(value: float) -> float:
    """The bfloat16 nearest to a float32 value, as torch rounds it."""
    if not math.isfinite(value):
        return value
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def float_literal(value: float, dtype: str) -> str:
    """A float literal of `dtype`, rounded to it and spelled by its bits in the carrier.

    >>> float_literal(1.0, "float16")
    'T.reinterpret("float32", T.uint32(0x3f800000))'
    """
    pack, bits = ("<d", "int64") if dtype == "float64" else ("<f", "uint32")
    if dtype == "float16":
        value = _packed("<e", value)
    elif dtype != "float64":
        value = _packed("<f", value)
        value = _bf16_nearest(value) if dtype == "bfloat16" else value
        value = rounded8(value, dtype) if dtype in FLOAT8 else value
    packed = struct.pack(pack, value)
    # Zero bits are not accepted there, and a plain 0.0 is folded: |-0.0| is neither.
    raw = int.from_bytes(packed if any(packed) else struct.pack(pack, -0.0), "little", signed=bits == "int64")
    text = f'T.reinterpret("{carrier(dtype)}", T.{bits}({raw:#x}))'
    return text if any(packed) else f"T.fabs({text})"


def _packed(code: str, value: float) -> float:
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _holds(wide: str, narrow: str) -> bool:
    """True where an integer dtype has all numbers of another."""
    a, b = DTYPES[wide], DTYPES[narrow]
    return a.lowest <= b.lowest and b.highest <= a.highest


class Values:
    """The names given so far, and scratch memory: a buffer for each dtype, with a place for each name that needs one.
    `before` has the lines that fill places for the statement that is being printed."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], str] = {}
        self.used: set[str] = set(_RESERVED)
        self.scratch: dict[str, str] = {}
        self.places: dict[tuple[str, str], int] = {}
        self.before: list[str] = []
        self.taken = 0

    def name(self, kind: str, name: str) -> str:
        """The Python identifier of a buffer or a variable."""
        key = (kind, name)
        if key not in self.names:
            self.names[key] = self.fresh(name)
        return self.names[key]

    def fresh(self, name: str) -> str:
        base = name if name.isascii() and name.isidentifier() and not keyword.iskeyword(name) else "v_"
        text, k = base, 0
        while text in self.used:
            k += 1
            text = f"{base}_{k}"
        self.used.add(text)
        return text

    def place(self, dtype: str, name: str) -> str:
        """The element of scratch memory for a name, the same one at every use of it."""
        buffer = self.scratch.setdefault(dtype, self.fresh(f"scratch_{dtype}"))
        place = self.places.setdefault((dtype, name), sum(1 for d, _ in self.places if d == dtype))
        return f"{buffer}[{place}]"

    def let(self, dtype: str, value: str) -> str:
        """What reads `value` any number of times: a place that a line before the statement fills.

        TVM would write out a name wherever it is read, and so an expression exponential in the depth of names.
        """
        if re.fullmatch(r"T\.\w+\(-?\d+\)", value):
            return value
        place = self.fresh_place(dtype)
        self.before.append(f"{place} = {value}")
        return place

    def fresh_place(self, dtype: str) -> str:
        """A place that is used nowhere else in the statement, nor in those inside it."""
        self.taken += 1
        return self.place(dtype, f"%{self.taken}")

    def filled(self) -> list[str]:
        """The lines that fill the places read since they were last asked for."""
        lines, self.before = self.before, []
        return lines

    def apart(self, text: Callable[[], str]) -> tuple[list[str], str]:
        """A text, and the lines before it that only it needs."""
        others, self.before = self.before, []
        fresh = text()
        mine, self.before = self.before, others
        return mine, fresh

    def either(self, dtype: str, p: str, a: Callable[[], str], b: Callable[[], str]) -> str:
        """`a` or `b`, of which the other is not evaluated."""
        (first, yes), (second, no) = self.apart(a), self.apart(b)
        if not first and not second:
            return f"T.if_then_else({p}, {yes}, {no})"
        is_bool = dtype == "bool"  # in memory it is an integer
        place = self.fresh_place("int64" if is_bool else dtype)
        for head, lines, value in ((f"if {p}:", first, yes), ("else:", second, no)):
            value = f'T.Cast("int64", {value})' if is_bool else value
            self.before += [head, *("    " + line for line in (*lines, f"{place} = {value}"))]
        return f"({place} != T.int64(0))" if is_bool else place

    # --- roundings

    def round16(self, text: str, dtype: str) -> str:
        """Round a float32 to a 16-bit float, carried as float32."""
        if dtype == "float16":
            return f'T.Cast("float32", T.Cast("float16", {text}))'
        # Nearest, ties to even, on the bits; a NaN (whose payload might carry into the sign) is quietened. Sums of
        # conditions, here and elsewhere: TVM makes a branch of a `Select` between what is read from memory.
        bits = self.let("uint32", f'T.reinterpret("uint32", {text})')
        nan = f'T.Cast("uint32", T.bitwise_and({bits}, T.uint32(0x7fffffff)) > T.uint32(0x7f800000))'
        half = f"(T.uint32(0x7fff) + T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1)))"
        moved = f"T.bitwise_or({bits} + {half} * (T.uint32(1) - {nan}), {nan} * T.uint32(0x400000))"
        return f'T.reinterpret("float32", T.bitwise_and({moved}, T.uint32(0xffff0000)))'

    def encode8(self, text: str, dtype: str) -> str:
        """The code of a float32 rounded to an 8-bit float, as uint8 (`neptune.ir.dtypes.BITS`)."""
        b = BITS[dtype]
        bits = self.let("uint32", f'T.reinterpret("uint32", {text})')
        size = self.let("uint32", f"T.bitwise_and({bits}, T.uint32(0x7fffffff))")
        sum_ = f'(T.reinterpret("float32", {size}) + T.reinterpret("float32", T.uint32({b.magic:#x})))'
        small = f'(T.reinterpret("uint32", {sum_}) - T.uint32({b.magic:#x}))'
        odd = f"T.bitwise_and(T.shift_right({size}, T.uint32({b.shift})), T.uint32(1))"
        half = f"(T.uint32({(1 << b.shift - 1) - 1:#x}) + {odd})"
        normal = f"(T.shift_right({size} + {half}, T.uint32({b.shift})) - T.uint32({b.rebias:#x}))"
        tiny = self.let("uint32", f'T.Cast("uint32", {size} < T.uint32({b.normal:#x}))')
        code = self.let("uint32", f"{tiny} * {small} + (T.uint32(1) - {tiny}) * {normal}")
        large = self.let("uint32", f'T.Cast("uint32", {code} > T.uint32({b.most:#x}))')
        nan = self.let("uint32", f'T.Cast("uint32", {size} > T.uint32({INFINITE:#x}))')
        code = f"{large} * T.uint32({b.most:#x}) + (T.uint32(1) - {large}) * {code}"
        sign = f"T.bitwise_and(T.shift_right({bits}, T.uint32(24)), T.uint32(0x80))"
        return f'T.Cast("uint8", T.bitwise_or(T.bitwise_or({code}, {nan} * T.uint32({NAN:#x})), {sign}))'

    def decode8(self, code: str, dtype: str) -> str:
        """The float32 that a code of an 8-bit float stands for."""
        if dtype == "float8_e5m2":  # the upper half of a float16
            half = f'T.shift_left(T.Cast("uint16", {code}), T.uint16(8))'
            return f'T.Cast("float32", T.reinterpret("float16", {half}))'
        # As a float16 its exponent is 8 too small. A NaN is one number of float16 more.
        bits = self.let("uint32", f'T.Cast("uint32", {code})')
        size = f"T.bitwise_and({bits}, T.uint32(0x7f))"
        half = f'T.reinterpret("float16", T.Cast("uint16", T.shift_left({size}, T.uint32(7))))'
        value = f'(T.Cast("float32", {half}) * {float_literal(256.0, "float32")})'
        nan = f'T.Cast("uint32", {size} == T.uint32({NAN:#x})) * T.uint32(0x7fc00000)'
        sign = f"T.shift_left(T.bitwise_and({bits}, T.uint32(0x80)), T.uint32(24))"
        return f'T.reinterpret("float32", T.bitwise_or(T.bitwise_or(T.reinterpret("uint32", {value}), {nan}), {sign}))'

    def round_odd(self, text: str) -> str:
        """Round a float64 to float32 by truncation, with a sticky last bit: safe to round once more."""
        x = self.let("float64", text)
        bits = self.let("uint32", f'T.reinterpret("uint32", T.Cast("float32", {x}))')
        back = f'T.Cast("float64", T.reinterpret("float32", {bits}))'
        away = f'T.Cast("uint32", T.fabs({back}) > T.fabs({x}))'
        inexact = f'T.Cast("uint32", T.Or({back} < {x}, {back} > {x}))'
        return f'T.reinterpret("float32", T.bitwise_or({bits} - {away}, {inexact}))'

    def cut_off(self, text: str, dtype: str) -> str:
        """The lowest bits of an integer as a number of `dtype`, in its carrier. TVM takes casts between signed integers
        for exact, and comes from (x · 2) // 2 to x; it leaves alone what an intrinsic makes of one, here itself."""
        expected = f'T.call_llvm_pure_intrin("{dtype}", "llvm.expect", T.Cast("{dtype}", {text}), T.{dtype}(0))'
        return expected if carrier(dtype) == dtype else f'T.Cast("{carrier(dtype)}", {expected})'

    def cast(self, text: str, src: str, dst: str) -> str:
        """One conversion between carried values."""
        if dst == "bool":
            if is_float(src):  # not `!=`, which compiles to false for NaN
                return f"T.Select({text} == {float_literal(0.0, src)}, T.bool(False), T.bool(True))"
            return f"({text} != T.{carrier(src)}(0))"
        if dst in ("float16", "bfloat16"):
            if src == "float64":
                text = self.round_odd(text)
            elif src in ("int32", "int64"):
                text = self.round_odd(f'T.Cast("float64", {text})')
            elif not is_float(src):
                text = f'T.Cast("float32", {text})'
            return self.round16(text, dst)
        if dst in FLOAT8:
            return self.decode8(self.let("uint8", self.encode8(text, dst)), dst)
        if is_float(src) and is_int(dst):
            text, src = f'T.Cast("int64", {text})', "int64"
        if is_int(src) and is_int(dst) and not _holds(dst, src):
            return self.cut_off(text, dst)
        return text if carrier(src) == carrier(dst) else f'T.Cast("{carrier(dst)}", {text})'
