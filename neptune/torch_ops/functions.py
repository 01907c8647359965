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
from neptune.torch_ops.scalars import below_zero, nan_first, signed

_LN2 = math.log(2)
_FAR = 2.0**28
"""What is larger has a square beside which 1 is nothing."""
# (1 + 2a)·erfcx(a) as polynomials in (a - k) / (a + k), k = 2 and 4: 2·10⁻⁸ and 4·10⁻¹⁷ off (Chebyshev's, by mpmath).
_ERFCX32 = [
    6.807514759e-05,
    0.0001608403463,
    -0.0003709284114,
    -0.001395805088,
    0.001230503217,
    0.008689252695,
    -0.008024739103,
    -0.05421199524,
    0.1640504971,
    -0.1660310904,
    -0.09276381574,
    1.276978391,
]
_ERFCX64 = (
    9.655408225482863e-10, 1.5712153638319064e-09, -1.2544825403855518e-08, -1.6357383982124768e-08,
    1.0683442926744586e-07, 7.111912428010423e-08, -8.218020654813044e-07, 2.980596055322769e-07,
    5.707239573693257e-06, -1.1225140354449658e-05, -2.439811794207995e-05, 0.0001506231178516207,
    -0.00019925700412184815, -0.0007577737141838885, 0.005031970032548695, -0.01619773397992426, 0.0371675155318432,
    -0.06633036582050367, 0.09373283499865172, -0.10103906603585294, 0.0680970542546862, 0.015379652102610162,
    -0.1396211168405625, 1.2329951186255526,
)  # fmt: skip
_FAR_ANGLE = 2.414213562373095
_ATAN32 = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ATAN64 = (
    (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
     -6.485021904942025371773e1),
    (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
     1.945506571482613964425e2),
)  # fmt: skip
"""Cephes' polynomials, and their quotient."""
_INVERSE = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
     0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
     1.00167406, 2.83297682),
)  # fmt: skip
"""M. Giles, Approximating the erfinv function: in w - 2.5 below 5, in √w - 3 above; w = -log(1 - x²)."""


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, the highest first."""
    result: Expr = Const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        result = result * x + c
    return result


def log1p(x: Expr) -> Expr:
    """log(1 + x): the rounding of 1 + x is divided out again, as Kahan does."""
    y = x + 1.0
    plain = ir.logical_or(ir.eq(y, 1.0), ir.eq(y, math.inf))
    return ir.select(plain, x, fn.log(y) * (x / (y - 1.0)))


def expm1(x: Expr) -> Expr:
    """exp(x) - 1, by tanh(x/2) where that is near 0."""
    t = fn.tanh(x * 0.5)
    return ir.select(ir.binary("lt", fn.abs(x), 1.0), t * 2.0 / (1.0 - t), fn.exp(x) - 1.0)


def sinh(x: Expr) -> Expr:
    """(exp(x) - exp(-x)) / 2."""
    a = fn.abs(x)
    m, half = expm1(a), fn.exp(a * 0.5)
    near = (m + m / (m + 1.0)) * 0.5
    return signed(ir.select(ir.binary("lt", a, 30.0), near, half * 0.5 * half), x)


def cosh(x: Expr) -> Expr:
    """(exp(x) + exp(-x)) / 2."""
    half = fn.exp(fn.abs(x) * 0.5)
    return half * 0.5 * half + 0.5 / (half * half)


def asinh(x: Expr) -> Expr:
    """The inverse of sinh."""
    a = fn.abs(x)
    near = log1p(a + a * a / (fn.sqrt(a * a + 1.0) + 1.0))
    return signed(ir.select(ir.binary("lt", a, _FAR), near, fn.log(a) + _LN2), x)


def acosh(x: Expr) -> Expr:
    """The inverse of cosh, from 1 on."""
    t = x - 1.0
    return ir.select(ir.binary("lt", x, _FAR), log1p(t + fn.sqrt(t) * fn.sqrt(t + 2.0)), fn.log(x) + _LN2)


def atanh(x: Expr) -> Expr:
    """The inverse of tanh."""
    a = fn.abs(x)
    return signed(log1p(a * 2.0 / (1.0 - a)) * 0.5, x)


def atan(x: Expr) -> Expr:
    """The inverse of tan, as Cephes has it: near 0, around 1, and beyond tan(3π/8)."""
    a = fn.abs(x)
    middle, far = (
        ir.binary("gt", a, 0.66 if x.dtype == "float64" else 0.4142135623730950),
        ir.binary("gt", a, _FAR_ANGLE),
    )
    z = ir.select(far, -1.0 / a, ir.select(middle, (a - 1.0) / (a + 1.0), a))
    zero = Const(0.0, x.dtype)
    base = ir.select(far, zero + math.pi / 2, ir.select(middle, zero + math.pi / 4, zero))
    w = z * z
    more = _polynomial(w, _ATAN32) if x.dtype == "float32" else _polynomial(w, _ATAN64[0]) / _polynomial(w, _ATAN64[1])
    return signed(base + (z * (w * more) + z), x)


def asin(x: Expr) -> Expr:
    """The inverse of sin."""
    return atan(x / fn.sqrt((1.0 - x) * (x + 1.0)))


def acos(x: Expr) -> Expr:
    """The inverse of cos."""
    return atan(fn.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of a point."""
    a, b = fn.abs(y), fn.abs(x)
    ratio = ir.select(ir.eq(a, b), ir.select(ir.is_nan(a + b), a + b, Const(1.0, x.dtype)), a / b)
    angle = atan(ir.select(ir.eq(a, 0.0), ir.select(ir.is_nan(b), b, a), ratio))
    behind = ir.select(below_zero(x), Const(math.pi, x.dtype), Const(0.0, x.dtype))
    return signed(behind + signed(angle, x), y)


