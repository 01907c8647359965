"""Pieces of Python text: precedence, literals, line breaking, helper functions of generated modules."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import pairwise

from neptune.ir.dtypes import DTYPES, FLOAT8, code_of, is_float
from neptune.ir.expr import Const, Expr, Op
from neptune.ir.reducers import REDUCERS

# Binding strength of Python's operators, loosest first; an atom is a name, a call or a subscript.
CHOICE, OR_WORD, AND_WORD, NOT_WORD, COMPARE, OR, XOR, AND, SHIFT, ADD, MUL, UNARY, ATOM = range(13)
INFIX = {
    "add": ("+", ADD),
    "sub": ("-", ADD),
    "mul": ("*", MUL),
    "div": ("/", MUL),
    "floordiv": ("//", MUL),
    "mod": ("%", MUL),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "and": ("&", AND),
    "or": ("|", OR),
    "bitand": ("&", AND),
    "bitor": ("|", OR),
    "bitxor": ("^", XOR),
    "shl": ("<<", SHIFT),
    "shr": (">>", SHIFT),
}
_OTHER_NAMES = {"bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}
TL_DTYPES = {name: f"tl.{_OTHER_NAMES.get(name, name)}" for name in DTYPES}
WIDTH = 120


@dataclass(frozen=True, slots=True)
class Text:
    """Python text and how strongly its outermost operator binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text as an operand of an operator that binds this strongly."""
        return f"({self.text})" if self.level < level else self.text

    def __str__(self) -> str:
        return self.text


def infix(name: str, a: Text, b: Text, dtype: str = "int32") -> Text:
    """A two-argument operator with the parentheses it needs and no others; float sums keep their order.

    >>> str(infix("sub", Text("a"), infix("add", Text("b"), Text("c"))))
    'a - (b + c)'
    """
    symbol, level = INFIX[name]
    associative = name in ("and", "or") or (name == "add" and not is_float(dtype))
    left = level + 1 if level == COMPARE else level
    return Text(f"{a.at(left)} {symbol} {b.at(level if associative else level + 1)}", level)


def call(name: str, *args: Text | str) -> Text:
    """A function call."""
    return Text(f"{name}({', '.join(str(a) for a in args)})")


def literal(value: float | int | bool, dtype: str) -> Text:
    """A number as Triton source takes it.

    >>> str(literal(float("-inf"), "float32")), str(literal(1, "float16"))
    ('float("-inf")', '1.0')
    """
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return Text(str(bool(value)))
    if dtype in FLOAT8:
        return Text(f"tl.cast({code_of(value, dtype)}, tl.uint8).to({TL_DTYPES[dtype]}, bitcast=True)")
    if kind == "float" and not math.isfinite(value):
        return Text(f'float("{float(value)}")')
    text = repr(float(value)) if kind == "float" else repr(int(value))
    return Text(text, UNARY if text.startswith("-") else ATOM)


def shortest_float32(value: float) -> float:
    """The decimal number with the fewest digits that rounds to the same float32.

    >>> shortest_float32(0.08838834764831845 * 1.4426950408889634)
    0.12751743
    """
    try:
        bits = struct.pack("f", value)
    except OverflowError:
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("f", short) == bits:
            return short
    return value


def constant(e: Expr) -> Text | None:
    """Arithmetic of literals with log2(e) or ln(2), as one literal; None for everything else."""
    if not any(isinstance(x, Op) and not x.args for x in _nodes(e)):
        return None
    value = _value(e)
    if value is None:
        return None
    return literal(value if e.dtype == "float64" else shortest_float32(value), e.dtype)


def _nodes(e: Expr) -> list[Expr]:
    return [e, *(n for a in e.args for n in _nodes(a))] if isinstance(e, Op) else [e]


def _value(e: Expr) -> float | None:
    if isinstance(e, Const):
        return float(e.value)
    if not isinstance(e, Op):
        return None
    args = [_value(a) for a in e.args]
    match e.name, args:
        case "log2e", []:
            return math.log2(math.e)
        case "ln2", []:
            return math.log(2)
        case "neg", [float(a)]:
            return -a
        case "mul", [float(a), float(b)]:
            return a * b
        case "div", [float(a), float(b)] if b != 0:
            return a / b
        case _:
            return None


def wrap(line: str) -> list[str]:
    """Break a line that is too long at the commas of its outermost bracket, one part a line."""
    if len(line) <= WIDTH:
        return [line]
    pad = line[: len(line) - len(line.lstrip())]
    for start, end, cuts in _groups(line):
        if not cuts:
            continue
        marks = [start, *cuts, end]
        parts = [line[a + 1 : b].strip() for a, b in pairwise(marks)]
        inner = [x for p in parts if p for x in wrap(f"{pad}    {p},")]
        return [line[: start + 1], *inner, pad + line[end:]]
    return [line]


def _groups(line: str) -> list[tuple[int, int, list[int]]]:
    """The bracket groups of a line, outermost and longest first: start, end, commas at top level."""
    groups: list[tuple[int, int, list[int], int]] = []
    stack: list[tuple[int, list[int]]] = []
    quoted = False
    for k, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{":
            stack.append((k, []))
        elif c in ")]}" and stack:
            start, cuts = stack.pop()
            groups.append((start, k, cuts, len(stack)))
        elif c == "," and stack:
            stack[-1][1].append(k)
    groups.sort(key=lambda g: (g[3], g[0] - g[1]))
    return [(start, end, cuts) for start, end, cuts, _ in groups]


LIBDEVICE = "from triton.language.extra import libdevice"
HELPERS = {
    "_tanh": """\
