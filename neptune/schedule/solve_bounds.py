"""Solve a mask for a loop variable: on which iterations is it true somewhere, on which everywhere?

    j0*BN + j1 <= i0*BM + i1 + N     somewhere: j0 < (…)     everywhere: j0 < (…)         one Bound
    j < 4 or i - j < w, j <= i       [0, …) and […, …)                                   two Ranges

A predicate is a union of sets (`neptune.ir.indices.normal`), a set is cut out by comparisons. A comparison that is
linear in the loop variable, or equal to one that is (j // C == i // C), bounds it from one side: at the extremes of all
that varies within an iteration. One that cannot be solved leaves its set open: visited wherever the others say so,
clean nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from neptune.ir.dtypes import holds as in_dtype
from neptune.ir.dtypes import is_int
from neptune.ir.expr import (
    TRUE,
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    conjuncts,
    loads,
    logical_and,
    maximum,
    minimum,
    select,
    variables,
    walk,
)
from neptune.ir.indices.affine import (
    Poly,
    Scope,
    as_nonnegative,
    linear,
    multiplied_out,
    nonnegative,
    number,
    poly,
    quotients,
    to_expr,
)
from neptune.ir.indices.extremes import Extremes
from neptune.ir.indices.normal import disjuncts
from neptune.ir.indices.widths import ARITHMETIC, LARGEST, NEARLY_ALL, Known, fits, interval, usual, widened
from neptune.ir.program import ZERO, For
from neptune.ir.text.printer import print_expr

MOST = 4
"""A mask of more alternatives is not cut out."""
HIGHEST = Const(2**31 - 1, "int64")
"""No loop runs further."""
FAR = 1 << 40
"""Further than any index, and small enough to be added to."""
LONGEST = 1 << 16
"""No tile is longer."""
FARTHEST = (1 << 60, 1 << 30, 1 << 29, 1 << 24, 1 << 20)
"""How far data may lie from zero where arithmetic on them has room: the first that fits."""


@dataclass(frozen=True)
class Bound:
    """One comparison solved for the loop variable: from which (up to which) iteration it holds.

    `somewhere`, `everywhere`: exclusive upper, or inclusive lower, bounds of the iterations on which it is true for
    some element, for all. `fact`: what is known where it is true for all.
    """

    upper: bool
    somewhere: Expr
    everywhere: Expr
    fact: Expr = TRUE

    @property
    def ends(self) -> tuple[Expr, Expr]:
        return self.somewhere, self.everywhere


@dataclass(frozen=True)
class Alternative:
    """A set of iterations between bounds; `open` where some of what cuts it out could not be solved."""

    bounds: tuple[Bound, ...]
    open: bool = False


@dataclass(frozen=True)
class Solved:
    """One conjunct of a mask or a guard as a union of sets. `skips`: a mask that is absorbed, no guard."""

    pred: Expr
    alternatives: tuple[Alternative, ...]
    skips: bool


def solve(pred: Expr, loop: For, inner: Sequence[str], extremes: Extremes, skips: bool) -> Solved | None:
    """`pred` solved for `loop`, while the variables `inner` (innermost first) run; None where that says nothing."""
    sets = disjuncts(pred)
    if sets is None:
        return None
    solved = [_alternative(parts, loop, inner, extremes) for parts in sets]
    alternatives = _merged(solved)
    useful = all(a.bounds for a in alternatives) or any(not a.open for a in alternatives)
    if not useful or len(alternatives) > MOST or not any(a.bounds for a in alternatives):
        return None
    return Solved(pred, tuple(alternatives), skips)


def _alternative(parts: Sequence[Expr], loop: For, inner: Sequence[str], extremes: Extremes) -> Alternative:
    bounds = [_with_room(p, loop, inner, extremes) for p in parts]
    return Alternative(tuple(b for b in bounds if b is not None), any(b is None for b in bounds))


def _merged(alternatives: list[Alternative]) -> list[Alternative]:
    """Alternatives that are one bound each, all from one side, are one bound: j < p or j <= i is j < max(p, i + 1)."""
    for upper in (True, False):
        single = [a for a in alternatives if not a.open and len(a.bounds) == 1 and a.bounds[0].upper == upper]
        if len(single) > 1:
            widest = maximum if upper else minimum
            some = reduce(widest, [a.bounds[0].somewhere for a in single])
            every = reduce(widest, [a.bounds[0].everywhere for a in single])
            rest = [a for a in alternatives if a not in single]
            alternatives = [Alternative((Bound(upper, some, every),)), *rest]
    return alternatives


# --- one comparison ----------------------------------------------------------------------------


def _with_room(pred: Expr, loop: For, inner: Sequence[str], extremes: Extremes) -> Bound | None:
    """One comparison solved for the loop as far as its arithmetic on data leaves its dtype for no data; for other data
    the comparison, which wraps around, decides about every iteration."""
    bound = _bound(pred, loop, inner, extremes)
    if bound is None or (fits := room(pred, inner, extremes)) == TRUE:
        return bound
    if fits is None:
        return None
    first, last = cast(ZERO, bound.somewhere.dtype), cast(loop.hi, bound.somewhere.dtype)
    all_of_them, none = (last, first) if bound.upper else (first, last)
    return Bound(
        bound.upper, select(fits, bound.somewhere, all_of_them), select(fits, bound.everywhere, none), bound.fact
    )


def room(pred: Expr, inner: Sequence[str], extremes: Extremes) -> Expr | None:
    """For which data no arithmetic of a comparison leaves its dtype, while `inner` run; None where for none to speak
    of, or where that is not known."""
    scope = extremes.scope
    counted = [x for x in _counted(pred) if _wild(x, scope)]
    if not counted:
        return TRUE
    sizes = usual(scope, NEARLY_ALL)

    def within(far: int) -> Known:
        return lambda e: (-far, far) if _is_wild(e, scope) else sizes(e)

    def hold(known: Known) -> bool:
        return all(in_dtype(x.dtype, interval(x, known)) for x in counted)

    if hold(sizes):
        return TRUE
    far = next((far for far in FARTHEST if hold(within(far))), None)
    parts = as_nonnegative(pred)
    if far is None or parts is None or len(parts) != 1:
        return None
    ends = [extremes.of(parts[0], inner, largest=largest) for largest in (True, False)]
    if None in ends:
        return None
    atoms = {x for p in ends if p is not None for m, _ in p.terms for a in m for x in walk(a)}
    data = sorted((x for x in atoms if _is_wild(x, scope)), key=print_expr)
    each = [binary("le", x, far) for x in data] + [binary("ge", x, -far) for x in data]
    return logical_and(*each)


def _is_wild(e: Expr, scope: Scope) -> bool:
    return isinstance(e, Load | Var) and is_int(e.dtype) and _wild(e, scope)


def _bound(pred: Expr, loop: For, inner: Sequence[str], extremes: Extremes) -> Bound | None:
    """One comparison solved for the loop; None where it is not linear in its variable with a known sign."""
    var = loop.var
    parts = as_nonnegative(pred)
    if parts is None or len(parts) != 1:
        return None
    p = reduced(_unfolded(parts[0], frozenset([var, *inner]), var, extremes.scope))
    most, least = (extremes.of(p, inner, largest=largest) for largest in (True, False))
    if most is None or least is None:
        return None
    a, b = linear(most, var), linear(least, var)
    if a is None or b is None or a[0].terms != b[0].terms:
        return None
    step, scope = a[0], extremes.scope
    # Nothing is proved from what data says.
    fact = TRUE if any(loads(x) for m, _ in least.terms for x in m) else at_least_zero(least)
    if not step.terms:
        return _condition(most, least, loop.hi, scope)
    if nonnegative(step.scaled(-1) - number(1), scope):  # -step·var + rest ≥ 0: an upper bound
        width = step.scaled(-1)
        some, every = (_floor_div(rest + width, width, scope) for rest in (a[1], b[1]))
        return None if some is None or every is None else Bound(True, some, every, fact)
    if nonnegative(step - number(1), scope):  # step·var + rest ≥ 0: a lower bound
        some, every = (_floor_div(rest.scaled(-1) + step - number(1), step, scope) for rest in (a[1], b[1]))
        return None if some is None or every is None else Bound(False, some, every, fact)
    return None


def reduced(p: Poly) -> Poly:
    """An equivalent of p ≥ 0 with smaller numbers: 30·i - 30·j + 7 ≥ 0 is i - j ≥ 0."""
    factors = [c for m, c in p.terms if m]
    common = gcd(*factors)
    return Poly(tuple((m, c // common) for m, c in p.terms if m or c // common)) if common > 1 else p


def _condition(most: Poly, least: Poly, end: Expr, scope: Scope) -> Bound | None:
    """Return the bound of a condition without the variable: it holds on all iterations or on none."""
    some, every = (holds(p, scope) for p in (most, least))
    if some is None or every is None:
        return None
    return Bound(True, select(some, end, ZERO), select(every, end, ZERO))


def _unfolded(p: Poly, moving: frozenset[str], var: str, scope: Scope) -> Poly:
    """`p` ≥ 0 without a `//` around `var`: x // d <= r is x < (r + 1)·d, and x // d >= r is x >= r·d."""
    for quotient, sign in quotients(p):
        if var not in variables(quotient):
            continue
        rest, width = p - poly(quotient).scaled(sign), poly(quotient.args[1])
        free = not any(var in variables(a) for m, _ in (*rest.terms, *width.terms) for a in m)
        if not free or variables(quotient.args[1]) & moving or not nonnegative(width - number(1), scope):
            return p
        return multiplied_out(p, quotient, sign)
    return p


