"""Operands of products of matrices: what is read as it is, and the factors that move from it.

Σp (x[i, p] · s[i]) · w[p, j]     →     (Σp x[i, p] · w[p, j]) · s[i]
Σp (x[i, p] · t[p]) · y[p, j]     →      Σp x[i, p] · (y[p, j] · t[p])        where y is rounded anyway
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from neptune.ir.expr import Cast as Rounding
from neptune.ir.expr import Expr, Load, Op, Var, binary, rewrite, variables

NARROW = ("float16", "bfloat16")
"""Dtypes of operands of the matrix unit to which computed operands are rounded."""
HOLE = Var("_product", "float32")
"""Stands for the result of a product in what is done to it."""


def substitute_hole(e: Expr, value: Expr) -> Expr:
    """What is done to a product, on `value` in the place of its result."""
    return rewrite(e, lambda x: value if isinstance(x, Var) and x.name == HOLE.name else None)


@dataclass(frozen=True)
class Side:
    """An operand of a product: `core` is what is read as it is, if it is that times `factors`."""

    core: Expr | None
    factors: tuple[tuple[str, Expr], ...]
    whole: Expr


def core(e: Expr) -> Expr | None:
    """The expression, if it is an element of a tensor that is narrow enough for the matrix unit."""
    inside = e.arg if isinstance(e, Rounding) else e
    return e if isinstance(inside, Load) and inside.dtype in NARROW else None


def peeled(e: Expr) -> Side:
    """An operand of a product taken apart: factors of a whole row or column are multiplied afterwards."""
    if core(e) is not None:
        return Side(e, (), e)
    if isinstance(e, Op) and e.name in ("mul", "div"):
        left, right = e.args
        if (side := peeled(left)).core is not None:
            return Side(side.core, (*side.factors, (e.name, right)), e)
        if e.name == "mul" and (side := peeled(right)).core is not None:
            return Side(side.core, (*side.factors, ("mul", left)), e)
    return Side(None, (), e)


def product(
    sides: tuple[Expr, Expr], axis: str, narrow: str | None, over: Callable[[Expr], Collection[str]]
) -> tuple[Expr, Expr | None]:
    """What a product over `axis` folds, and what is done to its result (of the hole): factors move where rounding is
    anyway. `narrow`: the dtype of the inputs; `over`: the axes that an expression varies along."""
    peeled_sides = [peeled(e) for e in sides]
    behind: Expr | None = None
    extra: list[list[tuple[str, Expr]]] = [[], []]
    for k, side in enumerate(peeled_sides):
        other = peeled_sides[1 - k]
        moving = [f for f in side.factors if axis in variables(f[1])]
        across = narrow != "float16" and other.core is None
        wider = any(set(over(f)) > set(over(other.whole)) for _, f in moving)
        if side.core is None or (moving and not across) or wider:
            # It is rounded anyway.
            peeled_sides[k] = Side(side.core, (), side.whole)
            continue
        extra[1 - k] += moving
        for name, factor in (f for f in side.factors if f not in moving):
            behind = binary(name, HOLE if behind is None else behind, factor)
        peeled_sides[k] = Side(side.core, (), side.core)
    ends: list[Expr] = []
    for side, more in zip(peeled_sides, extra, strict=True):
        e = side.whole
        for name, factor in (*side.factors, *more):
            e = binary(name, e, factor)
        ends.append(e)
    return binary("mul", *ends), behind
