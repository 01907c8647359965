"""bounds: how large the elements of a tile can be; `exp2` asks for it."""

from __future__ import annotations

from math import inf

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Op
from neptune.ir.facts import applied, constant_range, of_dtype, range_of
from neptune.ir.ops import ANY, LOGARITHMS, OPS, Range
from neptune.tile.ir import Dot, Full, LoadTile, Local, Reduce, Scalar, TExpr, TileKernel
from neptune.tile.ranges import Elements, Ranges, infinite_inputs

LARGE = 1e30
"""Magnitudes below it are far from overflowing, whatever the factor."""
ORDINARY = 1e9
"""What products of matrices, and their factors, are taken to stay below."""


class Bounds(Ranges):
    """Ranges of the finite elements: -inf, which masks, counts as 0.

    Products of matrices count as ordinary: only what is added or chosen can serve as a mask.
    """

    def __init__(self, kernel: TileKernel) -> None:
        super().__init__(kernel, _unmasked)
        self.signed = Elements(dict(kernel.axes))

    def below(self, e: TExpr, limit: float = LARGE) -> bool:
        """True if no finite element of `e` reaches the limit in size."""
        return self.of(e).most < limit

    def known(self, e: TExpr) -> Range | None:
        match e:
            case Dot():
                return _within(ORDINARY)
            case LoadTile() if DTYPES[e.dtype].highest < LARGE:
                return of_dtype(e.dtype)
            case Reduce("sum", _, arg):
                return _within(range_of(arg, self.known).most * 2.0**31)
            case _:
                return self._operator(e) if isinstance(e, Op) else super().known(e)

    def _operator(self, e: Op[TExpr]) -> Range:
        if e.name in LOGARITHMS:
            return _within(2.0**11)  # of the largest float64, and of the smallest
        ends = [constant_range(x.expr).most for x in e.args if isinstance(x, Scalar)]
        if e.name in ("min", "max") and any(LARGE <= end < inf for end in ends):
            return ANY  # who cuts off there expects more than ordinary numbers
        size = applied(e.name, [self._argument(e, x) for x in e.args]).most
        # Signs, which sizes leave out, bound some: 1 / √(2^x + 1) is at most 1.
        return _within(size if size < inf else self.signed.of(e).most)

    def _argument(self, e: Op[TExpr], x: TExpr) -> Range:
        constant = constant_range(x.expr) if isinstance(x, Scalar) else ANY
        if constant.most < inf:
            return constant
        size = range_of(x, self.known).most
        at_run_time = isinstance(x, Scalar) and not isinstance(x.expr, Const)
        if e.name == "mul" and size == inf and at_run_time and any(map(self._is_dot, e.args)):
            size = ORDINARY
        # What keeps its scale keeps -inf, which is left out; anything else makes a number of it.
        row = OPS[e.name]
        return Range(-size if row.degrees or row.together else -inf, size)

    def _is_dot(self, e: TExpr) -> bool:
        given = self.given[e.name] if isinstance(e, Local) else [e]
        return any(isinstance(x, Dot) for x in given) and all(isinstance(x, Dot | Full) for x in given)


def _unmasked(e: Expr) -> Range | None:
    return Range(0.0, 0.0) if isinstance(e, Const) and e.value == -inf else infinite_inputs(e)


def _within(size: float) -> Range:
    return Range(-size, size)
