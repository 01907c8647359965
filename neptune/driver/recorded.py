"""Levers of a form among the values of a candidate, whose values are whole numbers.

    {"consumers": 2, "persistent": "table", …}  ↔  {"asynchronous.consumers": 2, "asynchronous.persistent": 2, …}

A record keeps them among its `numbers`. No tunable has such a name, and what a launch is given beside (NUM_SPLITS) has
no dot: a record without them is of a kernel on tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from neptune.forms import FORMS


def coded(form: str, levers: Mapping[str, Any]) -> dict[str, int]:
    """Every lever of a form as a number: a word by its place among those that there are.

    >>> of = {"consumers": 2, "stages": 3, "persistent": "table", "own_out": True, "ahead": False}
    >>> coded("asynchronous", of)["asynchronous.persistent"]
    2
    """
    return {f"{form}.{n}": _code(legal, levers[n]) for n, legal in FORMS[form]().levers.items()}


def names() -> frozenset[str]:
    """What the levers of all forms are called among values."""
    return frozenset(n for form in FORMS for n in _names(form))


def form_of(values: Mapping[str, int]) -> str | None:
    """The form of a candidate with these values; None where it is on tiles, or where they are no levers."""
    return None if levers_of(values) is None else _named(values)


def levers_of(values: Mapping[str, int]) -> dict[str, int | str] | None:
    """The levers among the values of a candidate; None where it is on tiles, or where they are no levers.

    >>> levers_of({"BLOCK_M": 64}) is None
    True
    """
    form = _named(values)
    if form is None:
        return None
    found = {n: _lever(legal, values[f"{form}.{n}"]) for n, legal in FORMS[form]().levers.items()}
    return None if None in found.values() else found


def without_levers(values: Mapping[str, int]) -> dict[str, int]:
    """The other values of a candidate."""
    known = names()
    return {n: v for n, v in values.items() if n not in known}


def _named(values: Mapping[str, int]) -> str | None:
    """The form all of whose levers are among values; one without levers is none of a tuner's."""
    return next((form for form in FORMS if (own := _names(form)) and values.keys() >= own), None)


def _names(form: str) -> frozenset[str]:
    return _prefixed(form, tuple(FORMS[form]().levers))


@cache
def _prefixed(form: str, levers: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"{form}.{n}" for n in levers)


def _code(legal: tuple[Any, ...], value: Any) -> int:
    return legal.index(value) if isinstance(value, str) else int(value)


def _lever(legal: tuple[Any, ...], code: int) -> Any:
    return next((v for v in legal if _code(legal, v) == code), None)
