"""Two tiers: `make test` leaves out what is marked `slow`, `make test-all` and CI do not."""

from __future__ import annotations

from collections.abc import Iterable
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
