"""The largest and smallest value of an index expression over the elements of a tile.

    i0*BM + i1 while i1 runs over [0, BM), under i0*BM + i1 < m        min(i0*BM + BM, m) - 1
    (i0*BM + i1) // C, the same                                        (min(i0*BM + BM, m) - 1) // C
    start[i0*BM + i1], the same                                        whatever `over_data` answers

An expression may move with a variable in any way in which it only grows or only falls: linearly, or through `//` by
something positive, `min` and `max`. A guard such as i < m cuts the range of a variable short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neptune.ir.expr import Expr, Load, Op, Var, binary, maximum, variables
from neptune.ir.indices.affine import Poly, Scope, linear, nonnegative, number, poly, to_expr
from neptune.ir.program import ZERO

OverData = Callable[[Load, str, bool], "Expr | None"]
"""(load, variable, largest) → the extreme of what is loaded while the variable runs; None where it is unknown."""


def unknown(_load: Load, _name: str, _largest: bool) -> Expr | None:
    """An `OverData` that knows nothing of data."""
    return None


@dataclass(frozen=True)
class Extremes:
    """Questions about a tile: what is known in its `scope`, `guards` g ≥ 0 on its variables, and data."""

    scope: Scope
    guards: Sequence[Poly] = ()
    over_data: OverData = unknown

    def of(self, p: Poly, names: Iterable[str], *, largest: bool) -> Poly | None:
        """A bound of `p` over the ranges of `names` (innermost first), reached where one variable moves one atom.

        It is never below the largest (above the smallest) value; None where the direction of a part is unknown.
        """
        bound: Poly | None = p
        for name in names:
            bound = None if bound is None else self._over(bound, name, largest)
        return bound

    def _over(self, p: Poly, name: str, largest: bool) -> Poly | None:
        """The extreme over one variable: linear terms together, every other atom by itself."""
        still = [(m, c) for m, c in p.terms if not _moving(m, name)]
        plain = [(m, c) for m, c in p.terms if _moving(m, name) == [Var(name)]]
        others = [(m, c) for m, c in p.terms if _moving(m, name) not in ([], [Var(name)])]
        total = self._linear(Poly(tuple(plain)) + Poly(tuple(still)), name, largest)
        for atoms, c in others:
            moving = _moving(atoms, name)
            factor = _times([a for a in atoms if a not in moving], c)
            up = self._sign(factor) if len(moving) == 1 else None
            end = None if up is None else self._atom(moving[0], name, largest == up)
            if total is None or end is None:
                return None
            total = total + factor * poly(end)
        return total

    def _sign(self, p: Poly) -> bool | None:
        """True for p ≥ 0, False for p ≤ 0, None for neither known."""
        return True if nonnegative(p, self.scope) else False if nonnegative(p.scaled(-1), self.scope) else None

    def _linear(self, p: Poly, name: str, largest: bool) -> Poly | None:
        parts = linear(p, name)
        if parts is None:
            return None
        coefficient, rest = parts
        if not coefficient.terms:
            return p
        up = self._sign(coefficient)
        if up is None or name not in self.scope.ranges:
            return None
        low, high = self.scope.ranges[name]
        if largest != up:
            return coefficient * poly(low) + rest
        return self._cut_short(p, coefficient, name) or coefficient * poly(high) + rest

    def _cut_short(self, p: Poly, coefficient: Poly, name: str) -> Poly | None:
        """`p` with `name` as large as a guard g ≥ 0 (such as i < m) lets it be, for a coefficient of 1 or -1."""
        if coefficient.constant not in (1, -1):
            return None
        for g in self.guards:
            parts = linear(g, name)
            if parts is None or parts[0].constant != -1:
                continue
            # p ± g is free of `name`, which is largest where g is smallest.
            sign = coefficient.constant
            smallest = parts[1] - poly(self.scope.ranges[name][1])
            least = poly(maximum(ZERO, to_expr(smallest)))
            return p + g.scaled(sign) - least.scaled(sign)
        return None

    def _atom(self, atom: Expr, name: str, largest: bool) -> Expr | None:
        """The extreme of what is not a polynomial."""
        match atom:
            case Op("floordiv", (a, b), _) if name not in variables(b) and self._sign(poly(b) - number(1)):
                end = self._over(poly(a), name, largest)
                return None if end is None else binary("floordiv", to_expr(end), b)
            case Op(("min" | "max") as which, (a, b), _):
                ends = [self._over(poly(x), name, largest) for x in (a, b)]
                left, right = (None if e is None else to_expr(e) for e in ends)
                return None if left is None or right is None else binary(which, left, right)
            case Load():
                return self.over_data(atom, name, largest)
            case _:
                return None


def _moving(atoms: tuple[Expr, ...], name: str) -> list[Expr]:
    return [a for a in atoms if name in variables(a)]


def _times(atoms: Sequence[Expr], c: int) -> Poly:
    result = number(c)
    for a in atoms:
        result = result * poly(a)
    return result
