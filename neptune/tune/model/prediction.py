"""What the cost model says of a program: at one point, and at many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neptune.tune.model.numbers import Array
from neptune.tune.model.occupancy import Resources

UNITS = ("matrix", "special", "issue", "shared", "port")
"""Of a processor."""
BOUNDS = (*UNITS, "memory", "latency", "shared memory")
"""What may limit a kernel; the last: it does not fit."""
SPENT = (*UNITS, "memory", "chain")
"""What a kernel's time is made of."""


@dataclass(frozen=True)
class KernelTime:
    """The prediction for one kernel. `us`: microseconds; `bound`: what limits it; `share`: how much of that limit is
    used; `waves`: of programs; `resident`: programs on a processor at one time."""

    name: str
    us: float
    bound: str
    share: float
    programs: int
    waves: float
    resident: int
    needs: Resources


@dataclass(frozen=True)
class Prediction:
    """The prediction for a TileProgram, launches included."""

    us: float
    kernels: tuple[KernelTime, ...]


@dataclass(frozen=True)
class Predictions:
    """The predictions for many points: `us` of each, and what they are made of."""

    us: Array
    kernels: tuple[Times, ...]

    def at(self, k: int) -> Prediction:
        """The prediction for point k."""
        return Prediction(float(self.us[k]), tuple(t.at(k) for t in self.kernels))


@dataclass(frozen=True)
class Times:
    """Predictions for one kernel at many points, as KernelTime has them: `bound` is a number in BOUNDS, `which` the
    number of a point's needs. `spent`: microseconds by the rows of SPENT, of which each alone is what the kernel takes
    at least; `chain` is that of its programs one after the other."""

    name: str
    us: Array
    bound: Array
    share: Array
    programs: Array
    waves: Array
    resident: Array
    needs: Sequence[Resources]
    which: Array
    spent: Array

    def at(self, k: int) -> KernelTime:
        bound = BOUNDS[int(self.bound[k])]
        numbers = float(self.share[k]), int(self.programs[k]), float(self.waves[k]), int(self.resident[k])
        return KernelTime(self.name, float(self.us[k]), bound, *numbers, self.needs[self.which[k]])
