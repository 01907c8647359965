"""Which variant each class of sizes takes, as it was decided before, by this process or by another one.

What decides (`neptune.tune.chooser`) follows from the class, the kernel and the machine alone, so that what any process
has decided of the same is taken: to ask the model takes imports of half a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from neptune.base.shelf import Shelf

EXACT = 64
"""Sizes up to here are classes of their own: tiles and parts follow from each."""
FOLDER, MAGIC = "classes", b"neptune-classes 1 "
MOST = 4096
"""Classes of a kernel that are remembered."""
UNKNOWN: Any = object()
Sizes: TypeAlias = "Mapping[str, int | float]"


def class_of(size: int) -> int:
    """The longest size of a size's class: itself up to EXACT, else of the eighth of an octave that it is in.

    >>> class_of(64), class_of(100), class_of(128), class_of(129)
    (64, 104, 128, 144)
    """
    if size <= EXACT:
        return size
    step = 1 << ((size - 1).bit_length() - 4)
    return -(-size // step) * step


class Decided:
    """The number of the variant, of so many (`count`), for the sizes called `names`; `decide` gives it where nobody has
    asked for their class. All of that is `kept` in a folder, under a key, where these are given."""

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        decide: Callable[[Sizes], int | None],
        kept: tuple[Path, str] | None = None,
    ) -> None:
        self.names, self._count, self._decide = tuple(names), count, decide
        self._shelf = None if kept is None else _shelf(kept[0])
        self._key = "" if kept is None else kept[1]
        self._numbers = self._kept()

    @property
    def classes(self) -> int:
        """How many classes are known."""
        return len(self._numbers)

    def __call__(self, sizes: Sizes) -> int | None:
        """The number for some sizes; None where nothing is predicted to run, as of arguments below 1."""
        values = [int(sizes[n]) for n in self.names]
        if any(n < 1 for n in values):
            return None
        key = ",".join(map(str, map(class_of, values)))
        number: int | None = self._numbers.get(key, UNKNOWN)
        if number is UNKNOWN:
            number = self._decide(sizes)
            # Other threads and processes may decide meanwhile, and the same.
            known = {**self._kept(), **self._numbers}
            self._numbers = {**(known if len(known) < MOST else {}), key: number}
            if self._shelf is not None:
                self._shelf.write(self._key, json.dumps(self._numbers).encode())
        return number

    def _kept(self) -> dict[str, int | None]:
        """What was decided elsewhere."""
        body = None if self._shelf is None else self._shelf.read(self._key)
        try:
            known = json.loads(body or b"{}")
            legal = (None, *range(self._count))
            return {str(key): number for key, number in known.items() if number in legal}
        except (ValueError, AttributeError, TypeError):
            return {}


def _shelf(root: Path) -> Shelf:
    # Imported here: a saved kernel has nothing to keep.
    from neptune.base.shelf import Shelf

    return Shelf(root, FOLDER, MAGIC, max_bytes=32 << 20, max_entries=1024)
