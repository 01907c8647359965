"""Scalar expressions as Python text: inside a kernel, and in the launch function.

Triton's integer `//` and `%` truncate towards zero, the IR's round towards minus infinity: where the
operands cannot be seen to be non-negative the kernel gets a form that floors, and that overflows for none of them.

8-bit floats are cast by bits, and have products of their own, as int8 has:

    x.astype("float8_e5m2")   →   _to_float8_e5m2(x)
    dot(a, b), of 8 bits      →   _dot_float8(a, b, acc)

Triton's own casts to them differ from GPU to GPU: before sm_90 they cut a float32 to float16 first, and from then on a
float8_e5m2 does not become infinite. So `neptune.ir.dtypes.BITS` is written out, step by step. Its casts from them, to
float16 and float32, are exact on every GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from neptune.codegen.triton.text import (
    ATOM,
    CHOICE,
    HELPERS,
    INFIX,
    NOT_WORD,
    OR_WORD,
    TL_DTYPES,
    UNARY,
    Text,
    call,
    constant,
    infix,
    literal,
)
from neptune.errors import InternalError
from neptune.ir.analysis.facts import Known, of_dtype, range_of
from neptune.ir.dtypes import BITS, FLOAT8, INFINITE, NAN, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, loads
from neptune.ir.ops import LIBM, SIGNS, Range

MATH = {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "sigmoid": "tl.sigmoid",
    "tanh": "_tanh",
    "tanh_approx": "_tanh_approx",
    "erf": "tl.erf",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "round": "_round",
    "trunc": "_trunc",
    "fmod": "_fmod",
    **{name: f"libdevice.{name}" for name in LIBM},
}
PREFIX = {"neg": ("-", UNARY), "not": ("not ", NOT_WORD)}
SMALL_POWER = 8


def nonnegative(e: Expr, known: Callable[[str], bool]) -> bool:
    """True where `e >= 0` is known; `known` says so of a variable."""
    return range_of(e, signs(known)).lo >= 0


def signs(known: Callable[[str], bool]) -> Known:
    """The ranges of integers, given which variables are never negative."""

    def leaf(e: Expr) -> Range | None:
        # What a quotient is rounded up by is below its divisor, which 0 is not.
        upward = all(nonnegative(a, known) for a in parts) if (parts := ceiling(e)) is not None else False
        return SIGNS["0+"] & of_dtype(e.dtype) if upward or (isinstance(e, Var) and known(e.name)) else None

    return leaf


def ceiling(e: Expr) -> tuple[Expr, Expr] | None:
    """(a, b) where `e` is ⌈a / b⌉ as `neptune.ir.expr.ceildiv` builds it."""
    if not (isinstance(e, Op) and e.name == "floordiv"):
        return None
    top, b = e.args
    if not (isinstance(top, Op) and top.name == "add"):
        return None
    a, extra = top.args
    less = Const(b.value - 1, b.dtype) if isinstance(b, Const) else Op("sub", (b, Const(1, b.dtype)), b.dtype)
    return (a, b) if extra == less else None


_LITERAL = re.compile(r'-?[0-9.]+(e[+-]?[0-9]+)?|float\(".*"\)')


def lifted(x: Text, dtype: str) -> Text:
    """A literal as a scalar of Triton's: its functions and methods take no plain numbers.

    >>> str(lifted(Text("-1.5"), "float32")), str(lifted(Text("x"), "float32"))
    ('tl.cast(-1.5, tl.float32)', 'x')
    """
    return call("tl.cast", x, TL_DTYPES[dtype]) if _LITERAL.fullmatch(x.text) else x


def apply_math(name: str, args: Sequence[Text], dtype: str, helper: Callable[[str], None]) -> Text:
    """A function; 16-bit floats go through float32, the least that Triton's functions take."""
    fn, args = MATH[name], [lifted(x, dtype) for x in args]
    fn = "_tanh64" if (name, dtype) == ("tanh", "float64") else fn
    if fn.startswith("_"):
        helper(fn)
    if dtype in ("float16", "bfloat16"):
        return Text(f"{call(fn, *(f'{x.at(ATOM)}.to(tl.float32)' for x in args))}.to({TL_DTYPES[dtype]})")
    return call(fn, *args)


def apply_pow(x: Text, y: Text, exponent: Expr | None, dtype: str, helper: Callable[[str], None]) -> Text:
    """x to the y: by multiplication for a small integer literal, else through exp2 and log2."""
    x = lifted(x, dtype)
    n = exponent.value if isinstance(exponent, Const) else None
    if n is not None and n == int(n) and 1 <= n <= SMALL_POWER:
        helper("_power")
        return call("_power", x, str(int(n)))
    helper("_pow")
    if dtype in ("float16", "bfloat16"):
        wide = [f"{t.at(ATOM)}.to(tl.float32)" for t in (x, lifted(y, dtype))]
        return Text(f"{call('_pow', *wide)}.to({TL_DTYPES[dtype]})")
    return call("_pow", x, y)


