"""Where candidates may be measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from neptune.autotune.cluster import Cluster
from neptune.autotune.local import Local
from neptune.autotune.place import Bench, Case, Executor
from neptune.errors import NeptuneError


class Made(Protocol):
    """A kind of executor."""

    here: bool
    """Whether it measures on this machine alone."""

    def __call__(self, folder: Path, case: Case, bench: Bench, left: Callable[[], float]) -> Executor: ...

    def check(self) -> None:
        """NeptuneError where it cannot be used."""

    def workers(self) -> int:
        """Processes that compile, where nobody says how many."""


EXECUTORS: Mapping[str, Made] = {"local": Local, "ray": Cluster}


def executor_of(name: object) -> Made:
    """The executor of a name. NeptuneError for one that there is not, or that cannot be used."""
    if not isinstance(name, str) or name not in EXECUTORS:
        raise NeptuneError(f"tune with executor={name!r:.40}", "there is no such executor", legal=tuple(EXECUTORS))
    EXECUTORS[name].check()
    return EXECUTORS[name]
