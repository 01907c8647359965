"""Predicates in disjunctive normal form: a mask as a union of sets, each cut out by comparisons.

    not (a < b or c == d)                 [[b <= a, c < d], [b <= a, d < c]]       (integers)
    j <= i and (j < 4 or i - j < w)       [[j <= i, j < 4], [j <= i, i - j < w]]

A comparison of floats is not replaced by its opposite (neither `x < y` nor `y <= x` holds of a NaN): it stays as
it is under a `not`, and so does whatever else is not made of comparisons of integers.
"""

from __future__ import annotations

from math import inf

from neptune.ir.dtypes import is_int
from neptune.ir.expr import FALSE, TRUE, Const, Expr, Op, Select, op, rewrite, select, walk

LIMIT = 16
"""A predicate of more disjuncts is not taken apart."""
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_DUAL = {"and": "or", "or": "and"}
_INEQUALITIES = {"eq": ("and", "le", "ge"), "ne": ("or", "lt", "gt")}
"""A comparison of integers as a junction of two others."""


def negation(e: Expr) -> Expr:
    """A predicate that is true where `e` is false, with the `not` as far inside as it goes.

    >>> from neptune.ir.expr import Var
    >>> from neptune.ir.text.printer import print_expr
    >>> print_expr(negation((Var("i") < 3) & (Var("j") < 4)))
    'i >= 3 or j >= 4'
    """
    if e in (TRUE, FALSE):
        return FALSE if e == TRUE else TRUE
    name, args = (e.name, e.args) if isinstance(e, Op) else ("", ())
    if name == "not":
        return args[0]
    if name in _DUAL:
        return op(_DUAL[name], *map(negation, args))
    return op(_OPPOSITE[name], *args) if name in _OPPOSITE and is_int(args[0].dtype) else op("not", e)


def one_mask(e: Expr) -> Expr:
    """The expression with each mask as one select whose other branch is -inf.

    select(j > i, -inf, x)                          →   select(j <= i, x, -inf)
    select(j < n, select(j <= i, x, -inf), -inf)    →   select(j < n and j <= i, x, -inf)

    What would become a `not` stays.
    """

    def fn(x: Expr) -> Expr | None:
        if not isinstance(x, Select):
            return None
        pred, then, other = (one_mask(part) for part in (x.pred, x.then, x.other))
        low = Const(-inf, x.dtype)
        opposite = negation(pred)
        if then == low != other and not any(isinstance(p, Op) and p.name == "not" for p in walk(opposite)):
            pred, then, other = opposite, other, then
        while other == low and isinstance(then, Select) and then.other == low:
            pred, then = op("and", pred, then.pred), then.then
        return select(pred, then, other)

    return rewrite(e, fn)


def disjuncts(e: Expr) -> tuple[tuple[Expr, ...], ...] | None:
    """`e` as alternatives, each a conjunction of comparisons (or of what cannot be taken apart).

    None where there would be more than `LIMIT`. `eq` and `ne` of integers become inequalities.
    """
    name, args = (e.name, e.args) if isinstance(e, Op) else ("", ())
    if name == "not" and (inner := negation(args[0])) != e:
        return disjuncts(inner)
    if name in _INEQUALITIES and is_int(args[0].dtype):
        name, *sides = _INEQUALITIES[name]
        args = tuple(op(side, *args) for side in sides)
    if name not in _DUAL:
        return ((e,),)
    left, right = map(disjuncts, args)
    if left is None or right is None:
        return None
    both = [tuple(dict.fromkeys((*x, *y))) for x in left for y in right] if name == "and" else [*left, *right]
    return tuple(both) if len(both) <= LIMIT else None
