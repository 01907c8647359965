"""The tuner beside an exhaustive search: what it takes, how soon, and what it misses.

Both are the tuner's own machinery, with the same records: first a search as `neptune.autotune` makes it, then one that
stops at nothing, until its time is over. Figures say how many of the candidates were measured: regret is against those.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any
from unittest import mock

from bench.comparison.measure import Bench
from bench.comparison.subjects import Subject
from neptune.autotune import rounds
from neptune.autotune.place import Bench as Timed
from neptune.autotune.space import Trial
from neptune.autotune.tuner import Options, task_of, tuned
from neptune.choice import Choice
from neptune.records.record import Failure, Record

NEAR = 1.03
"""Within that of the best, a candidate is good enough."""


@dataclass
class Trace:
    """Records in memory, each with the second at which it came."""

    begin: float = field(default_factory=time.monotonic)
    records: list[Record] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def append(self, record: Record | Failure) -> bool:
        if isinstance(record, Record):
            self.records.append(record)
            self.at.append(time.monotonic() - self.begin)
        return True

    def failures(self, structure: str, device: str) -> list[Failure]:
        """None: the exhaustive search tries again what failed in the first."""
        return []

    def find(self, structure: str, device: str) -> list[Record]:
        return [r for r in self.records if (r.structure, r.device) == (structure, device)]


def compared(subject: Subject, bench: Bench, budget: float, exhaustive: float, timed: Timed | None = None) -> Any:
    """The row of a subject: seconds, microseconds, and how many candidates each search has measured."""
    timed = timed or Timed(workers=max(1, len(os.sched_getaffinity(0)) - 1))
    task, trace, sizes = task_of(subject.program(), target=bench.target), Trace(), dict(subject.sizes)
    with bench.gate:
        first = tuned(task, sizes, Options(budget, records=trace, bench=timed, quiet=True)).shapes[0]
        seconds, count = trace.at[-1] if trace.at else 0.0, len(trace.records)
        with mock.patch.object(rounds, "MARGIN", inf):
            every = tuned(task, sizes, Options(exhaustive, records=trace, bench=timed, quiet=True)).shapes[0]
    if first.us is None or every.us is None:
        return {"failed": first.stopped}
    # The same choice may have been timed twice; what it takes is known best in the end.
    us = dict(every.times)
    best = min(us.values())
    near = [at for r, at in zip(trace.records[:count], trace.at, strict=False) if _us(r, us) <= NEAR * best]
    return {
        "us": us.get(first.best.choice, first.us),
        "form": str(first.best),
        "best us": best,
        "regret": us.get(first.best.choice, first.us) / best - 1,
        "default regret": us[first.default.choice] / best - 1 if first.default.choice in us else None,
        "seconds": round(seconds, 2),
        "seconds to 3 %": round(near[0], 2) if near else None,
        "measured": first.measured,
        "exhaustive": every.measured,
        "candidates": every.candidates,
        "stopped": [first.stopped, every.stopped],
        "failed candidates": len(every.failed),
        "cores": timed.workers + 1,
        "samples": {"records": [[round(at, 2), median(r.us)] for r, at in zip(trace.records, trace.at, strict=True)]},
    }


def _us(record: Record, us: Mapping[Choice, float]) -> float:
    """What a record's candidate takes."""
    return us.get(record.choice, inf)


# --- the same on figures that are kept --------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """A search on candidates that an earlier run has measured, all of them: after how many the best was within 3 %, how
    many there were in the end, and by how much what was found is slower than the best."""

    to_near: int | None
    measured: int
    candidates: int
    regret: float


def replayed(row: Mapping[str, Any]) -> Replayed:
    """The tuner's search on a row of `bench.choice`: what it asks for takes what was measured then, and is predicted as
    it was then."""
    us: dict[Choice, float] = {}
    trials: list[Trial] = []
    for c in row["candidates"]:
        template, *values = c["variant"].split()
        trial = Trial(Choice(template, {n: int(v) for n, v in (x.split("=") for x in values)}), c["predicted"])
        if isinstance(c["us"], float):
            us[trial.choice] = c["us"]
        trials.append(trial)
    search, best, order = rounds.Search(sorted(trials, key=lambda t: t.us)), min(us.values()), list[Choice]()
    while batch := search.next_round():
        for t in batch:
            search.known[t.choice] = us.get(t.choice)
            order.append(t.choice)
    near = (n for n, key in enumerate(order, 1) if us.get(key, inf) <= NEAR * best)
    found = min(us.get(key, inf) for key in order)
    return Replayed(next(near, None), len(order), len(trials), found / best - 1)
