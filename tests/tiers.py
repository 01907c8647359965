"""Two tiers: `make test` leaves out what is marked `slow`, `make test-all` and CI do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters of a test, of which the first and each `every`-th after it are in the quick tier.

    >>> [type(p).__name__ for p in sampled("abcd", every=3)]
    ['str', 'ParameterSet', 'ParameterSet', 'str']
    """
    return [
        c if k % every == 0 else pytest.param(*c if isinstance(c, tuple) else (c,), marks=pytest.mark.slow)
        for k, c in enumerate(cases)
    ]


def in_turn(rows: Iterable[Any], columns: Sequence[Any]) -> list[tuple[Any, Any]]:
    """A few of the pairs of two lists: each row, with one of the columns, which take turns.

    >>> in_turn("abc", [0, 1])
    [('a', 0), ('b', 1), ('c', 0)]
    """
    return [(row, columns[k % len(columns)]) for k, row in enumerate(rows)]
