"""bounds: how large the elements of a tile can be, and when a running maximum is past its start.

Both are proofs from what each local is assigned, anywhere in a kernel; `exp2` asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Op
from neptune.tile.ir import (
    Assign,
    CastTile,
    Dot,
    Full,
    Iota,
    LoadTile,
    Local,
    Map,
    Rearrange,
    Reduce,
    Scalar,
    TExpr,
    TileKernel,
    Where,
    tile_walk,
    walk_stmts,
)

LARGE = 1e30
"""Magnitudes below it are far from overflowing, whatever the factor."""
ORDINARY = 1e9
"""What products of matrices, and their factors, are taken to stay below."""


@dataclass(frozen=True)
class Facts:
    """What every local of a kernel is assigned, anywhere."""

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
            case CastTile(arg, _) | Rearrange(arg, _) | Reduce("max" | "min", _, arg):
                return self.bound(arg, seen)
            case Reduce("sum", _, arg):
                return self.bound(arg) * 2.0**31
            case Local(name, _, _):
                # A value that only passes through maxima and choices is as large as what they start from.
                return 0.0 if name in seen else max(self.bound(x, seen | {name}) for x in self.given[name])
            case Where(_, then, other, _):
                return max(self.bound(then, seen), self.bound(other, seen))
            case Map():
                return self._operator(e, seen)
            case _:
                return inf

    def _operator(self, e: Map, seen: frozenset[str]) -> float:
        match e.op, e.args:
            case "max" | "min", (a, b):
                return max(self.bound(a, seen), self.bound(b, seen))
            case _ if any(isinstance(n, Local) and self._reaches(n.name, seen) for n in tile_walk(e)):
                return inf  # grows from iteration to iteration
            case (("add" | "sub"), (a, b)):
                return self.bound(a) + self.bound(b)
            case "mul", (a, b):
                return _product(self._factor(a, b), self._factor(b, a))
            case "div", (a, Scalar(Const(c, _))) if c != 0:
                return self.bound(a) / abs(c)
            case (("neg" | "abs"), (a,)):
                return self.bound(a)
            case (("tanh" | "sigmoid"), _):
                return 1.0
            case (("log" | "log2"), _):
                return 2.0**11
            case _:
                return inf

    def _factor(self, e: TExpr, other: TExpr) -> float:
        """The bound of a factor: what a product of matrices is scaled by counts as ordinary."""
        found = self.bound(e)
        run_time = isinstance(e, Scalar) and not isinstance(e.expr, Const)
        return ORDINARY if found == inf and run_time and self._is_dot(other) else found

    def _is_dot(self, e: TExpr) -> bool:
        if isinstance(e, Local):
            return all(isinstance(x, Dot | Full) for x in self.given[e.name])
        return isinstance(e, Dot)

    def _reaches(self, name: str, goals: frozenset[str]) -> bool:
        """True if a local is computed from one of `goals`, through any number of assignments."""
        found, todo = set[str](), [name]
        while todo:
            n = todo.pop()
            if n in found:
                continue
            found.add(n)
            todo += [x.name for e in self.given[n] for x in tile_walk(e) if isinstance(x, Local)]
        return bool(found & goals)

    def touched(self, choice: Where, maximum: str) -> tuple[bool, bool]:
        """In which branch of where(l > 0, a, b), or where(l <= 0, b, a), the maximum is past its start: a.

        Here l is a sum of exponentials exp(x - maximum): while the maximum is at its start these are 0 for
        x = -inf, infinite for any other number, and NaN for NaN.  In the last two cases a must be so too,
        whatever the maximum: it must compute with l.
        """
        pred = choice.pred.arg if isinstance(choice.pred, Rearrange) else choice.pred
        match pred:
            case Map("gt" | "le" as way, (Local(l, _, _) | Rearrange(Local(l, _, _), _), Scalar(Const(0, _))), _, _):
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
            case Map("mul", (Local(n, _, _), _), _, _):
                return n == name
            case Map("add", (before, after), _, _):
                return self._sums(name, before, maximum) and self._sums(name, after, maximum)
            case Reduce("sum", _, arg):
                return self._exponential(arg, maximum)
            case _:
                return False

    def _exponential(self, e: TExpr, maximum: str) -> bool:
        match e:
            case CastTile(arg, _):
                return self._exponential(arg, maximum)
            case Local(name, _, _):
                return all(not _reads(x, name) and self._exponential(x, maximum) for x in self.given[name])
            case Map("exp", (Map("sub", (x, Local(m, _, _) | Rearrange(Local(m, _, _), _)), _, _),), _, _):
                return m == maximum and self.bound(x) < LARGE
            case _:
                return False


def facts_of(kernel: TileKernel) -> Facts:
    """The assignments of a kernel by name."""
    given: dict[str, list[TExpr]] = {}
    for s in walk_stmts(kernel.body):
        if isinstance(s, Assign):
            given.setdefault(s.name, []).append(s.value)
    return Facts(given)


def _computes_with(e: TExpr, name: str) -> bool:
    """True if `e` is infinite or NaN where the local is."""
    match e:
        case Local(n, _, _):
            return n == name
        case Map("add" | "sub" | "log" | "log2" | "neg" | "abs", args, _, _):
            return any(_computes_with(a, name) for a in args)
        case Rearrange(arg, _):
            return _computes_with(arg, name)
        case _:
            return False


def _reads(e: TExpr, name: str) -> bool:
    return any(isinstance(n, Local) and n.name == name for n in tile_walk(e))


def _scalar_bound(e: Expr) -> float:
    match e:
        case Const(value, _):
            return 0.0 if value == -inf else abs(float(value)) if isfinite(value) else inf
        case Op("log2e" | "ln2", _, _):
            return 2.0
        case Op("mul", (a, b), _) if e.dtype == "float32":
            return _product(_scalar_bound(a), _scalar_bound(b))
        case Cast(arg, _):
            return _scalar_bound(arg)
        case _:
            return inf if is_float(e.dtype) else DTYPES[e.dtype].highest


def _product(a: float, b: float) -> float:
    return inf if inf in (a, b) else a * b
