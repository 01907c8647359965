"""What prunes the search: which forms may be part of a target, and how many operators a kernel needs for it at least.

A form e is *part of* T if some term M has e·M among T's summands (one M for all of e's), or 1/e·M for e of one term
(what is divided by), or if e is part of an argument of a function, an exp, a root or a denominator in T.

Types narrow it. Where a value varies over parts of axes that the target's does not, these must still be summed behind
it: their symbols are in M, in what stands beside an argument, or in a maximum around it. That is the side condition
of `sum(i, x·y) = sum(i, x)·y`, y free of i: a sum that was taken of x alone is not there any more for x·y.

What a target has, and only an operator of its own can bring, is still to come where a state lacks it:

    target √(c·Σ x·x), state with x alone    →    a root, a constant, what is behind the loop: three operators at least

Each of these has one operand, so it joins no two tensors: a state with u tensors that nothing reads needs u - 1 further
ones. A composite brings several at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

from neptune.mirage.enumeration.algebra import BITS, FULL, NOTHING, ONE, Algebra, Atom, Side, Term
from neptune.mirage.enumeration.composites import Chain


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
        some = sum(u * n for (u, _), n in zip(present, counts, strict=True))
        if some != atoms:
            yield some


# --- operators that a kernel still needs ------------------------------------------------------------


Feature: TypeAlias = tuple[str, Any]

BROUGHT = {"sqrt": "root", "rsqrt": "root", "silu": "sigmoid", "scale": "constant", "shift": "constant"}
"""The features that operators bring which are not called as these."""


class Features:
    """The features of targets as bits; `in_loop` is that of what has left the loop, 0 without one."""

    def __init__(self, algebra: Algebra, targets: Sequence[int], loop: bool, chains: Sequence[Chain]) -> None:
        self.algebra = algebra
        features = set(chain.from_iterable(self._parts(t) for t in targets))
        self._bits = {feature: 1 << n for n, feature in enumerate(sorted(features, key=repr))}
        self.in_loop = 1 << len(features) if loop else 0
        every = (1 << (len(features) + loop)) - 1
        steps = [*(1 << n for n in range(every.bit_length())), *(s for c in chains for s in self._brought(c))]
        # From every set of features: the operators needed at least, the largest sets first.
        self.missing = [0] * (every + 1)
        for have in range(every - 1, -1, -1):
            self.missing[have] = 1 + min(self.missing[have | s] for s in steps if have | s != have)

    def of(self, form: int) -> int:
        """The features of the targets that a form has."""
        bits = 0
        for feature in self._parts(form):
            bits |= self._bits.get(feature, 0)
        return bits

    def _brought(self, c: Chain) -> Iterator[int]:
        """The features that a composite may bring at once: all that its operators may, but of nested ones one."""
        plain = self.in_loop
        nested: list[int] = []
        for kind, bit in ((k, b) for k, b in self._bits.items() if self._brings(c, k)):
            if isinstance(kind[1], tuple):
                nested.append(bit)
            else:
                plain |= bit
        yield from (plain | bit for bit in nested or [0])

    def _brings(self, c: Chain, feature: Feature) -> bool:
        kind, label = feature
        return any(
            kind == BROUGHT.get(x.op, x.op) and (isinstance(label, str | tuple) or label == x.constant) for x in c.links
        )

    def _parts(self, form: int) -> Iterator[Feature]:
        """The functions and numbers in a form that an operator of one operand must have brought.

        Exps and roots are counted by how deep they are nested: the outer one of two is never brought with the inner.
        """
        a = self.algebra
        for term in a.summands(form):
            for side in term:
                for kind, arg, none in (("exp", side.exp, NOTHING), ("root", side.root, ONE)):
                    if arg != none:
                        inner = list(self._parts(arg))
                        yield kind, (1 + max((n[0] for k, n in inner if k == kind), default=0),)
                        yield from inner
                for atom in a.present(side.atoms):
                    if atom.kind in ("sigmoid", "max"):
                        yield atom.kind, ""
                    elif atom.kind == "power" or (atom.kind == "constant" and atom.label != -1):
                        yield atom.kind, atom.label
                    elif atom.kind == "opaque" and len(atom.args) == 1:
                        yield atom.kind, repr(atom.label)
                    for arg in atom.args:
                        yield from self._parts(arg)
