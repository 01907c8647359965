"""A tree of variants that takes a certain one where it was measured, whatever the tree says around it.

grafted(0, {"m": 100}, 1, []) → m <= 128: (m <= 64: 0, else 1), else 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import TypeAlias

from neptune.runtime.family import Cut, Tree

Sizes: TypeAlias = Mapping[str, int]
Box: TypeAlias = dict[str, tuple[int, int]]
"""Of each size what it is above, and what it is at most."""


def grafted(tree: Tree, at: Sizes, take: int, others: Sequence[Sizes]) -> Tree:
    """The tree with variant `take` for the bucket of these sizes (each rounded up to a power of two), as far as the
    tree does not tell them apart; `others` keep what they have.

    >>> from neptune.runtime.family import pick
    >>> tree = grafted(Cut(("m",), 100, 5, 6), {"m": 70}, 1, [{"m": 80}])
    >>> [pick(tree, {"m": m}) for m in (64, 65, 70, 75, 76, 80, 101)]
    [5, 1, 1, 1, 5, 5, 6]
    """
    return _replaced(tree, at, _around(at, others), take)


def _replaced(tree: Tree, at: Sizes, box: Box, take: int) -> Tree:
    """The leaf that `at` reaches, cut into the box and the rest."""
    if isinstance(tree, Cut):
        if _product(at, tree.of) <= tree.at:
            return Cut(tree.of, tree.at, _replaced(tree.below, at, box, take), tree.above)
        return Cut(tree.of, tree.at, tree.below, _replaced(tree.above, at, box, take))
    made: Tree = take
    for name, (above, most) in box.items():
        made = Cut((name,), most, Cut((name,), above, tree, made) if above else made, tree)
    return made


def _product(at: Sizes, of: Sequence[str]) -> int:
    found = 1
    for name in of:
        found *= at[name]
    return found


def _around(at: Sizes, others: Sequence[Sizes]) -> Box:
    """The bucket of sizes, without any of the others."""
    box = {n: (_bucket(v) // 2, _bucket(v)) for n, v in at.items()}
    for other in others:
        if other != at and all(above < other[n] <= most for n, (above, most) in box.items()):
            far = max(at, key=lambda n: abs(log2(max(1, at[n]) / max(1, other[n]))))
            above, most = box[far]
            low, high = sorted((at[far], other[far]))
            middle = min(high - 1, max(low, round((low * high) ** 0.5)))
            box[far] = (above, middle) if at[far] == low else (middle, most)
    return box


def _bucket(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