class ScalarPrinter:
    """Expressions inside a kernel.

    `var` gives the text of a variable, `load` that of a scalar load under a guard (or None), `named`
    the name of an expression that a line above has computed, `known` the variables that are never
    negative, `helper` notes a helper function that the module must define.
    """

    def __init__(
        self,
        var: Callable[[str], str],
        load: Callable[[Load, Text | None], Text],
        named: Callable[[Expr], str | None],
        known: Callable[[str], bool],
        helper: Callable[[str], None],
    ) -> None:
        self.var, self.load, self.named, self.known, self.helper = var, load, named, known, helper

    def __call__(self, e: Expr, guard: Text | None = None) -> Text:
        """The text of `e`; scalar loads in it read only where `guard` holds."""
        if name := self.named(e):
            return Text(name)
        if (folded := constant(e)) is not None:
            return folded
        match e:
            case Const(value, dtype):
                return literal(value, dtype)
            case Var(name, _):
                return Text(self.var(name))
            case Load():
                return self.load(e, guard)
            case Cast(arg, dtype):
                text = self(arg, guard)
                return cast8(lifted(text, arg.dtype), arg.dtype, dtype, self.helper) or self.cast(text, dtype)
            case Select():
                return self.select(e, guard)
            case Op():
                return self.operator(e, guard)

    def cast(self, arg: Text, dtype: str) -> Text:
        # tl.cast takes plain numbers too, which loop variables are in the interpreter.
        return call("tl.cast", arg, TL_DTYPES[dtype])

    def select(self, e: Select[Expr], guard: Text | None) -> Text:
        """A choice. Both sides are computed, so loads in them are guarded by the predicate."""
        p = self(e.pred, guard)
        yes = p if guard is None else infix("and", guard, p)
        no = prefix("not", p)
        no = no if guard is None else infix("and", guard, no)
        then = self(e.then, yes if loads(e.then) else guard)
        return call("tl.where", p, then, self(e.other, no if loads(e.other) else guard))

    def operator(self, e: Op[Expr], guard: Text | None) -> Text:
        if (parts := ceiling(e)) is not None and nonnegative(parts[0], self.known):
            return call("tl.cdiv", *(self(p, guard) for p in parts))
        texts = [self(a, guard) for a in e.args]
        if e.name in ("floordiv", "mod") and not all(nonnegative(a, self.known) for a in e.args):
            return floored(e.name, texts[0], texts[1], self.helper)
        if e.name in PREFIX:
            return prefix(e.name, texts[0])
        return operator(e, texts, e.args[-1] if e.args else None, self.helper)


class HostPrinter(ScalarPrinter):
    """Integer expressions in the launch function, on Python's integers."""

    def __init__(self, var: Callable[[str], str]) -> None:
        super().__init__(var, self.refused, lambda _: None, lambda _: True, lambda _: None)

    def refused(self, e: Expr, _guard: Text | None) -> Text:
        raise InternalError(f"the launch function cannot compute {e}")

    def cast(self, arg: Text, dtype: str) -> Text:
        return call("float", arg) if is_float(dtype) else arg

    def select(self, e: Select[Expr], guard: Text | None) -> Text:
        then, pred, other = (self(x, guard).at(OR_WORD) for x in (e.then, e.pred, e.other))
        return Text(f"{then} if {pred} else {other}", CHOICE)

    def operator(self, e: Op[Expr], guard: Text | None) -> Text:
        if (parts := ceiling(e)) is not None:
            return call("triton.cdiv", *(self(p, guard) for p in parts))
        texts = [self(a, guard) for a in e.args]
        if e.name in PREFIX:
            return prefix(e.name, texts[0])
        if e.name in ("min", "max"):
            return call(e.name, *texts)
        return infix(e.name, texts[0], texts[1]) if e.name in INFIX else self.refused(e, guard)


def prefix(name: str, x: Text) -> Text:
    """A minus sign or `not` before `x`."""
    sign, level = PREFIX[name]
    return Text(f"{sign}{x.at(level)}", level)


def operator(e: Op[Any], args: Sequence[Text], last: Expr | None, helper: Callable[[str], None]) -> Text:
    """An operator on scalars or tiles; `last` is its last argument where that is a scalar."""
    if e.name in INFIX:
        return arithmetic(e.name, args[0], args[1], e.args[0].dtype, e.dtype)
    if e.name in ("min", "max"):
        text = call(f"tl.{e.name}imum", *args)
        # Triton compares bfloat16 in float32, and leaves the result there.
        return Text(f"{text}.to(tl.bfloat16)") if e.dtype == "bfloat16" else text
    if e.name == "abs":
        return call("tl.abs", lifted(args[0], e.dtype))
    if e.name == "pow":
        return apply_pow(args[0], args[1], last, e.dtype, helper)
    return apply_math(e.name, args, e.dtype, helper)


