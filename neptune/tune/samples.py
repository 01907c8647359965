"""Measurements as the automatic choice reads them. Plain data, which saved kernels speak of, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from neptune.choice import Choice

Sizes: TypeAlias = Mapping[str, int]
BELIEVED = 1.0
"""The weight of what these versions have measured."""


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
