"""bounds: how large the elements of a tile can be, and when a running maximum is past its start.

Both are proofs from what each local is assigned, anywhere in a kernel; `exp2` asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, walk
from neptune.ir.facts import applied, constant_range, range_of
from neptune.ir.ops import ANY, LOGARITHMS, OPS, Range
from neptune.tile.ir import (
    Assign,
    Dot,
    Full,
    Iota,
    LoadTile,
    Local,
    Rearrange,
    Reduce,
    Scalar,
    TExpr,
    TileKernel,
    walk_stmts,
)

LARGE = 1e30
"""Magnitudes below it are far from overflowing, whatever the factor."""
ORDINARY = 1e9
"""What products of matrices, and their factors, are taken to stay below."""


@dataclass(frozen=True)
class Facts:
    """All values that each local of a kernel is assigned."""

    given: dict[str, list[TExpr]]

    def bound(self, e: TExpr, seen: frozenset[str] = frozenset()) -> float:
        """A magnitude that no element of `e` reaches, -inf apart; inf where none is known.

        Products of matrices count as ordinary: only what is added or chosen can serve as a mask.
        """
        match e:
            case Scalar(expr):
                return _scalar_bound(expr)
            case Full(value, _, _):
                return self.bound(value)
            case Iota():
                return 2.0**31
            case Dot():
                return ORDINARY
            case LoadTile():
                return DTYPES[e.dtype].highest if DTYPES[e.dtype].highest < LARGE else inf
            case Cast(arg, _) | Rearrange(arg, _) | Reduce("max" | "min", _, arg):
                return self.bound(arg, seen)
            case Reduce("sum", _, arg):
                return self.bound(arg) * 2.0**31
            case Local(name, _, _):
                # A value that only passes through maxima and choices is as large as what they start from.
                return 0.0 if name in seen else max(self.bound(x, seen | {name}) for x in self.given[name])
            case Select(_, then, other):
                return max(self.bound(then, seen), self.bound(other, seen))
            case Op():
                return self._operator(e, seen)
            case _:
                return inf

    def _operator(self, e: Op[TExpr], seen: frozenset[str]) -> float:
        match e.name, e.args:
            case "max" | "min", (a, b):
                return max(self.bound(a, seen), self.bound(b, seen))
            case _ if any(isinstance(n, Local) and self.reaches(n.name, seen) for n in walk(e)):
                return inf  # grows from iteration to iteration
            case "mul", (a, b):
                return _product(self._factor(a, b), self._factor(b, a))
            case name, _ if name in LOGARITHMS:
                return 2.0**11  # of the largest float64, and of the smallest
            case name, args:
                # What keeps its scale keeps -inf, which is left out; anything else makes a number of it.
                scaled = OPS[name].degrees or OPS[name].together
                return applied(name, [self._range(x, -inf if not scaled else None) for x in args]).most

    def _range(self, e: TExpr, lowest: float | None) -> Range:
        size = self.bound(e)
        constant = constant_range(e.expr) if isinstance(e, Scalar) else ANY
        return constant if constant.most < inf else Range(-size if lowest is None else lowest, size)

    def _factor(self, e: TExpr, other: TExpr) -> float:
        """The bound of a factor: what a product of matrices is scaled by counts as ordinary."""
        bound = self.bound(e)
        run_time = isinstance(e, Scalar) and not isinstance(e.expr, Const)
        return ORDINARY if bound == inf and run_time and self._is_dot(other) else bound

    def _is_dot(self, e: TExpr) -> bool:
        if isinstance(e, Local):
            return all(isinstance(x, Dot | Full) for x in self.given[e.name])
        return isinstance(e, Dot)

    def reaches(self, name: str, goals: frozenset[str]) -> bool:
        """True if a local is computed from one of `goals`, through any number of assignments."""
        reached, todo = set[str](), [name]
        while todo:
            n = todo.pop()
            if n in reached:
                continue
            reached.add(n)
            todo += [x.name for e in self.given[n] for x in walk(e) if isinstance(x, Local)]
        return bool(reached & goals)

    def touched(self, choice: Select[TExpr], maximum: str) -> tuple[bool, bool]:
        """In which branch of where(l > 0, a, b), or where(l <= 0, b, a), the maximum is past its start: a.

        Here l is a sum of exponentials exp(x - maximum): while the maximum is at its start these are 0 for
        x = -inf, infinite for any other number, and NaN for NaN.  In the last two cases a must be so too,
        whatever the maximum: it must compute with l.
        """
        pred = choice.pred.arg if isinstance(choice.pred, Rearrange) else choice.pred
        match pred:
            case Op("gt" | "le" as way, (Local(l, _, _) | Rearrange(Local(l, _, _), _), Scalar(Const(0, _))), _):
                branch = choice.then if way == "gt" else choice.other
                sums = all(self._sums(l, e, maximum) for e in self.given[l]) and _computes_with(branch, l)
                return (sums, False) if way == "gt" else (False, sums)
            case _:
                return False, False

    def _sums(self, name: str, e: TExpr, maximum: str) -> bool:
        """True for 0, for name·x, and for either plus a sum of exponentials."""
        match e:
            case Full(value, _, _):
                return self._sums(name, value, maximum)
            case Scalar(Const(0, _)):
                return True
            case Local(n, _, _):
                return n == name
            case Op("mul", (Local(n, _, _), _), _):
                return n == name
            case Op("add", (before, after), _):
                return self._sums(name, before, maximum) and self._sums(name, after, maximum)
            case Reduce("sum", _, arg):
                return self._exponential(arg, maximum)
            case _:
                return False

    def _exponential(self, e: TExpr, maximum: str) -> bool:
        match e:
            case Cast(arg, _):
                return self._exponential(arg, maximum)
            case Local(name, _, _):
                return all(not _reads(x, name) and self._exponential(x, maximum) for x in self.given[name])
            case Op("exp", (Op("sub", (x, Local(m, _, _) | Rearrange(Local(m, _, _), _)), _),), _):
                return m == maximum and self.bound(x) < LARGE
            case _:
                return False


def facts_of(kernel: TileKernel) -> Facts:
    """The assignments of a kernel by name."""
    values: dict[str, list[TExpr]] = {}
    for s in walk_stmts(kernel.body):
        if isinstance(s, Assign):
            values.setdefault(s.name, []).append(s.value)
    return Facts(values)


def _computes_with(e: TExpr, name: str) -> bool:
    """True if `e` is infinite or NaN where the local is."""
    match e:
        case Local(n, _, _):
            return n == name
        case Op("add" | "sub" | "log" | "log2" | "neg" | "abs", args, _):
            return any(_computes_with(a, name) for a in args)
        case Rearrange(arg, _):
            return _computes_with(arg, name)
        case _:
            return False


def _reads(e: TExpr, name: str) -> bool:
    return any(isinstance(n, Local) and n.name == name for n in walk(e))


def _scalar_bound(e: Expr) -> float:
    return range_of(e, _scalar).most


def _scalar(e: Expr) -> Range | None:
    if isinstance(e, Load | Var) and is_float(e.dtype):
        return ANY
    return Range(0.0, 0.0) if isinstance(e, Const) and e.value == -inf else None


def _product(a: float, b: float) -> float:
    return inf if inf in (a, b) else a * b
