"""Levers of the asynchronous form among the values of a candidate, whose values are whole numbers.

    {"consumers": 2, "persistent": "table", …}  ↔  {"asynchronous.consumers": 2, "asynchronous.persistent": 2, …}

A record keeps them among its `numbers`. No tunable has such a name, and what a launch is given beside (NUM_SPLITS) has
no dot: a record without them is of a kernel on tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neptune.driver.asynchronous import LEVERS

PREFIX = "asynchronous."
NAMES = frozenset(PREFIX + n for n in LEVERS)


def coded(levers: Mapping[str, Any]) -> dict[str, int]:
    """Every lever as a number: a word by its place among those that there are.

    >>> of = {"consumers": 2, "stages": 3, "persistent": "table", "own_out": True, "ahead": False}
    >>> coded(of)["asynchronous.persistent"]
    2
    """
    return {PREFIX + n: _code(LEVERS[n], levers[n]) for n in LEVERS}


def levers_of(values: Mapping[str, int]) -> dict[str, int | str] | None:
    """The levers among the values of a candidate; None where it is on tiles, or where they are no levers.

    >>> levers_of({"BLOCK_M": 64}) is None
    True
    """
    if not values.keys() >= NAMES:
        return None
    found = {n: _lever(LEVERS[n], values[PREFIX + n]) for n in LEVERS}
    return None if None in found.values() else found


def without_levers(values: Mapping[str, int]) -> dict[str, int]:
    """The other values of a candidate."""
    return {n: v for n, v in values.items() if n not in NAMES}


def _code(legal: tuple[Any, ...], value: Any) -> int:
    return legal.index(value) if isinstance(value, str) else int(value)


def _lever(legal: tuple[Any, ...], code: int) -> Any:
    return next((v for v in legal if _code(legal, v) == code), None)
