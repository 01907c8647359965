"""The operators of scalar expressions as a table: syntax, and the facts that proofs rest on.

Facts are those of the real function on finite arguments.  A strict bound is kept at 0 only (`Range.nonzero`):
exp is above 0, but tanh may well round to 1.  `neptune.ir.analysis.facts` folds the columns over an expression; each of
them is held against samples of `value` in tests/unit/ir/test_ops_columns.py.  To add an operator: a row here, and its
name in the tables of the back ends (`codegen`), the front end (`frontend`) and the evaluator's domains (`verify`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """All v with `lo <= v <= hi`, and |v| >= `least` unless v is 0; `nonzero`: without 0, or 0 lies outside."""

    lo: float = -inf
    hi: float = inf
    least: float = 0.0
    nonzero: bool = False

    def __post_init__(self) -> None:
        if self.lo > 0 or self.hi < 0:
            object.__setattr__(self, "nonzero", True)
            object.__setattr__(self, "least", max(self.least, self.lo, -self.hi))

    @property
    def most(self) -> float:
        """The largest magnitude."""
        return max(abs(self.lo), abs(self.hi))

    @property
    def sign(self) -> str | None:
        """ "+" above 0, "0+" not below, "0" zero, "0-" not above, "-" below 0, None where not known.

        >>> Range(0.0, inf, nonzero=True).sign
        '+'
        """
        if self.lo == self.hi == 0:
            return "0"
        if self.lo >= 0:
            return "+" if self.nonzero else "0+"
        if self.hi <= 0:
            return "-" if self.nonzero else "0-"
        return None

    def __or__(self, other: Range) -> Range:
        """The range of a value that is one or the other."""
        least = min((r.least for r in (self, other) if r.most > 0), default=0.0)
        return Range(min(self.lo, other.lo), max(self.hi, other.hi), least, self.nonzero and other.nonzero)

    def __and__(self, other: Range) -> Range:
        """The range of a value that is both; `other` where rounding, or what is undefined, leaves nothing."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        least = max(self.least, other.least)
        return Range(lo, hi, least, self.nonzero or other.nonzero) if lo <= hi else other


ANY = Range()
SIGNS: dict[str | None, Range] = {
    "+": Range(0.0, inf, nonzero=True),
    "0+": Range(0.0, inf),
    "0": Range(0.0, 0.0),
    "0-": Range(-inf, 0.0),
    "-": Range(-inf, 0.0, nonzero=True),
    None: ANY,
}

# A column of formulas: each is given a function that applies an operator by name, and values that know + - * /.
Formula = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OpInfo:
    """A row: `kind` is arith, math, compare, logic, bits, constant, or instruction (of one machine, which no user
    writes); columns of one entry an argument are tuples.

    `value`: the function itself, on numbers (on Fractions too where `exact`), `range`: where its results lie.
    `domain`: the sign that an argument must have to be defined, "" for any; "one": either sign, not both; "base": "0+",
    beyond which it is defined for whole exponents only, and has other slopes.
    `slopes`: which way the result goes as an argument rises: "+" up, "-" down, "0+" and "0-" the same, not strictly;
    "a", "b", "-a": as the sign of that argument says ("0b": not strictly); "?": one way, which the others decide; "":
    it turns round.  `whole`: results are whole numbers.
    `sizes`: the arguments whose sign does not change the magnitude of the result.
    `nonzero`: arguments other than 0 never make 0.
    `inverse`: what an argument is, given the result t and the arguments; None where there is no inverse.
    `partials`: the partial derivatives.
    `degrees`: d with f(λa, b) = λ^d f(a, b) for λ > 0, an argument at a time; `together`: f(λa, λb) = λ f(a, b).
    `within`: the argument such that results lie between 0 and it.
    `turns`: ("add", "mul") where f(a + b) = f(a) · f(b).
    """

    name: str
    arity: int
    kind: str
    infix: str | None = None
    value: Callable[..., Any] | None = None
    range: Range = ANY
    domain: tuple[str, ...] = ()
    slopes: tuple[str, ...] = ()
    nonzero: bool = False
    exact: bool = False
    whole: bool = False
    sizes: str = ""
    inverse: tuple[Formula | None, ...] = ()
    partials: tuple[Formula, ...] = ()
    degrees: tuple[float, ...] = ()
    together: bool = False
    within: str = ""
    turns: tuple[str, str] | None = None

    @property
    def linear(self) -> tuple[bool, ...]:
        """For each argument whether f is linear in it, the others given."""
        return tuple(self.kind == "arith" and by == 1 for by in self.degrees)


MEETS: dict[str, tuple[str | None, ...]] = {
    "": (*SIGNS,), "ne": ("+", "-"), "gt": ("+",), "ge": ("+", "0+", "0"),
}  # fmt: skip
"""The signs that meet a demand."""


def demand(domain: str, by: float) -> str:
    """The comparison with 0 that an argument must meet by its `domain`, "" for none; `by`: the exponent, of a base.

    >>> demand("base", -0.5), demand("base", 2.0)
    ('gt', '')
    """
    if domain == "base":
        domain = ("one" if by < 0 else "") if by % 1 == 0 else "+" if by < 0 else "0+"
    return {"one": "ne", "+": "gt", "0+": "ge"}.get(domain, "")


