"""The numbers that the elements of tiles may be: one induction over what a kernel assigns, on the ranges of facts.

m = full(-3e38); l = full(0)                                     m: [-3e38, inf]
for …: m = max(m, x); l = l * 0.5 + sum(exp(x - m))              l: [0, inf]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import count
from math import inf

from neptune.ir.analysis.facts import Known, folded, of_dtype, range_of
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Load, Var
from neptune.ir.ops import ANY, Range
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
    read_by,
    walk_stmts,
)

ROUNDS = 4
"""So often what assignments add to a local is taken as it is; what grows still grows without end."""


def infinite_inputs(e: Expr) -> Range | None:
    """Nothing is known of inputs that are floats: they may be infinite."""
    return ANY if isinstance(e, Load | Var) and is_float(e.dtype) else None


class Elements:
    """The ranges of tile expressions by their structure, NaN apart; `scalar` tells those of scalars' leaves."""

    def __init__(self, axes: Mapping[str, Expr], scalar: Known = infinite_inputs) -> None:
        self.axes, self.scalar = axes, scalar

    def of(self, e: TExpr) -> Range:
        """The range of the elements of `e`."""
        return range_of(e, self.known)

    def known(self, e: TExpr) -> Range | None:
        """The range of what is no operator, cast or choice."""
        match e:
            case Scalar(expr):
                return range_of(expr, self.scalar)
            case Full(arg, _, _) | Rearrange(arg, _):
                return range_of(arg, self.known)
            case Iota(axis):
                extent = range_of(self.axes[axis], self.scalar).hi if axis in self.axes else inf
                return Range(0.0, extent - 1) & of_dtype("int32")
            case Reduce(reducer, _, arg):
                return folded(reducer, range_of(arg, self.known))
            case LoadTile() | Dot() | Local():
                return unknown(e.dtype)
            case _:
                return None


class Ranges(Elements):
    """The range of every tile expression of a kernel, the locals that it reads included."""

    def __init__(self, kernel: TileKernel, scalar: Known = infinite_inputs) -> None:
        super().__init__(dict(kernel.axes), scalar)
        self.kernel = kernel
        self._found: dict[str, Range] = {}

    @cached_property
    def given(self) -> dict[str, list[TExpr]]:
        """All values that each local is assigned, in the order of the kernel."""
        values: dict[str, list[TExpr]] = {}
        for s in walk_stmts(self.kernel.body):
            if isinstance(s, Assign):
                values.setdefault(s.name, []).append(s.value)
        return values

    def of(self, e: TExpr) -> Range:
        self._settle(read_by(e))
        return super().of(e)

    def known(self, e: TExpr) -> Range | None:
        return self._found[e.name] if isinstance(e, Local) and e.name in self._found else super().known(e)

    def settled(self, name: str, value: Range) -> Range:
        """The range of a local, given that of its values."""
        return value

    def reached(self, names: frozenset[str]) -> frozenset[str]:
        """The locals from which these are computed, through any number of assignments, and themselves."""
        reached, todo = set[str](), list(names)
        while todo:
            if (n := todo.pop()) not in reached:
                reached.add(n)
                todo += [x for e in self.given.get(n, ()) for x in read_by(e)]
        return frozenset(reached)

    def _settle(self, names: frozenset[str]) -> None:
        """Find the ranges of these locals and of all behind them: what every assignment stays in."""
        missing = self.reached(names) - self._found.keys()
        steps = [s for s in walk_stmts(self.kernel.body) if isinstance(s, Assign) and s.name in missing]
        before: dict[str, Range] = {}
        for k in count():
            for s in steps:
                value = self.settled(s.name, range_of(s.value, self.known))
                self._found[s.name] = self._found.get(s.name, value) | value
            now = {s.name: self._found[s.name] for s in steps}
            if now == before:
                return
            if k >= ROUNDS:
                self._found |= {n: _widened(before[n], x) for n, x in now.items()}
            before = {n: self._found[n] for n in now}


def _widened(before: Range, now: Range) -> Range:
    """A range that holds `now`, which has grown: up to 0, or without end."""
    lo = before.lo if before.lo <= now.lo else 0.0 if now.lo >= 0 else -inf
    hi = before.hi if before.hi >= now.hi else 0.0 if now.hi <= 0 else inf
    return Range(lo, hi, before.least if before.least <= now.least else 0.0, now.nonzero)


def unknown(dtype: str) -> Range:
    """The range of any element of a dtype."""
    return ANY if is_float(dtype) else of_dtype(dtype)
