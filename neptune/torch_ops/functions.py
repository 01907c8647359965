"""Functions that are no operators of expressions, by those: in forms that keep their digits near zeros and poles.

Each is within a few units of its dtype's last place, in float64 as in float32, wherever its value is a number that the
dtype holds well; `tests/unit/torch_ops` and `qa/torch_table.py` hold every one against torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from neptune.frontend import functions as fn
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr

_INVERSE = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
     0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
     1.00167406, 2.83297682),
)  # fmt: skip
"""M. Giles, Approximating the erfinv function: in w - 2.5 below 5, in √w - 3 above; w = -log(1 - x²)."""


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, the highest first."""
    result: Expr = Const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        result = result * x + c
    return result


def erfcx(x: Expr) -> Expr:
    """exp(x²)·erfc(x): of x² the error is none; far out by the series of it in 1/x²."""
    double = x.dtype == "float64"
    far, terms = (25.0, 9) if double else (8.0, 8)
    beyond, below = ir.binary("gt", x, far), ir.binary("lt", x, -far - 5.0)
    a = ir.select(beyond, Const(far, x.dtype), ir.select(below, Const(-far - 5.0, x.dtype), x))
    high = fn.cast(fn.cast(a, "float32" if double else "bfloat16"), x.dtype)
    near = fn.exp(high * high) * (fn.exp((a - high) * (a + high)) * ir.op("erfc", a))
    series: Expr = Const(1.0, x.dtype)
    for k in range(terms, 0, -1):
        series = 1.0 - series * ((2 * k - 1) * 0.5 / x / x)
    return ir.select(beyond, series * (1 / math.sqrt(math.pi)) / x, near)


def erfinv(x: Expr) -> Expr:
    """The inverse of erf: Giles' polynomials for float32, and two of Newton's steps from there for float64."""
    w = -(fn.log(1.0 - x) + ir.op("log1p", x))
    near, far = polynomial(w - 2.5, _INVERSE[0]), polynomial(fn.sqrt(w) - 3.0, _INVERSE[1])
    y = x * ir.select(ir.binary("lt", w, 5.0), near, far)
    for _ in range(2 if x.dtype == "float64" else 0):
        y = y - (fn.erf(y) - x) / (fn.exp(-(y * y)) * (2 / math.sqrt(math.pi)))
    return ir.select(ir.eq(fn.abs(x), 1.0), x * math.inf, y)


def spherical_j0(x: Expr) -> Expr:
    """sin(x) / x."""
    return ir.select(ir.is_inf(x), Const(0.0, x.dtype), ir.select(ir.eq(x, 0.0), Const(1.0, x.dtype), fn.sin(x) / x))


def power(x: Expr, y: Expr) -> Expr:
    """x^y, also where one of them is infinite: 1 and -1 stay of size 1, and a base of -inf is large."""
    if isinstance(y, Const) and not math.isinf(y.value):
        return ir.binary("pow", x, y)
    unit = ir.logical_and(ir.is_inf(y), ir.eq(fn.abs(x), 1.0))
    return ir.select(ir.logical_or(unit, ir.eq(x, 1.0)), Const(1.0, x.dtype), ir.binary("pow", x, y))


UNARY: Mapping[str, Callable[[Expr], Expr]] = {
    "special_erfcx": erfcx, "erfinv": erfinv, "special_spherical_bessel_j0": spherical_j0,
    # torch's own has its argument in a choice, so that mish of mish would not stay short.
    "mish": lambda x: x * fn.tanh(ir.op("log1p", fn.exp(x))),
}  # fmt: skip
