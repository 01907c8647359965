"""The ordered model: exact rationals with the true maximum, and exponentials that are powers of two.

exp2(x) = 2^x and exp(x) = 4^x, so log2e = 2 and ln2 = 1/2.  Inputs are small integers, so that exponents
are integers; an exponential of anything else is outside the fragment.  Meant for small instances.

- 0, integral constants up to 8 and infinities are themselves. The finite extremes of the dtypes (and
  any constant of magnitude 6e4 or more) are integers of magnitude 10^6 and more, far beyond any other value;
  an exponential of less than -10^5 is exactly 0 and one of more than 10^5 is inf, as in floating point:
  exp(x - lowest) overflows, exp(lowest - x) vanishes, exp(lowest - lowest) = 1.
- Every other constant is a keyed small positive integer with its sign (the same constant, the same
  integer): a scale keeps exponents integral. Relations *between* such constants are therefore lost; with
  `exact_constants` they are themselves, and exponents made with them mostly outside the fragment.
- inf, -inf and NaN behave as in IEEE arithmetic; x/0 is NaN. abs is exact, powers with integer exponents and log
  (`logarithms`); log2(x) = log(x)·log2e, rsqrt(x) = 1/sqrt(x). tanh, sigmoid, erf and sqrt are keyed random
  functions that never fall, the rest of `OPAQUE` (roundings to an integer, too) keyed random small integers; a
  logarithm times anything but an integer counts as such. Casts of floats round nothing; to an integer they truncate.

n draws, no bound.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.evaluate.domains import (
    Array,
    Elementwise,
    EvaluationError,
    Value,
    flagged_output,
)
from neptune.verify.field import EXTREMES, HUGE, OF_TWO, OPAQUE
from neptune.verify.logarithms import LARGEST, SPAN, Logarithm, logarithm, rising
from neptune.verify.residues import name_key

BEYOND = 10**5
_INF = math.inf


class Poison:
    """An element without a value; of two, the worse survives."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank

    def __repr__(self) -> str:
        return self.name


OUTSIDE = Poison("outside", 1)
UNDEFINED = Poison("undefined", 2)


