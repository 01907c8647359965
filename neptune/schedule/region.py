"""Regions: the interval of indices that an access touches while some loops run.

t[i0*4 + i1 + 1] while i1 runs over [0, 4)      [i0*4 + 1, i0*4 + 4]
t[(i1 + 3) % n]                                 [0, n - 1]
t[table[i1]]                                    unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neptune.ir.affine import Poly, Scope, extreme, nonnegative, number, poly, simplify, to_expr
from neptune.ir.expr import Cast, Const, Expr, Op, binary, loads, maximum, minimum, variables


@dataclass(frozen=True)
class Interval:
    """lo ≤ index ≤ hi, both over the loops outside of the region."""

    lo: Expr
    hi: Expr

    @property
    def length(self) -> Expr:
        return simplify(binary("add", binary("sub", self.hi, self.lo), 1))


def hull(parts: Sequence[Interval], scope: Scope) -> Interval:
    """The smallest interval around all, by comparison where that is decided, else by min and max."""
    lo, hi = parts[0].lo, parts[0].hi
    for p in parts[1:]:
        if not _at_most(lo, p.lo, scope):
            lo = p.lo if _at_most(p.lo, lo, scope) else minimum(lo, p.lo)
        if not _at_most(p.hi, hi, scope):
            hi = p.hi if _at_most(hi, p.hi, scope) else maximum(hi, p.hi)
    return Interval(lo, hi)


def _at_most(a: Expr, b: Expr, scope: Scope) -> bool:
    return nonnegative(poly(b) - poly(a), scope)


def interval(e: Expr, inner: Sequence[str], scope: Scope) -> Interval | None:
    """Bounds of an index while the loops `inner` (innermost first) run; None where there are none."""
    if not variables(e) & set(inner) and not any(x.buffer for x in loads(e)):
        return Interval(e, e)
    low, high = (extreme(poly(e), inner, scope, largest=up) for up in (False, True))
    if low is not None and high is not None and not _moves(low, inner) and not _moves(high, inner):
        return Interval(to_expr(low, e.dtype), to_expr(high, e.dtype))
    match e:
        case Cast(arg, dtype):
            part = interval(arg, inner, scope)
            return None if part is None else Interval(part.lo.astype(dtype), part.hi.astype(dtype))
        case Op("mod", (_, width), _) if not variables(width) & set(inner):
            return Interval(Const(0, e.dtype), simplify(binary("sub", width, 1)))
        case Op("floordiv", (a, width), _) if not variables(width) & set(inner) and _positive(width, scope):
            part = interval(a, inner, scope)
            return None if part is None else Interval(*(binary("floordiv", x, width) for x in (part.lo, part.hi)))
        case Op("add" | "min" | "max" as op, (a, b), _):
            one, two = interval(a, inner, scope), interval(b, inner, scope)
            if one is None or two is None:
                return None
            return Interval(binary(op, one.lo, two.lo), binary(op, one.hi, two.hi))
        case Op("sub", (a, b), _):
            one, two = interval(a, inner, scope), interval(b, inner, scope)
            return None if one is None or two is None else Interval(one.lo - two.hi, one.hi - two.lo)
        case _:
            return None


def _moves(p: Poly, inner: Sequence[str]) -> bool:
    atoms = [a for m, _ in p.terms for a in m]
    return any(variables(a) & set(inner) or loads(a) for a in atoms)


def _positive(e: Expr, scope: Scope) -> bool:
    return nonnegative(poly(e) - number(1), scope)
