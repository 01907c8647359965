"""What a value computes, its elements' differences forgotten: abstract expressions in a normal form.

    form := a multiset of terms, the summands
    term := a product of atoms and of at most one exp and one root, over another such product
    atom := an input | a constant | a sum symbol (axis, part) | a function of forms | a denominator of several terms

A sum over a part of an axis is a factor that commutes with all others, so `sum(i, x·y) = sum(i, x)·y` needs no rule;
that y is free of i is in the types of values, which `prunes.py` looks at. Products are multiplied out, exps and
roots merged (exp(x)·exp(y) = exp(x + y), √x·√y = √(x·y)), a division by one term turns that term around. Nothing is
cancelled (x·y/y stays), else everything would be part of everything. silu(x) is x·sigmoid(x). Incomplete only where
a product or sum has a denominator of several terms: 1/(a + b)·1/(c + d) is not multiplied out.

Forms are integers: equal ones are equal forms of one `Algebra`, and mean nothing to another. Each atom has a field of
16 bits in an integer that holds the exponents of a product, so that a product is one addition, and "is a factor of"
one subtraction that borrows from no field.

Source: Wu et al., "Mirage" (OSDI 2025), §4.3 and Table 2 (A_eq), over axis-labelled sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Written: TypeAlias = tuple[Any, ...]
"""A form as nested tuples: see `Algebra.written`."""

BITS = 16
FULL = (1 << (BITS - 1)) - 1
"""The largest exponent of an atom."""
NOTHING, ONE = 0, 1
"""The forms 0 (no term) and 1 (the empty product)."""


FOREIGN = -1
"""In place of a form that would have an atom that a closed Algebra does not have."""


class Side(NamedTuple):
    """A product: exponents of atoms, the argument of its exp (`NOTHING`: it has none), that of its root (`ONE`)."""

    atoms: int = 0
    exp: int = NOTHING
    root: int = ONE


UNIT = Side()


class Term(NamedTuple):
    """A product over a product."""

    num: Side
    den: Side = UNIT


class Atom(NamedTuple):
    """What a field stands for: `kind`, what tells it from others of the kind, and the forms that it reads."""

    kind: str
    label: Hashable
    args: tuple[int, ...] = ()


@dataclass
class Algebra:
    """The forms of one search. Every method takes and gives forms.

    Where it is `closed`, an operator whose result would have a new atom gives `FOREIGN`.
    """

    atoms: list[Atom] = field(default_factory=list)
    terms: list[Term] = field(default_factory=lambda: [Term(UNIT)])
    forms: list[tuple[int, ...]] = field(default_factory=lambda: [(), (0,)])

    def __post_init__(self) -> None:
        self.guard = 0
        self.closed = False
        self._atom_ids: dict[Atom, int] = {}
        self._term_ids: dict[Term, int] = {t: i for i, t in enumerate(self.terms)}
        self._form_ids: dict[tuple[int, ...], int] = {f: i for i, f in enumerate(self.forms)}
        self._products: dict[tuple[int, int], int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._counts: dict[int, dict[int, int]] = {}
        self._sides: dict[tuple[Side, Side], Side] = {}
        self._roots: dict[tuple[int, int], int | None] = {}
        self._overs: dict[tuple[int, int], Term | None] = {}

    def unit(self, kind: str, label: Hashable, args: tuple[int, ...] = ()) -> int:
        """The field of an atom with a 1 in it. Atoms are made as they are asked for; 0 where it is closed."""
        key = Atom(kind, label, args)
        i = self._atom_ids.get(key)
        if i is None:
            if self.closed:
                return 0
            i = self._atom_ids[key] = len(self.atoms)
            self.atoms.append(key)
            self.guard |= 1 << (BITS * i + BITS - 1)
        return 1 << (BITS * i)

    def present(self, atoms: int) -> list[Atom]:
        """The atoms of a product, each once."""
        atoms_present = []
        while atoms:
            i = ((atoms & -atoms).bit_length() - 1) // BITS
            atoms_present.append(self.atoms[i])
            atoms &= -1 << (BITS * (i + 1))
        return atoms_present

    def form(self, terms: Iterable[Term]) -> int:
        """The form of these summands."""
        return self._of(tuple(sorted(map(self._number, terms))))

    def _number(self, term: Term) -> int:
        i = self._term_ids.setdefault(term, len(self.terms))
        if i == len(self.terms):
            self.terms.append(term)
        return i

    def _of(self, ids: tuple[int, ...]) -> int:
        i = self._form_ids.setdefault(ids, len(self.forms))
        if i == len(self.forms):
            self.forms.append(ids)
        return i

    def summands(self, f: int) -> list[Term]:
        return [self.terms[i] for i in self.forms[f]]

    def atom(self, kind: str, label: Hashable, args: tuple[int, ...] = ()) -> int:
        unit = self.unit(kind, label, args)
        return self.form([Term(Side(unit))]) if unit else FOREIGN

    # -- operators

    def add(self, f: int, g: int) -> int:
        if f < 0 or g < 0:
            return FOREIGN
        return self._of(tuple(sorted(self.forms[f] + self.forms[g])))

    def mul(self, f: int, g: int) -> int:
        key = (f, g) if f <= g else (g, f)
        result = self._products.get(key)
        if result is None and key[0] < 0:
            result = self._products[key] = FOREIGN
        elif result is None:
            left, right = self.forms[f], self.forms[g]
            if len(left) == 1 == len(right):
                result = self._of((self._number(self.times(self.terms[left[0]], self.terms[right[0]])),))
            else:
                result = self._of(tuple(sorted(self._pair(i, j) for i in left for j in right)))
            self._products[key] = result
        return result

    def _pair(self, i: int, j: int) -> int:
        """The product of two terms, by their numbers. Forms of several terms share them."""
        key = (i, j) if i <= j else (j, i)
        product = self._pairs.get(key)
        if product is None:
            product = self._pairs[key] = self._number(self.times(self.terms[i], self.terms[j]))
        return product

    def times(self, s: Term, t: Term) -> Term:
        return Term(self.joined(s.num, t.num), self.joined(s.den, t.den))

    def joined(self, a: Side, b: Side) -> Side:
        """The product of two products: exponents are added, exps and roots merged."""
        if a.exp == NOTHING and a.root == ONE:
            return Side(a.atoms + b.atoms, b.exp, b.root)
        if b.exp == NOTHING and b.root == ONE:
            return Side(a.atoms + b.atoms, a.exp, a.root)
        product = self._sides.get((a, b))
        if product is None:
            product = Side(a.atoms + b.atoms, self.add(a.exp, b.exp), self.mul(a.root, b.root))
            self._sides[a, b] = product
        return product

    def div(self, f: int, g: int) -> int:
        """f/g; a denominator of several terms is an atom, and one below another denominator is a factor again."""
        if len(self.forms[g]) != 1:
            over = self.unit("over", "", (g,))
            return self.mul(f, self.form([Term(UNIT, Side(over))])) if over else FOREIGN
        (below,) = self.summands(g)
        factors = ONE
        atoms = below.den.atoms
        for atom in self.present(atoms):
            if atom.kind == "over":
                one = self.unit(*atom)
                for _ in range(atoms // one & FULL):
                    atoms -= one
                    factors = self.mul(factors, atom.args[0])
        inverse = Term(Side(atoms, below.den.exp, below.den.root), below.num)
        return self.mul(self.mul(f, self.form([inverse])), factors)

    def exp(self, f: int) -> int:
        return self.form([Term(Side(0, f, ONE))])

    def sqrt(self, f: int) -> int:
        return self.form([Term(Side(0, NOTHING, f))])

    def sigmoid(self, f: int) -> int:
        return self.atom("sigmoid", "", (f,))

    def constant(self, label: Hashable) -> int:
        """A number, by what writes it down. Products of constants are not worked out."""
        return self.atom("constant", label)

    def neg(self, f: int) -> int:
        return self.mul(f, self.constant(-1))

    def apply(self, name: str, *args: int) -> int:
        """An operator of expressions by name."""
        match name:
            case "sub":
                return self.add(args[0], self.neg(args[1]))
            case "rsqrt":
                return self.div(ONE, self.sqrt(args[0]))
            case "max":
                return self.maximum(*args)
        form: int = getattr(self, name)(*args)
        return form

    def sum(self, f: int, symbols: int) -> int:
        """The sum over parts of axes, given as the units of their `sum` atoms."""
        return self.form(Term(Side(t.num.atoms + symbols, t.num.exp, t.num.root), t.den) for t in self.summands(f))

    def max(self, f: int, symbols: int) -> int:
        """The maximum over parts of axes; one of a maximum is one over both's parts."""
        inner = self.sole(f)
        if inner is not None and inner.kind == "max":
            assert isinstance(inner.label, int)
            return self.atom("max", inner.label + symbols, inner.args)
        return self.atom("max", symbols, (f,))

    def maximum(self, f: int, g: int) -> int:
        """The larger of two; one of several is flat."""
        args: list[int] = []
        for x in (f, g):
            inner = self.sole(x)
            args += inner.args if inner is not None and inner.kind == "maximum" else (x,)
        return self.atom("maximum", "", tuple(sorted(args)))

    def sole(self, f: int) -> Atom | None:
        """The atom that a form is, or None."""
        if len(self.forms[f]) != 1:
            return None
        (term,) = self.summands(f)
        if term.den != UNIT or term.num[1:] != UNIT[1:]:
            return None
        present = self.present(term.num.atoms)
        return present[0] if len(present) == 1 and term.num.atoms == self.unit(*present[0]) else None

    # -- factors

    def divides(self, a: int, b: int) -> bool:
        """True where the atoms of product a are among those of b."""
        return ((b | self.guard) - a) & self.guard == self.guard

    def less(self, f: int, g: int) -> int | None:
        """g without the summands f, or None."""
        if f == NOTHING:
            return g
        left = list(self.forms[g])
        for summand in self.forms[f]:
            if summand not in left:
                return None
            left.remove(summand)
        return self._of(tuple(left))

    def quotient(self, a: Side, b: Side) -> Side | None:
        """The product that makes b of a, or None."""
        if not self.divides(a.atoms, b.atoms):
            return None
        exp = self.less(a.exp, b.exp)
        if exp is None:
            return None
        if a.root == ONE:
            return Side(b.atoms - a.atoms, exp, b.root)
        root = self.root_over(a.root, b.root)
        return None if root is None else Side(b.atoms - a.atoms, exp, root)

    def root_over(self, f: int, g: int) -> int | None:
        """The form r with f·r = g, or None: what √f lacks of √g."""
        key = (f, g)
        if key not in self._roots:
            self._roots[key] = self._ratio(f, g)
        return self._roots[key]

    def _ratio(self, f: int, g: int) -> int | None:
        if g == NOTHING:
            return NOTHING
        # Nothing cancels: the number of summands of a product is the product of theirs.
        if f == NOTHING or len(self.forms[g]) % len(self.forms[f]):
            return None
        first = self.summands(g)[0]
        for term in dict.fromkeys(self.summands(f)):
            m = self.over(term, first)
            left = None if m is None else self.less(self.mul(f, self.form([m])), g)
            if m is not None and left is not None:
                rest = self._ratio(f, left)
                if rest is not None:
                    return self.add(self.form([m]), rest)
        return None

    def over(self, s: Term, t: Term) -> Term | None:
        """The term that makes t of s, or None."""
        num = self.quotient(s.num, t.num)
        if num is None:
            return None
        den = self.quotient(s.den, t.den)
        return None if den is None else Term(num, den)

    def cofactors(self, f: int, g: int) -> Iterator[Term]:
        """The terms M for which f·M is among the summands of g."""
        summands, among = self.forms[f], self.forms[g]
        if not summands or len(summands) > len(among):
            return
        first = summands[0]
        for i in dict.fromkeys(among):
            key = (first, i)
            if key not in self._overs:
                self._overs[key] = self.over(self.terms[first], self.terms[i])
            m = self._overs[key]
            if m is not None and (len(summands) == 1 or self._has_product(f, m, g)):
                yield m

    def _has_product(self, f: int, m: Term, g: int) -> bool:
        """True where all of f·m is among the summands of g. Mostly a summand is missing, and the rest are not made."""
        counts = self._counts.get(g)
        if counts is None:
            counts = self._counts[g] = Counter(self.forms[g])
        by = self._number(m)
        needed: dict[int, int] = {}
        for i in self.forms[f]:
            product = self._pair(i, by)
            needed[product] = needed.get(product, 0) + 1
            if needed[product] > counts.get(product, 0):
                return False
        return True

    # -- the same form in another process

    def written(self, f: int) -> Written:
        """A form as nested tuples that mean the same to every Algebra. Equal forms are written alike."""
        return tuple(sorted((self._written_term(t) for t in self.summands(f)), key=repr))

    def _written_term(self, t: Term) -> Written:
        return tuple(
            (
                tuple(
                    sorted(
                        ((self._written_atom(a), s.atoms // self.unit(*a) & FULL) for a in self.present(s.atoms)),
                        key=repr,
                    )
                ),
                self.written(s.exp),
                self.written(s.root) if s.root != ONE else None,
            )
            for s in t
        )

    def _written_atom(self, a: Atom) -> Written:
        name = self._written_product(a.label) if a.kind == "max" and isinstance(a.label, int) else a.label
        return a.kind, name, tuple(self.written(x) for x in a.args)

    def _written_product(self, atoms: int) -> Written:
        return tuple(sorted((a.label, atoms // self.unit(*a) & FULL) for a in self.present(atoms)))

    def read(self, text: Written) -> int:
        """The form that was `written`."""
        return self.form(Term(*(self._read_side(*s) for s in t)) for t in text)

    def _read_side(self, atoms: Written, exp: Written, root: Written) -> Side:
        product = 0
        for (kind, name, args), n in atoms:
            label = sum(self.unit("sum", x) * m for x, m in name) if kind == "max" else name
            forms = tuple(self.read(x) for x in args)
            product += n * self.unit(kind, label, tuple(sorted(forms)) if kind == "maximum" else forms)
        return Side(product, self.read(exp), ONE if root is None else self.read(root))