def _divide(a: Any, b: Any) -> Any:
    """a / b; of a zero the sign says on which side of it the divisor lies."""
    if b != 0:
        return a / b
    return math.nan if a == 0 else math.copysign(inf, a) * math.copysign(1.0, b)


def _log(base: float) -> Callable[[float], float]:
    def value(a: float) -> float:
        if a <= 0:
            return -inf if a == 0 else math.nan
        return math.log2(a) if base == 2 else math.log(a)

    return value


def _power(a: float, b: float) -> float:
    return inf if a == 0 and b < 0 else math.pow(a, b)


def _rsqrt(a: float) -> float:
    return inf if a == 0 else 1 / math.sqrt(a)


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a)) if a > 0 else math.exp(a) / (1 + math.exp(a))


def _step(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: fn(a) if abs(a) < inf else a


LIBM: Mapping[str, Range] = {
    **dict.fromkeys(
        ("log1p", "expm1", "sinh", "tan", "asinh", "acosh", "atanh", "asin", "acos", "atan", "lgamma", "log10"), ANY
    ),
    "cosh": Range(1.0, inf),
    "erfc": Range(0.0, 2.0),
    **dict.fromkeys(("atan2", "hypot"), ANY),
}
"""Functions of C's library, by that name also in CUDA's, of which proofs know where their results lie and no more."""
_COMPARISONS = (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
_ADDS, _MULTIPLIES = ("add", "mul"), ("mul", "add")
_TRUTH = Range(0.0, 1.0, 1.0)
_POSITIVE = SIGNS["+"]
_UNIT = Range(-1.0, 1.0)


def _steps(name: str, fn: Callable[[Any], Any]) -> OpInfo:
    """A rounding to whole numbers."""
    zero = (lambda f, a: 0.0 * a,)
    return OpInfo(name, 1, "math", None, _step(fn), slopes=("0+",), exact=True, whole=True, partials=zero)


def _extremum(name: str, fn: Callable[..., Any]) -> OpInfo:
    return OpInfo(name, 2, "arith", None, fn, slopes=("0+", "0+"), nonzero=True, exact=True, together=True)


def _compare(name: str, infix: str) -> OpInfo:
    return OpInfo(name, 2, "compare", infix, range=_TRUTH)


def _logic(name: str, arity: int, infix: str | None = None) -> OpInfo:
    return OpInfo(name, arity, "logic", infix, range=_TRUTH)


def _constant(name: str, value: float) -> OpInfo:
    return OpInfo(name, 0, "constant", None, lambda: value, Range(math.nextafter(value, 0), math.nextafter(value, 2)))


# fmt: off
_ROWS = (
    OpInfo("add", 2, "arith", "+", lambda a, b: a + b, slopes=("+", "+"), exact=True, together=True,
           inverse=(lambda f, t, a, b: t - b, lambda f, t, a, b: t - a),
           partials=(lambda f, a, b: 1, lambda f, a, b: 1)),
    OpInfo("sub", 2, "arith", "-", lambda a, b: a - b, slopes=("+", "-"), exact=True, together=True,
           inverse=(lambda f, t, a, b: t + b, lambda f, t, a, b: a - t),
           partials=(lambda f, a, b: 1, lambda f, a, b: -1)),
    OpInfo("mul", 2, "arith", "*", lambda a, b: a * b, slopes=("b", "a"), exact=True, nonzero=True, sizes="ab",
           inverse=(lambda f, t, a, b: t / b, lambda f, t, a, b: t / a),
           partials=(lambda f, a, b: b, lambda f, a, b: a), degrees=(1.0, 1.0)),
    OpInfo("div", 2, "arith", "/", _divide, domain=("", "one"), slopes=("b", "-a"), exact=True, nonzero=True,
           sizes="ab", inverse=(lambda f, t, a, b: t * b, lambda f, t, a, b: a / t),
           partials=(lambda f, a, b: 1.0 / b, lambda f, a, b: -a / (b * b)), degrees=(1.0, -1.0)),
    OpInfo("floordiv", 2, "arith", "//", lambda a, b: _step(math.floor)(_divide(a, b)), domain=("", "one"),
           slopes=("0b", "0-a"), exact=True, whole=True),
    OpInfo("mod", 2, "arith", "%", within="b"),
    _extremum("min", min),
    _extremum("max", max),
    OpInfo("neg", 1, "arith", None, lambda a: -a, slopes=("-",), exact=True, nonzero=True, sizes="a",
           inverse=(lambda f, t, a: f("neg", t),), partials=(lambda f, a: -1,), degrees=(1.0,)),
    OpInfo("pow", 2, "math", None, _power, domain=("base", ""), slopes=("b", "?"), nonzero=True, sizes="a",
           inverse=(lambda f, t, a, b: f("pow", t, 1.0 / b), None),
           partials=(lambda f, a, b: b * f("pow", a, b - 1.0), lambda f, a, b: f("log", a) * f("pow", a, b))),
    OpInfo("fmod", 2, "math", None, math.fmod, domain=("", "one"), slopes=("", ""), sizes="ab", together=True,
           within="a"),
    OpInfo("exp", 1, "math", None, math.exp, _POSITIVE, slopes=("+",), nonzero=True,
           inverse=(lambda f, t, a: f("log", t),), partials=(lambda f, a: f("exp", a),), turns=_ADDS),
    OpInfo("exp2", 1, "math", None, lambda a: math.pow(2.0, a), _POSITIVE, slopes=("+",), nonzero=True,
           inverse=(lambda f, t, a: f("log2", t),), partials=(lambda f, a: f("exp2", a) * f("ln2"),), turns=_ADDS),
    OpInfo("log", 1, "math", None, _log(math.e), domain=("+",), slopes=("+",),
           inverse=(lambda f, t, a: f("exp", t),), partials=(lambda f, a: 1.0 / a,), turns=_MULTIPLIES),
    OpInfo("log2", 1, "math", None, _log(2), domain=("+",), slopes=("+",),
           inverse=(lambda f, t, a: f("exp2", t),), partials=(lambda f, a: f("log2e") / a,), turns=_MULTIPLIES),
    OpInfo("sqrt", 1, "math", None, math.sqrt, SIGNS["0+"], domain=("0+",), slopes=("+",), nonzero=True, sizes="a",
           inverse=(lambda f, t, a: t * t,), partials=(lambda f, a: 0.5 / f("sqrt", a),), degrees=(0.5,)),
    OpInfo("rsqrt", 1, "math", None, _rsqrt, _POSITIVE, domain=("+",), slopes=("-",), nonzero=True, sizes="a",
           inverse=(lambda f, t, a: 1.0 / (t * t),), partials=(lambda f, a: -0.5 * f("rsqrt", a) / a,),
           degrees=(-0.5,)),
    OpInfo("tanh", 1, "math", None, math.tanh, _UNIT, slopes=("+",), nonzero=True, sizes="a",
           partials=(lambda f, a: 1.0 - f("tanh", a) * f("tanh", a),)),
    # What `neptune.tile.passes.short` takes for tanh, of one instruction: no front end has it.
    OpInfo("tanh_approx", 1, "instruction", None, math.tanh, _UNIT, slopes=("+",), nonzero=True, sizes="a",
           partials=(lambda f, a: 1.0 - f("tanh_approx", a) * f("tanh_approx", a),)),
    OpInfo("sigmoid", 1, "math", None, _sigmoid, Range(0.0, 1.0, nonzero=True), slopes=("+",), nonzero=True,
           partials=(lambda f, a: f("sigmoid", a) * f("sigmoid", -a),)),
    OpInfo("erf", 1, "math", None, math.erf, _UNIT, slopes=("+",), nonzero=True, sizes="a",
           partials=(lambda f, a: f("exp", -(a * a)) * (2 / math.sqrt(math.pi)),)),
    OpInfo("sin", 1, "math", None, math.sin, _UNIT, slopes=("",), partials=(lambda f, a: f("cos", a),)),
    OpInfo("cos", 1, "math", None, math.cos, _UNIT, slopes=("",), partials=(lambda f, a: -f("sin", a),)),
    *(OpInfo(name, 1 + (name in ("atan2", "hypot")), "math", range=range) for name, range in LIBM.items()),
    _steps("floor", math.floor),
    _steps("ceil", math.ceil),
    _steps("round", round),
    _steps("trunc", math.trunc),
    OpInfo("abs", 1, "math", None, abs, SIGNS["0+"], slopes=("a",), exact=True, nonzero=True, sizes="a",
           partials=(lambda f, a: a / f("abs", a),), degrees=(1.0,)),
    *(_compare(name, infix) for name, infix in _COMPARISONS),
    _logic("and", 2, "and"),
    _logic("or", 2, "or"),
    _logic("not", 1),
    *(OpInfo(name, 2, "bits") for name in ("bitand", "bitor", "bitxor", "shl", "shr")),
    # log2(e) and ln(2) stay symbolic so that the exact models can give them exact values.
    _constant("log2e", math.log2(math.e)),
    _constant("ln2", math.log(2.0)),
)
# fmt: on
OPS = {row.name: row for row in _ROWS}
EXPONENTIALS = frozenset(row.name for row in _ROWS if row.turns == _ADDS)
LOGARITHMS = frozenset(row.name for row in _ROWS if row.turns == _MULTIPLIES)
SUMS = frozenset(row.name for row in _ROWS if row.together and row.partials)
INTEGER: Mapping[str, Callable[..., Any]] = {
    **{n: getattr(operator, n) for n in ("add", "sub", "mul", "floordiv", "mod", "neg", *(n for n, _ in _COMPARISONS))},
    **{"min": min, "max": max, "abs": abs, "and": operator.and_, "or": operator.or_, "not": operator.not_},
    **{"bitand": operator.and_, "bitor": operator.or_, "bitxor": operator.xor},
    **{"shl": operator.lshift, "shr": operator.rshift},
}
"""Operators on integers and bools, by those of Python: of arrays, too, but for `min`, `max` and `not`."""
