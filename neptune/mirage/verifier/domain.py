"""Where a graph has a value: what its quotients, roots and logarithms need, as normal forms, for all sizes.

    x / √(Σₖ x² / k)      needs Σₖ x² ≠ 0           (Σₖ x²)·… ≥ 0 holds by its form
    Σₖ x·(d/d)            needs d ≠ 0, which Σₖ x does not: not equal where d is 0

A graph has a value wherever an expression has one if each of its needs is one of the expression's, or holds by its
form. What an operator needs is its column `domain` in `neptune.ir.ops`. A need behind a fold is one for all elements
along the axis; in the graph a fold of any part of an axis counts, in an expression there are whole ones only. A factor
of a divisor is needed by itself, like a factor of what a root is taken of whose sign is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from neptune.ir.ops import OPS, demand
from neptune.mirage.verifier.forms import Atom, Form, of_atom
from neptune.mirage.verifier.powers import above_0, not_negative, power

NOT_0, NOT_NEGATIVE = "not 0", "not negative"
_OF_DEMAND = {"ne": (NOT_0,), "ge": (NOT_NEGATIVE,), "gt": (NOT_NEGATIVE, NOT_0)}


@dataclass(frozen=True)
class Need:
    """That a form is "not 0" or "not negative"; `over`: the axes along which it has to be for all elements."""

    kind: str
    of: Form
    over: frozenset[str] = frozenset()

    def __str__(self) -> str:
        along = f" anywhere along {', '.join(sorted(self.over))}" if self.over else ""
        return f"{self.of} is {self.kind.removeprefix('not ')}{along}"


Needs = frozenset[Need]


def demanded(name: str, args: Sequence[Form], exponent: Fraction | None = None) -> Iterator[Need]:
    """What an operator of `neptune.ir.ops` needs of its arguments; `exponent`: the number that a power has."""
    row = OPS.get(name)
    by = -0.5 if exponent is None else float(exponent)
    for arg, domain in zip(args, row.domain if row else (), strict=False):
        for kind in _OF_DEMAND.get(demand(domain, by), ()):
            yield from _apart(kind, arg)


def folded(needs: Iterable[Need], axis: str) -> Needs:
    """The needs of elements as those of what is folded over them."""
    return frozenset(replace(n, over=n.over | {axis}) if axis in n.of.free else n for n in needs)


def lacking(graph: Needs, expression: Needs) -> list[Need]:
    """What a graph needs and an expression does not, nor its form gives."""
    given: dict[tuple[str, Form], list[frozenset[str]]] = {}
    for n in expression:
        given.setdefault((n.kind, n.of), []).append(n.over)

    def has(kind: str, form: Form, over: frozenset[str]) -> bool:
        return any(over & form.free <= more for more in given.get((kind, form), ()))

    def holds(n: Need) -> bool:
        if has(n.kind, n.of, n.over):
            return True
        factors = _product(n.of) if n.kind == NOT_NEGATIVE else ()
        return bool(factors) and all(not_negative(a, e) or has(n.kind, of_atom(a), n.over) for a, e in factors)

    return sorted((n for n in graph if not holds(n)), key=str)


def _product(f: Form) -> tuple[tuple[Atom, Fraction], ...]:
    """The factors of a form that is a positive multiple of a product of several."""
    if len(f.terms) != 1 or f.terms[0][0].bound or f.terms[0][1] < 0:
        return ()
    return f.terms[0][0].factors if len(f.terms[0][0].factors) > 1 else ()


def _apart(kind: str, f: Form) -> Iterator[Need]:
    """What a form to be not 0, or not negative, needs of its factors; nothing where that holds by its form."""
    if not f.terms:
        if kind == NOT_0:
            yield Need(kind, f)
        return
    for term, c in power(f, Fraction(-1) if kind == NOT_0 else Fraction(1, 2)).terms:
        for a, e in term.factors:
            if kind == NOT_0 and e < 0:
                yield from _never_0(a)
            elif kind == NOT_NEGATIVE and e.denominator != 1 and not not_negative(a, Fraction(1)):
                yield Need(kind, of_atom(a))
        if kind == NOT_NEGATIVE and c < 0:
            yield Need(kind, f)


def _never_0(a: Atom) -> Iterator[Need]:
    inner = a.args[0] if a.kind == "base" else of_atom(a)
    if a.kind in ("exp", "number", "size") or above_0(inner):
        return
    ((term, _),) = power(inner, Fraction(-1)).terms
    if a.kind != "base" or [x for x, _ in term.factors] == [a]:
        yield Need(NOT_0, inner)
    else:
        yield from _apart(NOT_0, inner)
