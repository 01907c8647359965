"""Indexed normal forms: what a value of a graph is, as a polynomial of sums over the elements of the inputs.

    form   := coefficient · term + …            coefficients are rationals
    term   := Σ[variable over domain, …] factor^exponent · …
    factor := input[index, …] | 1[index] | ~maximum[index, …] | number | size | scalar
            | exp(form) | (form) | max(form) | function(form, …)

Each constructor applies identities of the reals only, for all sizes at once: products are expanded, sums stand in
front (Σᵢxᵢ·Σⱼyⱼ = ΣᵢΣⱼ xᵢ·yⱼ; Σᵢ x·y = x·Σᵢ y where x is free of i), exponentials of a term are one, and factors of a
divisor, or of what a root is taken of, stand before that (`powers.py`). Nothing is cancelled but numbers, sizes
and exponentials, which are never 0. Bound variables are named by the structure, so that forms are equal up to their
names if their texts are.

An axis that a kernel cuts is indexed by the variables of its parts, `k.grid:k.loop:k.tile`. Where all parts are summed
they are one variable again, which runs over the axis; a sum over some parts only is another sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import ceil, factorial, floor, gcd, lcm, prod
from types import MappingProxyType
from typing import TypeAlias

from neptune.errors import Unsupported

Index: TypeAlias = tuple[str, ...]
"""The variables of one dimension: one, or one for each part into which a kernel cuts it."""
TERMS = 400
"""The largest number of terms of a form."""
ORDERS = 720
"""The largest number of orders of bound variables that are tried for one term."""
_NONE: Mapping[Index, Index] = MappingProxyType({})
_LETTER = {"one": "1", "running": "~"}
_fresh = itertools.count()


@dataclass(frozen=True, eq=False)
class _Keyed:
    """What is compared by its text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def _set(self, **fields: object) -> None:
        """Fields that follow from the others."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    key: str = field(init=False)


@dataclass(frozen=True, eq=False)
class Domain(_Keyed):
    """What a variable runs over: an axis with its size, or a part of an axis (`size` is None, `whole` the axis)."""

    name: str
    size: Form | None = None
    whole: Domain | None = None

    def __post_init__(self) -> None:
        self._set(key=self.name)


@dataclass(frozen=True, eq=False)
class Atom(_Keyed):
    """A factor. `kind` is input, one, running (a maximum in a loop), number, size, scalar, exp, base, max or call."""

    kind: str
    name: str = ""
    index: tuple[Index, ...] = ()
    args: tuple[Form, ...] = ()
    uses: frozenset[Index] = field(init=False)
    free: frozenset[str] = field(init=False)
    height: int = field(init=False)

    def __post_init__(self) -> None:
        inside = ", ".join(a.key for a in self.args)
        text = {"number": self.name, "size": self.name, "scalar": self.name, "base": f"({inside})"}.get(
            self.kind, f"{self.kind}({inside})" if self.kind in ("exp", "max") else f"`{self.name}`({inside})"
        )
        if self.index:
            text = f"{_LETTER.get(self.kind, '')}{self.name}[{', '.join(':'.join(i) for i in self.index)}]"
        own = (v for i in self.index for v in i)
        self._set(
            key=text,
            uses=frozenset(self.index).union(*(a.uses for a in self.args)),
            free=frozenset(own).union(*(a.free for a in self.args)),
            height=max((a.height for a in self.args), default=0),
        )


Factors: TypeAlias = tuple[tuple[Atom, Fraction], ...]
Bound: TypeAlias = tuple[tuple[str, Domain], ...]


@dataclass(frozen=True, eq=False)
class Term(_Keyed):
    """A sum over bound variables of a product. Made by `product`, which names and orders."""

    bound: Bound
    factors: Factors
    uses: frozenset[Index] = field(init=False)
    free: frozenset[str] = field(init=False)
    height: int = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(v for v, _ in self.bound)
        text = "·".join(a.key if e == 1 else f"{a.key}^({e})" for a, e in self.factors)
        front = ", ".join(f"{v} < {d.key}" for v, d in self.bound)
        self._set(
            key=f"Σ[{front}] {text or 1}" if self.bound else text or "1",
            uses=frozenset(i for a, _ in self.factors for i in a.uses if not names.issuperset(i)),
            free=frozenset[str]().union(*(a.free for a, _ in self.factors)) - names,
            height=max((a.height for a, _ in self.factors), default=0) + bool(self.bound),
        )


@dataclass(frozen=True, eq=False)
class Form(_Keyed):
    """A polynomial: terms with their coefficients, in the order of their texts."""

    terms: tuple[tuple[Term, Fraction], ...]
    uses: frozenset[Index] = field(init=False)
    free: frozenset[str] = field(init=False)
    height: int = field(init=False)

    def __post_init__(self) -> None:
        texts = (t.key if c == 1 else f"{c}·{t.key}" for t, c in self.terms)
        self._set(
            key=" + ".join(texts) or "0",
            uses=frozenset[Index]().union(*(t.uses for t, _ in self.terms)),
            free=frozenset[str]().union(*(t.free for t, _ in self.terms)),
            height=max((t.height for t, _ in self.terms), default=0),
        )

    def __str__(self) -> str:
        return self.key


ZERO = Form(())
ONE = Form(((Term((), ()), Fraction(1)),))


def number(value: Fraction | int) -> Form:
    """A rational number."""
    return Form(((Term((), ()), Fraction(value)),)) if value else ZERO


def of_atom(atom: Atom) -> Form:
    """A factor by itself."""
    return product(Fraction(1), {}, [(atom, Fraction(1))])


def element(name: str, index: Sequence[Index]) -> Form:
    """An element of an input."""
    return of_atom(Atom("input", name, tuple(index)))


def size(name: str) -> Form:
    """A symbolic size, at least 1."""
    return of_atom(Atom("size", name))


def call(name: str, *args: Form, kind: str = "call") -> Form:
    """A function of which nothing is known (`kind` "scalar": a number of which nothing is known)."""
    return of_atom(Atom(kind, name, (), args))


def add(*forms: Form) -> Form:
    """The sum, like terms merged."""
    coefficients: dict[Term, Fraction] = {}
    for f in forms:
        for t, c in f.terms:
            coefficients[t] = coefficients.get(t, Fraction(0)) + c
    if len(coefficients) > TERMS:
        raise Unsupported(f"it has more than {TERMS} terms")
    return Form(tuple(sorted(((t, c) for t, c in coefficients.items() if c), key=lambda x: x[0].key)))


def scaled(f: Form, by: Fraction) -> Form:
    """A rational multiple."""
    return Form(tuple((t, c * by) for t, c in f.terms)) if by else ZERO


def multiply(*forms: Form) -> Form:
    """The product, expanded."""
    return reduce(_times, forms, ONE)


def _times(a: Form, b: Form) -> Form:
    if len(a.terms) * len(b.terms) > TERMS:
        raise Unsupported(f"it has more than {TERMS} terms")
    products = []
    for s, c in a.terms:
        for t, d in b.terms:
            bound, factors = _apart(s)
            more, others = _apart(t)
            products.append(product(c * d, bound | more, [*factors, *others]))
    return add(*products)


def _apart(term: Term) -> tuple[dict[str, Domain], list[tuple[Atom, Fraction]]]:
    """The bound variables and factors of a term, the variables named as no others are."""
    names = {v: f"?{next(_fresh)}" for v, _ in term.bound}
    return {names[v]: d for v, d in term.bound}, [(_renamed(a, names, {}), e) for a, e in term.factors]


def total(f: Form, variables: Mapping[str, Domain]) -> Form:
    """The sum of a form over free variables of it. Each occurs in each term (`1[index]` if nothing else does)."""
    sums = []
    for t, c in f.terms:
        bound, factors = _apart(t)
        sums.append(product(c, bound | dict(variables), factors))
    return add(*sums)


def exponential(f: Form) -> Form:
    """exp of a form."""
    return of_atom(Atom("exp", "", (), (f,))) if f.terms else ONE


def largest(f: Form, variables: Mapping[str, Domain]) -> Form:
    """The maximum of a form over free variables: max(c·x + y) = c·max x + y for c > 0 and y free of them."""
    if not f.free & set(variables):
        return f
    out = Form(tuple((t, c) for t, c in f.terms if not t.free & set(variables)))
    inner = Form(tuple((t, c) for t, c in f.terms if t.free & set(variables)))
    by = content(inner)
    inner, bound = scaled(inner, 1 / by), dict(variables)
    term, one = inner.terms[0]
    if len(inner.terms) == 1 and one == 1 and len(term.factors) == 1 and not term.bound:
        atom, e = term.factors[0]
        if atom.kind == "max" and e == 1:
            below, ((held, _),) = _apart(atom.args[0].terms[0][0])
            bound, inner = bound | below, held.args[0]
    held = Atom("of", "", (), (inner,))
    return add(out, scaled(of_atom(Atom("max", "", (), (_named(Fraction(1), bound, [(held, Fraction(1))]),))), by))


def rename(f: Form, variables: Mapping[str, str], tuples: Mapping[Index, Index] = _NONE) -> Form:
    """A form with other free variables: `tuples` puts whole indices in the place of others."""
    touched = f.free & {*variables, *(v for i in tuples for v in i)}
    if not touched:
        return f
    renamed = []
    for t, c in f.terms:
        renamed.append(_named(c, dict(t.bound), [(_renamed(a, variables, tuples), e) for a, e in t.factors]))
    return add(*renamed)


def _renamed(a: Atom, variables: Mapping[str, str], tuples: Mapping[Index, Index]) -> Atom:
    if not a.free & {*variables, *(v for i in tuples for v in i)}:
        return a
    index = tuple(tuples[i] if i in tuples else tuple(variables.get(v, v) for v in i) for i in a.index)
    return Atom(a.kind, a.name, index, tuple(rename(f, variables, tuples) for f in a.args))


def product(c: Fraction, bound: Mapping[str, Domain], factors: Iterable[tuple[Atom, Fraction]]) -> Form:
    """The sum over `bound` of a product of powers: equal factors merged, exponentials one, powers of sums expanded."""
    merged: dict[tuple[Atom, bool], Fraction] = {}
    exponents: list[Form] = []
    for a, e in factors:
        if a.kind == "exp":
            exponents.append(scaled(a.args[0], e))
            continue
        if a.kind == "one":
            merged[a, True] = Fraction(1)
            continue
        never_0 = a.kind in ("number", "size")
        base = a, never_0 or e > 0
        merged[base] = merged.get(base, Fraction(0)) + e
    exponent = add(*exponents)
    left = [(Atom("exp", "", (), (exponent,)), Fraction(1))] if exponent.terms else []
    for (a, sign), e in merged.items():
        integer = floor(e) if a.kind == "number" or e > 0 else ceil(e)
        if a.kind == "number":
            c *= Fraction(int(a.name)) ** integer
            merged[a, sign] = e - integer
        elif a.kind == "base" and integer and (e > 0 or _plain(a.args[0])):
            rest = [*left, *((b, f) for (b, s), f in merged.items() if (b, s) != (a, sign)), (a, e - integer)]
            by = a.args[0] if e > 0 else _inverse(a.args[0])
            return _opened(c, bound, rest, multiply(*[by] * abs(integer)))
    return _named(c, bound, [*left, *((a, e) for (a, _), e in merged.items() if e)])


def _plain(f: Form) -> bool:
    """True for one product, of no sum."""
    return len(f.terms) == 1 and not f.terms[0][0].bound


def _inverse(f: Form) -> Form:
    """1 over one product of no sum."""
    ((t, c),) = f.terms
    return product(1 / c, {}, [(a, -e) for a, e in t.factors])


def _opened(c: Fraction, bound: Mapping[str, Domain], factors: Sequence[tuple[Atom, Fraction]], by: Form) -> Form:
    """The sum over `bound` of factors times a form, multiplied out."""
    products = []
    for t, d in by.terms:
        more, others = _apart(t)
        products.append(product(c * d, {**bound, **more}, [*((a, e) for a, e in factors if e), *others]))
    return add(*products)


def _named(c: Fraction, bound: Mapping[str, Domain], factors: Sequence[tuple[Atom, Fraction]]) -> Form:
    """A term with all parts of an axis as one variable, its sums over nothing as sizes, and its variables named."""
    bound, factors = _joined(dict(bound), list(factors))
    ones = [a for a, _ in factors if a.kind == "one"]
    for one in ones:
        rest = [(a, e) for a, e in factors if a != one]
        if any(one.index[0] in a.uses for a, _ in rest):
            return _named(c, bound, rest)
        (v, *parts) = one.index[0]
        if not parts and v in bound and (length := bound[v].size) is not None:
            return _times(_named(c, {w: d for w, d in bound.items() if w != v}, rest), length)
    if not c:
        return ZERO
    height = 1 + max((a.height for a, _ in factors), default=0)
    first = min((_term(order, height, bound, factors) for order in _orders(bound, factors)), key=lambda t: t.key)
    return Form(((first, c),))


def _joined(
    bound: dict[str, Domain], factors: list[tuple[Atom, Fraction]]
) -> tuple[dict[str, Domain], list[tuple[Atom, Fraction]]]:
    """The parts of an axis that only occur together, and are all bound, as one variable."""
    indices = {i for a, _ in factors for i in a.uses}
    for i in sorted(i for i in indices if len(i) > 1 and bound.keys() >= set(i)):
        if any(set(i) & set(j) for j in indices if j != i) or (axis := bound[i[0]].whole) is None:
            continue
        v = f"?{next(_fresh)}"
        factors = [(_renamed(a, {}, {i: (v,)}), e) for a, e in factors]
        bound = {w: d for w, d in bound.items() if w not in i} | {v: axis}
    return bound, factors


def _term(
    order: Sequence[str], height: int, bound: Mapping[str, Domain], factors: Sequence[tuple[Atom, Fraction]]
) -> Term:
    names = {v: f"%{height}.{n}" for n, v in enumerate(order)}
    named = ((_renamed(a, names, {}), e) for a, e in factors)
    return Term(tuple((names[v], bound[v]) for v in order), tuple(sorted(named, key=lambda x: (x[0].key, x[1]))))


def _orders(bound: Mapping[str, Domain], factors: Sequence[tuple[Atom, Fraction]]) -> Iterable[tuple[str, ...]]:
    """The orders of bound variables among which the first by text is taken: those that structure leaves open."""
    colours: dict[str, list[str]] = {}
    for v in bound:
        marks = {w: "*" if w == v else f"_{d.key}" for w, d in bound.items()}
        seen = sorted(f"{_shape(a, marks)}^{e}" for a, e in factors if v in a.free)
        colours.setdefault(f"{bound[v].key}|{seen}", []).append(v)
    groups = [colours[k] for k in sorted(colours)]
    count = prod(factorial(len(g)) for g in groups)
    if count > ORDERS:
        raise Unsupported(f"a term has {count} orders of its sums")
    for chosen in itertools.product(*(itertools.permutations(sorted(g)) for g in groups)):
        yield tuple(v for g in chosen for v in g)


def _shape(a: Atom, marks: Mapping[str, str]) -> str:
    """The text of a factor with variables marked; no order in it depends on their names."""
    index = ",".join(":".join(marks.get(v, v) for v in i) for i in a.index)
    return f"{a.kind}{a.name}[{index}]({','.join(shape(f, marks) for f in a.args)})"


def shape(f: Form, marks: Mapping[str, str]) -> str:
    """The text of a form with variables marked."""
    return "+".join(sorted(f"{c}{_term_shape(t, marks)}" for t, c in f.terms))


def _term_shape(t: Term, marks: Mapping[str, str]) -> str:
    marks = {**marks, **{v: f"_{d.key}" for v, d in t.bound}}
    return f"{sorted(d.key for _, d in t.bound)}" + "·".join(sorted(f"{_shape(a, marks)}^{e}" for a, e in t.factors))


def content(f: Form) -> Fraction:
    """The positive rational that the coefficients have in common."""
    numbers = [c for _, c in f.terms]
    return Fraction(gcd(*(c.numerator for c in numbers)), lcm(*(c.denominator for c in numbers)))


def depends_on_cuts(f: Form) -> str:
    """What in a form depends on how axes are cut: a sum over some parts of an axis, a running maximum; or nothing."""
    for t, _ in f.terms:
        parts = [d.name for _, d in t.bound if d.whole is not None]
        parts += [a.key for a, _ in t.factors if a.kind == "running"]
        parts += [x for a, _ in t.factors for f in a.args if (x := depends_on_cuts(f))]
        if parts:
            return parts[0]
    return ""
