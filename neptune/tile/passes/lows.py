"""lows: a size below which a tile's elements are not, but for 0 and NaN; `reciprocal` asks for it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Load, Op, Var, walk
from neptune.ir.facts import applied, converted, folded, of_dtype, range_of
from neptune.ir.ops import ANY, SIGNS, Range
from neptune.tile.ir import Assign, Branch, Full, Local, Loop, Rearrange, Reduce, Scalar, TExpr, TileKernel, TStmt
from neptune.tile.passes.bounds import Facts, facts_of


@dataclass
class Lows:
    """Proofs from what each local of a kernel is assigned, anywhere."""

    kernel: TileKernel

    @cached_property
    def facts(self) -> Facts:
        """All values that each local is assigned."""
        return facts_of(self.kernel)

    def of(self, e: TExpr) -> float:
        """Every element of `e` is 0, NaN or at least that large in size; 0 where nothing is known."""
        return self._range(e, {}).least

    def _range(self, e: TExpr, supposed: dict[str, Range]) -> Range:
        """Return the range of the elements of `e`, NaN apart; `supposed` is the induction hypothesis about locals."""
        match e:
            case Scalar(expr):
                return range_of(expr, lambda x: ANY if isinstance(x, Load | Var) and is_float(x.dtype) else None)
            case Full(arg, _, _) | Rearrange(arg, _):
                return self._range(arg, supposed)
            case Cast(arg, dtype):
                return converted(self._range(arg, supposed), arg.dtype, dtype)
            case Reduce("sum" | "max" | "min" as reducer, _, arg):
                return folded(reducer, self._range(arg, supposed))
            case Local(name, _, _):
                return supposed[name] if name in supposed else self._local(e, supposed)
            case Op("mul", (a, b), _) if a == b:
                return applied("mul", [applied("abs", [self._range(a, supposed)])] * 2)
            case Op(name, args, _):
                result = applied(name, [self._range(a, supposed) for a in args])
                return result if is_float(e.dtype) else result & of_dtype(e.dtype)
            case _:
                return ANY if is_float(e.dtype) else of_dtype(e.dtype)

    def _local(self, e: Local, supposed: dict[str, Range]) -> Range:
        """By induction, where it is computed from itself: no value is negative if none that is made of others is."""
        read = {x.name for v in self.facts.given[e.name] for x in walk(v) if isinstance(x, Local)}
        again = any(self.facts.reaches(name, frozenset({e.name})) for name in read)
        for before in (SIGNS["0+"], ANY) if again else (ANY,):
            after = [self._range(x, {**supposed, e.name: before}) for x in self.facts.given[e.name]]
            whole = reduce(operator.or_, after)
            if before.lo <= whole.lo:
                break
        if self._holds_its_maximum(e.name):
            return replace(whole, least=max(whole.least, 1.0))
        return whole

    def _holds_its_maximum(self, name: str) -> bool:
        """True for a sum of exponentials of x - m in which m is the largest of exactly these x: one of them is 1.

        l = l * exp(m_prev - m) + sum(exp(x - m)) where m = max(m, max(x)), in every loop; both start from nothing.
        """
        exponents = [self._exponent(t) for e in self.facts.given[name] for t in self._terms(e, name)]
        if not exponents or None in exponents or len({m for _, m in filter(None, exponents)}) != 1:
            return False
        m = next(m for _, m in filter(None, exponents))
        for block in _blocks(self.kernel.body):
            assigned = [s for s in block if isinstance(s, Assign)]
            folded = [y for s in assigned if s.name == m for y in self._folded(s.value, m)]
            terms = [self._exponent(t) for s in assigned if s.name == name for t in self._terms(s.value, name, m)]
            if sorted(map(repr, folded)) != sorted(repr(t[0] if t else None) for t in terms):
                return False
        return True

    def _terms(self, e: TExpr, name: str, m: str = "") -> list[TExpr]:
        """Return the terms summed into a local, apart from its own rescaled value and a start of 0."""
        match e:
            case Local(n, _, _) if n == name:
                return []
            case Full(Scalar(Const(0, _)), _, _) | Scalar(Const(0, _)):
                return []
            case Op("mul", (Local(n, _, _), by), _) if n == name and self._rescales(by, m):
                return []
            case Op("add", (a, b), _):
                return self._terms(a, name, m) + self._terms(b, name, m)
            case Reduce("sum", _, arg):
                return [arg]
            case _:
                return [e]

    def _rescales(self, e: TExpr, m: str) -> bool:
        """True for exp(m_prev - m), where m_prev is a copy of m (any m, if it has no name)."""
        match self._exponent(e):
            case (Local(before, _, _), now) if m in ("", now):
                return all(isinstance(x, Local) and x.name == now for x in self.facts.given[before])
            case _:
                return False

    def _exponent(self, e: TExpr) -> tuple[TExpr, str] | None:
        """(x, m) where `e` is exp(x - m) of a local m."""
        match self._value(e):
            case Op("exp", (Op("sub", (x, Local(m, _, _) | Rearrange(Local(m, _, _), _)), _),), _):
                return x, m
            case _:
                return None

    def _folded(self, e: TExpr, name: str) -> list[TExpr]:
        """Return the values that a running maximum folds, its start apart."""
        match e:
            case Local(n, _, _) if n == name:
                return []
            case Full(Scalar(Const(start, dtype)), _, _) | Scalar(Const(start, dtype)) if start <= DTYPES[dtype].lowest:
                return []
            case Op("max", (a, b), _):
                return self._folded(a, name) + self._folded(b, name)
            case Reduce("max", _, arg):
                return [arg]
            case _:
                return [e]

    def _value(self, e: TExpr) -> TExpr:
        """Return the value of a local if all its assignments (in the pieces of a loop) are the same, else `e`."""
        if isinstance(e, Local) and len(set(self.facts.given[e.name])) == 1:
            return self.facts.given[e.name][0]
        return e


def _blocks(stmts: tuple[TStmt, ...]) -> Iterator[tuple[TStmt, ...]]:
    yield stmts
    for s in stmts:
        if isinstance(s, Loop | Branch):
            yield from _blocks(s.body)
