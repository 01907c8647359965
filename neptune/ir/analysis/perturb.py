"""How far small errors inside an expression move its results, stage by stage: an error analysis as one fold.

score = tanh(s)·50        absolute 4e-5        m = max score     absolute 4e-5
p = exp(score - m)        relative 8e-5        l = Σ p           relative 8e-5
acc = Σ p·v               weighted 8e-5        o = acc / l       weighted 16e-5

An absolute error e of a value v means |v' - v| ≤ e, a relative one |v' - v| ≤ (eᵉ - 1)·|v|. A weighted one is
relative to |v| with magnitudes in the place of all summands: the componentwise bound by which the rounding of
summands is judged, too (Higham, Accuracy and Stability of Numerical Algorithms, §3). So an exponential makes a relative
error of an absolute one, errors of factors add, and those of summands do not. Whatever else meets an error has lost
track of it. Underflow is left out: what it hides is far below the largest summand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, inf, log
from typing import TypeAlias

from neptune.ir.analysis.facts import applied, folded, range_of
from neptune.ir.analysis.fold import fold
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select
from neptune.ir.ops import ANY, Range
from neptune.ir.program import Program, Stage, stages, starts

ABSOLUTE, RELATIVE, WEIGHTED = "absolute", "relative", "weighted"


@dataclass(frozen=True, slots=True)
class Error:
    """How far a value may be off: `size` in the sense of `kind`."""

    size: float = 0.0
    kind: str = ""

    @property
    def scales(self) -> bool:
        """True where the error of a multiple is that of the value."""
        return self.kind in ("", RELATIVE, WEIGHTED)

    def times(self, by: float) -> Error:
        """The absolute error of a multiple."""
        return Error(self.size * by, ABSOLUTE)


EXACT, LOST = Error(), Error(inf, "lost")


Made: TypeAlias = Callable[[Op[Expr]], Error]
"""By how much an operator is off on exact arguments."""


def errors(program: Program, made: Made, within: Collection[str], free: Collection[str] = ()) -> Mapping[str, Error]:
    """The error of each buffer that stages write, where operators in the stages `within` are off by what `made` says.
    On values of `free` buffers no result depends, so that they count as exact.

    An unfused program writes each buffer before it reads it; of any other one, all is lost.
    """
    return _Analysis(made, within, free).of_all(program)


def roundings(program: Program) -> Mapping[str, Error]:
    """The error of each buffer that stages write, by what casts to shorter floats round alone.

    p.astype("float16") · v, summed, / l        →        weighted 2⁻¹¹
    """
    return _Analysis(lambda e: EXACT, (), (), rounds=True).of_all(program)


def negligible(error: Error, dtype: str) -> bool:
    """True if a result of this dtype is off by less than one unit in its last place, whatever the result.

    >>> negligible(Error(3e-4, "relative"), "float16"), negligible(Error(3e-4, "relative"), "float32")
    (True, False)
    """
    if error == EXACT:
        return True
    if error.kind not in (RELATIVE, WEIGHTED) or not is_float(dtype):
        return False
    # The last place of a number just below a power of two.
    return expm1(min(error.size, 1.0)) < 2.0 ** -(1 + DTYPES[dtype].mantissa)


class _Analysis:
    """The errors and the ranges of buffers, as far as stages have been read."""

    def __init__(self, made: Made, within: Collection[str], free: Collection[str], rounds: bool = False) -> None:
        self.made, self.within, self.free, self.rounds = made, within, free, rounds
        self.errors: dict[str, Error] = {}
        self.ranges: dict[str, Range] = {}
        self.here = ""

    def of_all(self, program: Program) -> Mapping[str, Error]:
        """The errors of all buffers; all are lost where another reading finds others."""
        self.read(program)
        first = dict(self.errors)
        self.read(program)
        return first if self.errors == first else dict.fromkeys(first, LOST)

    def read(self, program: Program) -> None:
        """Take note of what the stages write, in their order."""
        for s in stages(program.body):
            self.here = s.name
            value, whole = self.written(s)
            where = [*s.action.index, *starts(s.action), *([] if s.when is None else [s.when])]
            value = value if all(self.of(x) == EXACT for x in where) else LOST
            for b in s.action.buffers:
                self.errors[b] = EXACT if b in self.free else _either([self.errors.get(b, EXACT), value])
                self.ranges[b] = self.ranges.get(b, whole) | whole

    def written(self, s: Stage) -> tuple[Error, Range]:
        """The error and the range of what a stage stores or folds."""
        value, ranges = _either([self.of(v) for v in s.action.values]), [self.range(v) for v in s.action.values]
        if len(ranges) > 1:
            return value if value == EXACT else LOST, ANY
        (one,) = ranges
        if not s.folds:
            return value, one
        begin = [self.range(v) for v in starts(s.action)]
        whole = folded(s.action.reducer, one)
        for r in begin:
            whole = whole | applied("add", [whole, r]) | r
        return _folded(s.action.reducer, value, all(r.lo >= 0 for r in (one, *begin))), whole

    def range(self, e: Expr) -> Range:
        """The numbers that `e` may be."""
        return range_of(e, lambda x: self.ranges.get(x.buffer) if isinstance(x, Load) else None)

    def of(self, e: Expr) -> Error:
        """The error of `e`."""
        return fold(e, self.leaf, self.operator, self.choice, cast=self.cast)

    def leaf(self, e: Expr) -> Error:
        if not isinstance(e, Load):
            return EXACT
        return self.errors.get(e.buffer, EXACT) if all(self.of(i) == EXACT for i in e.index) else LOST

    def choice(self, e: Select[Expr], then: Error, other: Error) -> Error:
        return _either((then, other)) if self.of(e.pred) == EXACT or self.by_sign(e.pred) else LOST

    def cast(self, e: Cast[Expr], error: Error) -> Error:
        """A cast to a float rounds either value alike; one to an integer may take them apart."""
        if not is_float(e.dtype):
            return error if error == EXACT else LOST
        return _plus_rounding(error, e) if self.rounds else error

    def by_sign(self, pred: Expr) -> bool:
        """True for a comparison with 0 of what is relatively near, which keeps its sign."""
        if not (isinstance(pred, Op) and len(pred.args) == 2 and pred.dtype == "bool"):
            return False
        a, b = pred.args
        return isinstance(b, Const) and b.value == 0 and self.of(a).kind == RELATIVE

    def operator(self, e: Op[Expr], parts: Sequence[Error]) -> Error:
        error = EXACT if all(x == EXACT for x in parts) else self.carried(e, parts)
        own = self.made(e) if self.here in self.within else EXACT
        return own if error == EXACT else error if own == EXACT else _plus(error, own)

    def carried(self, e: Op[Expr], parts: Sequence[Error]) -> Error:
        """The error of an operator that makes none, on arguments of which some are off."""
        if LOST in parts:
            return LOST
        match e.name:
            case "neg":
                return parts[0]
            case "tanh":  # its slope is at most 1
                return parts[0] if parts[0].kind == ABSOLUTE else LOST
            case "exp" | "exp2":
                by = log(2.0) if e.name == "exp2" else 1.0
                return Error(parts[0].size * by, RELATIVE) if parts[0].kind == ABSOLUTE else LOST
            case "add":
                return _plus(parts[0], parts[1], all(self.range(a).lo >= 0 for a in e.args))
            case "sub":
                return _plus(parts[0], parts[1]) if ABSOLUTE in (parts[0].kind, parts[1].kind) else LOST
            case "max" | "min":
                return _either(parts) if EXACT not in parts or ABSOLUTE in (parts[0].kind, parts[1].kind) else LOST
            case "mul" | "div":
                return self.multiple(e, parts)
            case _:
                return LOST

    def multiple(self, e: Op[Expr], parts: Sequence[Error]) -> Error:
        """The error of a product or quotient."""
        a, b = parts
        if a.scales and b.scales and not (e.name == "div" and b.kind == WEIGHTED):
            return Error(a.size + b.size, WEIGHTED if WEIGHTED in (a.kind, b.kind) else RELATIVE)
        if e.name == "mul" and a == EXACT:
            return b.times(self.range(e.args[0]).most)
        if b != EXACT:
            return LOST
        by = self.range(e.args[1])
        return a.times(by.most if e.name == "mul" else 1.0 / by.least if by.nonzero and by.least > 0 else inf)


def _either(parts: Sequence[Error]) -> Error:
    """The error of a value that is one of these."""
    wrong = [x for x in parts if x != EXACT]
    size = max((x.size for x in wrong), default=0.0)
    kinds = {x.kind for x in wrong}
    if len(kinds) <= 1:
        return Error(size, *kinds)
    return Error(size, WEIGHTED) if kinds == {RELATIVE, WEIGHTED} else LOST


def _plus(a: Error, b: Error, same_sign: bool = False) -> Error:
    """The error of a sum. One with an exact number may leave nothing but the error."""
    kinds = {a.kind, b.kind}
    if kinds <= {"", ABSOLUTE}:
        return Error(a.size + b.size, ABSOLUTE)
    if not kinds <= {RELATIVE, WEIGHTED}:
        return LOST
    return Error(max(a.size, b.size), RELATIVE if same_sign and kinds == {RELATIVE} else WEIGHTED)


def _folded(reducer: str, error: Error, same_sign: bool) -> Error:
    """The error of a reduction of values, none of which is below 0 where they have the `same_sign`."""
    if reducer in ("max", "min"):
        return error
    return EXACT if error == EXACT else _plus(error, error, same_sign) if reducer == "sum" and error.scales else LOST


def _plus_rounding(error: Error, e: Cast[Expr]) -> Error:
    """The error of a value that a cast to a shorter float rounds, as well."""
    to, source = DTYPES[e.dtype], e.arg.dtype
    if not is_float(source) or DTYPES[source].mantissa <= to.mantissa:
        return error
    return Error(error.size + 2.0 ** -(1 + to.mantissa), error.kind or RELATIVE) if error.scales else LOST
