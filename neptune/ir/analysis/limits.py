"""The values of an expression where what it reads is infinite, extreme or 0: a few numbers stand for all.

    exp(s - m)    s in {-inf, 1, …}, m finite            0, or finite
    m * 2         m the lowest number of its dtype       -inf
    1 / l         l in {0, 1, …}, where it is defined    finite

An operator is applied to numbers that stand for its arguments, by its column `value`.  What it makes of ordinary
numbers is ordinary again, and only powers of e leave them: the ordinary numbers of `ORDINARY` are so large that exp of
them is infinite, those of `SMALL` so small that nothing made of a few of them is.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan

from neptune.ir.analysis.fold import fold
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr
from neptune.ir.ops import OPS, SIGNS, OpInfo, demand

Values = frozenset[float]
EXTREME = DTYPES["float32"].highest
"""The largest number of any dtype: one more bit is infinite."""
_MOST, _PAST = 2.0**100, 2.0**65


def _both_signs(*sizes: float) -> Values:
    return frozenset(sign * x for x in sizes for sign in (1, -1))


ORDINARY = _both_signs(0.0, 1 / _MOST, 1.0, _MOST)
SMALL = _both_signs(0.0, 0.5, 1.0)


def of_sign(values: Values, sign: str | None) -> Values:
    """Those of the values that a sign allows."""
    allowed = SIGNS[sign]
    return frozenset(v for v in values if allowed.lo <= v <= allowed.hi and (v != 0 or not allowed.nonzero))


def is_finite(values: Iterable[float]) -> bool:
    """True if none of the values is infinite or NaN."""
    return all(map(math.isfinite, values))


def values_of(e: Expr, known: Callable[[Expr], Values | None], *, defined: bool = False) -> Values:
    """The values of `e`, given those of its loads; with `defined`, of operators where they are defined alone.

    >>> from neptune.ir.expr import Load, op
    >>> x = Load("x", (), "float32")
    >>> sorted(values_of(op("exp", x), lambda e: frozenset({-inf, 0.0}) if e == x else None))
    [0.0, 1.0]
    """
    return fold(
        e,
        lambda x: frozenset({float(x.value)}) if isinstance(x, Const) else SMALL | {nan},
        lambda x, of: _applied(OPS[x.name], of, defined),
        lambda _, a, b: a | b,
        cast=_converted,
        known=known,
    )


def _applied(info: OpInfo, values: Sequence[Values], defined: bool) -> Values:
    if info.value is None:
        truth = info.kind in ("compare", "logic") or all(map(is_finite, values))
        return SMALL if truth else SMALL | {nan}
    corners = itertools.product(*values)
    return _few({_at(info, args) for args in corners if not defined or _inside(info, args)})


def _inside(info: OpInfo, args: tuple[float, ...]) -> bool:
    needs = (demand(need, args[-1]) for need in info.domain)
    return all(not need or getattr(operator, need)(a, 0) for a, need in zip(args, needs, strict=False))


def _at(info: OpInfo, args: tuple[float, ...]) -> float:
    """The number that stands for the value at numbers that stand for the arguments."""
    assert info.value is not None
    if any(a != a for a in args):
        return nan
    try:
        value = float(info.value(*args))
    except ValueError:
        return nan
    except OverflowError:
        return inf
    size, usual = abs(value), all(abs(a) <= _MOST for a in args)
    if size in (0.0, inf) or size != size:
        return value
    if usual and (info.kind == "arith" or info.name == "pow" or size <= 2 * _MOST):
        size = min(max(size, 1 / _MOST), _MOST)
    elif usual or size >= EXTREME * (1 + 2.0**-25):
        size = inf
    elif size > _PAST:
        size = EXTREME
    return math.copysign(size, value)


def _converted(e: Cast[Expr], values: Values) -> Values:
    """A narrower dtype does not hold the largest number of a wider one; one that saturates, no number beyond it."""
    row = DTYPES[e.dtype]
    if row.saturates:
        return frozenset(min(max(v, row.lowest), row.highest) if v == v else v for v in values)
    narrower = row.bits < DTYPES[e.arg.dtype].bits
    return frozenset(math.copysign(inf, v) if narrower and abs(v) == EXTREME else v for v in values)


def _few(values: Iterable[float]) -> Values:
    """The values without ordinary ones that lie between two others of their sign."""
    numbers = set(values)
    usual = [v for v in numbers if 0 < abs(v) <= _MOST]
    ends = {f(side) for side in ([v for v in usual if v > 0], [v for v in usual if v < 0]) if side for f in (min, max)}
    return frozenset(numbers.difference(usual) | ends)