def _floor_div(numerator: Poly, divisor: Poly, scope: Scope) -> Expr | None:
    """max(0, numerator) // divisor; clamped first, since generated code divides towards zero. None: as `exact`."""
    top = exact(numerator, scope)
    if top is None:
        return None
    top = top if nonnegative(numerator, scope) else maximum(cast(ZERO, top.dtype), top)
    quotient = binary("floordiv", top, to_expr(divisor))
    return cast(minimum(quotient, HIGHEST), "int32") if quotient.dtype == "int64" else quotient


def holds(p: Poly, scope: Scope) -> Expr | None:
    """p ≥ 0 whatever its atoms hold; a comparison of two of them where it is no more than that. None: as `exact`."""
    sides = {c: m[0] for m, c in p.terms if len(m) == 1}
    number_of = sum(c for m, c in p.terms if not m)
    if sides.keys() == {1, -1} and number_of in (0, -1) and len(p.terms) == 2 + (number_of != 0):
        # a - b - 1 >= 0 is b < a, whatever has room for a - b.
        return binary("lt" if number_of else "le", sides[-1], sides[1])
    value = exact(p, scope)
    return None if value is None else binary("ge", value, 0)


def exact(p: Poly, scope: Scope) -> Expr | None:
    """`p` in a dtype that it cannot leave, whatever a scalar argument or a tensor holds: int32 where that has room for
    usual sizes. None where int64 has no room for some of the largest sizes.

    The mask may compare without computing: j < length is true of all j where the length is 2**31 - 1, and must not
    become (2**31 - 1 + BN - 1) // BN.
    """
    atoms = {a for m, _ in p.terms for a in m}
    alone = [c for _, c in p.terms] == [1] and len(atoms) == 1
    wild = {a for a in atoms if _wild(a, scope)}
    if alone or (not wild and fits(to_expr(p), usual(scope)) and to_expr(p).dtype == "int32"):
        return to_expr(p)
    far = {a for a in wild if a.dtype == "int64"}
    if len(far) > 1:
        # There is no clamping two numbers of int64 that are added.
        return None
    tame = {a: maximum(minimum(a, FAR), -FAR) for a in far}
    terms = Poly(tuple((tuple(tame.get(a, a) for a in m), c) for m, c in p.terms))
    known = usual(scope, LARGEST, LONGEST)
    others = Poly(tuple((m, c) for m, c in p.terms if far.isdisjoint(m)))
    # At ±FAR, a number must decide the sign of the sum as it would beyond.
    cut = tame and max(map(abs, interval(to_expr(others, "int64"), known))) >= FAR
    result = widened(to_expr(terms, "int64"), known)
    return None if cut or not _has_room(result, known) else result


