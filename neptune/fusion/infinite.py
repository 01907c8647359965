"""Maxima that start from -inf (minima from inf), as many write them by hand.

The difference of two such starts is NaN, where nothing, or only -inf, was folded in yet.  A rolled m is therefore
read as max(m, lowest) in the exponents of the loop::

    exp(s[i, j] - m[i])                 →   exp(s[i, j] - max(m[i], lowest))
    exp(m_prev[i] - m[i])               →   exp(max(m_prev[i], lowest) - max(m[i], lowest))

The two differ at m = -inf alone.  If that is final, every element of m is -inf, and the exponent that the repair
was proved for is -inf + inf: the expression itself is undefined there.  If it is not, what is folded on the way is
exp(-inf - lowest) = 0.  What waits behind the loop, and every other reader, sees m itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from neptune.fusion.roles import ObligationRecord, previous
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Load, binary, rewrite

START = {"max": -math.inf, "min": math.inf}


def starts_infinite(reducer: str, init: Expr) -> bool:
    """True for a maximum from -inf and a minimum from inf."""
    return isinstance(init, Const) and START.get(reducer) == init.value


def bounded(e: Expr, reducers: dict[str, str]) -> Expr:
    """`e` with every read of these accumulators (and of their previous values) kept finite."""
    if not reducers:
        return e

    def read(x: Expr) -> Expr | None:
        reducer = reducers.get(x.buffer) if isinstance(x, Load) else None
        if reducer is None:
            return None
        row = DTYPES[x.dtype]
        return binary(reducer, x, Const(row.lowest if reducer == "max" else row.highest, x.dtype))

    return rewrite(e, read)


def with_previous(reducers: dict[str, str]) -> dict[str, str]:
    """The same for the buffers that hold the previous values."""
    return reducers | {previous(Load(b, (), "float32")).buffer: r for b, r in reducers.items()}


def record(buffers: Collection[str]) -> ObligationRecord:
    """What the reading rests on."""
    names = ", ".join(buffers)
    statement = f"{names} is read as a finite number: it starts from an infinite one"
    return ObligationRecord(
        "defined", statement, "they differ where the exponent itself is undefined, or what is folded is 0"
    )
