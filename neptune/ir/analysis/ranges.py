"""Bounds on inputs that a proof about ranges rests on, as data: explain() prints them, checks draw inputs by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neptune.ir.analysis.facts import Known, range_of
from neptune.ir.expr import Const, Expr, Load, Var, loads, variables
from neptune.ir.ops import Range
from neptune.ir.text.printer import print_expr

ONE = Const(1, "int32")


@dataclass(frozen=True)
class RangePredicate:
    """A bound on the inputs that a repair was not proved without: `above` < |value| < `below` / `count`.

    `value` is an expression over loads of inputs, and of temporaries that the fused loop does not change; a `value`
    of 0 meets every lower limit.  `count` says how many elements are added up (None: known inside the loop only).

    With `rounded` it is no bound, but a number of which the fused program loses the last digits, and which the
    expression does not compute: where the result is smaller, more of that is lost.
    """

    value: Expr
    below: float
    above: float = 0.0
    count: Expr | None = ONE
    rounded: bool = False

    @property
    def buffers(self) -> frozenset[str]:
        """The buffers whose values decide it."""
        return frozenset(x.buffer for x in loads(self.value))

    @property
    def text(self) -> str:
        """`1.2e-38 < |x[i, j] * y[i, j]| < 3.4e+38 / cols`."""
        if self.rounded:
            return f"{print_expr(self.value)}, which the expression does not compute, is not rounded more than that is"
        low = f"{self.above:.2g} < " if self.above > 0 else ""
        if isinstance(self.value, Const):
            return f"{'n' if self.count is None else print_expr(self.count)} < {self.below / abs(self.value.value):.2g}"
        many = "n" if self.count is None else print_expr(self.count, 7)
        high = f" < {self.below:.2g}" + ("" if many == "1" else f" / {many}") if math.isfinite(self.below) else ""
        return f"{low}|{print_expr(self.value)}|{high}"

    def holds(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
        """True where it is sure to hold for these arrays, by buffer, which their extremes decide.

        `values` has an array for each of `buffers`; numbers in them that are not finite are passed over. `sizes`
        are the sizes by name.
        """
        import numpy as np

        extremes: dict[str, Range] = {}
        for buffer in self.buffers:
            array = np.asarray(values[buffer], dtype=np.float64)
            array = array[np.isfinite(array)]
            size = np.abs(array[array != 0])
            extremes[buffer] = Range(array.min(initial=0.0), array.max(initial=0.0), size.min(initial=math.inf))
        return self.within(extremes, sizes, max((np.size(a) for a in values.values()), default=1))

    def within(self, extremes: Mapping[str, Range], sizes: Mapping[str, int], elements: int) -> bool:
        """`holds`, of arrays with these extremes; none has more than `elements`."""
        if self.rounded:
            return True
        leaf = _leaf(extremes, sizes)
        if self.count is not None and variables(self.count) <= set(sizes):
            many = range_of(self.count, leaf).hi
        else:
            many = float(elements)
        value = range_of(self.value, leaf)
        return value.most * many < self.below and (value.least >= self.above or value.most == 0)

    def most(self, extremes: Mapping[str, Range], sizes: Mapping[str, int]) -> float:
        """The largest magnitude that the value may have for arrays with these extremes."""
        return range_of(self.value, _leaf(extremes, sizes)).most


def _leaf(extremes: Mapping[str, Range], sizes: Mapping[str, int]) -> Known:
    def leaf(e: Expr) -> Range | None:
        if isinstance(e, Load):
            return extremes[e.buffer]
        return Range(s, s, s) if isinstance(e, Var) and (s := sizes.get(e.name)) is not None else None

    return leaf
