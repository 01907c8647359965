"""Quasi-affine analysis with symbolic coefficients.

An integer expression is brought to a polynomial over *atoms*: variables, and whatever is not + − ×
(floordiv, mod, min, max, loads), which stays opaque.  `i0*BLOCK_M + i1` is linear in i1 with
coefficient 1 and in i0 with the symbolic coefficient BLOCK_M.  On this rest three questions:

- `linear(e, var)`: coefficient and remainder of one variable;
- `extreme(e, ranges)`: the largest or smallest value while some variables run over their ranges;
- `always(pred, scope)`: does a predicate hold throughout, given ranges and facts?  A True is a proof;
  a False only says that no proof was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from neptune.ir.dtypes import holds
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, binary, cast, conjuncts, op, variables, walk
from neptune.ir.integers import Integers
from neptune.ir.ops import INTEGER
from neptune.ir.program import For, Program

Monomial = tuple[Expr, ...]


@dataclass(frozen=True)
class Poly:
    """Σ coefficient · Π atoms, as a sorted tuple of (atoms, coefficient); no zero coefficients."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Poly) -> Poly:
        return _collect([*self.terms, *other.terms])

    def __sub__(self, other: Poly) -> Poly:
        return self + -other

    def __mul__(self, other: Poly) -> Poly:
        return _collect((_join(a, b), x * y) for a, x in self.terms for b, y in other.terms)

    def __neg__(self) -> Poly:
        return self.scaled(-1)

    def scaled(self, factor: int) -> Poly:
        return Poly(tuple((m, c * factor) for m, c in self.terms) if factor else ())

    @property
    def constant(self) -> int | None:
        """The value, where it is a number."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == () else None


def _join(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted((*a, *b), key=_key)) if a and b else a or b


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Poly:
    total: dict[Monomial, int] = {}
    for m, c in terms:
        total[m] = total.get(m, 0) + c
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda t: _order(t[0]))
    return Poly(tuple(kept))


@lru_cache(maxsize=4096)
def _order(m: Monomial) -> tuple[int | str, ...]:
    """An order of monomials."""
    return (len(m), *map(_key, m))


@lru_cache(maxsize=4096)
def _key(atom: Expr) -> str:
    """An order of atoms. Making the text is most of the work of an analysis, and the atoms are few."""
    return repr(atom)


def number(value: int) -> Poly:
    """A constant polynomial."""
    return Poly((((), value),) if value else ())


class _Polys(Integers[Poly]):
    """Whatever is not + − × of integers is an atom. Integer casts are transparent (indices are exact)."""

    operators: ClassVar = {name: INTEGER[name] for name in ("add", "sub", "mul", "neg")}

    def number(self, value: float) -> Poly:
        return number(int(value))

    def cast(self, e: Cast[Expr]) -> Poly:
        # Of data a narrower dtype may hold another number.
        exact = e.arg.dtype == "int32" or not any(isinstance(x, Load) for x in walk(e.arg))
        return self.of(e.arg) if exact and {e.dtype, e.arg.dtype} <= {"int32", "int64"} else self.other(e)

    def other(self, e: Expr) -> Poly:
        return Poly((((e,), 1),))


@lru_cache(maxsize=4096)
def poly(e: Expr) -> Poly:
    """The polynomial of an integer expression."""
    return _Polys().of(e)


def to_expr(p: Poly, dtype: str | None = None) -> Expr:
    """A readable expression of a polynomial: highest terms first, subtraction for negative ones.

    Its dtype is the widest of the atoms and numbers, unless one is given.
    """
    if dtype is None:
        wide = any(not holds("int32", (c, c)) or any(a.dtype == "int64" for a in atoms) for atoms, c in p.terms)
        dtype = "int64" if wide else "int32"
    result: Expr | None = None
    ordered = sorted(p.terms, key=lambda t: (t[1] < 0, -len(t[0])))
    for atoms, c in ordered:
        term: Expr | None = None
        for a in atoms:
            term = cast(a, dtype) if term is None else op("mul", term, cast(a, dtype))
        if term is None:
            term = Const(abs(c), dtype)
        elif abs(c) != 1:
            term = op("mul", term, Const(abs(c), dtype))
        if result is None:
            result = term if c > 0 else Const(c, dtype) if not atoms else op("sub", Const(0, dtype), term)
        else:
            result = op("add" if c > 0 else "sub", result, term)
    return Const(0, dtype) if result is None else result


def simplify(e: Expr) -> Expr:
    """The expression by way of its polynomial (terms collected, constants folded)."""
    return to_expr(poly(e), e.dtype)


def split_by(p: Poly, names: frozenset[str]) -> tuple[Poly, Poly]:
    """Two polynomials adding up to `p`: the terms that mention one of `names`, and the others."""
    hit = [(m, c) for m, c in p.terms if any(variables(a) & names for a in m)]
    miss = [(m, c) for m, c in p.terms if not any(variables(a) & names for a in m)]
    return Poly(tuple(hit)), Poly(tuple(miss))


def linear(p: Poly, var: str) -> tuple[Poly, Poly] | None:
    """(coefficient, rest) with p = coefficient·var + rest, neither mentioning var; None if not so."""
    coefficient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for atoms, c in p.terms:
        hits = [a for a in atoms if var in variables(a)]
        if not hits:
            rest.append((atoms, c))
        elif len(hits) == 1 and isinstance(hits[0], Var):
            coefficient.append((tuple(a for a in atoms if a != hits[0]), c))
        else:
            return None
    return _collect(coefficient), Poly(tuple(rest))


@dataclass(frozen=True)
class Scope:
    """The facts at a point of a program: inclusive ranges of loop variables, lower bounds of sizes, facts p ≥ 0, and
    which of the sizes are lengths of `tiles`."""

    ranges: Mapping[str, tuple[Expr, Expr]]
    at_least: Mapping[str, int]
    facts: tuple[Poly, ...] = ()
    tiles: frozenset[str] = frozenset()

    def sign_floor(self, atom: Expr) -> int | None:
        """A number that `atom` never goes below, where one is known."""
        if isinstance(atom, Var):
            if atom.name in self.at_least:
                return self.at_least[atom.name]
            if atom.name in self.ranges:
                low = poly(self.ranges[atom.name][0]).constant
                return low if low is not None else 0 if nonnegative(poly(self.ranges[atom.name][0]), self) else None
        if isinstance(atom, Op) and atom.name == "max":
            floors = [poly(a).constant for a in atom.args]
            known = [f for f in floors if f is not None]
            if not any(f >= 0 for f in known) and any(nonnegative(poly(a), self) for a in atom.args):
                known.append(0)
            return max(known) if known else None
        if isinstance(atom, Op) and atom.name in ("floordiv", "mod", "min"):
            return 0 if all(nonnegative(poly(a), self) for a in atom.args) else None
        return None


def nonnegative(p: Poly, scope: Scope) -> bool:
    """True if every term is provably ≥ 0 after shifting each atom to its known floor.

    With G ≥ 1 and B ≥ 1, G·B - B is (1 + G')(1 + B') - (1 + B') = G' + G'·B' with G', B' ≥ 0.
    """
    shifted: dict[tuple[Expr, ...], int] = {}
    for atoms, c in p.terms:
        parts: dict[tuple[Expr, ...], int] = {(): c}
        for a in atoms:
            low = scope.sign_floor(a)
            if low is None or low < 0:
                return False
            parts = _times(parts, a, low)
        for rest, n in parts.items():
            shifted[rest] = shifted.get(rest, 0) + n
    return all(n >= 0 for n in shifted.values())


def _times(parts: Mapping[tuple[Expr, ...], int], atom: Expr, low: int) -> dict[tuple[Expr, ...], int]:
    """A sum of products times an atom of at least `low`, which is `low` and something that is not negative."""
    result: dict[tuple[Expr, ...], int] = {}
    for rest, n in parts.items():
        product = (*rest, atom)
        result[product] = result.get(product, 0) + n
        if low:
            result[rest] = result.get(rest, 0) + n * low
    return result


def extreme(p: Poly, names: Iterable[str], scope: Scope, *, largest: bool) -> Poly | None:
    """A bound that `p` does not exceed (or fall below) while the variables `names` run over their ranges.

    Each is replaced by an end of its range, innermost first; None where a coefficient has no known sign.
    """
    for name in names:
        parts = linear(p, name)
        if parts is None:
            return None
        coefficient, rest = parts
        if not coefficient.terms:
            continue
        if nonnegative(coefficient, scope):
            up = largest
        elif nonnegative(coefficient.scaled(-1), scope):
            up = not largest
        else:
            return None
        low, high = scope.ranges[name]
        p = coefficient * poly(high if up else low) + rest
    return p


def within(p: Poly, inner: Iterable[str], width: Poly, scope: Scope) -> bool:
    """True if provably 0 ≤ p < width while the variables `inner` (innermost first) run over their ranges."""
    names = list(inner)
    low = extreme(p, names, scope, largest=False)
    room = extreme(width - number(1) - p, names, scope, largest=False)
    return low is not None and room is not None and nonnegative(low, scope) and nonnegative(room, scope)


def as_nonnegative(pred: Expr, scope: Scope | None = None) -> list[Poly] | None:
    """A predicate as polynomials that must all be ≥ 0 (integers only); None where it is not affine.

    In a `scope`, by what is known to be positive there, a quotient is multiplied out: k <= r // 4 is 4*k <= r.
    """
    result: list[Poly] = []
    for c in conjuncts(pred):
        if not isinstance(c, Op) or len(c.args) != 2 or c.args[0].dtype not in ("int32", "int64"):
            return None
        a, b = poly(c.args[0]), poly(c.args[1])
        match c.name:
            case "lt":
                result.append(b - a - number(1))
            case "le":
                result.append(b - a)
            case "gt":
                result.append(a - b - number(1))
            case "ge":
                result.append(a - b)
            case "eq":
                result += [a - b, b - a]
            case _:
                return None
    return result if scope is None else [_without_quotient(p, scope) for p in result]


def quotients(p: Poly) -> list[tuple[Op[Expr], int]]:
    """The terms f // w and -(f // w) of a polynomial, with their signs."""
    alone = [(atoms[0], c) for atoms, c in p.terms if len(atoms) == 1 and abs(c) == 1]
    return [(a, c) for a, c in alone if isinstance(a, Op) and a.name == "floordiv"]


def multiplied_out(p: Poly, quotient: Op[Expr], sign: int) -> Poly:
    """An equivalent of p ≥ 0 without its term ±(f // w), for a w that is positive: f // w ≥ c is f ≥ c·w."""
    f, width = (poly(a) for a in quotient.args)
    rest = p - poly(quotient).scaled(sign)
    # rest - f // w ≥ 0 is f < (rest + 1)·w.
    return f + rest * width if sign > 0 else (rest + number(1)) * width - number(1) - f


def _without_quotient(p: Poly, scope: Scope) -> Poly:
    """An equivalent of p ≥ 0 without its one quotient, where that is divided by what is positive."""
    divided = sum(any(isinstance(a, Op) and a.name == "floordiv" for a in atoms) for atoms, _ in p.terms)
    terms = quotients(p)
    if divided != 1 or not terms or not nonnegative(poly(terms[0][0].args[1]) - number(1), scope):
        return p
    return multiplied_out(p, *terms[0])


def with_remainders(p: Poly, scope: Scope) -> tuple[Poly, Scope]:
    """`p` and the scope with every remainder x % w, for a w that is positive, as a variable from 0 to w - 1."""
    env: dict[Expr, Expr] = {}
    ranges: dict[str, tuple[Expr, Expr]] = {}
    for a in dict.fromkeys(a for atoms, _ in p.terms for a in atoms):
        if isinstance(a, Op) and a.name == "mod" and nonnegative(poly(a.args[1]) - number(1), scope):
            name = f"%{len(env)}"  # not the name of any loop
            env[a] = Var(name)
            ranges[name] = (Const(0, "int32"), binary("sub", a.args[1], 1))
    if not env:
        return p, scope
    terms = ((tuple(sorted((env.get(a, a) for a in atoms), key=_key)), c) for atoms, c in p.terms)
    return _collect(terms), Scope({**scope.ranges, **ranges}, scope.at_least, scope.facts)


def always(pred: Expr, scope: Scope) -> bool:
    """True if `pred` provably holds for every value of the ranged variables (a fact may be used once)."""
    needed = as_nonnegative(pred)
    if needed is None:
        return False
    return all(_holds(p, scope) for p in needed)


def _holds(p: Poly, scope: Scope) -> bool:
    """True if p ≥ 0 is shown with its quotient multiplied out, or as it stands: j0 < cdiv(n, B) is the range of j0."""
    forms = dict.fromkeys((_without_quotient(p, scope), p))
    return any(_shown(q, scope) or ((wide := with_remainders(q, scope))[0] != q and _shown(*wide)) for q in forms)


def _shown(p: Poly, scope: Scope) -> bool:
    candidates = [p, *(p - f for f in scope.facts)]
    inner_first = list(reversed(list(scope.ranges)))
    for q in candidates:
        if nonnegative(q, scope):
            return True
        # Substitute one more variable at a time: relaxing outer ones too early can lose a fact.
        relaxed = q
        for k, name in enumerate(inner_first):
            further = extreme(relaxed, (name,), scope, largest=False)
            if further is None:
                break
            if k and further is relaxed:
                continue  # it has just been looked at
            relaxed = further
            if nonnegative(relaxed, scope) or any(nonnegative(relaxed - f, scope) for f in scope.facts):
                return True
    return False


def never(pred: Expr, scope: Scope) -> bool:
    """True if `pred` is provably false for every value of the ranged variables."""
    needed = as_nonnegative(pred)
    if needed is None:
        return False
    return any(_holds(p.scaled(-1) - number(1), scope) for p in needed)


def scope_of(program: Program | None, loops: Iterable[For]) -> Scope:
    """The Scope inside the given loops (outermost first) of a program; without it nothing is known of sizes."""
    at_least: dict[str, int] = {}
    if program is not None:
        at_least = {s.name: s.lo for s in program.scalars if s.lo is not None}
        at_least |= {t.name: 1 for t in program.tunables}
    ranges: dict[str, tuple[Expr, Expr]] = {}
    facts: list[Poly] = []
    for f in loops:
        ranges[f.var] = (f.lo, binary("sub", f.hi, 1))
        for fact in f.facts:
            facts += as_nonnegative(fact, Scope(ranges, at_least)) or []
    return Scope(
        ranges, at_least, tuple(facts), frozenset(t.name for t in program.tunables) if program else frozenset()
    )