def arithmetic(name: str, a: Text, b: Text, source: str, dtype: str) -> Text:
    """An infix operator on values of dtype `source`. Of two literals one is lifted, or Python would compute."""
    a = lifted(a, source) if is_float(source) and _LITERAL.fullmatch(b.text) else a
    text = infix(name, a, b, dtype)
    if name != "div":
        return text
    # Triton divides 16-bit floats in float32; the IR rounds the quotient.
    return Text(f"{text.at(ATOM)}.to({TL_DTYPES[dtype]})") if dtype in ("float16", "bfloat16") else text


def floored(name: str, a: Text, b: Text, helper: Callable[[str], None]) -> Text:
    """Floor division or its remainder, exact for all operands: a shift or a mask where `b` is a literal power of two.

    >>> str(floored("floordiv", Text("x"), Text("4"), print)), str(floored("mod", Text("x"), Text("4"), print))
    ('x >> 2', 'x & 3')
    """
    n = int(b.text) if b.text.isdecimal() else 0
    if n > 0 and n & (n - 1) == 0:
        op, by = ("shr", n.bit_length() - 1) if name == "floordiv" else ("bitand", n - 1)
        return infix(op, a, Text(str(by)))
    fn = "_floordiv" if name == "floordiv" else "_floormod"
    helper(fn)
    return call(fn, a, b)


# --- 8-bit floats -----------------------------------------------------------------------------------

DOT, INT8_DOT = "_dot_float8", "_dot_int8"
DOTS = {**dict.fromkeys(FLOAT8, DOT), "int8": INT8_DOT}
"""The functions that multiply matrices of 8 bits, by the dtype of the operands."""
TOGETHER = 32
"""How many products Hopper's unit sums before they are added in float32; also the least depth of a product.

A running sum that an Ada GPU's unit is given is cut to some 14 bits at every step, so that one never gets there. Triton
does not put the addition back into the product, as it would with `max_num_imprecise_acc` left out.
"""


def encode_name(dtype: str) -> str:
    """The function that casts to an 8-bit float."""
    return f"_to_{dtype}"


def cast8(x: Text, source: str, dtype: str, helper: Callable[[str], None]) -> Text | None:
    """A cast to or from an 8-bit float, of a scalar or a tile; None for any other."""
    if dtype in FLOAT8:
        helper(name := encode_name(dtype))
        return call(name, x)
    if source not in FLOAT8:
        return None
    wide = Text(f"{x.at(ATOM)}.to({TL_DTYPES['float16' if dtype == 'float16' else 'float32']})")
    return wide if dtype != "bfloat16" else Text(f"{wide}.to(tl.bfloat16)")


def _encode(dtype: str) -> str:
    b = BITS[dtype]
    magic = 2.0 ** ((b.magic >> 23) - 127)
    return f"""\
@triton.jit
def {encode_name(dtype)}(x):
    # To the nearest, ties to even, by bits: Triton's own cast is another one on each GPU.
    bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    tiny = (size.to(tl.float32, bitcast=True) + {magic}).to(tl.uint32, bitcast=True) - 0x{b.magic:X}
    code = ((size + 0x{(1 << b.shift - 1) - 1:X} + ((size >> {b.shift}) & 1)) >> {b.shift}) - 0x{b.rebias:X}
    code = tl.where(size < 0x{b.normal:X}, tiny, code)
    code = tl.where(code > 0x{b.most:X}, 0x{b.most:X}, code)
    code = tl.where(size > 0x{INFINITE:X}, 0x{NAN:X}, code) | ((bits >> 24) & 0x80)
    return code.to(tl.uint8).to({TL_DTYPES[dtype]}, bitcast=True)
"""


HELPERS |= {encode_name(dtype): _encode(dtype) for dtype in FLOAT8}
HELPERS[DOT] = f"""\
@triton.jit
def {DOT}(a, b, acc):
    # NVIDIA's units sum 8-bit products with fewer bits than float32 has. Of Hopper's, every {TOGETHER} are added in
    # float32 where that is asked for; with others each call starts anew, and its sum is added in float32.
    if a.shape[1] < {TOGETHER}:  # too short a depth for a unit; float16 has all numbers of a and b
        return tl.dot(a.to(tl.float16), b.to(tl.float16), acc)
    elif tl.target_info.cuda_capability_geq(8, 9) and (
        tl.target_info.cuda_capability_geq(10, 0) or not tl.target_info.cuda_capability_geq(9, 0)
    ):
        return acc + tl.dot(a, b, max_num_imprecise_acc={TOGETHER})
    else:
        return tl.dot(a, b, acc, max_num_imprecise_acc={TOGETHER})
"""
HELPERS[INT8_DOT] = f"""\
@triton.jit
def {INT8_DOT}(a, b, acc):
    if a.shape[1] < {TOGETHER}:  # too short a depth for a unit; float32 has all sums of so few products
        return acc + tl.dot(a.to(tl.float16), b.to(tl.float16)).to(tl.int32)
    else:
        return tl.dot(a, b, acc, out_dtype=tl.int32)
"""
