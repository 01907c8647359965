"""Choices as records hold them: all values of a candidate are whole numbers, and its form is told by their names.

    Choice(…, {…, "asynchronous.consumers": 2, "asynchronous.persistent": "table", …}, "asynchronous")
    ↔  Choice(…, {…, "asynchronous.consumers": 2, "asynchronous.persistent": 2, …})

A record keeps those of a form among its `numbers`. No tunable has such a name, and what a launch is given beside
(NUM_SPLITS) has no dot: a record without them is of a kernel on tiles.
"""

from __future__ import annotations

from typing import Any

from neptune.choice import Choice, qualified
from neptune.forms import FORMS


def written(choice: Choice) -> Choice:
    """The choice with every value as a number: a word by its place among those that there are.

    >>> levers = {"consumers": 2, "stages": 3, "persistent": "table", "own_out": True, "ahead": False}
    >>> written(Choice("matmul", {}).formed("asynchronous", levers)).values["asynchronous.persistent"]
    2
    """
    if choice.form is None:
        return choice
    legal = FORMS[choice.form]().levers
    codes = {n: _code(values, choice.levers[n]) for n, values in legal.items()}
    return Choice(choice.template, {**choice.params, **qualified(choice.form, codes)})


def read(choice: Choice) -> Choice | None:
    """The choice that is `written` so; None where its form, or one of its levers, is none that there is.

    >>> print(read(Choice("matmul_split", {"BLOCK_M": 64, "NUM_SPLITS": 4})))
    matmul_split BLOCK_M=64 NUM_SPLITS=4
    >>> print(read(Choice("matmul", {"asynchronous.consumers": 9})))
    None
    """
    own = names() & choice.values.keys()
    if not own:
        return choice
    plain = choice.without(own)
    for form, load in FORMS.items():
        legal = load().levers
        if own == {f"{form}.{n}" for n in legal}:
            found = {n: _lever(values, choice.values[f"{form}.{n}"]) for n, values in legal.items()}
            return None if None in found.values() else plain.formed(form, found)
    return None


def names() -> frozenset[str]:
    """What the levers of all forms are called among values."""
    return frozenset(f"{form}.{n}" for form, load in FORMS.items() for n in load().levers)


def _code(legal: tuple[Any, ...], value: Any) -> int:
    return legal.index(value) if isinstance(value, str) else int(value)


def _lever(legal: tuple[Any, ...], code: int) -> Any:
    return next((v for v in legal if _code(legal, v) == code), None)
