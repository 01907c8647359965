"""The constants of the cost model, found on measured kernels of an H200; `bench.cost` judges them, and fits others.

What operators cost is a table: instructions for one element, and special functions among them. They are counted in SASS
of sm_90, as Triton 3.6 makes it; what is not here is one instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.ir.ops import LIBM


@dataclass(frozen=True)
class Constants:
    """What is fitted. Cycles, instructions of a warp, shares; exponents of p-norms."""

    product_loop: float = 122.8
    plain_loop: float = 55
    per_hmma: float = 0.949
    without_products: float = 1.76
    hmma: float = 0.3415
    issue: float = 1.372
    special: float = 5.652
    overlap_groups: float = 0.0894
    turns: float = 0.404
    iteration: float = 8.5
    fold: float = 50.0
    fold_across: float = 27.5
    latency: float = 542.0
    far: float = 500.0
    hidden: float = 3.195
    hidden_synchronous: float = 0.361
    exchange: float = 738.0
    program: float = 1463.0
    norm_plain: float = 6.0
    norm: float = 1.665
    norm_products: float = 2.5
    alone: float = 5.08
    narrow: float = 16.0
    written_back: float = 0.25
    zeros: float = 14.0
    memory_norm: float = 4.87
    memory: float = 0.94
    first: float = 5.7
    further: float = 2.2
    idle: float = 500.0
    spilled: float = 9.0
    spilled_once: float = 3.0
    kept: float = 0.3
    gone: float = 0.8
    seen: float = 0.25


FITTED = Constants()


# --- what operators cost ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Instructions and special functions an element."""

    slots: float = 0.0
    special: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.slots + other.slots, self.special + other.special)


ONE = Cost(1.0)
NARROW_CAST = Cost(0.5)
"""A cast to 16 bits, which packs two."""
OPERATORS: Mapping[str, Cost] = {
    "div": Cost(8, 1),
    "floordiv": Cost(20),
    "mod": Cost(20),
    "pow": Cost(24, 2),
    "fmod": Cost(30, 1),
    "exp": Cost(3, 1),
    "exp2": Cost(1, 1),
    "log": Cost(20, 1),
    "log2": Cost(18, 1),
    "sqrt": Cost(4, 1),
    "rsqrt": Cost(1, 1),
    "tanh": Cost(16, 2),
    "tanh_approx": Cost(1, 1),
    "sigmoid": Cost(12, 2),
    "erf": Cost(24, 1),
    "sin": Cost(20, 1),
    "cos": Cost(20, 1),
    **dict.fromkeys(LIBM, Cost(30, 2)),
    # Constants cost nothing.
    "log2e": Cost(),
    "ln2": Cost(),
}
