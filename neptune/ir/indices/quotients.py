"""Quotients and remainders of sums of which a part is a multiple: (4*h0 + h1) // 4 is h0 where 0 ≤ h1 < 4."""

from __future__ import annotations

from neptune.ir.dtypes import is_int
from neptune.ir.expr import Expr, Load, Op, loads, rewrite
from neptune.ir.indices.affine import Poly, Scope, nonnegative, number, poly, to_expr, with_remainders, within


def divided(e: Expr, scope: Scope) -> Expr:
    """The expression with every quotient and remainder worked out for which `scope` shows how; also inside loads.

    `k[(h0*4 + h1) // 4, j]` with 0 ≤ h1 < 4 → `k[h0, j]`; `s[(h0*4 + h1) % 4]` → `s[h1]`. Those of data stay: x*4 may
    wrap around.
    """

    def fn(x: Expr) -> Expr | None:
        if isinstance(x, Load):
            return Load(x.buffer, tuple(divided(i, scope) for i in x.index), x.dtype)
        if isinstance(x, Op) and x.name in ("floordiv", "mod") and is_int(x.dtype) and not loads(x):
            a, b = (divided(y, scope) for y in x.args)
            parts = quotient(poly(a), poly(b), scope)
            if parts is not None:
                return to_expr(parts[x.name == "mod"], x.dtype)
        return None

    return rewrite(e, fn)


def quotient(p: Poly, width: Poly, scope: Scope) -> tuple[Poly, Poly] | None:
    """(c, r) with p = c·width + r and provably 0 ≤ r < width; None where that is not found."""
    if len(width.terms) != 1 or not nonnegative(width - number(1), scope):
        return None
    ((factors, scale),) = width.terms
    whole, rest = number(0), number(0)
    for atoms, c in p.terms:
        left = list(atoms)
        for f in factors:
            if f in left:
                left.remove(f)
        term = Poly(((tuple(left), c // scale),))
        if c % scale == 0 and term * width == Poly(((atoms, c),)):
            whole = whole + term
        else:
            rest = rest + Poly(((atoms, c),))
    shown, wider = with_remainders(rest, scope)
    return (whole, rest) if within(shown, reversed(list(wider.ranges)), width, wider) else None