def _strict(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` on values; poison passes through."""

    def wrapped(*args: Any) -> Any:
        if all(type(x) is int for x in args):
            return fn(*args)
        worst: Poison | None = None
        for x in args:
            if isinstance(x, Poison) and (worst is None or x.rank > worst.rank):
                worst = x
        return fn(*args) if worst is None else worst

    return wrapped


def _tidy(x: Any) -> Any:
    """Integral fractions as ints, which are much faster."""
    return x.numerator if isinstance(x, Fraction) and x.denominator == 1 else x


def _sign(x: Any) -> int:
    return int(x > 0) - int(x < 0)


def _add(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return a + b
    if isinstance(a, float):
        return a + b if isinstance(b, float) else a
    return b if isinstance(b, float) else _tidy(a + b)


def _neg(a: Any) -> Any:
    return -a


def _mul(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return a * b
    if isinstance(a, Logarithm) or isinstance(b, Logarithm):
        return _times(a, b)
    if isinstance(a, float) or isinstance(b, float):
        if a != a or b != b or a == 0 or b == 0:
            return math.nan
        return _INF * _sign(a) * _sign(b)
    return _tidy(a * b)


def _times(a: Any, b: Any) -> Any:
    """A product with a logarithm: exact by an integer, else that of a number that stands for it."""
    log, by = (a, b) if isinstance(a, Logarithm) else (b, a)
    if isinstance(by, float):
        return by if by != by else _INF * _sign(by) * _sign(log)
    product = log.times(by) if isinstance(by, int) else None
    if product is not None:
        return _tidy(product)
    return _mul(*(_stand_in(x) if isinstance(x, Logarithm) else x for x in (log, by)))


def _stand_in(x: Logarithm) -> int:
    """A small integer other than 0 instead of a logarithm."""
    digest = hashlib.blake2b(_text(x).encode(), digest_size=8).digest()
    return (1 + int.from_bytes(digest, "little") % 3) * _sign(x)


def _inverse(a: Any) -> Any:
    if isinstance(a, Logarithm):
        return Fraction(1, _stand_in(a))
    if isinstance(a, float):
        return a if a != a else 0
    return math.nan if a == 0 else _tidy(1 / Fraction(a))


def _exp2(x: Any) -> Any:
    if isinstance(x, float):
        return 0 if x == -_INF else x
    if isinstance(x, Logarithm):
        power = x.power()
        return OUTSIDE if power is None else _tidy(power)
    if isinstance(x, Fraction):
        return OUTSIDE
    if abs(x) > BEYOND:
        return 0 if x < 0 else _INF
    return 1 << x if x >= 0 else Fraction(1, 1 << -x)


def _max(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return math.nan
    return b if a < b else a


def _min(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return math.nan
    return b if b < a else a


_ufunc = np.frompyfunc
_IS_POISON = _ufunc(lambda x: isinstance(x, Poison), 1, 1)


class OrderedRationals(Elementwise):
    """Object arrays of int, Fraction, ±inf and NaN; `seed` draws constants and opaque functions."""

    name = "ordered rationals"

    def __init__(self, seed: int = 0, exact_constants: bool = False) -> None:
        self.seed = seed
        self.exact_constants = exact_constants
        self._rng = np.random.default_rng((seed, 0x0DD))
        self._rises = {n: rising(seed, name_key(n)) for n in ("tanh", "erf", "sqrt", "sigmoid")}
        scalar: dict[str, tuple[Callable[..., Any], int]] = {
            "neg": (_neg, 1),
            "exp": (lambda x: _exp2(_mul(x, 2)), 1),
            "exp2": (_exp2, 1),
            "log": (self._log, 1),
            "log2": (lambda x: _mul(self._log(x), 2), 1),
            "sqrt": (self._sqrt, 1),
            "rsqrt": (lambda x: _inverse(self._sqrt(x)), 1),
            **{name: (self._keyed(name), 1) for name in OPAQUE if name != "abs"},
            **{name: (self._rising(name), 1) for name in ("tanh", "erf")},
            "sigmoid": (self._sigmoid, 1),
            "abs": (abs, 1),
            "add": (_add, 2),
            "sub": (lambda a, b: _add(a, -b), 2),
            "mul": (_mul, 2),
            "div": (lambda a, b: _mul(a, _inverse(b)), 2),
            "max": (_max, 2),
            "min": (_min, 2),
            "pow": (self._pow, 2),
            **{name: (self._keyed(name), 2) for name in OF_TWO},
        }
        self._functions = {name: _ufunc(_strict(fn), arity, 1) for name, (fn, arity) in scalar.items()}
        self._compare = {
            name: _ufunc(self._decided(getattr(operator, name)), 2, 1) for name in ("lt", "le", "gt", "ge", "eq", "ne")
        }

    # --- the protocol ------------------------------------------------------------------------------

    def parts(self, v: Value) -> tuple[Array, ...]:
        # A Python number would become one of numpy's, which overflows.
        return (np.asarray(v, object),)

    def make(self, parts: Sequence[Array]) -> Value:
        return np.asarray(parts[0], object)

    def undefined(self, shape: tuple[int, ...]) -> Value:
        return np.full(shape, UNDEFINED, object)

    def const(self, value: float, dtype: str) -> Value:
        return np.asarray(self._constant(float(value)), object)

    def _constant(self, value: float) -> Any:
        if not math.isfinite(value):
            return value
        if value.is_integer() and abs(value) <= 8:
            return int(value)
        if self.exact_constants:
            return _tidy(Fraction(value))
        sign = 1 if value > 0 else -1
        if abs(value) >= HUGE:
            return sign * 10**6 * EXTREMES.get(abs(value), 1)
        return sign * (1 + self._hash("constant", abs(value)) % 4)

    def lift(self, value: Any, dtype: str) -> Value:
        """Numbers that are integers (or exact Fractions) stay exactly what they are."""
        array = np.array(value, object)
        flat = [_exact(x) for x in array.ravel()]
        result = np.empty(len(flat), object)
        result[:] = flat
        return result.reshape(array.shape)

    def embed(self, value: Array, dtype: str) -> Value:
        return np.asarray(np.asarray(value, np.int64).astype(object), object)

    def truncate(self, v: Value, dtype: str) -> Array:
        def whole(x: Any) -> int:
            return 0 if isinstance(x, float | Poison) else int(x)

        result = np.asarray(_ufunc(whole, 1, 1)(v)).astype(np.int64)
        return result != 0 if dtype == "bool" else result

    def cast(self, v: Value, dtype: str) -> Value:
        return v

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        if not args:
            return np.asarray({"log2e": 2, "ln2": Fraction(1, 2)}[name], object)
        with np.errstate(all="ignore"):  # numpy watches the flags that float specials raise
            return np.asarray(self._functions[name](*args), object)

    def compare(self, name: str, a: Value, b: Value) -> Array:
        return np.asarray(self._compare[name](a, b)).astype(bool)

    def _decided(self, fn: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        def decide(a: Any, b: Any) -> bool:
            if a is OUTSIDE or b is OUTSIDE:
                raise Unsupported("a comparison needs an exponential of a fraction")
            if a is UNDEFINED or b is UNDEFINED:  # whatever such a lane decides must not matter
                return bool(self._rng.random() < 0.5)
            return bool(fn(a, b))

        return decide

    def check(self, name: str, v: Value) -> None:
        poisoned = np.asarray(_IS_POISON(v)).astype(bool)
        if not poisoned.any():
            return
        undefined = np.asarray(_ufunc(lambda x: x is UNDEFINED, 1, 1)(v)).astype(bool)
        if undefined.any():
            raise EvaluationError(flagged_output(name, undefined, "depends on uninitialised memory"))
        raise Unsupported(flagged_output(name, poisoned, "is outside the fragment of the ordered rationals"))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        return np.asarray(rng.integers(-3, 4, shape).astype(object), object)

    def differs(self, expected: Value, got: Value) -> Array:
        def wrong(a: Any, b: Any) -> bool:
            return bool(a == a and a != b)

        with np.errstate(invalid="ignore"):
            return np.asarray(_ufunc(wrong, 2, 1)(expected, got)).astype(bool)

    def known(self, v: Value) -> Array:
        # numpy 2.4 and newer warn of NaN compared here.
        with np.errstate(invalid="ignore"):
            return np.asarray(_ufunc(lambda x: x == x, 1, 1)(v)).astype(bool)

    # --- opaque functions --------------------------------------------------------------------------

    def _hash(self, name: str, *args: Any) -> int:
        key = repr((self.seed, name, *map(_text, args))).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")

    def _log(self, x: Any) -> Any:
        if x == 0:
            return -_INF
        if isinstance(x, float) or x < 0:
            return x if x == _INF else math.nan
        value = None if isinstance(x, Logarithm) else logarithm(x)
        return self._hash("log", x) % 7 - 3 if value is None else _tidy(value)

    def _sqrt(self, x: Any) -> Any:
        if isinstance(x, float) or x <= 0:
            return x if x in (0, _INF) else math.nan
        return 1 + self._rises["sqrt"](x)

    def _keyed(self, name: str) -> Callable[[Any], Any]:
        return lambda *x: math.nan if any(a != a for a in x) else self._hash(name, *x) % 7 - 3

    def _rising(self, name: str) -> Callable[[Any], Any]:
        return lambda x: x if x != x else self._rises[name](x)

    def _sigmoid(self, x: Any) -> Any:
        if isinstance(x, float):
            return x if x != x else int(x > 0)
        return 1 + max(0, 2 * SPAN + self._rises["sigmoid"](x))

    def _pow(self, a: Any, b: Any) -> Any:
        if isinstance(a, Logarithm) or isinstance(b, Logarithm):
            return 1 + self._hash("pow", a, b) % 3
        if isinstance(b, int) and not isinstance(a, float) and abs(b) * _bits(a) <= LARGEST:
            return _inverse(_tidy(Fraction(a) ** -b)) if b < 0 else _tidy(a**b)
        if a != a or b != b:
            return math.nan
        if a == _INF and not isinstance(b, float) and b != 0:
            return _INF if b > 0 else 0
        # A root is no rational number, and a number in its place would not be a homomorphism; nor has 1 ** inf one.
        return OUTSIDE


def _text(x: Any) -> str:
    """A text for each number; Python writes none with very many decimal digits."""
    if isinstance(x, Logarithm):
        return f"{_text(x.q)} + log({_text(x.x)})"
    if isinstance(x, Fraction):
        return f"{x.numerator:x}/{x.denominator:x}"
    return f"{x:x}" if isinstance(x, int) else repr(x)


def _bits(x: int | Fraction) -> int:
    """Return the length of a number in bits, of numerator or denominator."""
    return max(Fraction(x).numerator.bit_length(), Fraction(x).denominator.bit_length())


def _exact(x: Any) -> Any:
    """A number as an int or Fraction; infinities and NaN stay floats."""
    if isinstance(x, int | Fraction | Poison):
        return _tidy(x)
    value = float(x)
    return _tidy(Fraction(value)) if math.isfinite(value) else value
