"""64-bit arithmetic of positions and sizes in 32 bits, where the values fit whatever the sizes are.

torch counts positions in int64, loops and the bounds that masks are solved for are int32. So rows of the table compute
what torch does, and a stage keeps the 32 bits that are proved:

    cast(i64, j) <= cast(i64, i) + (cast(i64, n) - cast(i64, m))   →   j <= i + (n - m)     at most n - 1
    cast(i64, j) * 10000                                           →   as it is: j may be 2³⁰

Sizes of a Program are int32, of at least 0.
"""

from __future__ import annotations

from neptune.frontend.assemble import Axis, Read
from neptune.ir.dtypes import DTYPES, holds
from neptune.ir.expr import Cast, Const, Expr, Op, Select, Var, cast, op, select
from neptune.ir.indices.affine import Poly, number, poly, to_expr
from neptune.ir.indices.widths import ARITHMETIC, Interval, interval

WIDE, SMALL = "int64", "int32"
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


def wide(e: Expr) -> Expr:
    """An expression of sizes in int64: it is computed in that, so that products fit.

    >>> from neptune.ir.text.printer import print_expr
    >>> print_expr(wide(Var("n") * Var("m")))
    'cast(i64, n) * cast(i64, m)'
    """
    if isinstance(e, Op):
        return op(e.name, *map(wide, e.args))
    return cast(e, WIDE)


def narrowed(e: Expr) -> Expr:
    """The expression with what fits computed in int32."""
    if isinstance(e, Read):
        index = tuple(_uncast(narrowed(i)) for i in e.index)
        return e if index == e.index else Read(e.buffer, index, e.dtype, source=e.source)
    parts = tuple(map(narrowed, e.parts))
    e = e if all(a is b for a, b in zip(parts, e.parts, strict=True)) else e.with_parts(parts)
    if isinstance(e, Cast):
        inner = e.arg
        exact = isinstance(inner, Cast) and inner.dtype == WIDE and inner.arg.dtype == SMALL
        return cast(inner.arg, e.dtype) if exact and isinstance(inner, Cast) else e
    small = [_small(a) for a in (e.parts[1:] if isinstance(e, Select) else e.parts)]
    kept = [s for s in small if s is not None]
    if not kept or len(kept) < len(small):
        return e
    if isinstance(e, Select):
        return e if all(isinstance(s, Const) for s in kept) else cast(select(e.pred, *kept), WIDE)
    if isinstance(e, Op) and e.name in COMPARED:
        return op(e.name, *kept)
    if isinstance(e, Op) and e.name in ARITHMETIC:
        smaller = op(e.name, *kept)
        return cast(smaller, WIDE) if fits(smaller) else e
    return e


def _small(e: Expr) -> Expr | None:
    """A 64-bit value that is a 32-bit one, as that."""
    if e.dtype != WIDE:
        return None
    if isinstance(e, Const):
        return Const(e.value, SMALL) if holds(SMALL, (int(e.value), int(e.value))) else None
    return e.arg if isinstance(e, Cast) and e.arg.dtype == SMALL else None


def _uncast(e: Expr) -> Expr:
    return e.arg if isinstance(e, Cast) and e.dtype == WIDE and e.arg.dtype == SMALL else e


# --- extremes ------------------------------------------------------------------------------------


def fits(e: Expr) -> bool:
    """True where an int32 expression, whose parts fit, does at all positions and sizes.

    >>> n = Var("n")
    >>> i, j = Axis("i", hi=n), Axis("j", hi=n)
    >>> fits(i - j), fits(i * 2), fits(i % 8 * 2)
    (True, False, True)
    """
    return holds(SMALL, extremes(e))


def extremes(e: Expr) -> Interval:
    """The least and the largest value of an integer expression: positions that stand alone are at an end of their
    axis, so that sizes cancel; what is left is each term's own."""
    p = poly(e)
    return interval(_end(p, False), _known)[0], interval(_end(p, True), _known)[1]


def _known(e: Expr) -> Interval | None:
    if isinstance(e, Axis):
        return extremes(e.lo)[0], max(extremes(e.hi)[1] - 1, 0)
    return (0, int(DTYPES[SMALL].highest)) if isinstance(e, Var) else None


def _end(p: Poly, largest: bool) -> Expr:
    alone = {atoms[0] for atoms, _ in p.terms if len(atoms) == 1 and isinstance(atoms[0], Axis)}
    alone -= {a for atoms, _ in p.terms if len(atoms) > 1 for a in atoms}
    for atoms, c in p.terms:
        if len(atoms) == 1 and atoms[0] in alone and isinstance(atoms[0], Axis):
            axis = atoms[0]
            end = poly(axis.hi) - number(1) if (c > 0) == largest else poly(axis.lo)
            p = p - Poly(((atoms, c),)) + end.scaled(c)
    return to_expr(p)
