"""Numbers of two finite fields in which roots are roots: (x mod p, y mod q) with q | p − 1, many draws at once.

exp takes the second part up: exp(x, y) = (ω^y, nothing), ω of order q in ℤ_p (`neptune.verify.residues`). √a is the
root that is itself a square, a^((m+1)/4): with that choice √a·√b = √(ab), and √(a²) is a or −a, as the reals have |a|.
Where a radicand is no square its root has no value.

- The first axis of an array numbers the draws. Each has an ω of its own.
- A part is `BAD` where it has no value in a draw: a root of no square, x/0. The parts are apart: what only goes into an
  exponential needs the second alone. An element counts in a draw only where it has a value.
- The second part is `NONE` behind an exponential, and in what it goes into. The exponential of such a value, and
  functions of which nothing is known, are keyed random functions of the first part: equal arguments have equal
  results, and that is all.
- max is that of an arbitrary keyed order. See `evaluate` for running maxima that are drawn.
- Constants are exact rationals.

Source: Wu et al., "Mirage" (OSDI 2025), §5, with the roots and the keyed functions added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from neptune.ir.evaluate.domains import Array, Elementwise, Value
from neptune.verify.residues import BAD, P, Powers, Q, inverse, mix, name_key, reduced, residue, root

NONE = -1


class Pair(NamedTuple):
    """The parts modulo p and q: residues, BAD, or (the second) NONE."""

    p: Array
    q: Array


def _combined(a: Array, b: Array, result: Array) -> Array:
    """The result where both have a value; NONE where one is NONE, else BAD."""
    either = a | b  # negative where one is
    if either.min() >= 0:
        return result
    return np.where(either < 0, np.where(np.maximum(a, b) < 0, np.maximum(a, b), np.minimum(a, b)), result)


def nothing(shape: tuple[int, ...]) -> Array:
    """NONE everywhere, in the place of one number."""
    return np.broadcast_to(np.int64(NONE), shape)


def _is_nothing(x: Array) -> bool:
    return x.size > 1 and not any(x.strides) and x.item(0) == NONE


def _mapped(a: Array, modulus: int, function: Callable[[Array, int], Array]) -> Array:
    """A function of residues, applied where there is a value. It may return BAD."""
    if _is_nothing(a):
        return a
    missing = a < 0
    if not missing.any():
        return function(a, modulus)
    return np.where(missing, a, function(np.where(missing, 0, a), modulus))


class RootField(Elementwise):
    """The numbers of `draws` draws. `seed` draws every ω, the order of max and all functions of which nothing is known.

    Another pair of primes may be given: q | p − 1, both 3 modulo 4.
    """

    def __init__(self, draws: int, seed: int = 0, p: int = P, q: int = Q) -> None:
        if (p - 1) % q or p % 4 != 3 or q % 4 != 3:
            raise ValueError(f"{p} and {q} are no pair of primes: q | p - 1, and both 3 modulo 4")
        self.draws, self.p, self.q = draws, p, q
        self.rng = np.random.default_rng((seed, 0x300F))
        self._key = int(self.rng.integers(1 << 62))
        generator = next(g for g in (pow(x, (p - 1) // q, p) for x in range(2, p)) if g != 1)
        self._turned = Powers(generator, p)
        self._turns = self.rng.integers(1, q, draws)
        self._functions()

    def _functions(self) -> None:
        self._unary: dict[str, Callable[[Pair], Pair]] = {
            "neg": lambda x: self._each(x, lambda r, m: reduced(m - r, m)),
            "sqrt": lambda x: self._each(x, root),
            "inverse": lambda x: self._each(x, inverse),
            "rsqrt": lambda x: self._unary["inverse"](self._unary["sqrt"](x)),
            "exp": self._exp,
            "sigmoid": self._sigmoid,
        }
        self._binary: dict[str, Callable[[Pair, Pair], Pair]] = {
            "add": lambda a, b: self._both(a, b, lambda x, y, m: reduced(x + y, m)),
            "sub": lambda a, b: self._both(a, b, lambda x, y, m: reduced(x + (m - y), m)),
            "mul": lambda a, b: self._both(a, b, lambda x, y, m: reduced(x * y, m)),
            "div": lambda a, b: self._binary["mul"](a, self._unary["inverse"](b)),
            "max": self._max,
        }

    def only(self, draws: Array) -> RootField:
        """Some of the draws."""
        some = copy.copy(self)
        some.draws, some._turns = len(draws), self._turns[draws]
        some._functions()
        return some

    # --- what a domain is --------------------------------------------------------------------------

    def parts(self, v: Value) -> tuple[Array, ...]:
        return tuple(v)

    def make(self, parts: Sequence[Array]) -> Value:
        return Pair(*parts)

    def number(self, value: Fraction) -> Pair:
        """An exact rational, as an array of rank 0."""
        return Pair(*(np.asarray(residue(value, m)) for m in (self.p, self.q)))

    def apply(self, name: str, args: Sequence[Value], dtype: str = "") -> Value:
        """An operator; a name that is none is a function of which nothing is known."""
        if len(args) == 1 and name in self._unary:
            return self._unary[name](args[0])
        if len(args) == 2 and name in self._binary:
            return self._binary[name](args[0], args[1])
        return self._opaque(name, *args)

    def fold(self, reducer: str, v: Value, axis: int, dtype: str = "") -> Value:
        if reducer == "sum":
            return Pair(*(self._sum(x, axis, m) for x, m in self._with(v)))
        return super().fold(reducer, v, axis, dtype)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        """Uniform residues, one set a draw; `shape` without the axis of draws."""
        return Pair(rng.integers(0, self.p, (self.draws, *shape)), rng.integers(0, self.q, (self.draws, *shape)))

    def differs(self, expected: Value, got: Value) -> Array:
        """Where both have a value and it is not one."""
        apart = (expected.p != got.p) & ((expected.p | got.p) >= 0)
        return np.asarray(apart | ((expected.q != got.q) & ((expected.q | got.q) >= 0)))

    def known(self, v: Value) -> Array:
        """Where an element has a value, so that a draw counts for it."""
        return np.asarray(v.p >= 0)

    # --- arithmetic --------------------------------------------------------------------------------

    def _with(self, x: Pair) -> tuple[tuple[Array, int], tuple[Array, int]]:
        return (x.p, self.p), (x.q, self.q)

    def _each(self, x: Pair, function: Callable[[Array, int], Array]) -> Pair:
        return Pair(*(_mapped(v, m, function) for v, m in self._with(x)))

    def _both(self, a: Pair, b: Pair, function: Callable[[Array, Array, int], Array]) -> Pair:
        p = _combined(a.p, b.p, function(a.p, b.p, self.p))
        if _is_nothing(a.q) or _is_nothing(b.q):
            return Pair(p, nothing(p.shape))
        return Pair(p, _combined(a.q, b.q, function(a.q, b.q, self.q)))

    def _sum(self, x: Array, axis: int, modulus: int) -> Array:
        if _is_nothing(x):
            return nothing(tuple(np.delete(x.shape, axis)))
        total = reduced(x.sum(axis), modulus)
        if x.min() < 0:
            missing = np.where((x == NONE).any(axis), NONE, BAD)
            return np.where((x < 0).any(axis), missing, total)
        return total

    def _exp(self, a: Pair) -> Pair:
        if _is_nothing(a.q):
            return Pair(self._opaque("exp", a).p, a.q)
        turns = self._turns.reshape(-1, *(1,) * (a.q.ndim - 1))
        e = reduced(np.maximum(a.q, 0) * turns, self.q)
        p = self._turned.of(e)
        if (a.q < 0).any():
            unknown = self._opaque("exp", a)
            p = np.where(a.q >= 0, p, np.where(a.q == NONE, unknown.p, BAD))
        return Pair(p, nothing(p.shape))

    def _sigmoid(self, a: Pair) -> Pair:
        one = self.number(Fraction(1))
        return self._binary["div"](one, self._binary["add"](one, self._exp(self._unary["neg"](a))))

    def _opaque(self, name: str, *args: Pair) -> Pair:
        key = self._key ^ name_key(name)
        code: Array = np.zeros((), np.uint64)
        bad: Array = np.zeros((), np.bool_)
        for x in args:
            code = mix(x.p.astype(np.uint64) ^ mix(code, key), key)
            bad = bad | (x.p < 0)
        p, q = ((mix(code, key ^ k) % np.uint64(m)).astype(np.int64) for k, m in ((0x70, self.p), (0x71, self.q)))
        return Pair(np.where(bad, BAD, p), np.where(bad, BAD, q))

    def _max(self, a: Pair, b: Pair) -> Pair:
        """The later in an order by what the exponential of it depends on: the second part where there is one."""
        keys = [np.where(v.q >= 0, mix(v.q, self._key), mix(v.p, self._key ^ 1)) for v in (a, b)]
        take = keys[0] < keys[1]
        bad = np.zeros((), np.bool_)
        for v in (a, b):
            bad = bad | (v.q == BAD) | ((v.q == NONE) & (v.p < 0))
        return Pair(*(np.where(bad, BAD, np.where(take, y, x)) for x, y in zip(a, b, strict=True)))
