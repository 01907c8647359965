"""Measurements as the choice reads them: candidates and their times. Plain data, which saved kernels speak of, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Candidate: TypeAlias = "tuple[str, tuple[tuple[str, int], ...]]"
"""A template, and its values by name in order."""
Sizes: TypeAlias = Mapping[str, int]
BELIEVED = 1.0
"""The weight of what these versions have measured."""


@dataclass(frozen=True)
class Sample:
    """Microseconds of candidates at the same sizes, measured with the same versions; `weight` is BELIEVED for the
    versions at hand, less for others."""

    sizes: Sizes
    us: Mapping[Candidate, float]
    weight: float

    @property
    def fastest(self) -> list[Candidate]:
        """Its candidates, the fastest first."""
        return sorted(self.us, key=lambda c: self.us[c])


def candidate(template: str, params: Mapping[str, int]) -> Candidate:
    """The key of a template with values.

    >>> candidate("matmul", {"num_warps": 4, "BLOCK_M": 64})
    ('matmul', (('BLOCK_M', 64), ('num_warps', 4)))
    """
    return template, tuple(sorted(params.items()))
