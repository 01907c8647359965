"""Means that are subtracted from what varies, and what stands for them while they are still sums of a part.

    (x[i, j] - s[i] / n)²      ρ = s[i] / n       on the way s[i] / count, the mean of what was folded
    x[i, j] - wx[i] / w[i]     ρ = wx[i] / w[i]   as it is: both are sums of the same elements

where the weights may be negative, and w pass through 0, by their absolute values until all are there.

Any value of ρ will do on the way, as the accumulators can be moved from one to another; only the last one has
to be that of the expression, and it is: the count is then n.  A mean of what was folded stays within the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from neptune.fusion.prove import sign
from neptune.fusion.repairs.roles import ALL, COUNT, Mean, Problem, Roles
from neptune.fusion.repairs.terms import with_part
from neptune.ir.analysis.facts import Degree, affine_in, degree_of, linear_in
from neptune.ir.dtypes import is_float, is_int
from neptune.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    binary,
    cast,
    logical_and,
    ne,
    op,
    rewrite,
    select,
    walk,
)
from neptune.ir.ops import SUMS
from neptune.ir.text.printer import print_expr


def find_shifts(e: Expr, roles: Roles, extent: Expr) -> tuple[tuple[Mean, ...], list[Problem]]:
    """The ρ of an expression, in order of appearance, and why what is subtracted elsewhere is none."""
    centres: list[Expr] = []
    problems: list[Problem] = []
    for part in _subtracted(e, roles):
        means = _means(part, roles)
        if means is None:
            problems.append(Problem("moments", part, "it is no mean, that is no sum over a count or another sum"))
        else:
            centres += means
    shifts: list[Mean] = []
    for k, value in enumerate(dict.fromkeys(centres)):
        shift = _shift(k, value, roles, extent, has_select(e))
        if isinstance(shift, Problem):
            problems.append(shift)
        else:
            shifts.append(shift)
    return tuple(shifts), list(dict.fromkeys(problems))


def _subtracted(e: Expr, roles: Roles) -> Iterator[Expr]:
    """Yield the terms that depend on r alone and are added to, or subtracted from, terms that vary."""
    if not roles.reads(e):
        return
    if isinstance(e, Op) and e.name in ("add", "sub") and roles.varies(e):
        a, b = e.args
        for part, other in ((a, b), (b, a)):
            if roles.reads(part) and not roles.varies(part):
                yield part
            elif roles.reads(part) and not roles.reads(other):
                # g·x - g·ρ, where g varies: all that reads r in a product must be such a part.
                inside = list(_fixed(part, roles))
                if all(_means(x, roles) for x in inside):
                    yield from inside
    for x in _arguments(e):
        if roles.varies(x):
            yield from _subtracted(x, roles)


def _fixed(e: Expr, roles: Roles) -> Iterator[Expr]:
    """The largest parts of `e` that read r and do not vary."""
    if not roles.reads(e):
        return
    if not roles.varies(e):
        yield e
        return
    for x in _arguments(e):
        yield from _fixed(x, roles)


def _arguments(e: Expr) -> tuple[Expr, ...]:
    """The parts through which `e` may be a polynomial."""
    if isinstance(e, Select):
        return e.parts[1:]
    power = isinstance(e, Op) and e.name == "pow"
    return e.parts[:1] if power else tuple(x for k, x in enumerate(e.parts) if affine_in(e, k))


def _means(e: Expr, roles: Roles) -> list[Expr] | None:
    """The means that `e` is a polynomial in: `s / n + eps` has one, s / n."""
    if degree(e, roles) in (0, 1):
        return [e]
    moving = [k for k, x in enumerate(e.parts) if roles.reads(x)]
    parts = [_means(e.parts[k], roles) if affine_in(e, k) else None for k in moving]
    means = [part for part in parts if part is not None]
    return [x for part in means for x in part] if means and len(means) == len(parts) else None


_NO_DEGREE = (-math.inf, math.inf)


def degree(e: Expr, roles: Roles) -> float | None:
    """Return the degree of `e` in its sums: 1 for a multiple of a sum, 0 for a quotient and where it reads no r.

    None if it is no quotient of sums.
    """

    def known(x: Expr) -> Degree | None:
        if not roles.reads(x):
            return 0.0, 0.0
        pred = roles.predecessor(x)
        if pred is not None and pred.reducer == "sum" and not pred.repaired and is_float(x.dtype):
            return 1.0, 1.0
        if isinstance(x, Op) and x.name == "div" and (bare := _without_eps(x.args[1], roles)) != x.args[1]:
            return degree_of(binary("div", x.args[0], bare), known)
        one_sided = isinstance(x, Op) and x.name in SUMS and not all(map(roles.reads, x.args))
        rational = any(affine_in(x, k) for k in range(len(x.parts)))
        return None if rational and not one_sided else _NO_DEGREE

    low, high = degree_of(e, known)
    return low if low == high else None


def _without_eps(e: Expr, roles: Roles) -> Expr:
    """A divisor less what is added to keep it from 0: where its sign is known the quotient only comes nearer to 0."""
    if isinstance(e, Op) and e.name == "add" and roles.reads(e.args[0]) != roles.reads(e.args[1]):
        return e.args[0] if roles.reads(e.args[0]) else e.args[1]
    return e


def _divisors(e: Expr, roles: Roles) -> list[Expr]:
    """Return the divisors in `e` that still change."""
    divisors = (x.args[1] for x in walk(e) if isinstance(x, Op) and x.name == "div" and roles.reads(x.args[1]))
    return list(dict.fromkeys(divisors))


def _shift(k: int, value: Expr, roles: Roles, extent: Expr, masked: bool) -> Mean | Problem:
    """Return how a mean is followed, or why it is not: its divisor is unknown, or nothing keeps it from 0 / 0."""
    load = Load(f"%shift{k}", (), value.dtype)
    running: Expr | None = value
    if degree(value, roles) == 1:
        running = _per_element(value, roles, extent)
    if running is None:
        reason = f"it is not divided by the number of elements, {print_expr(extent)}, nor by another sum of them"
        return Problem("moments", value, reason, "where elements are masked, divide by the sum of the mask")
    divisors = _divisors(value, roles)
    if not divisors:
        return Mean(load, value, running)
    if all(sign(x, roles) is not None for x in divisors):
        # Before any weight there is no mean: the shift stays.
        return Mean(load, value, _where_defined(running, divisors, load))
    (by, *more) = divisors
    pred = roles.predecessor(by)
    unknown = Problem(
        "moments",
        value,
        "what it divides by may pass through 0 on the way",
        "abs, exp or a square of the weights says their sign",
    )
    if more or pred is None or pred.value is None:
        return unknown
    helpers: list[tuple[Load, Expr]] = []
    table: dict[Expr, Expr] = {}
    for x in dict.fromkeys(x for x in walk(value) if isinstance(x, Load) and x.buffer in roles.buffers):
        other = roles.predecessor(x)
        if other is None or other.value is None or other.value.dtype != x.dtype:
            return unknown
        turned = select(binary("lt", pred.value, Const(0.0, by.dtype)), op("neg", other.value), other.value)
        size = op("abs", other.value) if x == by else turned
        table[x] = helper = Load(f"%{x.buffer}", (), x.dtype)
        helpers.append((helper, size))
    means = rewrite(running, table.get)
    on_the_way = _where_defined(means, [table[by]], load)
    # What is masked throughout has no mean, and does not look at it.
    last = _where_defined(value, divisors, load) if masked else value
    return Mean(load, value, select(binary("lt", COUNT, ALL), on_the_way, last), tuple(helpers))


def has_select(e: Expr) -> bool:
    """True for what a mask may leave out."""
    return any(isinstance(x, Select) for x in walk(e))


def _where_defined(running: Expr, divisors: list[Expr], load: Load) -> Expr:
    return select(logical_and(*(ne(x, Const(0.0, x.dtype)) for x in divisors)), running, load)


def _per_element(value: Expr, roles: Roles, extent: Expr) -> Expr | None:
    """A multiple of a sum, as if all elements were like those folded so far; None where it is no share of theirs."""
    if (once := _counted(value, extent)) is not None:
        return once
    sums = [p.value for x in walk(value) if (p := roles.predecessor(x)) is not None and p.value is not None]
    if not _reciprocal(value, extent) and not any(_counted(v, extent) is not None for v in sums):
        return None
    share = binary("div", cast(ALL, value.dtype), cast(COUNT, value.dtype))
    return binary("mul", value, share)


def _reciprocal(e: Expr, extent: Expr) -> bool:
    """True where `e` is multiplied by 1 over a constant number of elements."""
    if not isinstance(extent, Const):
        return False
    parts = (x for y in walk(e) if isinstance(y, Op) and y.name == "mul" for x in y.args)
    return any(isinstance(x, Const) and abs(x.value * extent.value - 1) < 1e-5 for x in parts)


def _counted(e: Expr, extent: Expr) -> Expr | None:
    """`e` with the number of elements, which it is divided by, replaced by the count; None where it is not so."""
    if isinstance(e, Op) and e.name == "div" and is_number(e.args[1], extent):
        return binary("div", e.args[0], cast(COUNT, e.dtype))
    for k, x in enumerate(e.parts):
        if linear_in(e, k) and (inner := _counted(x, extent)) is not None:
            return with_part(e, k, inner)
    return None


def is_number(e: Expr, extent: Expr) -> bool:
    """True for the number of elements, `extent`, as an expression says it."""
    if isinstance(e, Cast):
        return is_number(e.arg, extent)
    if isinstance(extent, Const):
        return isinstance(e, Const) and float(e.value) == float(extent.value)
    return _exact(e) == _exact(extent)


def _exact(e: Expr) -> Expr:
    """An integer without the casts that give its parts more room: all of it in 64 bits."""

    def of(x: Expr) -> Expr | None:
        if isinstance(x, Cast) and is_int(x.dtype) and is_int(x.arg.dtype):
            return _exact(x.arg)
        return cast(x, "int64") if isinstance(x, Var | Const | Load) and is_int(x.dtype) else None

    return rewrite(e, of)