def _has_room(e: Expr, known: Known) -> bool:
    """True where no part of `e`, data included, leaves int64."""
    return all(in_dtype(x.dtype, interval(x, known)) for x in _counted(e))


def _counted(e: Expr) -> list[Expr]:
    """The integer arithmetic of an expression, itself included."""
    return [x for x in walk(e) if isinstance(x, Op) and is_int(x.dtype) and x.name in ARITHMETIC]


def _wild(e: Expr, scope: Scope) -> bool:
    """True for what may have any value: neither an index nor a size."""
    tame = scope.ranges.keys() | scope.at_least.keys()
    return any(isinstance(x, Load) or (isinstance(x, Var) and x.name not in tame) for x in walk(e))


def at_least_zero(p: Poly) -> Expr:
    """p ≥ 0 with every term on the side where it is positive."""
    left, right = (tuple((m, s * c) for m, c in p.terms if s * c > 0) for s in (-1, 1))
    return binary("le", to_expr(Poly(left)), to_expr(Poly(right)))


def affine_guards(when: Expr | None, var: str) -> list[Poly]:
    """Those conjuncts of a guard that do not depend on `var`, as polynomials ≥ 0."""
    return [p for c in conjuncts(when) if var not in variables(c) for p in as_nonnegative(c) or []]
