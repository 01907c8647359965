"""Cases of conditions and loops, by the sizes at which they occur: the records that `coverage` collects."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from neptune.ir.evaluate.domains import Array, Unevaluated, results_or_why, some
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.memory import Mask, Memory
from neptune.ir.expr import Expr, Load, Op
from neptune.ir.expr import walk as walk_expr
from neptune.ir.program import For
from neptune.tile.ir import Loop

MANY = 3
"""Loops that run this often or more are alike."""
EDGE = (-1, 0, 1)
PLACES = 4
"""Iterations of a loop that are told apart: the only one, the first, the second, later ones."""
AMPLE = 1 << 16
"""More than any size."""


class Ample(Evaluator):
    """Lengths that are loaded cut nothing off: what a full row shows is shown."""

    def __init__(self, memory: Memory, lengths: frozenset[str]) -> None:
        super().__init__(memory)
        self.lengths = lengths

    def run(self, e: Expr, env: Mapping[str, Any], mask: Mask = None) -> Any:
        return AMPLE if isinstance(e, Load) and e.buffer in self.lengths else super().run(e, env, mask)

    def known(self, exprs: Sequence[Expr], env: Mapping[str, Any], mask: Mask) -> list[Any] | None:
        """The values of expressions; None where one of them is not known without data."""
        values = results_or_why(lambda: [self.run(e, env, mask) for e in exprs])
        return None if isinstance(values, Unevaluated) else values


class Conditions:
    """The decisions of a condition's parts in the active lanes, by the position of the sizes: the last axis."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Array] = {}
        self.sizes = 1

    def see(self, case: Hashable, where: Any) -> None:
        """Record a case at the sizes where some lane has it."""
        lanes = np.asarray(where)
        here = lanes.reshape(-1, lanes.shape[-1]).any(0) if lanes.ndim else lanes
        if some(here):
            self.found[case] = self.found.get(case, np.zeros(self.sizes, bool)) | here

    def parts(
        self,
        key: Hashable,
        truths: Sequence[Any],
        distances: Sequence[Any],
        mask: Mask,
        places: Mapping[str, Any],
    ) -> None:
        """Record: all parts hold; one alone does not, and where; how far the sides of its comparison are apart then."""
        for k, (truth, distance) in enumerate(zip(truths, distances, strict=True)):
            others = np.asarray(True) if mask is None else mask
            for m, t in enumerate(truths):
                others = others & t if m != k else others
            self.see((key, k, "holds"), others & truth)
            self.see((key, k, "decides"), others & np.logical_not(truth))
            self.placed((key, k), np.asarray(truth).astype(int), places, others if others.ndim else None)
            if distance is not None:
                for edge in EDGE:
                    self.see((key, k, edge), others & (distance == edge))
                for side in (-MANY, MANY):
                    self.see((key, k, "far", side), others & (distance * np.sign(side) >= MANY))

    def placed(self, key: Hashable, value: Any, places: Mapping[str, Any], mask: Mask) -> None:
        """Record a small number with where in each of the loops around it it occurs. (Lanes' last axis: the sizes.)"""
        for var, place in places.items():
            code = np.asarray((value * PLACES + place) * self.sizes + np.arange(self.sizes))
            if mask is not None:
                shape = np.broadcast_shapes(code.shape, mask.shape)
                code = np.broadcast_to(code, shape)[np.broadcast_to(mask, shape)]
            for c in np.flatnonzero(np.bincount(code.ravel())).tolist():
                case, n = divmod(c, self.sizes)
                self.found.setdefault((key, var, case), np.zeros(self.sizes, bool))[n] = True

    def remainders(
        self, key: Hashable, a: Any, b: Any, mask: Mask, places: Mapping[str, Any] | None = None, runs: Any = 1
    ) -> None:
        """Record where a bound lies beside the edge of a tile: a multiple of b, one short of it, or neither. For a b of
        1 it is all of that at once, and shows nothing. With `places` also where that is, for a loop that runs or not:
        a wrong bound of a part shows in no part but those that hold something."""
        left, several = np.mod(a, np.maximum(b, 1)), np.greater(b, 1)
        sides = {"first": left == 0, "last": left == b - 1, "inside": (left != 0) & (left != b - 1)}
        for side, holds in {"one": True, **sides}.items():
            here = holds & several if side in sides else np.logical_not(several)
            self.see((key, side), here if mask is None else here & mask)
            if places and np.any(here):
                self.placed((key, side), np.asarray(runs), places, here if mask is None else here & mask)


def divisions(s: For | Loop) -> list[tuple[Expr, Expr]]:
    """Numerators and divisors in the bounds of a loop."""
    quotients = [x.args for e in (s.lo, s.hi) for x in walk_expr(e) if isinstance(x, Op) and x.name == "floordiv"]
    return list(dict.fromkeys((a, b) for a, b in quotients))


def place_of(position: Any, times: Any) -> Any:
    """Return the class of an iteration: the only one (0), the first (1), the second (2), a later one (3)."""
    return np.where(np.less_equal(times, 1), 0, np.clip(position, 0, PLACES - 2) + 1)
