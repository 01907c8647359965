"""Proofs about repairs: our own sign and size rules, and SymPy for the algebra (paper §4.2, Theorem 4.2).

SymPy only ever sees a few symbols: every subexpression that reads no r is one of them.  It is asked
whether a difference is 0, never to solve anything.  Order questions (signs, bounds, monotonicity) are
decided by the rules here; what they cannot decide is not assumed.  SymPy is imported on the first proof,
so that importing Neptune stays quick.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from neptune.fusion.roles import ObligationRecord, Roles
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, cast, conjuncts, rewrite, walk
from neptune.ir.printer import print_expr

# --- signs -------------------------------------------------------------------------------------
# "+" positive, "0+" not negative, "0" zero, "0-" not positive, "-" negative, None unknown.

_FLIP = {"+": "-", "0+": "0-", "0": "0", "0-": "0+", "-": "+"}
_ALWAYS = {"exp": "+", "exp2": "+", "sigmoid": "+", "rsqrt": "+", "log2e": "+", "ln2": "+", "sqrt": "0+", "abs": "0+"}
# How a reduction's sign follows from that of its contributions, where at least one was folded in.
_FOLDED = {"sum": "all", "max": "all", "min": "all", "prod": "positive"}


def flip(sign: str | None) -> str | None:
    """The sign of -x."""
    return None if sign is None else _FLIP[sign]


def times(a: str | None, b: str | None) -> str | None:
    """The sign of x·y."""
    if a is None or b is None:
        return None
    if "0" in (a, b):
        return "0"
    positive = (a[-1] == "+") == (b[-1] == "+")
    strict = len(a) == len(b) == 1
    return ("" if strict else "0") + ("+" if positive else "-")


def plus(a: str | None, b: str | None) -> str | None:
    """The sign of x + y."""
    if a is None or b is None:
        return None
    if a == "0" or b == "0":
        return b if a == "0" else a
    if a[-1] != b[-1]:
        return None
    return a if len(a) == 1 else b


def either(a: str | None, b: str | None) -> str | None:
    """The sign of a value that is x or y."""
    if a == b or a is None or b is None:
        return a if a == b else None
    ends = {s[-1] for s in (a, b) if s != "0"}
    return "0" + ends.pop() if len(ends) == 1 else None


def sign(e: Expr, roles: Roles, *, empty: bool = False) -> str | None:
    """What the sign facts say of `e`; with `empty`, a predecessor may have folded nothing at all.

    >>> from neptune.ir.expr import op
    >>> sign(op("exp", Load("x", (), "float32")), Roles((), frozenset()))
    '+'
    """
    match e:
        case Const(value, _):
            return None if value != value else "+" if value > 0 else "-" if value < 0 else "0"
        case Cast(arg, dtype):
            of = sign(arg, roles, empty=empty)
            # Conversion to an integer can bring a fraction to 0.
            return of if is_float(dtype) or of is None else "0" + of[-1] if of != "0" else of
        case Select(_, a, b):
            return either(sign(a, roles, empty=empty), sign(b, roles, empty=empty))
        case Load(_, _, dtype):
            return _load_sign(e, roles, empty) or ("0+" if dtype == "uint8" else None)
        case Op(name, args, _):
            return _ALWAYS.get(name) or _op_sign(name, args, [sign(a, roles, empty=empty) for a in args])
        case _:
            return None


def _load_sign(e: Load, roles: Roles, empty: bool) -> str | None:
    pred = roles.predecessor(e)
    if pred is None or pred.value is None or pred.start is not None:
        return None
    of = sign(pred.value, roles, empty=empty)
    if pred.reducer == "prod":
        return of if of in ("+", "0+") else None
    if pred.reducer not in _FOLDED or of is None:
        return None
    if not empty:
        return of
    # An empty max or min is the dtype's extreme; an empty sum is 0.
    return None if pred.reducer != "sum" else of if of[0] == "0" else "0" + of


def _op_sign(name: str, args: tuple[Expr, ...], signs: list[str | None]) -> str | None:
    match name:
        case "neg":
            return flip(signs[0])
        case "add":
            return plus(signs[0], signs[1])
        case "sub":
            return plus(signs[0], flip(signs[1]))
        case "mul":
            return "0+" if args[0] == args[1] and signs[0] is None else times(signs[0], signs[1])
        case "div":
            return times(signs[0], signs[1])
        case "tanh":
            return signs[0]
        case "pow":
            even = isinstance(args[1], Const) and args[1].value % 2 == 0
            return "0+" if even and signs[0] != "+" else signs[0] if signs[0] in ("+", "0+") else None
        case "max" | "min":
            want = "+" if name == "max" else "-"
            known = sorted((s for s in signs if s is not None and s[-1] == want), key=len)
            return known[0] if known else either(signs[0], signs[1])
        case _:
            return None


def not_negative(e: Expr, roles: Roles) -> bool:
    """True where e >= 0 is known."""
    return sign(e, roles) in ("+", "0+", "0")


# --- sizes -------------------------------------------------------------------------------------


def magnitude(e: Expr, known: Mapping[Expr, float]) -> float:
    """A bound on |e|, inf where there is none. `known` bounds the exponentials of a difference.

    >>> from neptune.ir.expr import op
    >>> magnitude(op("tanh", Load("x", (), "float32")), {})
    1.0
    """
    if e in known:
        return known[e]
    match e:
        case Const(value, _):
            return abs(float(value))
        case Load(_, _, dtype) | Var(_, dtype):
            return DTYPES[dtype].highest if DTYPES[dtype].bits <= 16 else math.inf
        case Cast(arg, _):
            return magnitude(arg, known)
        case Select(_, a, b):
            return max(magnitude(a, known), magnitude(b, known))
        case Op("tanh" | "sigmoid", _, _):
            return 1.0
        case Op("neg" | "abs", args, _):
            return magnitude(args[0], known)
        case Op("add" | "sub", args, _):
            return magnitude(args[0], known) + magnitude(args[1], known)
        case Op("mul", args, _):
            left, right = magnitude(args[0], known), magnitude(args[1], known)
            return math.inf if math.inf in (left, right) else left * right
        case Op("div", (a, Const(value, _)), _) if value != 0:
            return magnitude(a, known) / abs(float(value))
        case _:
            return math.inf


# --- exponents ---------------------------------------------------------------------------------

Monomials = dict[tuple[str, ...], Fraction]


@dataclass(frozen=True)
class Rest:
    """What an exponent comes to at most: a constant plus atoms (as text), `falls` where none of these can raise it.

    An atom may raise it for one element and not for another, unless it is the same for all or never positive.
    """

    constant: float
    atoms: tuple[str, ...]
    falls: bool


def _linear(e: Expr) -> Monomials:
    """`e` as a sum of monomials in opaque atoms with exact coefficients; float casts are transparent."""
    match e:
        case Const(value, _) if math.isfinite(value):
            return {(): Fraction(value)}
        case Op("add" | "sub", (a, b), _):
            factor = 1 if e.name == "add" else -1
            total = dict(_linear(a))
            for key, v in _linear(b).items():
                total[key] = total.get(key, Fraction(0)) + factor * v
            return {k: v for k, v in total.items() if v != 0}
        case Op("neg", (a,), _):
            return {k: -v for k, v in _linear(a).items()}
        case Op("mul", (a, b), _):
            left, right = _linear(a), _linear(b)
            total = dict[tuple[str, ...], Fraction]()
            for (ka, va), (kb, vb) in itertools.product(left.items(), right.items()):
                key = tuple(sorted((*ka, *kb)))
                total[key] = total.get(key, Fraction(0)) + va * vb
            return {k: v for k, v in total.items() if v != 0}
        case Op("div", (a, Const(value, _)), _) if value != 0 and math.isfinite(value):
            return {k: v / Fraction(value) for k, v in _linear(a).items()}
        case Op("div", (a, b), _):
            return {tuple(sorted((*k, f"1 / {print_expr(b, 7)}"))): v for k, v in _linear(a).items()}
        case Cast(a, dtype) if is_float(dtype) and is_float(a.dtype):
            return _linear(a)
        case _:
            return {(print_expr(e),): Fraction(1)}


def cancels(exponent: Expr, contributions: Mapping[Load, Expr], roles: Roles) -> Rest | None:
    """With r ≥ its contribution, `exponent` is at most what is left when r is replaced by it.

    Returns that rest where the contributions cancel, None where they do not: then nothing keeps exp of
    the exponent in range while r is not final.  `s - m` with m folding s leaves 0; `t - m` does not cancel.
    """

    def put(zero: bool) -> Expr:
        def swap(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x not in contributions:
                return None
            return Const(0.0, x.dtype) if zero else cast(contributions[x], x.dtype)

        return rewrite(exponent, swap)

    bound = put(zero=False)
    rest, alone = _linear(bound), _linear(put(zero=True))
    if any(alone.get(k) != v for k, v in rest.items() if k != ()):
        return None
    atoms = [k for k in rest if k != ()]
    # Where a contribution holds no atom of its own, nothing was cancelled and nothing is shown.
    if len(atoms) == len([k for k in alone if k != ()]):
        return None
    named = _atoms(bound)
    return Rest(
        float(rest.get((), Fraction(0))),
        tuple(f"{'' if rest[k] == 1 else f'{float(rest[k]):g}*'}{'*'.join(k)}" for k in atoms),
        all(_raises_nothing(tuple(named[a] for a in k), rest[k], roles) for k in atoms),
    )


def _atoms(e: Expr) -> dict[str, Expr]:
    """What the atoms of `_linear` stand for, up to an inverse, which has the same sign."""
    named = {print_expr(x): x for x in walk(e)}
    return named | {
        f"1 / {print_expr(x.args[1], 7)}": x.args[1] for x in walk(e) if isinstance(x, Op) and x.name == "div"
    }


def _raises_nothing(factors: tuple[Expr, ...], by: Fraction, roles: Roles) -> bool:
    """Whether a monomial is the same for every element, or never positive."""
    if not any(roles.varies(x) for x in factors):
        return True
    of: str | None = "+" if by > 0 else "-"
    for x in dict.fromkeys(factors):
        of = times(of, "0+" if factors.count(x) % 2 == 0 else sign(x, roles))
    return of in ("-", "0-", "0")


def assume(e: Expr, predicates: tuple[Expr, ...]) -> Expr:
    """`e` where every one of `predicates` holds: choices on them are decided."""

    def decide(x: Expr) -> Expr | None:
        if isinstance(x, Select) and all(p in predicates for p in conjuncts(x.pred)):
            return assume(x.then, predicates)
        return None

    return rewrite(e, decide) if predicates else e


# --- SymPy -------------------------------------------------------------------------------------


class Unproved(Exception):
    """An obligation that could not be proved; never seen by users as such."""

    def __init__(self, record: ObligationRecord) -> None:
        super().__init__(record.statement)
        self.record = record


def _builders() -> dict[str, Callable[..., Any]]:
    import sympy as sp

    half = sp.Rational(1, 2)
    return {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "neg": lambda a: -a,
        "pow": lambda a, b: a**b,
        "exp": sp.exp,
        "exp2": lambda a: sp.Integer(2) ** a,
        "log": sp.log,
        "log2": lambda a: sp.log(a) / sp.log(2),
        "sqrt": lambda a: a**half,
        "rsqrt": lambda a: a**-half,
        "abs": sp.Abs,
        "log2e": lambda: 1 / sp.log(2),
        "ln2": lambda: sp.log(2),
    }


def _sympy(e: Expr, signs: Mapping[str, str | None], build: Mapping[str, Callable[..., Any]]) -> Any:
    """`e` over symbols, in SymPy. Casts are gone already; an operator without a rule stays opaque."""
    import sympy as sp

    match e:
        case Const(value, _):
            if isinstance(value, float) and not math.isfinite(value):
                return sp.nan if value != value else sp.oo if value > 0 else -sp.oo
            exact = Fraction(value)
            return sp.Rational(exact.numerator, exact.denominator)
        case Var(name, _):
            known = signs.get(name.rstrip("'"))
            facts = {"+": {"positive": True}, "0+": {"nonnegative": True}}.get(known or "", {})
            return sp.Symbol(name, real=True, **facts)
        case Select(p, a, b):
            # The predicate is 0 or 1 and reads no r: a choice is a sum of products.
            chosen, x, y = (_sympy(part, signs, build) for part in (p, a, b))
            return chosen * x + (1 - chosen) * y
        case Op(name, args, _):
            parts = [_sympy(a, signs, build) for a in args]
            return build[name](*parts) if name in build else sp.Function(f"_{name}", real=True)(*parts)
        case _:
            raise TypeError(f"{type(e).__name__} is no expression over symbols")


def as_sympy(e: Expr, signs: tuple[tuple[str, str | None], ...]) -> Any:
    """`e`, an expression over symbols, in SymPy."""
    return _sympy(e, dict(signs), _builders())


def _is_zero(e: Any) -> str | None:
    """How e = 0 was shown, or None."""
    import sympy as sp

    if e == 0:
        return "SymPy: both sides are the same"
    if sp.expand(e) == 0:
        return "SymPy: the difference expands to 0"
    return "SymPy: the difference simplifies to 0" if sp.simplify(e) == 0 else None


@lru_cache(maxsize=1024)
def prove_identity(
    name: str, statement: str, left: Expr, right: Expr, signs: tuple[tuple[str, str | None], ...]
) -> ObligationRecord:
    """left = right for all values of their symbols, which are real and signed as `signs` says.

    Raises Unproved where SymPy does not bring the difference to 0.
    """
    build, facts = _builders(), dict(signs)
    how = _is_zero(_sympy(left, facts, build) - _sympy(right, facts, build))
    if how is None:
        raise Unproved(ObligationRecord(name, statement, "SymPy: the difference does not simplify to 0"))
    return ObligationRecord(name, statement, how)
