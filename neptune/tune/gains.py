"""By how much another form of a template's program is faster than the one on tiles, where templates are compared.

A layer above knows the form, and what it is predicted to take: it is asked at few sizes, and only of templates that
could come first by it. Between these sizes the gain is what the nearest say, of which each octave away counts half
(Shepard, 1968), with "none" as one more voice.

    Gain(({"m": 4096},), (0.8,)).factors([{"m": 4096}, {"m": 8192}])   →  [0.8, 0.862]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neptune.tile.ir import TileProgram
from neptune.tune.measured import MODEL, OCTAVE, octaves_between
from neptune.tune.model.numbers import Array
from neptune.tune.points import Sizes

WITHIN = 1.6
"""A template is asked for its other form where it is slower on tiles than the best by no more than that: what the form
gains at most, with some room (causal attention of depth 128 gains 1.4)."""
CLOSE = 1.02
"""What is faster by less takes no template's place."""
FURTHER = 5
"""Sizes at which forms are looked at beside the first, where a family is for many."""


class OtherForm(Protocol):
    """What knows another form of programs."""

    @property
    def name(self) -> str:
        """Of the form."""

    def us(self, template: str, program: TileProgram, points: Sequence[Asked]) -> Sequence[float]:
        """Microseconds of the program in this form at some sizes, the first of which count most; infinite where it is
        not known to have the form."""


@dataclass(frozen=True)
class Asked:
    """Sizes, and the best values on tiles there, with the microseconds that the model alone predicts."""

    sizes: Sizes
    params: Mapping[str, int]
    us: float


@dataclass(frozen=True)
class Gain:
    """At some sizes, the time of the faster form relative to tiles."""

    sizes: tuple[Sizes, ...] = ()
    relative: tuple[float, ...] = ()

    def factors(self, points: Sequence[Sizes]) -> Array:
        """What to multiply the times on tiles with."""
        if not self.sizes:
            return np.ones(len(points))
        octaves = octaves_between(points, self.sizes)
        weight = OCTAVE**octaves
        factors = np.exp(weight @ np.log(self.relative) / (MODEL + weight.sum(axis=1)))
        for k, relative in enumerate(self.relative):
            factors[octaves[:, k] == 0] = relative
        return np.asarray(factors)


NONE = Gain()


@dataclass(frozen=True)
class Counted:
    """What another form was counted for at the first point: the microseconds `on_tiles` of every template, and `us` in
    the form called `name` of those that it makes faster."""

    name: str
    us: Mapping[str, float] = field(default_factory=dict)
    on_tiles: Mapping[str, float] = field(default_factory=dict)

    def decides(self, template: str) -> bool:
        """True where on tiles another template is faster."""
        return template in self.us and self.on_tiles[template] > min(self.on_tiles.values())
