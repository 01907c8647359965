"""What the theorem on independent exponents needs of a pair of graphs, each with a certificate that decides it.

Radicands. R₁ … R_s are independent modulo squares over ℤ_m(x) where each T with T² = R doubles the extension. Were a
product of some of them a square there, it would be one at every point where the roots inside them have values: a point
where it is none is the proof (docs/mirage.md has the details). Exponents. The row rank of their coefficients is full
where it is full at one point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TypeVar

import numpy as np

from neptune.ir.evaluate.domains import Array
from neptune.mirage.verifier.heights import MAXIMUM, PRIMES, Heights
from neptune.mirage.verifier.polynomials import Monomial, Poly, number, rank, variable
from neptune.verify.residues import power, root

K = TypeVar("K")
POINTS = 1 << 12
"""Points that are tried for a certificate."""


@dataclass(frozen=True)
class Fails:
    """A step of the theorem that does not hold, or no certificate for it was found."""

    why: str


@dataclass(frozen=True)
class Piece:
    """An exponent of a basis, as a fraction, and the roots in it (with those in their radicands)."""

    top: Poly
    bottom: Poly
    roots: frozenset[int]


@dataclass(frozen=True)
class Basis:
    """Exponents of which all others are whole combinations (of each over a common number).

    `spread`: a monomial of degree d in the exponentials of all has degree d·spread in those of the basis, negative
    powers cleared.
    """

    pieces: tuple[Piece, ...]
    spread: float


@dataclass(frozen=True)
class Spreading:
    """How evenly the exponents of a basis are spread: none has a value more often than atom/q, independently of the
    others, but with probability bad/q."""

    atom: float
    bad: float


@dataclass
class Certificates:
    """Decides the steps for elements in one ring, each once. `why` is the last that did not hold."""

    heights: Heights
    seed: int
    primes: tuple[int, int]
    why: str = ""

    def __post_init__(self) -> None:
        self._bases: dict[frozenset[int], Basis | Fails] = {}
        self._spreadings: dict[tuple[Piece, ...], Spreading | Fails] = {}
        self._independent: dict[tuple[frozenset[int], int], Fails | None] = {}

    def behind(self, roots: Iterable[int]) -> frozenset[int]:
        """Roots, those in their radicands, and no numbers."""
        own = frozenset(r for r in roots if r in self.heights.roots)
        return own.union(*(self.heights.roots[r].inside for r in own))

    def behind_exponents(self, exponents: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self.heights.exponents[e][2] for e in exponents))

    # --- radicands ---------------------------------------------------------------------------------

    def numbers(self) -> Fails | None:
        """Roots of numbers: primes whose roots are taken are squares, and what came out of a root is one too."""
        for m in self.primes:
            for x in (*sorted(self.heights.numbers), *sorted(self.heights.scales)):
                if x % m == 0 or pow(x, (m - 1) // 2, m) != 1:
                    return Fails(f"a root takes {x} for positive, and it is no square modulo {m}")
        return None

    def signs(self) -> Fails | None:
        """Roots of products: no circle of them, so that roots of all factors can be chosen that give theirs."""
        group: dict[int, int] = {}

        def of(v: int) -> int:
            while v in group:
                v = group[v]
            return v

        for pair, _ in sorted(self.heights.pairs, key=lambda x: (sorted(x[0]), x[1])):
            a, b = (of(v) for v in pair)
            if a == b:
                return Fails("roots of products of radicands go round in a circle")
            group[a] = b
        return None

    def independent(self, roots: frozenset[int], modulus: int) -> Fails | None:
        """Radicands that are independent modulo squares."""
        key = roots, modulus
        if key not in self._independent:
            self._independent[key] = self._decide(sorted(roots), modulus)
        return self._independent[key]

    def _decide(self, roots: Sequence[int], modulus: int) -> Fails | None:
        points, alive = self.points(roots, modulus, roots_too=False)
        inner = [r for r in roots if any(r in self.heights.roots[x].inside for x in roots)]
        for r in inner:
            square = self.heights.ring.squares[r].at(points, modulus)
            residue = power(square, (modulus - 1) // 2, modulus)
            if not (alive & (residue == modulus - 1)).any():
                return Fails("a radicand inside another may be a square")
            alive &= residue == 1
            points[r] = np.where(alive, root(square, modulus), 0)
        outer = [r for r in roots if r not in inner]
        if not outer:
            return None
        residues = np.array([self._symbol(r, points, modulus) for r in outer])
        usable = alive & (residues != 0).all(0)
        rows = (residues[:, usable] == modulus - 1).astype(int)
        if rank([row[: 4 * len(outer) + 64] for row in rows.tolist()], 2) < len(outer):
            return Fails("radicands behind an element depend on each other, or may be squares")
        return None

    def _symbol(self, r: int, points: Mapping[int, Array], modulus: int) -> Array:
        square = self.heights.ring.squares[r].at(points, modulus)
        return np.broadcast_to(power(square, (modulus - 1) // 2, modulus), (POINTS,))

    def points(self, roots: Sequence[int], modulus: int, roots_too: bool) -> tuple[dict[int, Array], Array]:
        """Values of all variables at random points, and which points have the roots of numbers (and all roots)."""
        rng = np.random.default_rng((self.seed, modulus))
        values: dict[int, Array] = {v: rng.integers(0, modulus, POINTS) for v in sorted(self.heights.owners)}
        for p in PRIMES:
            values[-p] = np.broadcast_to(root(np.array(p % modulus), modulus), (POINTS,))
        alive = np.ones(POINTS, bool)
        for r in roots if roots_too else ():
            square = self.heights.ring.squares[r].at(values, modulus)
            values[r] = np.broadcast_to(root(square, modulus), (POINTS,))
            alive &= values[r] > 0
            values[r] = np.where(values[r] > 0, values[r], 0)
        return values, alive

    # --- exponents ---------------------------------------------------------------------------------

    def basis(self, exponents: frozenset[int]) -> Basis | Fails:
        """A basis of exponents over the rationals, such that all are whole combinations up to one number.

        Drawn maxima are in it by themselves: s − m is a combination of s and m.
        """
        if exponents not in self._bases:
            self._bases[exponents] = self._chosen(sorted(exponents))
        return self._bases[exponents]

    def _chosen(self, exponents: Sequence[int]) -> Basis | Fails:
        parts = [self._split(*self.heights.exponents[e]) for e in exponents]
        rests = list(dict.fromkeys(piece for piece, _ in parts if piece.top.terms))
        maxima = sorted({m for _, more in parts for m in more})
        pieces = [Piece(variable(m), number(1), frozenset()) for m in maxima]
        vectors = self._common(rests)
        if vectors is None:
            return Fails("exponents are too large to be written out")
        kept, combination_of = _independent(rests, vectors)
        combinations = [
            {
                **(combination_of[piece] if piece.top.terms else {}),
                **{Piece(variable(m), number(1), frozenset()): c for m, c in more.items()},
            }
            for piece, more in parts
        ]
        scale = lcm(*(c.denominator for x in combinations for c in x.values()))
        if scale % self.primes[1] == 0:
            return Fails("exponents are combinations over q")
        pieces += kept
        positive = max(sum(max(c, Fraction(0)) for c in x.values()) for x in combinations) * scale
        negative = sum(max(max(-x.get(j, Fraction(0)), Fraction(0)) for x in combinations) for j in pieces) * scale
        return Basis(tuple(pieces), max(1.0, float(positive)) + float(negative))

    def _split(self, top: Poly, bottom: Poly, roots: frozenset[int]) -> tuple[Piece, dict[int, Fraction]]:
        """An exponent as what is left of it and whole multiples of maxima."""
        maxima = frozenset(v for v in top.variables if self.heights.owners.get(v) == MAXIMUM)
        by = top.coefficients(maxima)
        multiples: dict[int, Fraction] = {}
        for m, c in by.items():
            if not m:
                continue
            times = c.terms[0][1] // bottom.terms[0][1]
            if len(m) > 1 or m[0][1] > 1 or c != self.heights.ring.scaled(bottom, times):
                return Piece(top, bottom, roots), {}
            multiples[m[0][0]] = Fraction(times)
        rest = by.get((), Poly(()))
        return Piece(rest, bottom if rest.terms else number(1), roots if rest.terms else frozenset()), multiples

    def _common(self, pieces: Sequence[Piece]) -> list[Poly] | None:
        """The numerators of exponents over one denominator; None where one is too large."""
        bottoms = list(dict.fromkeys(x.bottom for x in pieces))
        products = [self.heights.ring.product([x.top, *(b for b in bottoms if b != x.bottom)]) for x in pieces]
        written = [p for p in products if p is not None]
        return written if len(written) == len(products) else None

    # --- how exponents are spread ------------------------------------------------------------------

    def spreading(self, basis: Basis) -> Spreading | Fails:
        """How evenly the exponents of a basis are spread."""
        key = basis.pieces
        if any(pair & x.roots for pair, _ in self.heights.pairs for x in key):
            return Fails("an exponent has a root of a product of radicands")
        if key not in self._spreadings:
            self._spreadings[key] = (
                self._affine(key)
                or self._apart(key)
                or Fails("exponents are neither affine of full row rank in an input, nor each in variables of its own")
            )
        return self._spreadings[key]

    def _affine(self, pieces: tuple[Piece, ...]) -> Spreading | None:
        """Affine with full row rank in the elements of one input, and the maxima: uniform and independent."""
        used = frozenset[int]().union(*map(self._variables, pieces))
        maxima = frozenset(v for v in used if self.heights.owners[v] == MAXIMUM)
        for owner in sorted({self.heights.owners[v] for v in used}):
            spreading = self._affine_in(pieces, maxima | {v for v in used if self.heights.owners[v] == owner})
            if spreading is not None:
                return spreading
        return None

    def _variables(self, piece: Piece) -> frozenset[int]:
        """The variables of an exponent that are no roots, those in radicands too."""
        radicands = (self.heights.ring.squares[r].variables for r in piece.roots)
        every = (piece.top.variables | piece.bottom.variables).union(*radicands)
        return frozenset(v for v in every if v in self.heights.owners)

    def _affine_in(self, pieces: tuple[Piece, ...], some: frozenset[int]) -> Spreading | None:
        modulus, roots = self.primes[1], frozenset[int]().union(*(x.roots for x in pieces))
        fixed = [*(self.heights.ring.squares[r] for r in roots), *(x.bottom for x in pieces)]
        tops = [x.top.coefficients(some) for x in pieces]
        if any(p.variables & some for p in fixed) or any(sum(n for _, n in m) > 1 for top in tops for m in top):
            return None
        points = self._with_roots(roots, modulus)
        if points is None:
            return None
        values, alive = points
        entries = [[top.get(((v, 1),), Poly(())).at(values, modulus) for v in sorted(some)] for top in tops]
        for k in alive[:4]:
            if rank([[_at(x, k) for x in row] for row in entries], modulus) == len(pieces):
                minor = sum(max(self.heights.of(x.top).degree - 1, 0) for x in pieces)
                return Spreading(1.0, 2 ** len(roots) * minor)
        return None

    def _apart(self, pieces: tuple[Piece, ...]) -> Spreading | None:
        """Each varies with variables that no other one has: independent, and none has a value often."""
        modulus, atom, bad = self.primes[1], 1.0, 0.0
        for piece in pieces:
            others = frozenset[int]().union(*(self._variables(x) for x in pieces if x is not piece))
            own = self._variables(piece) - others
            inside, outside = self._sides(piece, own)
            points = None if inside is None else self._with_roots(piece.roots, modulus)
            if inside is None or points is None:
                return None
            values, alive = points
            if not self._varies(piece, own, inside, values, alive, modulus):
                return None
            top, bottom = (self.heights.of(p).degree for p in (piece.top, piece.bottom))
            atom = max(atom, 2 ** len(inside) * max(top, bottom))
            bad += 2 ** len(outside) * (top + bottom)
        return Spreading(atom, bad)

    def _sides(self, piece: Piece, own: frozenset[int]) -> tuple[frozenset[int] | None, frozenset[int]]:
        """The roots in variables of its own alone, and those without any; None where one has both."""
        inside = set()
        for r in piece.roots:
            used = self._variables(Piece(self.heights.ring.squares[r], number(1), self.heights.roots[r].inside))
            if used & own:
                if used - own:
                    return None, frozenset()
                inside.add(r)
        return frozenset(inside), piece.roots - inside

    def _varies(
        self,
        piece: Piece,
        own: frozenset[int],
        inside: frozenset[int],
        values: dict[int, Array],
        alive: Sequence[int],
        modulus: int,
    ) -> bool:
        """Return True if at some point two values of its own variables give two values."""
        if not own or len(alive) < 2:
            return False
        first, second = alive[:2]
        moved = {
            v: np.where(np.arange(POINTS) == first, x[second], x) if v in own | inside else x for v, x in values.items()
        }
        tops, bottoms = ([p.at(point, modulus) for point in (values, moved)] for p in (piece.top, piece.bottom))
        (a, b), (c, d) = ([_at(x, first) for x in pair] for pair in (tops, bottoms))
        return c != 0 and d != 0 and (a * d - b * c) % modulus != 0

    def _with_roots(self, roots: frozenset[int], modulus: int) -> tuple[dict[int, Array], list[int]] | None:
        """Points where independent roots exist; None where they are not."""
        if self.independent(roots, modulus) is not None:
            return None
        values, alive = self.points(sorted(roots), modulus, roots_too=True)
        return values, np.flatnonzero(alive).tolist()


def _independent(
    rests: Sequence[Piece], vectors: Sequence[Poly]
) -> tuple[list[Piece], dict[Piece, dict[Piece, Fraction]]]:
    """Those whose vectors are linearly independent, and each as a combination of them."""
    kept: list[Piece] = []
    combinations: dict[Piece, dict[Piece, Fraction]] = {}
    echelon: list[tuple[dict[Monomial, Fraction], dict[Piece, Fraction]]] = []
    for piece, vector in sorted(zip(rests, vectors, strict=True), key=lambda x: len(x[1].terms)):
        left = {m: Fraction(c) for m, c in vector.terms}
        combination: dict[Piece, Fraction] = {}
        for row, before in echelon:
            pivot = next(iter(row))
            if by := left.get(pivot, Fraction(0)) / row[pivot]:
                left, combination = _less(left, row, by), _less(combination, before, -by)
        combinations[piece] = combination
        if left:
            echelon.append((left, {**{j: -c for j, c in combination.items()}, piece: Fraction(1)}))
            kept.append(piece)
            combinations[piece] = {piece: Fraction(1)}
    return kept, combinations


def _at(x: Array, k: int) -> int:
    """A value of a polynomial at a point."""
    return int(x[k]) if x.ndim else int(x)


def _less(a: Mapping[K, Fraction], b: Mapping[K, Fraction], by: Fraction) -> dict[K, Fraction]:
    """a − by·b without zeros."""
    difference = {k: a.get(k, Fraction(0)) - by * b.get(k, Fraction(0)) for k in (*a, *b)}
    return {k: c for k, c in difference.items() if c}