@triton.jit
def _tanh(x):
    # 1 - 2 / (exp(2|x|) + 1) cancels near zero: there an odd polynomial, fitted for the least relative error, is
    # within an ulp of float32.
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp2(a * 2.8853900817779268) + 1.0)
    s = a * a
    near = s * -0.00570498 + 0.02063908
    near = near * s - 0.05373971
    near = near * s + 0.13331442
    near = near * s - 0.33333282
    near = a + a * s * near
    t = tl.where(a < 0.625, near, far)
    return tl.where(x < 0, -t, t)
""",
    "_tanh64": """\
@triton.jit
def _tanh64(x):
    # As _tanh; near zero the continued fraction x / (1 + x² / (3 + …)), cut where a double sees no more.
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(a * 2.0) + 1.0)
    s = a * a
    f = s * 0.0 + 19.0
    for k in tl.static_range(9):
        f = (17.0 - 2.0 * k) + s / f
    t = tl.where(a < 0.625, a / f, far)
    return tl.where(x < 0, -t, t)
""",
    "_round": """\
@triton.jit
def _round(x):
    # To the nearest integer, ties to even; the fraction of |x| is exact.
    a = tl.abs(x)
    whole = tl.floor(a)
    rest = a - whole
    odd = tl.floor(whole * 0.5) * 2.0 != whole
    near = tl.where((rest > 0.5) | ((rest == 0.5) & odd), whole + 1.0, whole)
    return tl.where(x < 0, -near, near)
""",
    "_trunc": """\
@triton.jit
def _trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "_fmod": """\
@triton.jit
def _fmod(a, b):
    # In float64, where what is left is exact; a rounded quotient may be one too large.
    x = a.to(tl.float64)
    y = b.to(tl.float64)
    q = x / y
    r = tl.fma(-tl.where(q < 0, tl.ceil(q), tl.floor(q)), y, x)
    r = tl.where((r != 0) & ((r < 0) != (x < 0)), r + tl.where(x < 0, -tl.abs(y), tl.abs(y)), r)
    r = tl.where(r == 0, x * 0.0, r)
    r = tl.where((tl.abs(y) == float("inf")) & (tl.abs(x) < float("inf")), x, r)
    return r.to(a.dtype)
""",
    "_floordiv": """\
@triton.jit
def _floordiv(a, b):
    # Triton's // truncates, Python's floors: the interpreter has loop variables that are Python's.
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
""",
    "_floormod": """\
@triton.jit
def _floormod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "_pow": """\
@triton.jit
def _pow(x, y):
    # |x|^y, with the sign of an odd integer power; a negative base has no other real power.
    size = tl.where(y == 0, 1.0, tl.exp2(y * tl.log2(tl.abs(x))))
    whole = tl.floor(y) == y
    odd = tl.floor(y * 0.5) * 2.0 != y
    negative = tl.where(whole, tl.where(odd, -size, size), float("nan"))
    return tl.where((x < 0) & (y != 0), negative, size)
""",
    "_power": """\
@triton.jit
def _power(x, N: tl.constexpr):
    # A small integer power by multiplication.
    result = x
    for _ in tl.static_range(N - 1):
        result = result * x
    return result
""",
}


def fold_name(reducer: str) -> str:
    """The function by which `tl.reduce` folds, where Triton has no reduction of that name."""
    return f"_{REDUCERS[reducer].word}"


HELPERS |= {
    fold_name(r.name): f"@triton.jit\ndef {fold_name(r.name)}(a, b):\n    return a {INFIX[r.op][0]} b\n"
    for r in REDUCERS.values()
    if r.op in INFIX
}
