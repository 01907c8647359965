"""Offsets of blocks of memory that are not all in use at one time.

    plan([Block(100, 0, 1), Block(60, 1, 2), Block(100, 2, 3)])  →  offsets (0, 100, 0), size 160, bound 160

The problem is dynamic storage allocation (Garey and Johnson, SR2). An optimal plan is one in which every block lies on
top of some earlier one that it meets: in the order of its offsets, each block as low as those before it allow. So the
orders of up to EXACT blocks are all tried, cut short by what is found; of more, the orders by size, by length of life
and by begin are, and the plan says what its size is beside the lower bound, the most bytes in use at one time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXACT = 8
"""Blocks for which a plan is optimal."""


@dataclass(frozen=True, slots=True)
class Block:
    """So many bytes that are in use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """True where both are in use at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Plan:
    """The offset of each block in bytes, what they take together, and the lower bound of that."""

    offsets: tuple[int, ...]
    size: int
    bound: int


def plan(blocks: Sequence[Block], alignment: int = 1) -> Plan:
    """Offsets, multiples of `alignment`, at which no two blocks in use at one time share a byte."""
    padded = [Block(-(-b.size // alignment) * alignment, b.first, b.last) for b in blocks]
    moments = {b.first for b in padded}
    bound = max((sum(b.size for b in padded if b.first <= moment <= b.last) for moment in moments), default=0)
    offsets = _best(padded, bound) if len(padded) <= EXACT else _first_fit(padded)
    return Plan(tuple(offsets), _size(padded, offsets), bound)


def _size(blocks: Sequence[Block], offsets: Iterable[int]) -> int:
    return max((offset + b.size for b, offset in zip(blocks, offsets, strict=True)), default=0)


def _best(blocks: Sequence[Block], bound: int) -> list[int]:
    """The least plan of all orders."""
    met = [[k for k, other in enumerate(blocks) if k != n and b.meets(other)] for n, b in enumerate(blocks)]
    best = _first_fit(blocks)
    least = _size(blocks, best)

    def extend(tops: dict[int, int], top: int) -> None:
        """Place one more block on top of those that it meets; `tops` are the ends of what is placed."""
        nonlocal best, least
        if top >= least or least == bound:
            return
        if len(tops) == len(blocks):
            best, least = [tops[n] - b.size for n, b in enumerate(blocks)], top
            return
        for n, b in enumerate(blocks):
            if n not in tops:
                end = max((tops[k] for k in met[n] if k in tops), default=0) + b.size
                extend({**tops, n: end}, max(top, end))

    extend({}, 0)
    return best


def _first_fit(blocks: Sequence[Block]) -> list[int]:
    """The best of a few orders, each block at the lowest gap that it fits in."""
    numbers = range(len(blocks))
    orders = (
        sorted(numbers, key=lambda n: -blocks[n].size),
        sorted(numbers, key=lambda n: (blocks[n].first - blocks[n].last, -blocks[n].size)),
        sorted(numbers, key=lambda n: (blocks[n].first, -blocks[n].size)),
    )
    return min((_fitted(blocks, order) for order in orders), key=lambda offsets: _size(blocks, offsets))


def _fitted(blocks: Sequence[Block], order: Sequence[int]) -> list[int]:
    offsets: dict[int, int] = {}
    for n in order:
        taken = sorted((offsets[k], offsets[k] + blocks[k].size) for k in offsets if blocks[n].meets(blocks[k]))
        low = 0
        for begin, end in taken:
            if low + blocks[n].size <= begin:
                break
            low = max(low, end)
        offsets[n] = low
    return [offsets[n] for n in range(len(blocks))]
