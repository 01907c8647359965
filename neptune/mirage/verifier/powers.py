"""Powers and logarithms of forms, with what stands in them as a factor brought before them.

    1 / (2·y·Σₖ x) → 1/2 · y⁻¹ · (Σₖ x)⁻¹        √(Σₖ x² / n) → n^(-1/2) · (Σₖ x²)^(1/2)        √(x·y) stays

Integer powers are taken of each factor, since denominators are not 0. For a root all factors have to be at least 0 by
their form (squares, sums of such, roots, exponentials, sizes); beside one that may be negative only what is positive
comes out: √(x²·y) is 0 at x = 0 and y < 0, where √y has no value. A power of a power that is no root asks for the same:
√(x²) = |x| is not x. An exponential is positive, whatever stands beside it, so that log(exp x·y) = x + log y wherever
either has a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import floor

from neptune.errors import Unsupported
from neptune.mirage.verifier.forms import (
    ONE,
    ZERO,
    Atom,
    Factors,
    Form,
    Term,
    add,
    call,
    content,
    multiply,
    number,
    product,
    scaled,
    shape,
)

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
"""What a number is divided by before its root is taken; what is left is one factor."""


def power(f: Form, e: Fraction) -> Form:
    """A form to a rational power (of a negative number: none but an integer one)."""
    integer = floor(e)
    if integer == e and e >= 0:
        return multiply(*[f] * integer)
    if not f.terms:
        if e < 0:
            raise Unsupported("it divides by 0")
        return ZERO
    if e > 1:
        return multiply(*[f] * integer, power(f, e - integer))
    return _of_term(*f.terms[0], e) if len(f.terms) == 1 else _of_sum(f, e)


def divided(a: Form, b: Form) -> Form:
    """The quotient."""
    return multiply(a, power(b, Fraction(-1)))


def logarithm(f: Form) -> Form:
    """log of a form: exponentials that stand beside all else in it come out, log(exp x·Σ y) = x + log Σ y."""
    if not f.terms:
        raise Unsupported("it takes the logarithm of 0")
    if len(f.terms) == 1:
        ((term, c),) = f.terms
        bound = frozenset(v for v, _ in term.bound)
        pieces = _pieces(term)
        exps = tuple((a, p) for a, p in pieces if a.kind == "exp" and not a.free & bound)
        left = multiply(number(c), *(_factor(a, p) for a, p in pieces if (a, p) not in exps))
    else:
        exps = tuple((a, p) for a, p in _common(f) if a.kind == "exp")
        left = _without(f, exps)
    rest = ZERO if left == ONE else call("log", left)
    return add(rest, *(scaled(a.args[0], p) for a, p in exps))


def _integral(e: Fraction) -> bool:
    return e.denominator == 1


def _of_term(term: Term, c: Fraction, e: Fraction) -> Form:
    """The power of one term: each sum that stands by itself is a factor."""
    items = _pieces(term)
    if _integral(e):
        return multiply(number(c**e.numerator), *(_factor(a, p * e) for a, p in items))
    positive = [(a, p) for a, p in items if _positive(a)]
    others = [(a, p) for a, p in items if not _positive(a)]
    out = [_root(abs(c), e), *(_factor(a, p * e) for a, p in positive)]
    if c > 0 and all(not_negative(a, p) for a, p in others):
        return multiply(*out, *(_root_of_factor(a, p, e) for a, p in others))
    if c > 0 and len(others) == 1 and abs(others[0][1]) == 1 and others[0][0].kind == "base":
        return multiply(*out, _factor(others[0][0], others[0][1] * e))
    rest = multiply(number(1 if c > 0 else -1), *(_factor(a, p) for a, p in others))
    if c > 0 and len(others) == 1 and others[0][1] == -1:
        rest, e = _factor(others[0][0], Fraction(1)), -e
    return multiply(*out, _factor(Atom("base", "", (), (rest,)), e))


def _factor(a: Atom, e: Fraction) -> Form:
    return product(Fraction(1), {}, [(a, e)])


def _root_of_factor(a: Atom, p: Fraction, e: Fraction) -> Form:
    """(a^p)^e where a^p is not negative by its form."""
    if not_negative(a, Fraction(1)) or not _integral(p):
        return _factor(a, p * e)
    squared = Atom("base", "", (), (_factor(a, Fraction(2)),))
    return _factor(squared, p * e / 2)


def _root(c: Fraction, e: Fraction) -> Form:
    """A positive number to a power, by its small prime factors."""
    factors = ONE
    for n, sign in ((c.numerator, 1), (c.denominator, -1)):
        for prime in PRIMES:
            while n % prime == 0:
                n //= prime
                factors = multiply(factors, _factor(Atom("number", str(prime)), sign * e))
        if n > 1:
            factors = multiply(factors, _factor(Atom("number", str(n)), sign * e))
    return factors


def _pieces(term: Term) -> Factors:
    """The factors of a term: those outside of its sums, and of the sums those that share no variable."""
    bound = dict(term.bound)
    factors = [x for a, p in term.factors for x in _split(a, p, frozenset(bound))]
    groups: list[tuple[frozenset[str], list[tuple[Atom, Fraction]]]] = []
    alone = []
    for a, p in factors:
        if not (bound_in := a.free & bound.keys()):
            alone.append((a, p))
            continue
        together = [g for g in groups if g[0] & bound_in]
        groups = [g for g in groups if not g[0] & bound_in]
        groups.append((bound_in.union(*(g[0] for g in together)), [(a, p), *(x for g in together for x in g[1])]))
    sums = (product(Fraction(1), {v: bound[v] for v in sorted(vs)}, inside) for vs, inside in groups)
    return (*alone, *((Atom("base", "", (), (f,)), Fraction(1)) for f in sums))


def _split(a: Atom, p: Fraction, bound: frozenset[str]) -> Iterable[tuple[Atom, Fraction]]:
    """A factor; an exponential as one for each set of bound variables that terms of its exponent have."""
    if a.kind != "exp":
        return [(a, p)]
    parts: dict[frozenset[str], list[tuple[Term, Fraction]]] = {}
    for t, c in a.args[0].terms:
        parts.setdefault(t.free & bound, []).append((t, c))
    return [(Atom("exp", "", (), (Form(tuple(terms)),)), p) for terms in parts.values()]


def _of_sum(f: Form, e: Fraction) -> Form:
    """The power of several terms: what they have in common, and what is left."""
    by = content(f)
    common = _common(f)
    left = _without(scaled(f, 1 / by), common)
    if _integral(e):
        sign = _sign(left)
        out = [number((sign * by) ** e.numerator), *(_factor(a, p * e) for a, p in common)]
        return multiply(*out, _base(scaled(left, Fraction(sign)), e))
    if all(not_negative(a, p) for a, p in common) and at_least_0(left):
        out = [_root_of_factor(a, p, e) for a, p in common]
    else:
        out = [_factor(a, p * e) for a, p in common if _positive(a)]
        left = multiply(left, *(_factor(a, p) for a, p in common if not _positive(a)))
    return multiply(_root(by, e), *out, _base(left, e))


def _base(f: Form, e: Fraction) -> Form:
    return power(f, e) if len(f.terms) < 2 else _factor(Atom("base", "", (), (f,)), e)


def _common(f: Form) -> Factors:
    """The factors that stand outside of the sums of all terms, to the least power."""
    first, *rest = [_outside(t) for t, _ in f.terms]
    shared = {}
    for (a, sign), p in first.items():
        powers = [p, *(o.get((a, sign), Fraction(0)) for o in rest)]
        least = min(powers) if sign else max(powers)
        if least:
            shared[a] = least
    exponents = [next((dict(a.args[0].terms) for a, _ in t.factors if a.kind == "exp"), {}) for t, _ in f.terms]
    names = [frozenset(v for v, _ in t.bound) for t, _ in f.terms]
    same = [
        (t, c)
        for t, c in exponents[0].items()
        if all(x.get(t) == c and not t.free & n for x, n in zip(exponents, names, strict=True))
    ]
    exps = ((Atom("exp", "", (), (Form(tuple(same)),)), Fraction(1)),) if same else ()
    return (*shared.items(), *exps)


def _outside(t: Term) -> dict[tuple[Atom, bool], Fraction]:
    names = frozenset(v for v, _ in t.bound)
    return {(a, p > 0): p for a, p in t.factors if a.kind not in ("exp", "one") and not a.free & names}


def _without(f: Form, common: Factors) -> Form:
    """A form divided by factors that all of its terms have."""
    gone = {a: p for a, p in common if a.kind != "exp"}
    exps = [(a, -p) for a, p in common if a.kind == "exp"]
    terms = []
    for t, c in f.terms:
        left = []
        for a, p in t.factors:
            q = gone.get(a, Fraction(0))
            left.append((a, p - q if (q > 0) == (p > 0) else p))
        terms.append(product(c, dict(t.bound), [*((a, p) for a, p in left if p), *exps]))
    return add(*terms)


def _sign(f: Form) -> int:
    """The sign of a term that the structure singles out; 1 where none is."""
    shapes = sorted((shape(Form(((t, Fraction(1)),)), dict.fromkeys(f.free, "_")), c) for t, c in f.terms)
    first = {c for s, c in shapes if s == shapes[0][0]}
    return -1 if max(first) < 0 else 1


def _positive(a: Atom) -> bool:
    return a.kind in ("exp", "number", "size", "one")


def not_negative(a: Atom, e: Fraction) -> bool:
    """True where a factor to this power is at least 0 by its form."""
    if _positive(a) or (_integral(e) and e.numerator % 2 == 0):
        return True
    return a.kind == "base" and (not _integral(e) or at_least_0(a.args[0]))


def at_least_0(f: Form) -> bool:
    """True where a form is at least 0 by its form."""
    return all(c > 0 and all(not_negative(a, p) for a, p in t.factors) for t, c in f.terms)


def above_0(f: Form) -> bool:
    """True where a form is more than 0 by its form: none of its terms is less, and one is more."""
    return at_least_0(f) and any(
        all(_positive(a) or (a.kind == "base" and above_0(a.args[0])) for a, _ in t.factors) for t, _ in f.terms
    )
