"""What operators cost on a GPU, as a table: instructions for one element, and special functions among them.

Counted in SASS of sm_90, as Triton 3.6 makes it; what is not here is one instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.ir.ops import LIBM


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
