"""Proofs about repairs: our own sign and size rules, our own sums of products, and SymPy for the other algebra (paper
§4.2, Theorem 4.2).

SymPy only ever sees a few symbols: every subexpression that reads no r is one of them.  It is asked
whether a difference is 0, never to solve anything.  Order questions (signs, bounds, monotonicity) are
decided by the rules here; what they cannot decide is not assumed.  SymPy is imported where the first proof takes it:
the import is a quarter of a second, and sums, products and exponentials, of which most repairs are made, are multiplied
out here.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, TypeVar

from neptune.fusion.repairs.roles import ObligationRecord, Roles
from neptune.ir.analysis.facts import Known, folded, range_of, times
from neptune.ir.analysis.fold import fold
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, args_of, binary, cast, conjuncts, rewrite, walk
from neptune.ir.ops import ANY, Range
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

# --- signs and sizes ---------------------------------------------------------------------------


def facts_of(roles: Roles, *, empty: bool = False) -> Known:
    """Return the facts about loads in an expression: of a predecessor, the range of a fold of its contributions.

    With `empty` it may have folded nothing at all. Of other floats nothing is known, not that they are finite.
    """

    def known(e: Expr) -> Range | None:
        if not isinstance(e, Load | Var):
            return None
        pred = roles.predecessor(e)
        if pred is None or pred.value is None or pred.start is not None:
            return ANY if is_float(e.dtype) else None
        values = folded(pred.reducer, range_of(pred.value, known))
        start = REDUCERS[pred.reducer].identity
        return values | range_of(start(e.dtype)[0]) if empty and values != ANY else values

    return known


def sign(e: Expr, roles: Roles, *, empty: bool = False) -> str | None:
    """The sign of `e`; with `empty`, a predecessor may have folded nothing at all.

    >>> from neptune.ir.expr import op
    >>> sign(op("exp", Load("x", (), "float32")), Roles((), frozenset()))
    '+'
    """
    return range_of(e, facts_of(roles, empty=empty)).sign


def not_negative(e: Expr, roles: Roles) -> bool:
    """True where e >= 0 is known."""
    return sign(e, roles) in ("+", "0+", "0")


def magnitude(e: Expr, known: Mapping[Expr, float]) -> float:
    """A bound on |e|, inf where there is none. `known` bounds the exponentials of a difference.

    >>> from neptune.ir.expr import op
    >>> magnitude(op("tanh", Load("x", (), "float32")), {})
    1.0
    """
    return range_of(e, lambda x: Range(-known[x], known[x]) if x in known else None).most


# --- exponents ---------------------------------------------------------------------------------

Monomials = dict[tuple[Expr, ...], Fraction]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Rest:
    """An upper bound of an exponent: a constant plus atoms (as text), `falls` if none of these can raise it.

    An atom may raise it for one element and not for another, unless it is the same for all or never positive.
    `left` is the sum of those atoms that may be positive; `alike`: no atom varies.
    """

    constant: float
    atoms: tuple[str, ...]
    falls: bool
    left: Expr | None = None
    alike: bool = True


def _linear(e: Expr) -> Monomials:
    """`e` as a sum of monomials in opaque atoms with exact coefficients; float casts are transparent."""
    match e:
        case Const(value, _) if math.isfinite(value):
            return {(): Fraction(value)}
        case Op("add" | "sub", (a, b), _):
            factor = 1 if e.name == "add" else -1
            return _collected([*_linear(a).items(), *((k, factor * v) for k, v in _linear(b).items())])
        case Op("neg", (a,), _):
            return {k: -v for k, v in _linear(a).items()}
        case Op("mul", (a, b), _):
            pairs = itertools.product(_linear(a).items(), _linear(b).items())
            return _collected((_ordered(*j, *k), v * w) for (j, v), (k, w) in pairs)
        case Op("div", (a, Const(value, _)), _) if value != 0 and math.isfinite(value):
            return {k: v / Fraction(value) for k, v in _linear(a).items()}
        case Op("div", (a, b), _) if a != Const(1.0, b.dtype):
            # A symbol may be an integer, a number of elements.
            one = Const(1.0, b.dtype if is_float(b.dtype) else e.dtype)
            under = Op("div", (one, b), one.dtype)
            return {_ordered(*k, under): v for k, v in _linear(a).items()}
        case Cast(a, dtype) if is_float(dtype) and is_float(a.dtype):
            return _linear(a)
        case _:
            return {(e,): Fraction(1)}


def _ordered(*atoms: Expr) -> tuple[Expr, ...]:
    return tuple(sorted(atoms, key=print_expr))


def _collected(terms: Iterable[tuple[K, Fraction]]) -> dict[K, Fraction]:
    total: dict[K, Fraction] = {}
    for key, v in terms:
        total[key] = total.get(key, Fraction(0)) + v
    return {k: v for k, v in total.items() if v != 0}


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
    rising = [k for k in atoms if not _never_positive(k, rest[k], roles)]
    return Rest(
        float(rest.get((), Fraction(0))),
        tuple(f"{'' if rest[k] == 1 else f'{float(rest[k]):g}*'}{'*'.join(map(print_expr, k))}" for k in atoms),
        not any(roles.varies(x) for k in rising for x in k),
        _sum([_monomial(k, rest[k]) for k in rising]),
        not any(roles.varies(x) for k in atoms for x in k),
    )


def _sum(parts: list[Expr]) -> Expr | None:
    return reduce(lambda a, b: binary("add", a, b), parts) if parts else None


def _monomial(factors: tuple[Expr, ...], by: Fraction) -> Expr:
    """by · Π factors in float32."""
    wide = [cast(x, "float32") for x in factors]
    return reduce(lambda a, b: binary("mul", a, b), wide if by == 1 else [Const(float(by), "float32"), *wide])


def _never_positive(factors: tuple[Expr, ...], by: Fraction, roles: Roles) -> bool:
    direction: str | None = "+" if by > 0 else "-"
    for x in dict.fromkeys(factors):
        direction = times(direction, "0+" if factors.count(x) % 2 == 0 else sign(x, roles))
    return direction in ("-", "0-", "0")


def assume(e: Expr, predicates: tuple[Expr, ...]) -> Expr:
    """`e` where every one of `predicates` holds: choices on them are decided."""

    def decide(x: Expr) -> Expr | None:
        if isinstance(x, Select) and all(p in predicates for p in conjuncts(x.pred)):
            return assume(x.then, predicates)
        return None

    return rewrite(e, decide) if predicates else e


# --- sums of products --------------------------------------------------------------------------


def _same_sum(left: Expr, right: Expr) -> bool:
    """True where both sides, multiplied out, are one sum of products, so that they are equal wherever they are defined.

    What is no sum, product, quotient or exponential is an atom: with one that is written in two ways nothing is shown.
    """
    nodes = [*walk(left), *walk(right)]
    # Of what is infinite, or divided by 0, no multiple cancels another one.
    finite = all(math.isfinite(x.value) for x in nodes if isinstance(x, Const))
    zero = any(isinstance(by, Const) and by.value == 0 for x in nodes for by in args_of(x, "div")[1:])
    return finite and not zero and _products(left) == _products(right)


def _products(e: Expr) -> dict[Hashable, Fraction]:
    """`e` as a sum of products: of each the powers of its atoms, and the one exponent that its exponentials make, which
    is a sum of monomials."""
    terms: list[tuple[Hashable, Fraction]] = []
    for factors, by in _linear(e).items():
        powers, exponent = Counter[Expr](), list[tuple[tuple[Expr, ...], Fraction]]()
        for x in factors:
            if isinstance(x, Op) and x.name == "exp":
                exponent += _linear(x.args[0]).items()
            elif isinstance(x, Op) and x.name == "div":  # 1 / b, as `_linear` leaves it
                powers[x.args[1]] -= 1
            else:
                powers[x] += 1
        atoms = frozenset((x, n) for x, n in powers.items() if n)
        terms.append(((atoms, frozenset(_collected(exponent).items())), by))
    return _collected(terms)


# --- SymPy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unproved:
    """An obligation that could not be proved; never seen by users as such."""

    record: ObligationRecord


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

    def leaf(x: Expr) -> Any:
        if isinstance(x, Const):
            return sp.Rational(Fraction(x.value)) if math.isfinite(x.value) else sp.sympify(x.value)
        assert isinstance(x, Var), f"{type(x).__name__} is no expression over symbols"
        facts = {"+": {"positive": True}, "0+": {"nonnegative": True}}.get(signs.get(x.name.rstrip("'")) or "", {})
        return sp.Symbol(x.name, real=True, **facts)

    def applied(x: Op[Expr], parts: Sequence[Any]) -> Any:
        return build[x.name](*parts) if x.name in build else sp.Function(f"_{x.name}", real=True)(*parts)

    def choice(x: Select[Expr], a: Any, b: Any) -> Any:
        # The predicate is 0 or 1 and reads no r: a choice is a sum of products.
        chosen = _sympy(x.pred, signs, build)
        return chosen * a + (1 - chosen) * b

    return fold(e, leaf, applied, choice)


def as_sympy(e: Expr, signs: tuple[tuple[str, str | None], ...]) -> Any:
    """`e`, an expression over symbols, in SymPy."""
    return _sympy(e, dict(signs), _builders())


def _is_zero(e: Any) -> str | None:
    """Return how e = 0 was shown, or None."""
    import sympy as sp

    if e == 0:
        return "SymPy: both sides are the same"
    if sp.expand(e) == 0:
        return "SymPy: the difference expands to 0"
    return "SymPy: the difference simplifies to 0" if sp.simplify(e) == 0 else None


@lru_cache(maxsize=1024)
def same(left: Expr, right: Expr, signs: tuple[tuple[str, str | None], ...]) -> str | None:
    """How left = right is shown for all values of their symbols, which are real and signed as `signs` says.

    None where they are not one sum of products, and SymPy does not bring the difference to 0 either.
    """
    if _same_sum(left, right):
        return "both sides are one sum of products"
    build, facts = _builders(), dict(signs)
    return _is_zero(_sympy(left, facts, build) - _sympy(right, facts, build))


def prove_identity(
    name: str, statement: str, left: Expr, right: Expr, signs: tuple[tuple[str, str | None], ...]
) -> ObligationRecord | Unproved:
    """The record of left = right; Unproved where they are not known to be the `same`."""
    how = same(left, right, signs)
    if how is None:
        return Unproved(ObligationRecord(name, statement, "SymPy: the difference does not simplify to 0"))
    return ObligationRecord(name, statement, how)
