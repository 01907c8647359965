"""Guards that keep a deferred factor defined if nothing was folded: then the result is 0, whatever φ is.

A φ taken out of `select(mask, x / l, 0)` is applied even if the mask was false throughout and l = 0, where the
original is 0: 1 / l becomes `select(l != 0, 1 / l, 0)`.  A test says where φ is undefined at finite values; where φ
may be infinite there, as m · 2 or a maximum that starts from -inf, 0 · φ would be NaN, and it is refused.
"""

from __future__ import annotations

import math

from neptune.fusion.infinite import START
from neptune.fusion.prove import sign
from neptune.fusion.roles import Predecessor, Roles
from neptune.ir.expr import Const, Expr, Load, Op, binary, logical_and, select, walk
from neptune.ir.limits import EXTREME, ORDINARY, Values, is_finite, values_of
from neptune.ir.ops import MEETS, OPS, demand


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
