"""Special functions as expressions: by series, and by fits that are made here of integrals and of what defines them.

    i0(x)   |x| ≤ 8: Σ (x²/4)^k / k!²          beyond: exp(|x|) / √|x| · a polynomial in 1/|x|

All is computed in float64, also for float32, but for what torch itself has few digits of: that is torch's, in its
dtype. `fitted` interpolates at Chebyshev's points. Bessel's J and Y, and Airy's Ai, are not here: of float64
torch's own are off by up to 6e-6, so that there is nothing to hold them against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial, chebyshev

from neptune.errors import Unsupported
from neptune.frontend import functions as fn
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr, select
from neptune.torch_ops.functions import polynomial
from neptune.torch_ops.scalars import as_dtype

WIDE = "float64"
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B₂, B₄, …"""


def _hankel(n: float, w: Any) -> Any:
    """√x · exp(x) · K_n(x) at x = 1/w: √(π/2) / Γ(n+½) · Hankel's ∫ e^-u u^(n-½) (1 + uw/2)^(n-½) du.

    At u = v² that is smooth and even, so that a plain sum has all digits.
    """
    v = (np.arange(700)[:, None] + 0.5) * 0.01
    terms = np.exp(-(v**2)) * v ** (2 * n) * (1 + w * v**2 / 2) ** (n - 0.5)
    return 0.02 * math.sqrt(math.pi / 2) / math.gamma(n + 0.5) * terms.sum(0)


def _circular(n: float, w: Any) -> Any:
    """√x · exp(-x) · I_n(x) at x = 1/w: the mean of exp(x cos a - x) · cos(na)."""
    a = (np.arange(4000)[:, None] + 0.5) * (math.pi / 4000)
    return (np.exp(-2 * np.sin(a / 2) ** 2 / w) * np.cos(n * a)).mean(0) / np.sqrt(w)


def _quantile(_: float, z: Any) -> Any:
    """What Φ⁻¹(exp(-x²/2)) has beside -x + log(x)/x, over 1/x, at x = 1/z."""
    x = 1 / z
    return (x - np.log(x) / x + np.vectorize(NormalDist().inv_cdf)(np.exp(-x * x / 2))) * x


def _middle(_: float, s: Any) -> Any:
    """Φ⁻¹(½ + y) / y at y² = s."""
    y = np.sqrt(s)
    return np.vectorize(NormalDist().inv_cdf)(0.5 + y) / y


FITS: Mapping[str, tuple[Callable[[float, Any], Any], float, float]] = {
    "I": (_circular, 0.0, 1 / 8),
    "K": (_hankel, 0.0, 1 / 2),
    "quantile": (_middle, 0.0, 0.135),
    "tail": (_quantile, 1 / 8, 1 / 2),
    "far tail": (_quantile, 1 / 37.6, 1 / 8),
}
"""A function, and the ends between which it is fitted."""
DEGREE = 20


@cache
def fitted(name: str, n: float) -> tuple[float, ...]:
    """A fit's coefficients in t, which goes from -1 to 1, the highest first."""
    function, low, high = FITS[name]
    coefficients = chebyshev.chebinterpolate(lambda t: function(n, low + (t + 1) * ((high - low) / 2)), DEGREE)
    return tuple(map(float, chebyshev.cheb2poly(coefficients)[::-1]))


def fit(name: str, x: Expr, n: float = 0) -> Expr:
    """A fit at x."""
    _, low, high = FITS[name]
    return polynomial((x - low) * (2 / (high - low)) - 1.0, fitted(name, n))


