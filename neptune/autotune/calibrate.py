"""The constants of the GPU at hand, measured: what `neptune calibrate` does, in less than a minute.

    calibrate(gpu).constants  →  {"clock": 1.72, "memory": 4280.0, "port": 61.0, "special": 15.8, "matrix": {…}, …}

Each probe keeps one part of the GPU busy (`neptune.autotune.probes`) and says how much it does; the rate follows from
its time, per processor and cycle by the cycles that its programs have counted. A probe whose samples are far apart says
that somebody else uses the GPU: then nothing is concluded. Constants are kept by `neptune.tune.model.calibrated`. The
time of a launch is measured and shown, and not used: the model's constants for it cover more than an empty kernel has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from neptune.errors import TargetError
from neptune.tune.model.calibrated import Constants

STEADY = 1.1
"""By how much the upper quartile of a probe's samples may exceed the lower one."""
LOAD = "float16"
"""The products during which the clock is read: the load of the kernels that matter."""
SPENT = ("processor", "begin", "end", "begin ns", "end ns")
"""What each program of a probe writes: where it ran, cycles of that processor, and nanoseconds."""


@dataclass(frozen=True)
class Probe:
    """`amount`: bytes, special functions or FLOP of a launch, all programs together."""

    name: str
    amount: float
    launch: Callable[[], None]


@dataclass(frozen=True)
class Reading:
    """Samples of a probe's time in microseconds; of what its programs counted, the cycles of a processor with an equal
    share of them, and GHz. 0 where a probe counts nothing."""

    us: tuple[float, ...]
    cycles: float = 0.0
    ghz: float = 0.0


class Gpu(Protocol):
    """A GPU to measure: `neptune.autotune.present.Present`, or a stub with planted times."""

    name: str
    arch: str
    processors: int
    l2: int

    def probes(self) -> Iterable[Probe]: ...

    def read(self, probe: Probe) -> Reading: ...


@dataclass(frozen=True)
class Calibration:
    """What was measured: the constants, and microseconds of an empty launch."""

    constants: Constants
    launch: float


def calibrate(gpu: Gpu) -> Calibration:
    """Measure all probes of a GPU. Raises TargetError if times are not steady."""
    readings: dict[str, tuple[Probe, Reading]] = {}
    for probe in gpu.probes():
        reading = gpu.read(probe)
        _check_steady(gpu.name, probe.name, reading.us)
        readings[probe.name] = probe, reading

    def a_cycle(name: str) -> float:
        probe, reading = readings[name]
        return probe.amount / gpu.processors / reading.cycles

    memory, seen = readings["memory"]
    products = [n.removeprefix("matrix ") for n in readings if n.startswith("matrix ")]
    constants: Mapping[str, object] = {
        "processors": gpu.processors,
        "l2": gpu.l2,
        "clock": readings[f"matrix {LOAD}"][1].ghz,
        "memory": memory.amount / median(seen.us) / 1e3,
        "port": a_cycle("port"),
        "special": a_cycle("special"),
        "matrix": {dtype: a_cycle(f"matrix {dtype}") for dtype in products},
    }
    return Calibration(constants, median(readings["launch"][1].us))


def of_processors(spent: Any, processors: int) -> tuple[float, float]:
    """Cycles that a processor needs for an equal share of the programs, and GHz: medians over processors, from rows of
    SPENT.

    A processor is busy from the first begin to the last end. What one program takes says nothing: the oldest warps go
    first, so that of eight programs that share a unit the first has finished after an eighth of the time.

    >>> of_processors(np.array([[0, 0, 100, 0, 50], [0, 0, 200, 0, 100]]), processors=1)
    (200.0, 2.0)
    """
    paces, clocks = [], []
    for k in np.unique(spent[:, 0]):
        own = spent[spent[:, 0] == k]
        _, begin, end, begin_ns, end_ns = own.T
        cycles = int(end.max()) - int(begin.min())
        paces.append(cycles / len(own))
        clocks.append(cycles / (int(end_ns.max()) - int(begin_ns.min())))
    return float(np.median(paces)) * len(spent) / processors, float(np.median(clocks))


def _check_steady(gpu: str, name: str, us: tuple[float, ...]) -> None:
    ordered = sorted(us)
    low, high = ordered[len(us) // 4], ordered[(3 * len(us)) // 4]
    if high > STEADY * low:
        raise TargetError(
            f"calibrate {gpu}",
            f"its times are not steady: `{name}` takes {low:.1f} to {high:.1f} µs",
            hint="calibrate again when nothing else runs on it",
        )
