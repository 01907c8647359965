"""Guards that keep a deferred factor defined if nothing was folded: then the result is 0, whatever φ is.

A φ taken out of `select(mask, x / l, 0)` is applied even if the mask was false throughout and l = 0, where the
original is 0: 1 / l becomes `select(l != 0, 1 / l, 0)`.  A test says where φ is undefined at finite values; where φ
may be infinite there, as m · 2 or a maximum that starts from -inf, 0 · φ would be NaN, and it is refused.
"""

from __future__ import annotations

import math
from enum import IntEnum

from neptune.fusion.linear import is_log
from neptune.fusion.prove import sign
from neptune.fusion.roles import Predecessor, Roles
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, children, logical_and, select, walk
from neptune.ir.ops import BOUNDED, EXPONENTIALS, LOGARITHMS, OPS


def guard(phi: Expr, roles: Roles) -> Expr | None:
    """`phi`, but 0 where it is undefined; None where no simple test says when that is."""
    if _size(phi, roles) == Size.INFINITE:
        return None
    tests = [t for x in walk(phi) if isinstance(x, Op) and roles.reads(x) and (t := _test(x, roles)) is not None]
    return phi if not tests else select(logical_and(*dict.fromkeys(tests)), phi, 0)


def _test(x: Op[Expr], roles: Roles) -> Expr | None:
    """Return the condition under which an operator is defined; None if it always is."""
    for a, need in zip(x.args, OPS[x.name].domain, strict=False):
        known, zero = sign(a, roles, empty=True), Const(0.0, a.dtype)
        if need == "one" and roles.reads(a) and known not in ("+", "-"):
            return binary("ne", a, zero)
        if need == "base" and known != "+":
            return _base(a, x.args[1])
        if (need == "+" and known != "+") or (need == "0+" and known not in ("+", "0+")):
            return binary("gt" if need == "+" else "ge", a, zero)
    return None


def _base(a: Expr, exponent: Expr) -> Expr | None:
    """Return the condition under which a ** constant is defined: a whole exponent takes negative numbers too."""
    assert isinstance(exponent, Const)
    zero, by = Const(0.0, a.dtype), float(exponent.value)
    if by.is_integer():
        return binary("ne", a, zero) if by < 0 else None
    return binary("gt" if by < 0 else "ge", a, zero)


# --- how large φ may be where nothing was folded -------------------------------------------------


class Size(IntEnum):
    """The magnitude of a value while its accumulators hold their start values."""

    ORDINARY = 0
    EXTREME = 1
    """About the largest finite number: twice that is infinite."""
    INFINITE = 2


def _keeps(name: str) -> bool:
    """True for an operator whose result is about as large as its argument."""
    return OPS[name].degrees == (1.0,) or (OPS[name].whole and OPS[name].arity == 1)


def _size(e: Expr, roles: Roles) -> Size:
    if not roles.reads(e):
        return Size.ORDINARY
    match e:
        case Load():
            return _start(roles.predecessor(e))
        case Cast(a, dtype):
            narrower = DTYPES[dtype].bits < DTYPES[a.dtype].bits
            return _sum(_size(a, roles), Size.EXTREME) if narrower else _size(a, roles)
        case Op(name, _, _) if name in BOUNDED:
            return Size.ORDINARY
        case Op(name, (a,), _) if _keeps(name):
            return _size(a, roles)
        case Op(name, (a,), _) if name in LOGARITHMS or OPS[name].degrees in ((0.5,), (-0.5,)):
            of = _size(a, roles)
            return of if of == Size.INFINITE and name != "rsqrt" else Size.ORDINARY
        case Op(name, (a,), _) if name in EXPONENTIALS:
            inside = a.args[0] if isinstance(a, Op) and a.name == "neg" else a
            return _size(inside, roles) if is_log(inside) else Size.INFINITE
        case Op("add" | "sub", (a, b), _):
            return _sum(_size(a, roles), _size(b, roles))
        case Op("mul", (a, b), _):
            return _product(a, b, roles)
        case Op("div", (a, b), _):
            return _quotient(a, b, roles)
        case Op("max" | "min" as name, (a, b), _):
            found = [_size(x, roles) for x in (a, b) if not _behind(name, x, roles)]
            return max(found, default=Size.INFINITE)
        case Op("pow", (a, Const(by, _)), _):
            of = _size(a, roles)
            return Size.ORDINARY if by < 0 or of == Size.ORDINARY else of if by <= 1 else Size.INFINITE
        case Op("pow"):
            return Size.INFINITE
        case Select():
            return max(_size(e.then, roles), _size(e.other, roles))
        case _:
            return Size.ORDINARY if all(_size(x, roles) == Size.ORDINARY for x in children(e)) else Size.INFINITE


def _start(pred: Predecessor | None) -> Size:
    """Return the size of a reduction's result before it has folded anything."""
    if pred is None:
        return Size.INFINITE
    if isinstance(pred.start, Const):
        return Size.ORDINARY if math.isfinite(pred.start.value) else Size.INFINITE
    return Size.EXTREME if pred.reducer in ("max", "min") and pred.start is None else Size.ORDINARY


def _sum(a: Size, b: Size) -> Size:
    return Size.INFINITE if a == b == Size.EXTREME else max(a, b)


def _product(a: Expr, b: Expr, roles: Roles) -> Size:
    x, y = _size(a, roles), _size(b, roles)
    if Size.EXTREME not in (x, y):
        return max(x, y)
    other = b if x == Size.EXTREME else a
    return Size.EXTREME if isinstance(other, Const) and abs(other.value) <= 1 else Size.INFINITE


def _quotient(a: Expr, b: Expr, roles: Roles) -> Size:
    of = _size(a, roles)
    if of != Size.EXTREME:
        return of
    return Size.EXTREME if isinstance(b, Const) and abs(b.value) >= 1 else Size.INFINITE


def _behind(name: str, e: Expr, roles: Roles) -> bool:
    """Return True if a maximum (minimum) with `e` is its other argument as long as nothing was folded."""
    pred = roles.predecessor(e.arg if isinstance(e, Cast) else e)
    if pred is None or pred.reducer != name:
        return False
    return pred.start is None or (isinstance(pred.start, Const) and math.isinf(pred.start.value))
