"""The tree of comparisons of sizes by which a saved kernel takes its variants (`neptune.runtime.family`).

    grown(times, points)                →  s_q <= 16: 1, else 0, cut where that makes the times shortest
    grafted(0, {"m": 100}, 1, [])       →  m <= 128: (m <= 64: 0, else 1), else 0

Where a variant was measured to be the fastest, a box around these sizes takes it, whatever the tree says around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log2, prod
from typing import TypeAlias

import numpy as np

from neptune.runtime.family import Cut, Tree, pick
from neptune.tune.model.numbers import Array
from neptune.tune.points import Sizes

GAIN = 0.0005
"""What each cut must save over its own points."""
DEEPEST = 10
"""Comparisons on the way to a choice."""
SHORT = 20.0
"""Microseconds: of what takes so long the logarithm counts half, of what takes longer more."""
NEVER = 40.0
"""The logarithm of the time of what cannot run."""
FEWEST = 2
"""Points of each side of a cut."""
MISSED = 1.005
"""What is slower by that at a measured point than the fastest choice there is not taken."""
Box: TypeAlias = dict[str, tuple[int, int]]
"""Of each size what it is above, and what it is at most."""


def grown(times: Array, points: Sequence[Sizes], deciding: frozenset[str] | None = None, depth: int = DEEPEST) -> Tree:
    """The comparisons of sizes (those `deciding` alone, where they are named) by which the times of choices (rows) are
    the shortest over all points."""
    return cut(log_times(times), compared(points, deciding), depth)


def log_times(times: Array) -> Array:
    """What is made small: logarithms of times, which count less where everything is short."""
    fastest = times.min(axis=0)
    logs = np.where(np.isfinite(times), np.log(np.maximum(times, 1e-3)), NEVER)
    return np.asarray(logs * (fastest / (fastest + SHORT)))


def compared(points: Sequence[Sizes], deciding: frozenset[str] | None = None) -> dict[tuple[str, ...], Array]:
    """What is compared, at each point: sizes that differ (those `deciding` alone), and products of them."""
    legal = points[0] if deciding is None else [n for n in points[0] if n in deciding]
    names = [n for n in legal if len({p[n] for p in points}) > 1]
    products = (axes for count in (1, 2, 3) for axes in combinations(names, count))
    return {axes: np.array([float(prod(p[n] for n in axes)) for p in points]) for axes in products}


def cut(logs: Array, features: Mapping[tuple[str, ...], Array], depth: int) -> Tree:
    """The tree that picks among rows with the least sum over all points."""
    sums_of_rows = logs.sum(axis=1)
    best = int(sums_of_rows.argmin())
    cost, taken = float(sums_of_rows[best]), None
    if depth and len(logs) > 1 and float(logs.min(axis=0).sum()) < cost - GAIN:
        for names, values in features.items():
            order = values.argsort(kind="stable")
            below = logs[:, order].cumsum(axis=1)
            above = below[:, -1:] - below
            sums = below.min(axis=0) + above.min(axis=0)
            ordered = values[order]
            ends = np.flatnonzero(ordered[1:] > ordered[:-1])
            ends = ends[(ends + 1 >= FEWEST) & (ends + 1 <= len(ordered) - FEWEST)]
            if len(ends) and float(sums[ends].min()) < cost - max(GAIN, GAIN * len(ordered)):
                k = int(ends[sums[ends].argmin()])
                cost, taken = float(sums[k]), (names, ordered[k], ordered[k + 1])
    if taken is None:
        return best
    names, low, high = taken
    side = features[names] <= low
    below, above = (cut(logs[:, s], {n: v[s] for n, v in features.items()}, depth - 1) for s in (side, ~side))
    return below if below == above else Cut(names, _between(int(low), int(high)), below, above)


def _between(low: int, high: int) -> int:
    """A number from low to below high: the power of two that lies in the middle, where there is one.

    >>> _between(1, 4), _between(1024, 2048), _between(1024, 16384), _between(5, 7)
    (2, 1024, 4096, 5)
    """
    powers = [1 << k for k in range(high.bit_length()) if low <= 1 << k < high]
    middle = (max(1, low) * high) ** 0.5
    return min(powers, key=lambda p: abs(log2(p / middle)), default=low)


def renumbered(tree: Tree, first: Sequence[int] = ()) -> tuple[Tree, list[int]]:
    """The tree with its choices numbered anew, those that come `first` before others as they are met, and their old
    numbers."""
    used: list[int] = list(dict.fromkeys(first))

    def again(t: Tree) -> Tree:
        if isinstance(t, Cut):
            return Cut(t.of, t.at, again(t.below), again(t.above))
        if t not in used:
            used.append(t)
        return used.index(t)

    return again(tree), used


# --- where something was measured ------------------------------------------------------------------


def where_measured(tree: Tree, times: Array, points: Sequence[Sizes], first: int) -> Tree:
    """The tree that takes the fastest choice at each measured point, those from number `first` on, and at what is alike
    and does not lose by it. Sizes that all points share tell nothing apart."""
    names = [n for n in points[0] if len({p[n] for p in points}) > 1]
    points = [{n: p[n] for n in names} for p in points]
    for k in range(first, len(points)):
        take = int(times[:, k].argmin())
        if times[pick(tree, points[k]), k] > MISSED * times[take, k]:
            own = np.array([times[pick(tree, p), j] for j, p in enumerate(points)])
            loses = np.flatnonzero(times[take] > MISSED * own)
            tree = grafted(tree, points[k], take, [points[j] for j in loses])
    return tree


def grafted(tree: Tree, sizes: Sizes, take: int, others: Sequence[Sizes]) -> Tree:
    """The tree with variant `take` for the bucket of these sizes (each rounded up to a power of two), as far as the
    tree does not tell them apart; `others` keep what they have.

    >>> from neptune.runtime.family import pick
    >>> tree = grafted(Cut(("m",), 100, 5, 6), {"m": 70}, 1, [{"m": 80}])
    >>> [pick(tree, {"m": m}) for m in (64, 65, 70, 75, 76, 80, 101)]
    [5, 1, 1, 1, 5, 5, 6]
    """
    return _replaced(tree, sizes, _around(sizes, others), take)


def _replaced(tree: Tree, sizes: Sizes, box: Box, take: int) -> Tree:
    """The leaf that the sizes reach, cut into the box and the rest."""
    if isinstance(tree, Cut):
        if prod(sizes[name] for name in tree.of) <= tree.at:
            return Cut(tree.of, tree.at, _replaced(tree.below, sizes, box, take), tree.above)
        return Cut(tree.of, tree.at, tree.below, _replaced(tree.above, sizes, box, take))
    leaf: Tree = take
    for name, (above, most) in box.items():
        leaf = Cut((name,), most, Cut((name,), above, tree, leaf) if above else leaf, tree)
    return leaf


def _around(sizes: Sizes, others: Sequence[Sizes]) -> Box:
    """The bucket of sizes, without any of the others."""
    box = {n: (_bucket(v) // 2, _bucket(v)) for n, v in sizes.items()}
    for other in others:
        if other != sizes and all(above < other[n] <= most for n, (above, most) in box.items()):
            far = max(sizes, key=lambda n: abs(log2(max(1, sizes[n]) / max(1, other[n]))))
            above, most = box[far]
            low, high = sorted((sizes[far], other[far]))
            middle = min(high - 1, max(low, round((low * high) ** 0.5)))
            box[far] = (above, middle) if sizes[far] == low else (middle, most)
    return box


def _bucket(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
