"""A few cases in which every two values of different factors meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def pairwise(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Rows, each a value for every factor, that hold every pair of values that `allowed` lets into a row.

    `allowed` is asked of incomplete rows too, and must not change its mind from False to True. Greedy and
    deterministic: each row starts from a pair that is still missing and takes the values that add most.

    >>> len(pairwise({"a": [0, 1, 2], "b": [0, 1], "c": [0, 1]}))
    6
    """
    missing = {
        ((a, x), (b, y)): None for a, b in combinations(factors, 2) for x in factors[a] for y in factors[b]
    }  # a dict, for its order
    used = {(name, value): 0 for name in factors for value in factors[name]}
    rows: list[Row] = []
    while missing:
        start = next(iter(missing))
        row = _complete(dict(start), factors, missing, used, allowed)
        missing.pop(start)
        if row is not None:
            rows.append(row)
            for item in row.items():
                used[item] += 1
            for a, b in combinations(factors, 2):
                missing.pop(((a, row[a]), (b, row[b])), None)
    return rows


def _complete(
    row: Row,
    factors: Mapping[str, Sequence[Any]],
    missing: Mapping[Any, None],
    used: Mapping[Any, int],
    allowed: Callable[[Row], bool],
) -> Row | None:
    """`row` with a value for every factor, None where it cannot be had."""
    if not allowed(row):
        return None
    name = next((f for f in factors if f not in row), None)
    if name is None:
        return row

    def gain(value: Any) -> int:
        mine = (name, value)
        return sum(((mine, other) in missing) + ((other, mine) in missing) for other in row.items())

    # Values that add nothing differently are taken in turn.
    for value in sorted(factors[name], key=lambda v: (-gain(v), used[name, v])):
        done = _complete(row | {name: value}, factors, missing, used, allowed)
        if done is not None:
            return done
    return None
