"""Regions: the interval of indices that an access touches while some loops run.

t[i0*4 + i1 + 1] while i1 runs over [0, 4)      [i0*4 + 1, i0*4 + 4]
t[(i1 + 3) % n]                                 [0, n - 1]
t[table[i1]]                                    unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neptune.ir.expr import OPS, Cast, Const, Expr, Op, binary, loads, maximum, minimum, rebuild, variables
from neptune.ir.indices.affine import Poly, Scope, extreme, nonnegative, number, poly, simplify, to_expr


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
    if isinstance(e, Op) and e.name in ("floordiv", "mod"):
        width = e.args[1]
        if variables(width) & set(inner) or not _positive(width, scope):
            return None
        if e.name == "mod":
            return Interval(Const(0, e.dtype), simplify(binary("sub", width, 1)))
    ways, parts = _ways(e), [interval(part, inner, scope) for part in e.parts]
    if not ways or None in parts:
        return None
    # Where it falls, it is lowest at the upper end.
    ends = [(x.lo, x.hi) if up else (x.hi, x.lo) for x, up in zip(parts, ways, strict=True) if x is not None]
    return Interval(*(rebuild(e, ends_of) for ends_of in zip(*ends, strict=True)))


def _ways(e: Expr) -> tuple[bool, ...]:
    """For each part, True if `e` rises with it and False if it falls; () where it may turn round."""
    if isinstance(e, Cast):
        return (True,)
    if not isinstance(e, Op) or OPS[e.name].kind != "arith":
        return ()
    slopes = ("+", "+") if e.name == "floordiv" else tuple(way.removeprefix("0") for way in OPS[e.name].slopes)
    return tuple(way == "+" for way in slopes) if {*slopes} <= {"+", "-"} else ()


def _moves(p: Poly, inner: Sequence[str]) -> bool:
    atoms = [a for m, _ in p.terms for a in m]
    return any(variables(a) & set(inner) or loads(a) for a in atoms)


def _positive(e: Expr, scope: Scope) -> bool:
    return nonnegative(poly(e) - number(1), scope)
