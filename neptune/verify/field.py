"""The field-pair model: a value is (a mod P, b mod Q), and exp takes b to omega^b in Z_P.

Q divides P - 1 and omega has order Q, so exp(x + y) = exp(x)·exp(y) holds exactly.  The exponential of a
value has no second component: an exponential of it is outside the fragment (kept as poison, and an error
only where it reaches an output).  The rest is chosen so that what must agree does and nothing else:

- exp2(x) = exp(x·ln2) with ln2 a random element and log2e its inverse; log2(x) = log(x)·log2e;
  rsqrt(x) = 1/sqrt(x).
- max and min follow an arbitrary keyed total order. The finite extremes of the dtypes, and any constant
  of magnitude 6e4 or more, are ordinary elements put at the two ends of that order; -inf lies below and
  inf above them. exp(-inf) = 0.
- The order also decides comparisons, except where one side is 0 and the other's sign is known
  (an exponential, a positive constant, sums and products of such): then the sign decides.
- inf times a value needs the value's sign; where that is unknown the result is outside the fragment.
- x/0 is undefined (NaN). A draw that hits a zero divisor by accident (probability about n/P) makes
  elements undefined, and so leaves them unchecked, never wrongly accused.
- Opaque functions (log, sqrt, sigmoid, pow, float → int and those of `OPAQUE`, roundings to an integer among
  them) are keyed random functions.

A value that max selects, a comparison decides or an opaque function returns is consistent, not true, so
acceptance holds for programs whose result does not depend on what the maximum is.  n draws, no bound;
without exp, max, comparison and opaque functions see `degrees` for a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.dtypes import DTYPES
from neptune.ir.evaluate.domains import (
    Array,
    Elementwise,
    EvaluationError,
    Value,
    flagged_output,
    some,
)
from neptune.ir.ops import OPS
from neptune.verify.residues import P, Powers, Q, mix, name_key, power, residue

# Tags, in the order of max: infinities around extremes around ordinary values; then poison, worst last.
INF = 5
NAN, OUTSIDE, UNDEFINED = 6, 7, 8
_FLOATS = ("float16", "bfloat16", "float32", "float64")
EXTREMES = {DTYPES[name].highest: k for k, name in enumerate(_FLOATS, 1)}
HUGE = 6e4
RULED = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "pow")
"""The functions that the models have rules for; of any other nothing is known but that it is a function."""
OPAQUE, OF_TWO = (
    tuple(n for n, row in OPS.items() if row.kind == "math" and row.arity == arity and n not in RULED)
    for arity in (1, 2)
)


class Pair(NamedTuple):
    """Residues p, q (q = -1: none), the tag, and the sign where it is known (zero has none)."""

    p: Array
    q: Array
    tag: Array
    sign: Array


def _extreme_tag(value: float) -> int:
    if np.isinf(value):
        return INF if value > 0 else -INF
    if abs(value) < HUGE:
        return 0
    rank = EXTREMES.get(abs(value), 1)
    return rank if value > 0 else -rank


class FieldPair(Elementwise):
    """Pairs of residues; `seed` draws omega, ln2, the order of max and all opaque functions."""

    name = "field pair"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng((seed, 0xF1E1D))
        self._key = int(self._rng.integers(1 << 62))
        # Squares have order Q (or 1): P = 2Q + 1.
        root = int(self._rng.integers(2, P - 1))
        self._turned = Powers(root * root % P, P)
        ln2_p, ln2_q = int(self._rng.integers(1, P)), int(self._rng.integers(1, Q))
        self._constants = {"ln2": (ln2_p, ln2_q), "log2e": (pow(ln2_p, -1, P), pow(ln2_q, -1, Q))}
        self._unary: dict[str, Callable[[Pair], Pair]] = {
            "neg": self._neg,
            "exp": self._exp,
            "exp2": lambda x: self._exp(self._mul(x, self._symbol("ln2"))),
            "log": self._log,
            "log2": lambda x: self._mul(self._log(x), self._symbol("log2e")),
            "sqrt": self._sqrt,
            "rsqrt": lambda x: self._inverse(self._sqrt(x)),
            "sigmoid": self._sigmoid,
            **{name: self._keyed(name) for name in OPAQUE},
        }
        self._binary: dict[str, Callable[[Pair, Pair], Pair]] = {
            "add": self._add,
            "sub": lambda a, b: self._add(a, self._neg(b)),
            "mul": self._mul,
            "div": lambda a, b: self._mul(a, self._inverse(b)),
            "max": lambda a, b: self._pick(a, b, self._less(a, b)),
            "min": lambda a, b: self._pick(a, b, self._less(b, a)),
            "pow": self._pow,
            **{name: self._of_two(name) for name in OF_TWO},
        }

    # --- the protocol ------------------------------------------------------------------------------

    def parts(self, v: Value) -> tuple[Array, ...]:
        return tuple(v)

    def make(self, parts: Sequence[Array]) -> Value:
        return Pair(*parts)

    def undefined(self, shape: tuple[int, ...]) -> Value:
        return _special(np.full(shape, UNDEFINED, np.int8))

    def const(self, value: float, dtype: str) -> Value:
        tag = 0 if np.isfinite(value) else NAN if np.isnan(value) else _extreme_tag(value)
        if tag:
            return _special(np.asarray(tag, np.int8))
        p, q, sign = residue(Fraction(value), P), residue(Fraction(value), Q), int(np.sign(value))
        return Pair(*(np.asarray(x) for x in (p, q, np.int8(_extreme_tag(value)), np.int8(sign))))

    def lift(self, value: Any, dtype: str) -> Value:
        if isinstance(value, Pair):
            return Pair(*(np.array(x) for x in value))
        array = np.asarray(value, np.float64)
        consts = [self.const(float(x), dtype) for x in array.ravel()]
        return Pair(*(np.array([c[k] for c in consts], t).reshape(array.shape) for k, t in enumerate(_TYPES)))

    def embed(self, value: Array, dtype: str) -> Value:
        x = np.asarray(value, np.int64)
        return Pair(x % P, x % Q, np.zeros(x.shape, np.int8), np.sign(x).astype(np.int8))

    def truncate(self, v: Value, dtype: str) -> Array:
        span = {"bool": 2, "int8": 128, "uint8": 256}.get(dtype, 1 << 15)
        result = (mix(v.p, self._key ^ 0x7121) % np.uint64(span)).astype(np.int64)
        return result != 0 if dtype == "bool" else result

    def cast(self, v: Value, dtype: str) -> Value:
        return v

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        if not args:
            return self._symbol(name)
        if len(args) == 1:
            return self._unary[name](args[0])
        return self._binary[name](args[0], args[1])

    def compare(self, name: str, a: Value, b: Value) -> Array:
        if name in ("gt", "ge"):
            name, a, b = {"gt": "lt", "ge": "le"}[name], b, a
        worst = np.maximum(a.tag, b.tag)
        if some(worst == OUTSIDE):
            raise Unsupported("a comparison needs an exponential of an exponential")
        same = (a.tag == b.tag) & (a.p == b.p)
        less = _known(a, b, self._less(a, b)) & ~same
        result = {"lt": less, "le": less | same, "eq": same, "ne": ~same}[name]
        result = np.where(worst == NAN, name == "ne", result)
        if some(worst == UNDEFINED):  # whatever such a lane decides must not matter
            result = np.where(worst == UNDEFINED, self._rng.random(np.shape(worst)) < 0.5, result)
        return np.asarray(result)

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        if reducer != "sum" or some(v.tag):
            return super().fold(reducer, v, axis, dtype)
        zero = v.p == 0
        positive, negative = ((zero | (v.sign == s)).all(axis) for s in (1, -1))
        sign = positive.astype(np.int8) - negative.astype(np.int8)
        q = np.where((v.q < 0).any(axis), -1, v.q.sum(axis) % Q)
        return Pair(v.p.sum(axis) % P, q, np.zeros(sign.shape, np.int8), sign)

    def check(self, name: str, v: Value) -> None:
        for tag, error, what in (
            (UNDEFINED, EvaluationError, "depends on uninitialised memory"),
            (OUTSIDE, Unsupported, "is outside the fragment of the field pair"),
        ):
            if some(bad := v.tag == tag):
                raise error(flagged_output(name, bad, what))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        p, q = rng.integers(0, P, shape), rng.integers(0, Q, shape)
        return Pair(p, q, np.zeros(shape, np.int8), np.zeros(shape, np.int8))

    def differs(self, expected: Value, got: Value) -> Array:
        tags = [np.where(np.abs(v.tag) < INF, 0, v.tag) for v in (expected, got)]
        other_q = (expected.q != got.q) & (expected.q >= 0) & (got.q >= 0)
        return np.asarray((expected.tag != NAN) & ((tags[0] != tags[1]) | (expected.p != got.p) | other_q))

    def known(self, v: Value) -> Array:
        return np.asarray(v.tag < NAN)

    # --- arithmetic --------------------------------------------------------------------------------

    def _symbol(self, name: str) -> Pair:
        p, q = self._constants[name]
        return Pair(np.asarray(p), np.asarray(q), np.asarray(0, np.int8), np.asarray(1, np.int8))

    def _neg(self, a: Pair) -> Pair:
        tag = np.where(a.tag < NAN, -a.tag, a.tag)
        return Pair(-a.p % P, np.where(a.q < 0, -1, -a.q % Q), tag, -a.sign)

    def _add(self, a: Pair, b: Pair) -> Pair:
        q = np.where((a.q < 0) | (b.q < 0), -1, (a.q + b.q) % Q)
        both = np.where(a.sign == b.sign, a.sign, 0)
        sign = np.where(a.p == 0, b.sign, np.where(b.p == 0, a.sign, both))
        result = Pair((a.p + b.p) % P, q, np.zeros(q.shape, np.int8), sign)
        if not (some(a.tag) or some(b.tag)):
            return result
        infinite = [np.abs(v.tag) == INF for v in (a, b)]
        # Adding zero leaves an extreme the extreme that it is.
        tag = np.where((b.p == 0) & (b.tag == 0), a.tag, np.where((a.p == 0) & (a.tag == 0), b.tag, 0))
        tag = np.where(infinite[0], a.tag, np.where(infinite[1], b.tag, tag))
        tag = np.where(infinite[0] & infinite[1] & (a.tag != b.tag), NAN, tag)
        return _normal(result, tag, a, b)

    def _mul(self, a: Pair, b: Pair) -> Pair:
        q = np.where((a.q < 0) | (b.q < 0), -1, a.q * b.q % Q)
        result = Pair(a.p * b.p % P, q, np.zeros(q.shape, np.int8), a.sign * b.sign)
        if not (some(a.tag) or some(b.tag)):
            return result
        infinite = [np.abs(v.tag) == INF for v in (a, b)]
        zero = [(v.p == 0) & (np.abs(v.tag) < INF) for v in (a, b)]
        tag = np.where((b.p == 1) & (b.tag == 0), a.tag, np.where((a.p == 1) & (a.tag == 0), b.tag, 0))
        signed = np.where(result.sign == 0, OUTSIDE, result.sign * np.int8(INF))
        tag = np.where(infinite[0] | infinite[1], signed, tag)
        tag = np.where((infinite[0] & zero[1]) | (infinite[1] & zero[0]), NAN, tag)
        return _normal(result, tag, a, b)

    def _inverse(self, a: Pair) -> Pair:
        p = power(np.asarray(a.p), P - 2, P)
        # A value that vanishes in Z_Q alone has no inverse there.
        q = np.where(a.q <= 0, -1, power(np.maximum(a.q, 0), Q - 2, Q))
        tag = np.where((a.p == 0) & (a.tag == 0), NAN, np.where(a.tag >= NAN, a.tag, 0))
        result = Pair(p, q, tag.astype(np.int8), a.sign)
        infinite = np.abs(a.tag) == INF
        result = _where(infinite, self.const(0.0, ""), result) if some(infinite) else result
        return _where(tag != 0, _special(result.tag), result) if some(tag) else result

    def _pow(self, a: Pair, b: Pair) -> Pair:
        """Small natural exponents multiply; any other power is opaque."""
        result = self._of_two("pow")(a, b)
        product = self.const(1.0, "")
        for n in range(9):
            exact = (b.p == n) & (b.tag == 0)
            if some(exact):
                result = _where(exact, product, result)
            product = self._mul(product, a)
        return result

    def _of_two(self, name: str) -> Callable[[Pair, Pair], Pair]:
        """An opaque function of two arguments."""

        def apply(a: Pair, b: Pair) -> Pair:
            code = (mix(b.p, self._key) ^ np.uint64(0x9077)).astype(np.int64)
            return self._opaque(name, Pair(np.asarray(a.p ^ code), a.q, np.maximum(a.tag, b.tag), a.sign))

        return apply

    # --- functions ---------------------------------------------------------------------------------

    def _exp(self, a: Pair) -> Pair:
        p = self._turned.of(np.maximum(a.q, 0))
        tag = np.where((a.q < 0) & (a.tag < INF), OUTSIDE, np.where(a.tag >= INF, a.tag, 0)).astype(np.int8)
        result = Pair(p, np.full(p.shape, -1), np.zeros_like(tag), np.ones_like(tag))
        if some(tag):
            result = _where(tag != 0, _special(tag), result)
        bottom = a.tag == -INF
        return _where(bottom, self.const(0.0, ""), result) if some(bottom) else result

    def _opaque(self, name: str, a: Pair, sign: int = 0) -> Pair:
        key = self._key ^ name_key(name)
        code = np.asarray(a.p) + np.where(np.abs(a.tag) == INF, a.tag * np.int64(P), 0)
        p = (mix(code, key) % np.uint64(P - 1)).astype(np.int64) + 1
        q = (mix(code, key ^ 0x5A5A) % np.uint64(Q)).astype(np.int64)
        tag = np.where(a.tag >= NAN, a.tag, 0).astype(np.int8)
        result = Pair(p, q, tag, np.full(p.shape, sign, np.int8))
        return _where(tag != 0, _special(tag), result) if some(tag) else result

    def _keyed(self, name: str) -> Callable[[Pair], Pair]:
        return lambda x: self._opaque(name, x)

    def _at(self, special: Array, value: float, result: Pair) -> Pair:
        return _where(special, self.const(value, ""), result) if some(special) else result

    def _log(self, a: Pair) -> Pair:
        result = self._at(a.tag == INF, np.inf, self._opaque("log", a))
        result = self._at(a.tag == -INF, np.nan, result)
        return self._at((a.p == 0) & (a.tag == 0), -np.inf, result)

    def _sqrt(self, a: Pair) -> Pair:
        result = self._at((a.p == 0) & (a.tag == 0), 0.0, self._opaque("sqrt", a, 1))
        return self._at(a.tag == INF, np.inf, self._at(a.tag == -INF, np.nan, result))

    def _sigmoid(self, a: Pair) -> Pair:
        result = self._at(a.tag == -INF, 0.0, self._opaque("sigmoid", a, 1))
        return self._at(a.tag == INF, 1.0, result)

    # --- order -------------------------------------------------------------------------------------

    def _less(self, a: Pair, b: Pair) -> Array:
        key = self._key ^ 0x0DDE
        return np.asarray((a.tag < b.tag) | ((a.tag == b.tag) & (mix(a.p, key) < mix(b.p, key))))

    def _pick(self, a: Pair, b: Pair, take_b: Array) -> Pair:
        if some(a.tag >= NAN) or some(b.tag >= NAN):
            take_b = np.where(np.maximum(a.tag, b.tag) >= NAN, b.tag > a.tag, take_b)
        return _where(take_b, b, a)


_TYPES = (np.int64, np.int64, np.int8, np.int8)


def _where(pred: Array, a: Pair, b: Pair) -> Pair:
    return Pair(*(np.where(pred, x, y) for x, y in zip(a, b, strict=True)))


def _special(tag: Array) -> Pair:
    """Infinities and poison, in their one representation."""
    zero = np.zeros(tag.shape, np.int64)
    sign = np.where(np.abs(tag) == INF, np.sign(tag), 0).astype(np.int8)
    return Pair(zero, zero.copy(), np.array(tag, np.int8), sign)


def _normal(result: Pair, tag: Array, a: Pair, b: Pair) -> Pair:
    """The result with its tag, poison of either side kept, specials in their one representation."""
    worst = np.maximum(a.tag, b.tag)
    tag = np.where(worst >= NAN, worst, tag).astype(np.int8)
    tagged = result._replace(tag=tag)
    special = (np.abs(tag) == INF) | (tag >= NAN)
    return _where(special, _special(tag), tagged) if some(special) else tagged


def _known(a: Pair, b: Pair, less: Array) -> Array:
    """`less`, overruled where one side is 0 and the sign of the other is known."""
    finite = (np.abs(a.tag) < INF) & (np.abs(b.tag) < INF)
    less = np.where(finite & (b.p == 0) & (a.sign != 0), a.sign < 0, less)
    return np.where(finite & (a.p == 0) & (b.sign != 0), b.sign > 0, less)
