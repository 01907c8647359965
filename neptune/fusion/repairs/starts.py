"""What a fold starts from: maxima from -inf, and factors where nothing was folded.

Many write maxima by hand that start from -inf (minima from inf).

The difference of two such starts is NaN, where nothing, or only -inf, was folded in yet.  A rolled m is therefore
read as max(m, lowest) in the exponents of the loop::

    exp(s[i, j] - m[i])                 →   exp(s[i, j] - max(m[i], lowest))
    exp(m_prev[i] - m[i])               →   exp(max(m_prev[i], lowest) - max(m[i], lowest))

The two differ at m = -inf alone.  If that is final, every element of m is -inf, and the exponent that the repair
was proved for is -inf + inf: the expression itself is undefined there.  If it is not, what is folded on the way is
exp(-inf - lowest) = 0.  What waits behind the loop, and every other reader, sees m itself.

Guards that keep a deferred factor defined if nothing was folded: then the result is 0, whatever φ is.

A φ taken out of `select(mask, x / l, 0)` is applied even if the mask was false throughout and l = 0, where the
original is 0: 1 / l becomes `select(l != 0, 1 / l, 0)`.  A test says where φ is undefined at finite values; where φ
may be infinite there, as m · 2 or a maximum that starts from -inf, 0 · φ would be NaN, and it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from neptune.fusion.prove import sign
from neptune.fusion.repairs.roles import ObligationRecord, Predecessor, Roles, previous
from neptune.ir.analysis.limits import EXTREME, ORDINARY, SMALL, Values, is_finite, values_of
from neptune.ir.expr import Const, Expr, Load, Op, binary, loads, logical_and, rewrite, select, walk
from neptune.ir.ops import MEETS, OPS, demand
from neptune.ir.reducers import REDUCERS

START = {row.name: row.neutral for row in REDUCERS.values() if row.moves}


def starts_infinite(reducer: str, init: Expr) -> bool:
    """True for a maximum from -inf and a minimum from inf."""
    return isinstance(init, Const) and START.get(reducer) == init.value


def bounded(e: Expr, reducers: Mapping[str, str]) -> Expr:
    """`e` with every read of these accumulators (and of their previous values) kept finite."""
    if not reducers:
        return e

    def read(x: Expr) -> Expr | None:
        reducer = reducers.get(x.buffer) if isinstance(x, Load) else None
        if reducer is None:
            return None
        return binary(reducer, x, _end(reducer, x.dtype))

    return rewrite(e, read)


def unclamped(e: Expr, reducers: Mapping[str, str]) -> tuple[Expr, frozenset[str]]:
    """`e` with max(m, lowest) read as m, and the accumulators for which that is so: all reads of them are such.

    That is the accumulator of the same elements from the finite start; as `bounded` writes it, so it is read again.
    """

    def inside(x: Expr) -> Load | None:
        if not (isinstance(x, Op) and x.name in START and isinstance(x.args[0], Load)):
            return None
        m, end = x.args
        assert isinstance(m, Load)
        return m if reducers.get(m.buffer) == x.name and end == _end(x.name, m.dtype) else None

    every = {m.buffer for x in walk(e) if (m := inside(x)) is not None}
    bare = {x.buffer for x in loads(rewrite(e, lambda x: None if inside(x) is None else _end("max", x.dtype)))}
    clamped_only = frozenset(every - bare)
    return rewrite(e, lambda x: m if (m := inside(x)) is not None and m.buffer in clamped_only else None), clamped_only


def contribution(value: Expr, reducer: str, e: Expr) -> Expr:
    """Return the value that such an accumulator folds according to `e`: the element, or the finite form of it."""
    finite = binary(reducer, value, _end(reducer, value.dtype))
    return finite if finite in set(walk(e)) else value


def finite_part(reducer: str, value: Expr) -> Expr:
    """x where a maximum folds min(x, largest), a minimum max(x, lowest): the two differ at an infinite x alone.

    There exp(x - m) is infinite in the expression as well, however far m is.
    """
    other = "min" if reducer == "max" else "max"
    if isinstance(value, Op) and value.name == other and value.args[1] == _end(other, value.dtype):
        return value.args[0]
    return value


def _end(reducer: str, dtype: str) -> Const:
    """Return the reducer's own start value."""
    return REDUCERS[reducer].identity(dtype)[0]


def with_previous(reducers: Mapping[str, str]) -> dict[str, str]:
    """The same for the buffers that hold the previous values."""
    return dict(reducers) | {previous(Load(b, (), "float32")).buffer: r for b, r in reducers.items()}


def record(buffers: Collection[str]) -> ObligationRecord:
    """Return the record that these buffers are read as finite numbers, and why that is right."""
    names = ", ".join(buffers)
    statement = f"{names} is read as a finite number: it starts from an infinite one"
    return ObligationRecord(
        "defined", statement, "they differ where the exponent itself is undefined, or what is folded is 0"
    )


def left_finite(pre: Predecessor, predecessors: frozenset[str], written: Mapping[str, Expr]) -> bool:
    """Return True if elements of -inf leave a result finite, if one is above: a maximum, a sum of exponentials.

    `written` are the expressions of maps, by the buffers that they write.
    """
    if pre.value is None:
        return False

    def known(e: Expr) -> Values | None:
        if not isinstance(e, Load):
            return None
        if e.buffer in predecessors:
            return SMALL
        return values_of(written[e.buffer], known) if e.buffer in written else SMALL | {-math.inf}

    return is_finite(values_of(pre.value, known) - ({-math.inf} if pre.reducer == "max" else set()))


# --- guards of deferred factors ---------------------------------------------------------------------


def guard(phi: Expr, roles: Roles) -> Expr | None:
    """`phi`, but 0 where it is undefined; None where no simple test says when that is."""
    if not _is_finite(phi, roles):
        return None
    tests = [t for x in walk(phi) if isinstance(x, Op) and roles.reads(x) and (t := _test(x, roles)) is not None]
    return phi if not tests else select(logical_and(*dict.fromkeys(tests)), phi, 0)


def _test(x: Op[Expr], roles: Roles) -> Expr | None:
    """Return the condition under which an operator is defined; None if it always is."""
    last = x.args[-1] if x.args else None
    for a, domain in zip(x.args, OPS[x.name].domain, strict=False):
        # Of an unknown exponent the base has to be positive.
        need = demand(domain, last.value if isinstance(last, Const) else -0.5)
        if roles.reads(a) and sign(a, roles, empty=True) not in MEETS[need]:
            return binary(need, a, Const(0.0, a.dtype))
    return None


def _is_finite(phi: Expr, roles: Roles) -> bool:
    """True if φ, where it is defined, is finite with ordinary values of r, and where they have folded nothing."""

    def known(e: Expr) -> Values | None:
        if isinstance(e, Load) and (pred := roles.predecessor(e)) is not None:
            return ORDINARY | {_start(pred)}
        return None if isinstance(e, Const) or roles.reads(e) else ORDINARY

    return is_finite(values_of(phi, known, defined=True))


def _start(pred: Predecessor) -> float:
    """Return the result of a reduction before it has folded anything; that of a start unknown counts as ordinary."""
    if pred.start is not None:
        return float(pred.start.value) if isinstance(pred.start, Const) else 0.0
    return math.copysign(EXTREME, START[pred.reducer]) if pred.reducer in START else 0.0