def tan(x: Expr) -> Expr:
    """sin / cos."""
    return fn.sin(x) / fn.cos(x)


def sinc(x: Expr) -> Expr:
    """sin(πx) / (πx), 1 at 0."""
    z = x * math.pi
    return ir.select(ir.eq(x, 0.0), Const(1.0, x.dtype), fn.sin(z) / z)


def hypot(x: Expr, y: Expr) -> Expr:
    """√(x² + y²), whose squares may leave the dtype."""
    a, b = fn.abs(x), fn.abs(y)
    high, low = ir.maximum(a, b), ir.minimum(a, b)
    r = low / high
    size = ir.select(ir.eq(high, 0.0), high, high * fn.sqrt(r * r + 1.0))
    infinite = ir.eq(high, math.inf)
    return ir.select(infinite, high, ir.select(ir.is_nan(a + b), a + b, size))


def _log_of_sum(exp: Callable[[Expr], Expr], unit: float) -> Callable[[Expr, Expr], Expr]:
    def rule(x: Expr, y: Expr) -> Expr:
        high = nan_first("max")(x, y)
        same = ir.logical_and(ir.is_inf(x), ir.eq(x, y))
        more = log1p(exp(-fn.abs(x - y)))
        return ir.select(same, x, high + (more if unit == 1 else more * unit))

    return rule


def _x_times(log: Callable[[Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    """x·log(y): 0 where x is, whatever y is, but for NaN."""

    def rule(x: Expr, y: Expr) -> Expr:
        zero = ir.logical_and(ir.eq(x, 0.0), ir.op("not", ir.is_nan(y)))
        return ir.select(zero, Const(0.0, x.dtype), x * log(y))

    return rule


def logsigmoid(x: Expr) -> Expr:
    """log(1 / (1 + exp(-x)))."""
    return nan_first("min")(x, Const(0.0, x.dtype)) - log1p(fn.exp(-fn.abs(x)))


def erfcx(x: Expr) -> Expr:
    """exp(x²)·erfc(x)."""
    a = fn.abs(x)
    at, terms = (4.0, _ERFCX64) if x.dtype == "float64" else (2.0, _ERFCX32)
    q = ir.select(ir.eq(a, math.inf), Const(1.0, x.dtype), (a - at) / (a + at))
    right = _polynomial(q, terms) * 0.5 / (a + 0.5)
    return ir.select(ir.binary("lt", x, 0.0), fn.exp(x * x) * 2.0 - right, right)


def erfc(x: Expr) -> Expr:
    """1 - erf(x): far from 0 by erfcx, and a square whose error is none."""
    a = ir.select(ir.binary("gt", fn.abs(x), 30.0), Const(30.0, x.dtype), fn.abs(x))
    high = fn.cast(fn.cast(a, "float32" if x.dtype == "float64" else "bfloat16"), x.dtype)
    tail = fn.exp(-(high * high)) * fn.exp((high - a) * (high + a)) * erfcx(a)
    far = ir.select(ir.binary("lt", x, 0.0), 2.0 - tail, tail)
    return ir.select(ir.binary("lt", a, 0.5), 1.0 - fn.erf(x), far)


def ndtr(x: Expr) -> Expr:
    """The normal distribution up to x."""
    return erfc(x * -math.sqrt(0.5)) * 0.5


def erfinv(x: Expr) -> Expr:
    """The inverse of erf: Giles' polynomials for float32, and two of Newton's steps from there for float64."""
    w = -(fn.log(1.0 - x) + log1p(x))
    near, far = _polynomial(w - 2.5, _INVERSE[0]), _polynomial(fn.sqrt(w) - 3.0, _INVERSE[1])
    y = x * ir.select(ir.binary("lt", w, 5.0), near, far)
    for _ in range(2 if x.dtype == "float64" else 0):
        y = y - (fn.erf(y) - x) / (fn.exp(-(y * y)) * (2 / math.sqrt(math.pi)))
    return ir.select(ir.eq(fn.abs(x), 1.0), x * math.inf, y)


def entropy(x: Expr) -> Expr:
    """-x·log(x), 0 at 0, -inf below."""
    low = ir.select(ir.eq(x, 0.0), Const(0.0, x.dtype), Const(-math.inf, x.dtype))
    return ir.select(ir.logical_or(ir.is_nan(x), ir.binary("gt", x, 0.0)), -x * fn.log(x), low)


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
    "log1p": log1p, "expm1": expm1, "sinh": sinh, "cosh": cosh, "tan": tan, "asinh": asinh, "acosh": acosh,
    "atanh": atanh, "asin": asin, "acos": acos, "atan": atan, "sinc": sinc, "log_sigmoid": logsigmoid,
    "erfc": erfc, "special_erfcx": erfcx, "special_ndtr": ndtr, "erfinv": erfinv,
    "special_entr": entropy, "special_spherical_bessel_j0": spherical_j0,
    "log10": lambda x: fn.log(x) * (1 / math.log(10)), "mish": lambda x: x * fn.tanh(log1p(fn.exp(x))),
}  # fmt: skip
BINARY: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "atan2": atan2, "hypot": hypot, "logaddexp": _log_of_sum(fn.exp, 1.0),
    "logaddexp2": _log_of_sum(fn.exp2, math.log2(math.e)), "xlogy": _x_times(fn.log),
    "special_xlog1py": _x_times(log1p),
}  # fmt: skip
