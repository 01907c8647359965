"""Targets that only order what they fold: max, min and choices of pairs (design §6, step 3).

Where g(r, c) = f(ψ(c), r) and f rises with its first argument, the largest g belongs to the largest ψ::

    max over j of log(exp(s[i, j]) + r[i])   →   fold ψ = s[i, j];   once, f(t) = log(exp(t) + r[i])

Nothing is rolled, and f is applied to the winner alone, at the final r: it is defined, and stays in range,
wherever the expression itself does.  An f that falls becomes one that rises by folding -ψ.  `peel` finds ψ and f
by the structure of g; whether f rises is then read off f by rules of its own, with the sign facts of r.  What they
do not decide is refused.  A choice of pairs needs an f that rises *strictly*, or ties would choose other indices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from neptune.fusion.factor import Splitter, product, split_sum
from neptune.fusion.prove import flip, sign, times
from neptune.fusion.roles import Problem, Query, Roles
from neptune.fusion.symbols import symbols_of
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import (
    Cast,
    Const,
    Expr,
    Op,
    Select,
    Var,
    binary,
    children,
    op,
    rebuild,
    rewrite,
    select,
    variables,
)
from neptune.ir.reducers import REDUCERS

HOLE = "%t"
"""The variable that stands for the folded value in f (not an identifier: no program has it)."""

# Which way an operator goes, and the sign that its argument needs for that ("" for any).
_UNARY = {
    "exp": ("+", ""),
    "exp2": ("+", ""),
    "tanh": ("+", ""),
    "sigmoid": ("+", ""),
    "erf": ("+", ""),
    "neg": ("-", ""),
    "log": ("+", "+"),
    "log2": ("+", "+"),
    "sqrt": ("+", "0+"),
    "rsqrt": ("-", "+"),
    "abs": ("+", "0+"),
}
_ANYWHERE = [name for name, (way, needs) in _UNARY.items() if way == "+" and not needs]
_STEPS = ("floor", "ceil", "round", "trunc")


@dataclass(frozen=True)
class Slope:
    """Which way a function of the hole goes: "+", "-", or "0" where it does not depend on it."""

    way: str
    strict: bool = True


@dataclass(frozen=True)
class Ordered:
    """g = f(ψ), f being an expression over `HOLE` that rises; `strict`: it never maps two values to one."""

    psi: Expr
    f: Expr
    strict: bool
    casts: tuple[str, ...] = ()


def hole(dtype: str) -> Var:
    """The argument of f."""
    return Var(HOLE, dtype)


def fill(f: Expr, value: Expr) -> Expr:
    """f(value)."""
    return rewrite(f, lambda x: value if isinstance(x, Var) and x.name == HOLE else None)


def ordered(e: Expr, roles: Roles, problems: list[Problem]) -> Ordered | None:
    """`e` as a rising function of something that reads no r; None where it is none, with the reason in `problems`."""
    splitter = Splitter(roles)
    found = peel(e, splitter)
    if found is None:
        return None
    psi: Expr = found[0]
    f = found[1]
    while isinstance(psi, Op) and psi.name in _ANYWHERE:
        # What rises everywhere is computed for the winner only.
        outer: Expr = op(psi.name, hole(psi.dtype))
        psi, f = psi.args[0], fill(f, outer)
    slope = _Slopes(psi, roles, problems).of(f)
    if slope is None or slope.way == "0" or not is_float(psi.dtype):
        return None
    if slope.way == "-":
        f, psi = fill(f, op("neg", hole(psi.dtype))), op("neg", psi)
    return Ordered(psi, f, slope.strict, tuple(dict.fromkeys(splitter.casts)))


def masked(query: Query, problems: list[Problem]) -> Ordered | None:
    """The same for max or min, where an element that a mask leaves out is -inf (for min, inf) and stays so."""
    e, last = query.value, _last("gt" if query.reducer == "max" else "lt", query.value.dtype)
    if not (isinstance(e, Select) and e.other == last and not query.roles.reads(e.pred)):
        return ordered(e, query.roles, problems)
    inner = ordered(e.then, query.roles, problems)
    if inner is None or not _keeps_infinity(inner.f, query.roles):
        reason = f"without its mask it would not be {last.value} where the mask is false"
        problems += [] if inner is None else [Problem("order", e, reason)]
        return None
    out = Const(last.value, inner.psi.dtype)
    # Where the mask was false throughout, f may be undefined at what is left, -inf: no element is none.
    f = select(binary("ne", hole(inner.psi.dtype), out), inner.f, Const(last.value, inner.f.dtype))
    return replace(inner, psi=select(e.pred, inner.psi, out), f=f)


def choice(query: Query, problems: list[Problem]) -> Ordered | None:
    """The value of a choice of pairs as a strictly rising function; an element left out has the last pair."""
    e, last = query.value, _last(REDUCERS[query.reducer].best, query.value.dtype)
    out = isinstance(e, Select) and e.other == last and not query.roles.reads(e.pred)
    inner = ordered(e.then if out and isinstance(e, Select) else e, query.roles, problems)
    if inner is None:
        problems += [] if problems else [Problem("order", e, "it is no function of one value that varies, r apart")]
        return None
    if not inner.strict:
        reason = f"it is not known to rise strictly: of elements it makes equal, {query.reducer} keeps the first"
        problems.append(Problem("order", e, reason))
        return None
    if not (out and isinstance(e, Select)):
        return inner
    return replace(inner, psi=select(e.pred, inner.psi, Const(last.value, inner.psi.dtype)))


def _last(best: str, dtype: str) -> Const:
    """What comes behind every element."""
    return Const(-inf if best == "gt" else inf, dtype)


def _keeps_infinity(f: Expr, roles: Roles) -> bool:
    """True where f(-inf) = -inf and f(inf) = inf: a shift, or a factor that is positive."""
    match f:
        case Var():
            return True
        case Cast(a, _):
            return _keeps_infinity(a, roles)
        case Op("add" | "sub", (a, b), _) if HOLE not in variables(b):
            return _keeps_infinity(a, roles)
        case Op("mul" | "div", (a, b), _) if HOLE not in variables(b):
            return _keeps_infinity(a, roles) and sign(b, roles) == "+"
        case _:
            return False


# --- ψ and f -----------------------------------------------------------------------------------


def peel(e: Expr, splitter: Splitter) -> tuple[Expr, Expr] | None:
    """(ψ, f) with e = f(ψ), ψ free of r; None where e holds several values that vary and cannot be gathered.

    Sums and products are regrouped: `(c1 - r) + c2` is `t - r` of `c1 + c2`.
    """
    roles = splitter.roles
    if not roles.varies(e):
        return None
    if not roles.reads(e):
        return e, hole(e.dtype)
    atoms = [x for x, name in symbols_of(e, roles).names if name.startswith("c")]
    if len(atoms) == 1:
        (psi,) = atoms
        return psi, rewrite(e, lambda x: hole(psi.dtype) if x == psi else None)
    inside = [k for k, x in enumerate(children(e)) if roles.varies(x)]
    if isinstance(e, Op) and e.name in ("add", "sub", "mul", "div") and len(inside) == 2:
        return _gathered(e, splitter)
    if len(inside) != 1 or isinstance(e, Select):
        return None
    inner = peel(children(e)[inside[0]], splitter)
    if inner is None:
        return None
    parts = tuple(inner[1] if k == inside[0] else x for k, x in enumerate(children(e)))
    return inner[0], rebuild(e, parts)


def _gathered(e: Op, splitter: Splitter) -> tuple[Expr, Expr] | None:
    """A sum φ(r) + ψ(c), or a product φ(r)·ψ(c)."""
    trial = Splitter(splitter.roles)
    if e.name in ("add", "sub"):
        found = split_sum(e, trial)
        if found is None or found[0] is None:
            return None
        psi, shift, t = found[1], found[0], hole(found[1].dtype)
        less = isinstance(shift, Op) and shift.name == "neg"
        f = binary("sub", t, shift.args[0]) if less and isinstance(shift, Op) else binary("add", t, shift)
    else:
        split = trial.split(e)
        if trial.problems or split.rolls or splitter.roles.reads(split.psi):
            return None
        psi, f = split.psi, binary("mul", hole(split.psi.dtype), product(split.phis, split.psi.dtype))
    splitter.casts += trial.casts
    return psi, f


# --- the direction of f --------------------------------------------------------------------------


@dataclass
class _Slopes:
    """Reads the direction off an expression over the hole; `psi` says what sign the hole has."""

    psi: Expr
    roles: Roles
    problems: list[Problem]

    def of(self, e: Expr) -> Slope | None:
        """The direction of `e`, None where it is not known."""
        if HOLE not in variables(e):
            return Slope("0")
        match e:
            case Var():
                return Slope("+")
            case Cast(a, dtype):
                return self.cast(e, self.of(a), a.dtype, dtype)
            case Op(name, (a,), _):
                return self.unary(e, name, a)
            case Op("add" | "sub", (a, b), _):
                return _sum(self.of(a), self.of(b) if e.name == "add" else _turned("-", self.of(b)))
            case Op("mul", (a, b), _):
                return _sum(self.scaled(e, a, b), self.scaled(e, b, a))
            case Op("div", (a, b), _):
                return _sum(self.scaled(e, a, b), self.divisor(e, a, b))
            case Op("max" | "min", (a, b), _):
                both = _sum(self.of(a), self.of(b))
                return None if both is None else Slope(both.way, both.strict and "0" not in self.ways(a, b))
            case Op("pow", (a, b), _):
                return self.power(e, a, b)
            case _:
                return self.fail(e, "it is not known whether it rises or falls")

    def sign(self, e: Expr) -> str | None:
        return sign(fill(e, self.psi), self.roles)

    def fail(self, e: Expr, reason: str) -> Slope | None:
        self.problems.append(Problem("order", fill(e, self.psi), reason))
        return None

    def ways(self, *parts: Expr) -> list[str]:
        return [s.way for x in parts if (s := self.of(x)) is not None]

    def cast(self, e: Expr, inner: Slope | None, source: str, target: str) -> Slope | None:
        """A rounding keeps the order; one to 16 bits or more counts as exact, as everywhere (design §6, Casts)."""
        if not (is_float(source) and is_float(target)):
            return self.fail(e, f"the cast {source} → {target} is not known to keep the order")
        return None if inner is None else Slope(inner.way, inner.strict and DTYPES[target].bits >= 16)

    def unary(self, e: Expr, name: str, a: Expr) -> Slope | None:
        inner = self.of(a)
        if inner is None:
            return None
        if name in _STEPS:
            return Slope(inner.way, False)
        way, needs = _UNARY.get(name, ("", ""))
        if not way:
            return self.fail(e, f"it is not known whether {name} of it rises or falls")
        if needs and self.sign(a) not in (("+",) if needs == "+" else ("+", "0+", "0")):
            what = "positive" if needs == "+" else ">= 0"
            return self.fail(a, f"{name} rises or falls where its argument is {what}, and its sign is unknown")
        return _turned(way, inner)

    def scaled(self, e: Expr, a: Expr, by: Expr) -> Slope | None:
        """a · by or a / by as `a` moves."""
        inner = self.of(a)
        return inner if inner is None or inner.way == "0" else self.turned_by(e, inner, self.sign(by), by)

    def turned_by(self, e: Expr, inner: Slope, by: str | None, what: Expr) -> Slope | None:
        if by is None:
            return self.fail(what, "the sign of this factor is unknown, so that the order may turn round")
        return replace_way("0" if by == "0" else times(inner.way, by[-1]) or "0", inner.strict and len(by) == 1)

    def divisor(self, e: Expr, a: Expr, b: Expr) -> Slope | None:
        """a / b as `b` moves: it must keep clear of 0."""
        inner = self.of(b)
        if inner is None or inner.way == "0":
            return inner
        if self.sign(b) not in ("+", "-"):
            return self.fail(b, "what is divided by may change its sign")
        return self.turned_by(e, Slope(flip(inner.way) or "0", inner.strict), self.sign(a), a)

    def power(self, e: Expr, a: Expr, b: Expr) -> Slope | None:
        """pow with a base that is not negative and an exponent that stays."""
        inner, by = self.of(a), self.sign(b)
        if inner is None or HOLE in variables(b):
            return self.fail(e, "it is not known whether a power rises with its exponent")
        if self.sign(a) != "+" and not (self.sign(a) in ("0+", "0") and by in ("+", "0+")):
            return self.fail(a, "a power rises or falls where its base is positive, and its sign is unknown")
        return self.turned_by(e, inner, by, b)


def replace_way(way: str, strict: bool) -> Slope:
    """A slope that is strict only if it goes some way."""
    return Slope(way, strict and way != "0")


def _turned(way: str, inner: Slope | None) -> Slope | None:
    if inner is None or inner.way == "0":
        return inner
    return Slope(inner.way if way == "+" else flip(inner.way) or "0", inner.strict)


def _sum(a: Slope | None, b: Slope | None) -> Slope | None:
    """Both parts going one way, or one of them not at all."""
    if a is None or b is None:
        return None
    if "0" in (a.way, b.way):
        return b if a.way == "0" else a
    return Slope(a.way, a.strict or b.strict) if a.way == b.way else None


def shown(f: Expr) -> Expr:
    """f with a readable name for its argument."""
    return rewrite(f, lambda x: Var("t", x.dtype) if isinstance(x, Var) and x.name == HOLE else None)
