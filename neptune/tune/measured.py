"""What was measured of a program, beside what the model says of it: a factor for each candidate at all sizes.

    factors = Measured.of(samples, predict).factors("matmul", [{"BLOCK_M": 64, …}, …], points)   →  [[0.96, …], …]

Times of different sizes or versions are not compared. What carries over is how candidates stand to each other beside
the model: log(measured / predicted) of each, less the median of that over the fast ones measured with it. At sizes
where a candidate was measured, that counts; elsewhere the mean over all sizes does, of which each octave away counts
half (Shepard, 1968), with the model as one more voice that says 0. Where these versions measured at the very sizes,
only what they measured is a candidate: it is believed.

`python -m bench.records --judge` judges it at sizes that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median
from typing import TypeAlias

import numpy as np

from neptune.base.choice import Choice
from neptune.tune.model.numbers import Array

Sizes: TypeAlias = Mapping[str, int]
BELIEVED = 1.0
"""The weight of what these versions have measured."""
Predict: TypeAlias = Callable[[str, Sequence[Mapping[str, int]], Sequence[Sizes]], Array]
"""Microseconds of a template with each of the values (rows) at each of the sizes."""
OCTAVE = 0.5
"""What each doubling of a size takes of a weight."""
MODEL = 0.25
"""What the model counts beside weights."""
BOUND = 1.15
"""The factor that sizes measured elsewhere can make, and its inverse: beyond it, they were harmful where left out."""
NEAR = 1.5
"""What takes longer than that, relative to the best of its sizes, says little of the fast ones."""
NEVER = 100.0
"""The factor of what these versions have not measured where they did measure."""
FASTEST = 3
"""Of each sample so many are candidates at all sizes."""


@dataclass(frozen=True)
class Sample:
    """Microseconds of candidates at the same sizes, measured with the same versions; `weight` is BELIEVED for the
    versions at hand, less for others."""

    sizes: Sizes
    us: Mapping[Choice, float]
    weight: float

    @property
    def fastest(self) -> list[Choice]:
        """Its candidates, the fastest first."""
        return sorted(self.us, key=lambda c: self.us[c])


@dataclass(frozen=True)
class Measured:
    """Samples, the least believed first, and `off`: of each candidate how far the model is off in each of the samples
    (logarithms), NaN where it was not measured."""

    samples: tuple[Sample, ...] = ()
    off: Mapping[Choice, Array] = field(default_factory=dict)
    first: Array = ()

    @staticmethod
    def of(samples: Iterable[Sample], predict: Predict) -> Measured:
        """Compare samples with the model; what it predicts to run nowhere says nothing."""
        known = tuple(sorted(samples, key=lambda s: s.weight))
        every = list(dict.fromkeys(c for s in known for c in s.us))
        off = {c: np.full(len(known), np.nan) for c in every}
        for template in dict.fromkeys(c.template for c in every):
            own = [c for c in every if c.template == template]
            predicted = predict(template, [c.params for c in own], [s.sizes for s in known])
            for c, row in zip(own, predicted, strict=True):
                measured = np.array([s.us.get(c, np.nan) for s in known])
                off[c] = np.log(measured / np.where(np.isfinite(row), np.maximum(row, 1e-3), np.nan))
        first = np.zeros(len(known))
        for k, s in enumerate(known):
            limit = NEAR * min(s.us.values(), default=0.0)
            fast = [float(off[c][k]) for c, us in s.us.items() if us <= limit and np.isfinite(off[c][k])]
            for c in s.us:
                off[c][k] -= median(fast) if fast else np.nan
            favourite = min(s.us, key=lambda c: log(s.us[c]) - off[c][k] if np.isfinite(off[c][k]) else np.inf)
            first[k] = max(0.0, np.nan_to_num(off[favourite][k]))
        return Measured(known, off, first)

    def candidates(self, template: str) -> list[dict[str, int]]:
        """The values of this template that were among the fastest somewhere."""
        first = (c for s in self.samples for c in s.fastest[:FASTEST])
        return [dict(c.params) for c in dict.fromkeys(first) if c.template == template]

    def factors(self, template: str, choices: Sequence[Mapping[str, int]], points: Sequence[Sizes]) -> Array:
        """What to multiply the predictions of choices (rows) at points with."""
        if not self.samples:
            return np.ones((len(choices), len(points)))
        unknown = np.full(len(self.samples), np.nan)
        off = np.stack([self.off.get(Choice(template, c), unknown) for c in choices])
        known, off = np.isfinite(off), np.where(np.isfinite(off), off, self.first)
        octaves = octaves_between(points, [s.sizes for s in self.samples])
        weight = np.array([s.weight for s in self.samples]) * OCTAVE**octaves
        logs = np.clip((off @ weight.T) / (MODEL + weight.sum(axis=1)), -log(BOUND), log(BOUND))
        for k, s in enumerate(self.samples):
            columns = np.flatnonzero(octaves[:, k] == 0)
            here = off[:, k] * s.weight / (s.weight + MODEL)
            if s.weight >= BELIEVED:
                here = np.where(known[:, k], off[:, k], log(NEVER))
            logs[:, columns] = here[:, None]
        return np.exp(logs)


def octaves_between(points: Sequence[Sizes], others: Sequence[Sizes]) -> Array:
    """How far each point (rows) is from each of others: doublings of sizes, added up."""
    names = list(others[0])
    here, there = (
        np.log2(np.maximum(np.array([[p[n] for n in names] for p in many], np.float64).reshape(len(many), -1), 1))
        for many in (points, others)
    )
    return np.abs(here[:, None] - there[None]).sum(axis=2)
