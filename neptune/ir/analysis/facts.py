"""Facts about expressions: one fold over the columns of `OPS` and `REDUCERS`.

    range_of   the numbers an expression may be, its sign and magnitude among them      exp(x)  →  above 0
    slope      which way it goes as a variable rises                                    a - t   →  "-"

They hold of real arithmetic on finite inputs, rounding apart; an expression that is undefined may be anything.  What
is not decided is not assumed: `ANY`, or `Unsupported` with the part and the reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf, nextafter
from typing import Any

from neptune.errors import Unsupported
from neptune.ir.analysis.fold import fold, nothing_known
from neptune.ir.dtypes import DTYPES, FLOAT8, is_float, rounded8
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, variables, walk
from neptune.ir.nodes import E, Node
from neptune.ir.ops import ANY, MEETS, OPS, SIGNS, SUMS, OpInfo, Range, demand
from neptune.ir.reducers import REDUCERS

Known = Callable[[Expr], "Range | None"]
"""What is known of a node beforehand; None where its structure has to tell."""

_ARGUMENTS = ("a", "b")


# --- ranges ------------------------------------------------------------------------------------


def range_of(e: Node[E], known: Callable[[E], Range | None] = nothing_known) -> Range:
    """The numbers that `e` may be; of a tile, whose leaves `known` tells, its elements.

    >>> from neptune.ir.expr import op
    >>> range_of(op("tanh", Load("x", (), "float32")) * 3.0).most
    3.0
    """

    def either(_e: object, a: Range, b: Range) -> Range:
        return a | b

    return fold(e, _leaf, _operator, either, cast=lambda x, of: converted(of, x.arg.dtype, x.dtype), known=known)


def _leaf(e: Any) -> Range:
    return _point(e.value) if isinstance(e, Const) else of_dtype(e.dtype) if isinstance(e, Load | Var) else ANY


def _operator(e: Op[Any], ranges: Sequence[Range]) -> Range:
    if e.name == "mul" and e.args[0] == e.args[1]:
        ranges = [applied("abs", ranges[:1])] * 2
    if e.name == "pow" and ranges[1].lo == ranges[1].hi and ranges[1].lo % 1 == 0:
        return _representable(_whole_power(ranges[0], ranges[1].lo), e.dtype)
    return _representable(applied(e.name, ranges), e.dtype)


def constant_range(e: Expr) -> Range:
    """The range of an expression that reads nothing; ANY for any other."""
    return ANY if any(isinstance(x, Load | Var) for x in walk(e)) else range_of(e)


def of_dtype(dtype: str) -> Range:
    """The finite numbers of a dtype: those of float16 are no smaller than 2⁻²⁴."""
    row = DTYPES[dtype]
    least = 1.0 if row.kind != "float" else row.smallest_normal * 2.0**-row.mantissa
    return Range(row.lowest, row.highest, least)


def _representable(x: Range, dtype: str) -> Range:
    """`x` in a dtype: an integer that leaves it is undefined, a float past its largest infinite."""
    limits = of_dtype(dtype)
    if not is_float(dtype):
        return x & limits
    return Range(x.lo if x.lo >= limits.lo else -inf, x.hi if x.hi <= limits.hi else inf, x.least, x.nonzero)


def converted(x: Range, source: str, target: str) -> Range:
    """A Cast. What a float is cast to lies in the integer dtype (else it is undefined); an integer may wrap."""
    limits = of_dtype(target)
    if target in FLOAT8:
        # Ordinary numbers round to 0: here the rounding counts.
        nonzero = x.nonzero and rounded8(x.least, target) > 0
        return Range(rounded8(x.lo, target), rounded8(x.hi, target), limits.least, nonzero)
    if is_float(target):
        return _representable(x, target)
    if target == "bool":
        return limits
    if is_float(source):
        return applied("trunc", [x]) & limits
    return x if limits.lo <= x.lo and x.hi <= limits.hi else limits


def _whole_power(x: Range, by: float) -> Range:
    """x ** by for a whole number `by`: it has the sign of x where that is odd."""
    size = applied("pow", [applied("abs", [x]), _point(by)])
    if by % 2 == 0 or x.lo >= 0:
        return size
    return Range(-size.hi, -size.lo if x.hi <= 0 else size.hi, size.least, size.nonzero)


def applied(name: str, args: Sequence[Range]) -> Range:
    """The results of an operator on these arguments, where it is defined."""
    info = OPS[name]
    if info.within:
        x = args[_ARGUMENTS.index(info.within)]
        return Range(min(x.lo, 0.0), max(x.hi, 0.0))
    if info.value is None or not args or "" in info.slopes:
        return info.range
    inside = [_in_domain(x, need) for x, need in zip(args, info.domain or ("",) * len(args), strict=True)]
    defined = [x for x in inside if x is not None]
    values = _corners(info, defined) if len(defined) == len(args) else []
    if not values:
        return info.range
    lo, hi = min(v[0] for v in values), max(v[1] for v in values)
    return Range(lo + 0.0, hi + 0.0, _least(info, defined), _never_zero(info, defined)) & info.range


def _in_domain(x: Range, need: str) -> Range | None:
    """The part of `x` where an operator is defined and its slope as stated; None where that is not one range."""
    if need == "one":
        return x if x.sign is not None else None
    if need == "base":
        return x if x.lo >= 0 else None
    return x & SIGNS[need or None]


def _corners(info: OpInfo, args: Sequence[Range]) -> list[tuple[float, float]]:
    """Bounds of the operator wherever it may be extreme: it goes one way in every argument, the others given."""
    ends = itertools.product(*(_ends(x, info.slopes[k].endswith(_ARGUMENTS[k])) for k, x in enumerate(args)))
    return [v for corner in ends if (v := _at(info, corner)) is not None]


def _ends(x: Range, turns: bool) -> tuple[float, ...]:
    """The ends of a range, and 0 for an operator that turns there; a zero has the sign of the numbers beside it."""
    ends = (x.lo + 0.0, -0.0 if x.hi == 0 else x.hi)
    return (*ends, 0.0) if turns and x.lo < 0 < x.hi else ends


def _at(info: OpInfo, args: tuple[float, ...]) -> tuple[float, float] | None:
    """Bounds of the value at a corner; None for one that is undefined, as 0 · inf: its neighbours are corners too."""
    assert info.value is not None
    try:
        if info.exact and all(a != 0 and math.isfinite(a) for a in args):
            return _around(Fraction(info.value(*map(Fraction, args))))
        value = float(info.value(*args))
    except OverflowError:
        # Past the largest float: of exp, exp2 and pow, which are not negative.
        return DTYPES["float64"].highest, inf
    if value != value:
        return None
    if info.exact or value in (inf, -inf):
        return value, value
    if value == 0:
        return 0.0, 5e-324 if info.range.nonzero else 0.0
    return value - 4 * math.ulp(value), value + 4 * math.ulp(value)


def _around(value: Fraction) -> tuple[float, float]:
    """The floats next to a number."""
    try:
        near = float(value)
    except OverflowError:
        highest = DTYPES["float64"].highest
        return (highest, inf) if value > 0 else (-inf, -highest)
    exact = Fraction(near)
    return nextafter(near, -inf) if exact > value else near, nextafter(near, inf) if exact < value else near


def _point(value: float) -> Range:
    if value != value:
        return ANY
    return Range(*_around(Fraction(value))) if math.isfinite(value) else Range(value, value)


def _least(info: OpInfo, args: Sequence[Range]) -> float:
    """Return a lower bound on the magnitude of nonzero results."""
    if info.whole:
        return 1.0
    if info.name in ("max", "min") or (info.together and _alike(info, args)):
        return min((x.least for x in args if x.most > 0), default=0.0)
    if not info.sizes or not all(x.most > 0 for x in args):
        return 0.0
    sizes = [Range(x.least, x.most) if k in info.sizes else x for k, x in zip(_ARGUMENTS, args, strict=False)]
    return min((min(map(abs, v)) for v in _corners(info, sizes)), default=0.0)


def _never_zero(info: OpInfo, args: Sequence[Range]) -> bool:
    """Return True if the result cannot be 0, whatever its bounds are."""
    if info.nonzero and all(x.nonzero for x in args):
        return True
    if info.name in ("max", "min"):
        return ("+" if info.name == "max" else "-") in [x.sign for x in args]
    return info.together and _alike(info, args) and any(x.nonzero for x in args)


def _alike(info: OpInfo, args: Sequence[Range]) -> bool:
    """Return True if the terms of a sum (less the second, for `sub`) have one sign."""
    signs = [x.sign if way == "+" else flip(x.sign) for x, way in zip(args, info.slopes, strict=True)]
    return any(all(s in (strict, "0" + strict, "0") for s in signs) for strict in "+-")


def folded(reducer: str, values: Range) -> Range:
    """Return the range of a reduction of one or more values that lie in `of`; ANY for a reducer of pairs.

    >>> folded("sum", Range(1.0, 2.0)).lo
    1.0
    """
    name = REDUCERS[reducer].op
    if not name:
        return ANY
    for lo, hi, least in itertools.product((values.lo, 0.0, -inf), (values.hi, 0.0, inf), (values.least, 0.0)):
        if lo > values.lo or hi < values.hi:
            continue
        now = Range(lo, hi, least, values.nonzero)
        after = applied(name, [now, values])
        if lo <= after.lo and after.hi <= hi and now.least <= after.least and now.nonzero <= after.nonzero:
            return now
    return ANY


def linear_in(e: Expr, k: int) -> bool:
    """True if `e` is linear in its part `k`, the others given; a rounding to a float of 16 bits or more counts as
    exact, one to fewer does not."""
    if isinstance(e, Cast):
        return is_float(e.dtype) and is_float(e.arg.dtype) and e.dtype not in FLOAT8
    return isinstance(e, Op) and OPS[e.name].linear[k : k + 1] == (True,)


def affine_in(e: Expr, k: int) -> bool:
    """True if `e` is affine in its part `k`, the others given."""
    return linear_in(e, k) or (isinstance(e, Op) and e.name in SUMS)


# --- degrees -----------------------------------------------------------------------------------

Degree = tuple[float, float]
"""How |e| grows as something is scaled: by λ to the power of the first (as λ → 0 or ∞, the least) to the second."""


def degree_of(e: Expr, known: Callable[[Expr], Degree | None]) -> Degree:
    """The degree of `e`, given those of its loads; of what is no power, as exp and log, it counts as 0.

    >>> x = Load("x", (), "float32")
    >>> degree_of(x * x / 3.0, lambda e: (1.0, 1.0) if e == x else None)
    (2.0, 2.0)
    """

    def choice(x: Select[Expr], *degrees: Degree) -> Degree:
        return _widest([d for part, d in zip(x.parts[1:], degrees, strict=True) if not isinstance(part, Const)])

    return fold(e, lambda _: (0.0, 0.0), _degree, choice, known=known)


def _degree(e: Op[Expr], degrees: Sequence[Degree]) -> Degree:
    info, by = OPS[e.name], e.args[-1] if e.name == "pow" else None
    if isinstance(by, Const):
        return _widest([(by.value * d, by.value * d) for d in degrees[0]])
    if info.degrees:
        ends = [_widest([(by * d, by * d) for d in x]) for by, x in zip(info.degrees, degrees, strict=True)]
        return sum(x[0] for x in ends), sum(x[1] for x in ends)
    if info.together or (info.whole and info.arity == 1):
        return _widest(degrees)
    # tanh x is x where that is small, and bounded where it is large.
    return _widest([*degrees, (0.0, 0.0)]) if "a" in info.sizes and info.range.most < inf else (0.0, 0.0)


def _widest(parts: Sequence[Degree]) -> Degree:
    return min((p[0] for p in parts), default=0.0), max((p[1] for p in parts), default=0.0)


# --- signs -------------------------------------------------------------------------------------
# "+" above 0, "0+" not below, "0" zero, "0-" not above, "-" below 0, None unknown.


def flip(sign: str | None) -> str | None:
    """The sign of -x."""
    return sign.translate(str.maketrans("+-", "-+")) if sign else sign


def times(a: str | None, b: str | None) -> str | None:
    """The sign of x·y."""
    return None if a is None or b is None else applied("mul", [SIGNS[a], SIGNS[b]]).sign


def plus(a: str | None, b: str | None) -> str | None:
    """The sign of x + y."""
    return applied("add", [SIGNS[a], SIGNS[b]]).sign


# --- slopes ------------------------------------------------------------------------------------


def slope(e: Expr, name: str, known: Known = nothing_known) -> str:
    """The sign of the difference of `e` as the variable rises: "0" where it does not depend on it, "0+" not strictly.

    Raises Unsupported, of the part that it is not known of.

    >>> slope(2.0 - Var("t", "float32"), "t")
    '-'
    """
    if name not in variables(e):
        return "0"
    match e:
        case Var():
            return "+"
        case Cast(a, dtype) if not (linear_in(e, 0) or _widens(a.dtype, dtype)):
            raise Unsupported(f"the cast {a.dtype} → {dtype} is not known to keep the order", node=e)
        case Cast(a, _):
            return slope(a, name, known)
        case Op():
            return _chain(e, [slope(a, name, known) for a in e.args], known)
        case _:
            raise Unsupported("it is not known whether it rises or falls", node=e)


def _widens(source: str, target: str) -> bool:
    """True for integer dtypes of which the second holds what the first does."""
    inner, outer = DTYPES[source], DTYPES[target]
    return {inner.kind, outer.kind} == {"int"} and outer.lowest <= inner.lowest and inner.highest <= outer.highest


def _chain(e: Op[Expr], inner: Sequence[str], known: Known) -> str:
    which, info = e.name, OPS[e.name]
    moving = [k for k, s in enumerate(inner) if s != "0"]
    ranges = [range_of(a, known) for a in e.args]
    ways = [times(_way(e, info, k, ranges), inner[k]) for k in moving]
    if which in ("max", "min") and len(moving) == 2 and inner[0] == inner[1]:
        # Of two that rise strictly, the larger does: neither stands still.
        return inner[0]
    total: str | None = "0"
    for way in ways:
        total = plus(total, way)
    if total is None:
        raise Unsupported("it is not known whether it rises or falls", node=e)
    return total


def _way(e: Op[Expr], info: OpInfo, k: int, ranges: list[Range]) -> str:
    """The direction of an operator as one argument rises."""
    column = info.slopes[k] if info.slopes else ""
    if column in ("", "?"):
        what = "a power rises with its exponent" if column else f"{info.name} of it rises or falls"
        raise Unsupported(f"it is not known whether {what}", node=e)
    # 0 to a negative power is infinite.
    need = demand(info.domain[k], 0.5 if ranges[-1].sign in ("+", "0+") else -0.5) if info.domain else ""
    if ranges[k].sign not in MEETS[need]:
        what = f"{info.name} rises or falls where its argument is {'positive' if need == 'gt' else '>= 0'}"
        changes = "what is divided by may change its sign"
        raise Unsupported(changes if need == "ne" else f"{what}, and its sign is unknown", node=e.args[k])
    if column[-1] not in _ARGUMENTS:
        return column
    index = _ARGUMENTS.index(column[-1])
    sign = ranges[index].sign
    if sign is None:
        if index == k:
            what = f"{info.name} rises or falls where its argument is >= 0, and its sign is unknown"
            raise Unsupported(what, node=e.args[k])
        raise Unsupported("the sign of this factor is unknown, so that the order may turn round", node=e.args[index])
    if index == k and sign != "0":
        # It is flat at 0 itself, and nowhere else.
        sign = sign[-1]
    way = (flip(sign) if "-" in column else sign) or "0"
    return "0" + way[-1] if column[0] == "0" and way != "0" else way
