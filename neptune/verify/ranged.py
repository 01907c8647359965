"""Large numbers in the range of float32: what no exact model sees, for there exponentials never overflow.

The field pair takes the finite extremes for ordinary values, so a maximum that is another number cancels; in a kernel
exp(x - lowest) is infinite and exp(x - highest) is zero. Values are float64, and as in float32 those beyond its range
are infinite and those too small for it zero. Inputs are large and uneven, so that exponentials of differences leave
that range wherever nothing keeps them in it.

Results may round differently, so only gross differences count: where the original is finite, the other is inf or NaN,
or is off by a thousandth. The latter asks for a program without `jumps`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.evaluate.domains import Array, Value, some
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import Cast, Op, walk
from neptune.ir.ops import OPS
from neptune.ir.program import Program, updates
from neptune.ir.program import walk as walk_stmt
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import TileProgram, stmt_exprs, walk_stmts

HIGHEST = DTYPES["float32"].highest
ENDS = (HIGHEST, DTYPES["float64"].highest)
"""From these, and their opposites, maxima and minima start."""
TINIEST = 2.0**-149
MAGNITUDES = (3.0, 30.0, 300.0)
"""Magnitudes of inputs."""
Side = Literal["any", "below", "either"]
ZEROS = 0.2
"""How many rows are zero."""
FAR = 250.0
"""What lies so far from zero, and from a hundred, has exponentials that vanish or overflow."""
RTOL, ATOL = 1e-3, 1e-5
JUMPS = frozenset(name for name, row in OPS.items() if row.whole or row.within)
"""Operators with steps: roundings to an integer, and what these leave."""


class _Checked(Float64):
    """float64 in which uninitialised memory shows: maxima and minima pass over NaN."""

    def undefined(self, shape: tuple[int, ...]) -> Value:
        return np.resize((np.inf, -np.inf, np.nan), shape)

    def known(self, v: Value) -> Array:
        return np.asarray(np.isfinite(v))


class Ranged(_Checked):
    """float64 in the range of float32; `scales` are the magnitudes of drawn inputs.

    With side "below" all inputs are far below zero, with "either" each input, or each of its rows, is far below or far
    above it: a maximum that starts too high, and a minimum that starts too low, show there.
    """

    name = "range of float32"

    def __init__(self, scales: tuple[float, ...] = MAGNITUDES, close: bool = True, side: Side = "any") -> None:
        self.scales = scales
        self.close = close
        self.side = side

    def round(self, x: Array, dtype: str) -> Array:
        if dtype == "float64":
            return x  # its lowest number, from which maxima start, is finite
        size = np.abs(x)
        if some((size > HIGHEST) | (size < TINIEST)):
            x = np.where(size > HIGHEST, np.copysign(np.inf, x), np.where(size < TINIEST, 0.0, x))
        return x

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        return self.round(super().fold(reducer, v, axis, dtype), dtype)

    def dot(self, a: Value, b: Value, dtype: str) -> Value:
        return self.round(super().dot(a, b, dtype), dtype)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        """Any signs, or one sign in the whole input or in each row: a maximum over the row is far from zero then.
        Some rows are zero, for what is divided by a sum that is zero is not finite."""
        drawn = rng.standard_normal(shape) * rng.choice(self.scales, shape)
        if self.side == "below":
            return np.asarray(-FAR - np.abs(drawn))
        rows = (*shape[:-1], 1) if shape else ()
        drawn, signs = drawn * (rng.random(rows) >= ZEROS), rows if rng.random() < 0.5 else ()
        if self.side == "either":
            return np.asarray(rng.choice((-1, 1), signs) * np.where(drawn == 0, 0.0, FAR + np.abs(drawn)))
        chosen = rng.choice((-1, 0, 1), signs)
        return np.asarray(np.where(chosen == 0, drawn, chosen * np.abs(drawn)))

    def differs(self, expected: Value, got: Value) -> Array:
        finite = np.isfinite(expected)
        # A minimum that starts at the highest number of its dtype is that where everything is infinite.
        for highest in ENDS:
            got = np.where(np.abs(expected) == highest, np.clip(got, -highest, highest), got)
        wrong = finite & ~np.isfinite(got)
        if self.close:
            largest = np.max(np.abs(expected), where=finite, initial=1.0)
            with np.errstate(all="ignore"):
                wrong |= finite & (np.abs(np.subtract(got, expected)) > RTOL * np.abs(expected) + ATOL * largest)
        return np.asarray(wrong)


class ByValue(_Checked):
    """float64 as it is, for functions of which the exact models have no true values; ordinary inputs."""

    name = "float64"

    def __init__(self, seed: int = 0) -> None:
        self._drawn = Ranged((1.0,))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        return self._drawn.draw(rng, shape)

    def differs(self, expected: Value, got: Value) -> Array:
        finite = np.isfinite(expected)
        largest = np.max(np.abs(expected), where=finite, initial=1.0)
        with np.errstate(all="ignore"):
            near = np.abs(np.subtract(got, expected)) <= 1e-7 * np.abs(expected) + 1e-9 * largest
        # Of an infinity, such as the logarithm of an empty sum, nothing is near but itself.
        return np.asarray(np.where(finite, ~near, np.isinf(expected) & (np.asarray(got) != expected)))


def jumps(program: Program | TileProgram) -> bool:
    """Return True if a rounding error can change a result by much: by rounding to integers, or a choice of one."""
    if isinstance(program, Program):
        nodes = [x for s in walk_stmt(program.body) for e in statement_exprs(s) for x in walk(e)]
        if any(REDUCERS[u.reducer].leads for u in updates(program.body)):
            return True
        return any(
            (isinstance(x, Cast) and is_float(x.arg.dtype) and not is_float(x.dtype))
            or (isinstance(x, Op) and x.name in JUMPS and is_float(x.dtype))
            for x in nodes
        )
    tiles = [x for k in program.kernels for s in walk_stmts(k.body) for e in stmt_exprs(s) for x in walk(e)]
    return any(
        (isinstance(x, Cast) and is_float(x.arg.dtype) and not is_float(x.dtype))
        or (isinstance(x, Op) and x.name in JUMPS and is_float(x.dtype))
        for x in tiles
    )
