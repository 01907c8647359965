"""Exponents as sums: their terms, and the sum less some of them.

(s[i, j] - m[i]) * 0.5 + b   →   (s[i, j], +, * 0.5), (m[i], -, * 0.5), (b, +)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Expr, Op, binary, op
from neptune.ir.ops import LOGARITHMS

Leaf = tuple[Expr, bool, tuple[tuple[str, Expr], ...]]


def is_log(e: Expr) -> bool:
    return isinstance(e, Op) and e.name in LOGARITHMS


def additive(
    e: Expr, involved: Callable[[Expr], bool], negative: bool = False, scale: tuple[tuple[str, Expr], ...] = ()
) -> Iterator[Leaf]:
    """The terms of a sum as (leaf, negative, scale), opened down to what does not depend on r."""
    match e:
        case _ if not involved(e):
            yield e, negative, scale
        case Op("add" | "sub", (a, b), _):
            yield from additive(a, involved, negative, scale)
            yield from additive(b, involved, negative != (e.name == "sub"), scale)
        case Op("neg", (a,), _):
            yield from additive(a, involved, not negative, scale)
        case Op("mul", (a, b), _) if not involved(b):
            yield from additive(a, involved, negative, (("mul", b), *scale))
        case Op("mul", (a, b), _) if not involved(a):
            yield from additive(b, involved, negative, (("mul", a), *scale))
        case Op("div", (a, b), _) if not involved(b):
            yield from additive(a, involved, negative, (("div", b), *scale))
        case Cast(a, dtype) if is_float(dtype) and is_float(a.dtype):
            yield from additive(a, involved, negative, scale)
        case _:
            yield e, negative, scale


def without(e: Expr, leaves: set[Expr]) -> Expr:
    """The sum `e` less some of its terms, which stand there unscaled."""
    match e:
        case Op("add" | "sub", (a, b), _):
            if b in leaves:
                return without(a, leaves)
            if a in leaves:
                rest = without(b, leaves)
                return rest if e.name == "add" else op("neg", rest)
            return binary(e.name, without(a, leaves), without(b, leaves))
        case Op("neg", (a,), _):
            return op("neg", without(a, leaves))
        case _:
            return e