def _wide(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function that is computed in float64: of x in that, and of x as it is."""
    return lambda x, *args: fn.cast(function(fn.cast(x, WIDE), x, *args), x.dtype)


# --- Bessel's ----------------------------------------------------------------------------------


def _series(x: Expr, n: int, beside: bool = False) -> Expr:
    """I_n: (x/2)^n Σ (x²/4)^k / k! (k+n)!; or what K_n has beside a logarithm times that."""
    harmonic = [sum(1 / j for j in range(1, k + 1)) - np.euler_gamma for k in range(30)]
    by = [(harmonic[k] + harmonic[k + n]) / 2 if beside else 1.0 for k in range(26)]
    terms = [float(c) / (math.factorial(k) * math.factorial(k + n)) for k, c in enumerate(by)]
    half = x * 0.5
    return polynomial(half * half, terms[::-1]) * (half if n else 1.0)


def _second(x: Expr, n: int) -> Expr:
    """K_n by its series: ±log(x/2) · I_n, and 1/x of order 1."""
    value = fn.log(x * 0.5) * _series(x, n) - _series(x, n, True)
    return select(ir.eq(x, 0.0), Const(math.inf, WIDE), value + 1.0 / x) if n else -value


def _first_modified(n: int, scaled: bool) -> Callable[..., Expr]:
    def function(x: Expr, _: Expr) -> Expr:
        a = fn.abs(x)
        near, far = _series(a, n), fit("I", 1.0 / a, n) / fn.sqrt(a)
        near, far = (near * fn.exp(-a), far) if scaled else (near, fn.exp(a) * far)
        value = select(ir.binary("le", a, 8.0), near, far)
        return select(ir.binary("lt", x, 0.0), -value, value) if n else value

    return _wide(function)


def _second_modified(n: int, scaled: bool) -> Callable[..., Expr]:
    def function(x: Expr, _: Expr) -> Expr:
        near, far = _second(x, n), fit("K", 1.0 / x, n) / fn.sqrt(x)
        near, far = (near * fn.exp(x), far) if scaled else (near, fn.exp(-x) * far)
        return select(ir.binary("le", x, 2.0), near, far)

    return _wide(function)


# --- the gamma function's derivatives ------------------------------------------------------------


def _digamma(x: Expr, _: Expr) -> Expr:
    """Ten terms, and Stirling's series; below 0 reflected."""
    y = select(ir.binary("lt", x, 0.0), 1.0 - x, x)
    z = y + 10.0
    w = 1.0 / z
    terms = [0.0, *(-b / (2 * k + 2) for k, b in enumerate(_BERNOULLI))]
    series = polynomial(w * w, terms[::-1])
    value = fn.log(z) - 0.5 * w + series
    for k in range(1, 10):
        value = value - 1.0 / (y + float(k))
    value = value - 1.0 / y
    rest = x - fn.trunc(x)
    below = select(ir.eq(rest, 0.0), Const(math.nan, WIDE), value - math.pi / ir.op("tan", rest * math.pi))
    return select(ir.binary("lt", x, 0.0), below, value)


def _trigamma(x: Expr) -> Expr:
    """torch's own, which has eight digits: a few terms, and a short series, in the dtype of x."""
    sine = fn.sin(x * math.pi)
    low = ir.binary("lt", x, 0.5)
    y = select(low, 1.0 - x, x)
    value = select(low, -(math.pi * math.pi) / (sine * sine), Const(0.0, x.dtype))
    for k in range(6):
        value = value + 1.0 / ((y + float(k)) * (y + float(k)))
    z = y + 6.0
    w = 1.0 / (z * z)
    value = value + (1.0 + 0.5 / z + w * (1 / 6 - w * (1 / 30 - w * (1 / 42)))) / z
    return select(low, -value, value)


def _zeta(s: int, q: Expr) -> Expr:
    """Σ (q + k)^-s, of q above 0: ten terms, and the rest by Euler and Maclaurin."""
    z = q + 10.0
    w, rising = 1.0 / z, [math.prod(range(s, s + 2 * j + 1)) / math.factorial(2 * j + 2) for j in range(8)]
    series = polynomial(w * w, [b * r for b, r in zip(_BERNOULLI, rising, strict=True)][::-1]) * w + 0.5
    value = ir.binary("pow", z, float(-s)) * (series + z / (s - 1.0))
    for k in range(10):
        value = value + ir.binary("pow", q + float(k), float(-s))
    return value


def _polygamma(dtype: str, n: Any, a: Any) -> Expr:
    x = as_dtype(a, dtype)
    if n < 2:
        return _trigamma(x) if n else UNARY["digamma"](x)
    if n > 20:
        raise Unsupported("a polygamma function of an order beyond 20", hint="a lower order")
    return _wide(_higher)(x, n)


def _higher(x: Expr, _: Expr, n: int) -> Expr:
    """The nth derivative of digamma; below 0 by that of π cot πx, a polynomial in the cotangent."""
    slope = Polynomial([0.0, 1.0])
    for _k in range(n):
        slope = Polynomial([1.0, 0.0, 1.0]) * slope.deriv() * -math.pi
    low = ir.binary("le", x, 0.0)
    value = _zeta(n + 1, select(low, 1.0 - x, x)) * float(math.factorial(n))
    sign = 1.0 if n % 2 else -1.0
    turns = 1.0 / ir.op("tan", (x - fn.round(x)) * math.pi)
    below = polynomial(turns, [-math.pi * float(c) for c in slope.coef[::-1]]) - value
    below = select(ir.eq(x, fn.floor(x)), Const(sign * math.inf, WIDE), below)
    return select(low, below, value * sign)


# --- the normal distribution, and polynomials of Chebyshev's -------------------------------------


def _ndtri(x: Expr, _: Expr) -> Expr:
    """Φ⁻¹."""
    y = select(ir.binary("gt", x, 0.5), 1.0 - x, x)
    middle = x - 0.5
    a = fn.sqrt(fn.log(y) * -2.0)
    z = 1.0 / a
    rest = select(ir.binary("lt", a, 8.0), fit("tail", z), fit("far tail", z))
    tail = select(ir.eq(y, 0.0), Const(math.inf, WIDE), a - fn.log(a) * z - rest * z)
    tail = select(ir.binary("gt", x, 0.5), tail, -tail)
    near = ir.binary("lt", fn.abs(middle), 0.5 - math.exp(-2))
    return select(near, middle * fit("quantile", middle * middle), tail)


def _beyond(kind: str, a: Expr, k: Expr) -> Expr:
    """A polynomial of Chebyshev's of order k at a of 1 and more: by the area whose cosh a is."""
    m, t = fn.cast(k, WIDE), ir.op("acosh", a)
    ends = {"t": k * 0 + 1, "u": k + 1, "v": k * 0 + 1, "w": k * 2 + 1}
    if kind == "t":
        far = ir.op("cosh", t * m)
    elif kind == "v":
        far = fn.exp(t * m) * (1.0 + fn.exp(-t * (m * 2.0 + 1.0))) / (1.0 + fn.exp(-t))
    else:
        by, to = (m * 2.0 + 2.0, 2.0) if kind == "u" else (m * 2.0 + 1.0, 1.0)
        far = fn.exp(t * m) * ir.op("expm1", -t * by) / ir.op("expm1", -t * to)
    return select(ir.eq(a, 1.0), fn.cast(ends[kind], WIDE), far)


def _outside(kind: str, y: Expr, k: Expr) -> Expr:
    """The same also at -1 and less: V and W are each other's mirror."""
    a = fn.abs(y)
    mirrored = _beyond({"v": "w", "w": "v"}.get(kind, kind), a, k)
    mirrored = select(ir.eq(ir.binary("mod", k, 2), 0), mirrored, -mirrored)
    return select(ir.binary("lt", y, 0.0), mirrored, _beyond(kind, a, k))


def _inside(kind: str, y: Expr, k: Expr) -> Expr:
    """The same between -1 and 1, by the angle whose cosine y is: rounded to the dtype, as torch's."""
    m, t = fn.cast(k, y.dtype), ir.op("acos", y)
    if kind == "t":
        return fn.cos(t * m)
    turn = fn.cos if kind == "v" else fn.sin
    return turn(t * (m + 1.0)) / turn(t) if kind == "u" else turn(t * (m + 0.5)) / turn(t * 0.5)


def _chebyshev(kind: str, shifted: bool) -> Callable[..., Expr]:
    """The rule of a kind of polynomials: low orders by steps, as torch has them, and others in closed form."""

    def rule(dtype: str, x: Any, n: Any) -> Expr:
        y, k = as_dtype(x, dtype), as_dtype(as_dtype(n, dtype), "int64")
        y = y + y - 1.0 if shifted else y
        first = {"t": y, "u": y + y, "v": y + y - 1.0, "w": y + y + 1.0}[kind]
        steps: list[Expr] = [Const(1.0, dtype), first]
        for _k in range(2, 7 if kind == "t" else 9):
            steps.append((y + y) * steps[-1] - steps[-2])
        # Torch's steps go on behind infinity, by its difference with itself.
        wide = fn.cast(y, WIDE)
        over = ir.is_inf(fn.cast(_outside(kind, wide, k - 2), dtype))
        far = select(over, Const(math.nan, dtype), fn.cast(_outside(kind, wide, k), dtype))
        value = select(ir.binary("lt", fn.abs(y), 1.0), _inside(kind, y, k), far)
        for j, step in enumerate(steps):
            value = select(ir.eq(k, j), step, value)
        return select(ir.binary("lt", k, 0), Const(0.0, dtype), value)

    return rule


UNARY: Mapping[str, Callable[[Expr], Expr]] = {
    "digamma": _wide(_digamma), "special_ndtri": _wide(_ndtri),
    **{name: _first_modified(0, False) for name in ("i0", "special_modified_bessel_i0")},
    **{name: _first_modified(1, False) for name in ("special_i1", "special_modified_bessel_i1")},
    **{f"special_i{n}e": _first_modified(n, True) for n in (0, 1)},
    **{f"special_modified_bessel_k{n}": _second_modified(n, False) for n in (0, 1)},
    **{f"special_scaled_modified_bessel_k{n}": _second_modified(n, True) for n in (0, 1)},
}  # fmt: skip
BINARY: Mapping[str, Callable[..., Expr]] = {
    "polygamma": _polygamma,
    **{f"special_{way}chebyshev_polynomial_{kind}": _chebyshev(kind, bool(way))
       for way in ("", "shifted_") for kind in "tuvw"},
}  # fmt: skip
