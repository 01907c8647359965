"""What rows of `bench.hopper` share: rates of forms that take turns, verdicts, and an end to a row that hangs."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton

import neptune
from neptune.runtime.bench import graph_of
from neptune.runtime.hopper.accepted import read

TOKENS, COLUMNS = 16384, 2048
TARGET = "cuda:90"
HUNG = 3
"""The exit status where a row did not end."""
Forms = Mapping[str, Callable[[], object]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """A row to be made: its name, what measures it, and the kernels that it needs, which may be compiled before."""

    name: str
    made: Callable[[], Row]
    kernels: tuple[Callable[[], neptune.Kernel], ...] = ()


def heads_of(depth: int, length: int) -> int:
    """Heads of a call, of all its sequences: they have TOKENS queries together, or are one that is longer.

    >>> heads_of(64, 4096), heads_of(64, 32768)
    (128, 32)
    """
    return max(1, TOKENS // length) * (COLUMNS // depth)


def timed(forms: Forms, work: float, rounds: int, graphs: bool = False) -> Row:
    """Medians of rates (T/s), of rounds in which the forms take turns, with their quartiles and all samples; of calls,
    or of `graphs`, which wait for no host between kernels of a few microseconds."""
    forms = {name: graph_of(call) for name, call in forms.items()} if graphs else forms
    samples: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, call in forms.items():
            time = triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median")
            samples[name].append(work / time / 1e9)
    quartiles = {name: statistics.quantiles(s, n=4, method="inclusive")[::2] for name, s in samples.items()}
    return {**{name: statistics.median(s) for name, s in samples.items()}, "quartiles": quartiles, "samples": samples}


def against(made: Row, rival: str, goal: float, ours: str = "ours") -> Row:
    """The ratio of our rate to a rival's, and whether the goal is lost beyond the noise: ranges are apart."""
    mine, theirs = made["quartiles"][ours], made["quartiles"][rival]
    return {"ratio": made[ours] / made[rival], "of": rival, "goal": goal, "lost": mine[1] < goal * theirs[0]}


def verdict(kernel: neptune.Kernel) -> Row:
    """Whether a kernel runs in its asynchronous form, and why not."""
    of = kernel.executable.artifact.form
    found = None if of is None or of.record is None else read(of.record)
    faults = ["it has no such form, or no verdict"] if found is None else list(found.faults)
    return {"accepted": not faults, "faults": faults, "levers": {} if of is None else dict(of.levers)}


@contextmanager
def at_most(seconds: float, name: str) -> Iterator[None]:
    """End this process where a row takes longer: nothing else ends a kernel that hangs."""

    def end() -> None:
        print(f"{name}: no end in {seconds:.0f} s; what was measured until then is kept", flush=True)
        os._exit(HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
