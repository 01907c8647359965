"""Sums taken apart: into terms with signs and scales, or into summands that keep their form.

(s[i, j] - m[i]) * 0.5 + b   →   (s[i, j], +, * 0.5), (m[i], -, * 0.5), (b, +)
                             →   s[i, j] * 0.5, -m[i] * 0.5, b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neptune.ir.analysis.facts import linear_in
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, binary, op, rebuild
from neptune.ir.ops import SUMS

Leaf = tuple[Expr, bool, tuple[tuple[str, Expr], ...]]


def with_part(e: Expr, k: int, part: Expr) -> Expr:
    """The node `e` with another part `k`."""
    return rebuild(e, tuple(part if n == k else x for n, x in enumerate(e.parts)))


def scaled(a: Expr, b: Expr) -> Expr:
    """a · b without a factor that is 1."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Const) and x.value == 1:
            return other
    return binary("mul", a, b)


def additive(
    e: Expr, involved: Callable[[Expr], bool], negative: bool = False, scale: tuple[tuple[str, Expr], ...] = ()
) -> Iterator[Leaf]:
    """The terms of a sum as (leaf, negative, scale), opened down to what does not depend on r."""
    name = e.name if isinstance(e, Op) else ""
    moving = [k for k, x in enumerate(e.parts) if involved(x)]
    if name in SUMS and moving:
        for k, x in enumerate(e.parts):
            yield from additive(x, involved, negative != (k == 1 and name == "sub"), scale)
    elif len(moving) == 1 and linear_in(e, moving[0]):
        by = tuple((name, x) for k, x in enumerate(e.parts) if k != moving[0])
        yield from additive(e.parts[moving[0]], involved, negative != (name == "neg"), (*by, *scale))
    else:
        yield e, negative, scale


def without(e: Expr, leaves: set[Expr]) -> Expr | None:
    """The sum `e` less some of its terms, which stand there unscaled; None for no other term."""
    if e in leaves:
        return None
    if not isinstance(e, Op) or e.name not in (*SUMS, "neg"):
        return e
    rest = [without(x, leaves) for x in e.args]
    left = [x for x in rest if x is not None]
    if len(left) == len(rest):
        return rebuild(e, tuple(left))
    negative = e.name == "neg" or (e.name == "sub" and rest[0] is None)
    return None if not left else op("neg", left[0]) if negative else left[0]


def summands(e: Expr, involved: Callable[[Expr], bool], bits: int) -> list[Expr]:
    """The terms of a sum whose sides read r, through products, quotients and casts of at least `bits`.

    x·rstd·w + b·w of (x·rstd + b)·w
    """
    if not involved(e):
        return [e]
    each = [summands(x, involved, bits) for x in e.parts]
    if isinstance(e, Op) and e.name in SUMS:
        return [*each[0], *((op("neg", x) for x in each[1]) if e.name == "sub" else each[1])]
    sums = [k for k, terms in enumerate(each) if len(terms) > 1]
    if len(sums) != 1 or not linear_in(e, sums[0]) or (isinstance(e, Cast) and DTYPES[e.dtype].bits < bits):
        return [e]
    return [with_part(e, sums[0], x) for x in each[sums[0]]]
