"""Arithmetic of residues modulo two primes P = 2·Q + 1, as arrays: what the exact models of programs and of µGraphs
compute with (`neptune.verify.field`, `neptune.mirage.verifier.fields`).

Q divides P - 1, so that an element ω of order Q takes sums modulo Q to products modulo P: exp(x + y) = exp(x)·exp(y).
Both primes are 3 modulo 4, so that of the two roots of a square one is itself a square, and 2, 3, 5 and 7 are squares,
so that roots of sizes are numbers. Products of two residues fit in int64.
"""

from __future__ import annotations

import zlib
from fractions import Fraction

import numpy as np

from neptune.ir.evaluate.domains import Array

P, Q = 2147471759, 1073735879
BAD = -2
"""What stands for a residue that does not exist: a root of no square, 1/0."""
FEW = 64
"""Of so many numbers Python's own powers are faster."""
_WINDOW, _LOW = 4, 15


def mix(x: Array, key: int) -> Array:
    """A 64-bit hash, vectorised (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.asarray(x).astype(np.uint64) + np.uint64(key & 0xFFFFFFFFFFFFFFFF)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def name_key(name: str) -> int:
    """A fixed number for a function's name (Python's own hash of a string changes from run to run)."""
    return zlib.crc32(name.encode()) << 20


def reduced(x: Array, modulus: int) -> Array:
    """x mod modulus of what is not negative. By a quotient: numpy's remainder takes four times as long."""
    u = np.asarray(x, np.int64).view(np.uint64)
    m = np.uint64(modulus)
    return np.asarray((u - u // m * m).view(np.int64))


def residue(value: Fraction, modulus: int) -> int:
    """An exact rational as a residue; BAD where its denominator is none of the field's."""
    bottom = value.denominator % modulus
    return value.numerator * pow(bottom, -1, modulus) % modulus if bottom else BAD


def power(base: Array, exponent: int, modulus: int) -> Array:
    """base^exponent mod modulus of residues, four bits of the exponent at a time."""
    if base.size <= FEW:
        return np.array([pow(int(x), exponent, modulus) for x in base.ravel()], np.int64).reshape(base.shape)
    table = [np.ones_like(base), base]
    while len(table) < 1 << _WINDOW:
        table.append(reduced(table[-1] * base, modulus))
    result = table[0]
    for shift in range((exponent.bit_length() - 1) // _WINDOW * _WINDOW, -1, -_WINDOW):
        for _ in range(_WINDOW):
            result = reduced(result * result, modulus)
        result = reduced(result * table[exponent >> shift & (1 << _WINDOW) - 1], modulus)
    return result


def root(a: Array, modulus: int) -> Array:
    """The root that is a square, BAD where there is none."""
    candidate = power(a, (modulus + 1) // 4, modulus)
    return np.where(reduced(candidate * candidate, modulus) == a, candidate, BAD)


def inverse(a: Array, modulus: int) -> Array:
    """1/a, BAD of 0."""
    return np.where(a == 0, BAD, power(a, modulus - 2, modulus))


class Powers:
    """Powers of one number, by exponents below 2³⁰: looked up in two tables of 2¹⁵."""

    def __init__(self, base: int, modulus: int) -> None:
        self._modulus = modulus
        self._low, self._high = self._table(base), self._table(pow(base, 1 << _LOW, modulus))

    def _table(self, base: int) -> Array:
        table = np.ones(1, np.int64)
        while table.size < 1 << _LOW:
            table = np.concatenate([table, reduced(table * pow(base, table.size, self._modulus), self._modulus)])
        return table

    def of(self, exponent: Array) -> Array:
        """base^exponent, element by element."""
        return reduced(self._low[exponent & (1 << _LOW) - 1] * self._high[exponent >> _LOW], self._modulus)
