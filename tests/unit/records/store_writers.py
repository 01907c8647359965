"""Writers for `test_store.py`, each a process: `python -m tests.unit.records.store_writers WHAT FOLDER NUMBER`."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from neptune.records.record import Record
from neptune.records.store import Store

STRUCTURE = "5" * 32
SOME, LONGEST = 300, 900
"""Lines of a short writer, and what they have samples up to: a line of several pages."""


def numbered(writer: int, k: int, more: int = 0) -> Record:
    """The record that a writer writes as its k-th; `more` makes it longer."""
    return Record(
        structure=STRUCTURE, device="H200", template="t", sizes={"n": k + 1}, params={"writer": writer},
        us=[1.5] * (1 + more), versions={"neptune": "0.1.0"}, when="2026-11-22T00:00:00Z",
    )  # fmt: skip


def main(what: str, folder: Path, number: int) -> None:
    store = Store(folder)
    if what == "many":
        for k in range(10_000):
            assert store.append(numbered(number, k))
    elif what == "some":
        for k in range(SOME):
            assert store.append(numbered(number, k, more=k % LONGEST))
    elif what == "endless":
        # Of different lengths, up to several pages; a line is told once it is kept.
        for k in range(1_000_000):
            assert store.append(numbered(number, k, more=k % LONGEST))
            print(k, flush=True)
    elif what == "limited":
        # As on a full disk, the last write is cut short.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        print(sum([store.append(numbered(number, k)) for k in range(200)]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
