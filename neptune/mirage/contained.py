"""Which forms may be part of a target: the subexpression query that prunes the search.

A form e is *part of* T if some term M has e·M among T's summands (one M for all of e's), or 1/e·M for e of one term
(what is divided by), or if e is part of an argument of a function, an exp, a root or a denominator in T.

Types narrow it. Where a value varies over parts of axes that the target's does not, these must still be summed behind
it: their symbols are in M, in what stands beside an argument, or in a maximum around it. That is the side condition
of `sum(i, x·y) = sum(i, x)·y`, y free of i: a sum that was taken of x alone is not there any more for x·y.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from neptune.mirage.algebra import BITS, FULL, NOTHING, ONE, Algebra, Atom, Side, Term


class Place(NamedTuple):
    """A form in a target, and what stands around it in each place where it is: products with their sum symbols."""

    form: int
    terms: tuple[Term, ...]
    around: tuple[int, ...]


class Target:
    """A form that is to be computed, and what may be part of it. Queries are kept."""

    def __init__(self, algebra: Algebra, form: int) -> None:
        self.algebra = algebra
        self.form = form
        self.constants = 0
        around: dict[int, dict[int, None]] = {}
        for inner, beside in self._walk(form, 0):
            around.setdefault(inner, {})[beside] = None
        self.places = [Place(f, tuple(dict.fromkeys(algebra.summands(f))), tuple(x)) for f, x in around.items()]
        for i, atom in enumerate(algebra.atoms):
            if atom.kind == "constant":
                self.constants |= FULL << (BITS * i)
        self._has: dict[tuple[int, int], bool] = {}

    def _walk(self, form: int, around: int) -> Iterator[tuple[int, int]]:
        a = self.algebra
        yield form, around
        for term in a.summands(form):
            here = around + term.num.atoms + term.den.atoms
            for side in term:
                for arg, none in ((side.exp, NOTHING), (side.root, ONE)):
                    if arg != none:
                        yield from self._walk(arg, here)
                for atom in a.present(side.atoms):
                    yield from self._inside(atom, here)

    def _inside(self, atom: Atom, around: int) -> Iterator[tuple[int, int]]:
        a = self.algebra
        if atom.kind == "max":
            assert isinstance(atom.label, int)
            for some in _factors(a, atom.label):
                yield from self._walk(a.max(atom.args[0], some) if some else atom.args[0], around + atom.label - some)
            return
        for arg in atom.args:
            yield from self._walk(arg, around)
        if atom.kind == "maximum":
            for chosen in product((False, True), repeat=len(atom.args)):
                args = tuple(x for x, on in zip(atom.args, chosen, strict=True) if on)
                if 1 < len(args) < len(atom.args):
                    yield a.atom("maximum", "", args), around

    def has(self, e: int, need: int = 0) -> bool:
        """True where e is part of the target, the symbols `need` (units of sums, 1 each) still to be summed."""
        key = (e, need)
        known = self._has.get(key)
        if known is None:
            known = self._has[key] = any(
                not need or self._left(rest, place, need) for place, rest, _ in self.matches(e)
            )
        return known

    def matches(self, e: int) -> Iterator[tuple[Place, Term, bool]]:
        """Where e is part of the target, what is beside it there (the M of e·M), and whether e is divided by."""
        a = self.algebra
        only = a.terms[a.forms[e][0]] if len(a.forms[e]) == 1 else None
        if only is None:
            for place in self.places:
                for m in a.cofactors(e, place.form):
                    yield place, m, False
            return
        (num, exp, root), (den, below, low) = only
        plain = exp == NOTHING and below == NOTHING and root == ONE and low == ONE
        guard = a.guard
        for place in self.places:
            for term in place.terms:
                above, under = term[0][0], term[1][0]
                if ((above | guard) - num) & ((under | guard) - den) & guard == guard:
                    if plain:
                        top, bottom = term
                        left = Side(above - num, *top[1:]), Side(under - den, *bottom[1:])
                        yield place, Term(*left), False
                    elif (straight := a.over(only, term)) is not None:
                        yield place, straight, False
                if ((under | guard) - num) & ((above | guard) - den) & guard == guard:
                    turned = a.over(Term(only[1], only[0]), term)
                    if turned is not None:
                        yield place, turned, True

    def _left(self, rest: Term, place: Place, need: int) -> bool:
        beside = self._symbols(rest)
        return any(self.algebra.divides(need, around + beside) for around in place.around)

    def _symbols(self, rest: Term) -> int:
        """The atoms that stand beside something, and those in the roots there: √s·√e = √(s·e) may hold its sums."""
        have = 0
        for side in rest:
            have += side.atoms
            if side.root != ONE:
                have += sum(self._symbols(t) for t in self.algebra.summands(side.root))
        return have

    def closes(self, e: int) -> bool:
        """True where e is, but for constants, all of a product above or below in the target or in an argument there.

        A factor that is a constant can wait until then (the rule "constants last" of the search).
        """
        return any(self._bare(rest.den if below else rest.num) for _, rest, below in self.matches(e))

    def _bare(self, side: Side) -> bool:
        return side.exp == NOTHING and side.root == ONE and side.atoms & ~self.constants == 0


def _factors(algebra: Algebra, atoms: int) -> Iterator[int]:
    """The products of some of the atoms, less than all; each atom stands there once or more."""
    present = [(algebra.unit(*x), atoms // algebra.unit(*x) & FULL) for x in algebra.present(atoms)]
    for counts in product(*(range(n + 1) for _, n in present)):
        made = sum(u * n for (u, _), n in zip(present, counts, strict=True))
        if made != atoms:
            yield made
