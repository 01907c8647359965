"""The dimensions of a tensor in Mirage's JSON, by the axes that stand in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from neptune.mirage.builder import Value
from neptune.mirage.ir import LOOP, SPLIT, Parts

Dim: TypeAlias = tuple[tuple[str, Parts], ...]
"""The axes of a dimension, outermost first, with their parts: none where its length is 1, two behind a split."""

LEFT: Parts = frozenset({"left"})
"""What an accumulator leaves of the loop's axis, as long as a tile, or columns to which an axis is folded: it is summed
already, and may only be summed."""
ROUNDS: Parts = SPLIT | {LOOP}
"""What a split has left, read in rounds by a loop, whose accumulators may only add all of it up."""


@dataclass(frozen=True)
class Shaped:
    """A value with the axes of its dimensions."""

    value: Value
    dims: tuple[Dim, ...]


def holds(dim: Dim, *kinds: Parts) -> bool:
    """True where a dimension has an axis with these parts."""
    return any(parts in kinds for _, parts in dim)


def total(value: Value, dim: Dim) -> Value:
    """The sum over all parts of a dimension."""
    for axis, parts in dim:
        if parts != LEFT:
            value = value.sum(axis, SPLIT if parts == ROUNDS else parts)
    return value


def text(dim: Dim) -> str:
    if not dim:
        return "a dimension of length 1"
    words = {SPLIT: "the programs along", ROUNDS: "the programs along", LEFT: "tiles of axis"}
    return " and ".join(f"{words.get(parts, 'axis')} `{a}`" for a, parts in dim)
