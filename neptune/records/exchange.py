"""Records that move between stores: export, import, merge; and a store made smaller.

    store of one machine ──export──▶ FILE ──import──▶ store of another
    FILE, FILE, folder   ──merge───▶ FILE

A file of records is text of one line each. A record that is there already, to the last digit, is not added again; a
line of another kind goes along untouched; what is no record stays behind and is counted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from neptune import config
from neptune.base.boundary import public
from neptune.errors import RecordError
from neptune.records.record import Failure, Record, Unknown, parse
from neptune.records.store import FILE, FOLDER, Key, Line, Store, key_of, lines_of, replace

DIGITS_TO_NAME = 12
"""Digits of a structure that suffice to name it."""
MANY = 12
"""Names in a message."""
R = TypeVar("R", bound=Record | Failure)


@dataclass(frozen=True)
class Counts:
    """How many lines were `kept` (or added), were there already (`known`), were `removed`, and were no record
    (`unreadable`)."""

    kept: int = 0
    known: int = 0
    removed: int = 0
    unreadable: int = 0


@public
def user_store() -> Store:
    """The store in the user's cache folder. Raises RecordError where NEPTUNE_CACHE_DIR says that there is none."""
    folder = config.read().cache_dir
    if folder is None:
        hint = f"NEPTUNE_CACHE_DIR names one, {config.NO_CACHE} means none"
        raise RecordError("the records of this user", "there is no folder for them", hint=hint)
    return Store(folder)


@public
def of_program(records: Sequence[R], request: str, program: str) -> list[R]:
    """The records of a program, by the first digits of its structure or by its name.

    Raises RecordError where there is none.
    """
    own = [r for r in records if program and (r.name == program or r.structure.startswith(program))]
    if not own:
        known = sorted({r.name or r.structure[:DIGITS_TO_NAME] for r in records})
        wrong = f"no record is of a program {program!r}"
        raise RecordError(request, wrong, legal=known[:MANY], hint="neptune cache ls")
    return own


@public
def export_records(store: Store, to: Path, structures: Sequence[str] = ()) -> Counts:
    """Write the user's own records to a file, those of some structures alone where any are named.

    Raises RecordError where the file cannot be written.
    """
    request = f"export records to {to}"
    lines, unreadable = _readable(store.lines())
    wanted = [r.line()[:-1] for r in lines if not structures or _of_structures(r, structures)]
    with _refused(request, to):
        replace(to, wanted)
    return Counts(len(wanted), 0, len(lines) - len(wanted), unreadable)


@public
def import_records(store: Store, paths: Sequence[Path]) -> Counts:
    """Add the records of files, or of other cache folders, to the store: all of them or none.

    Raises RecordError where a file cannot be read or holds no record, and where the store cannot be written.
    """
    request = f"import records from {_named(paths)}"
    records, unreadable = _gathered(request, paths)
    here = {r.line() for r in _readable(store.lines())[0]}
    fresh = [r for r in records if r.line() not in here]
    with _refused(request, store.path):
        store.extend(fresh)
    return Counts(len(fresh), len(records) - len(fresh), 0, unreadable)


@public
def merge_records(paths: Sequence[Path], to: Path) -> Counts:
    """Write the records of several files or cache folders to one file, each once, in the order in which they come.

    Raises RecordError where a file cannot be read or holds no record, and where the result cannot be written.
    """
    request = f"merge records of {_named(paths)} into {to}"
    records, unreadable = _gathered(request, paths)
    with _refused(request, to):
        replace(to, (r.line()[:-1] for r in records))
    return Counts(len(records), 0, 0, unreadable)


@public
def prune_records(store: Store, keep: int, failed: bool = False) -> Counts:
    """Of the records of one candidate at the same sizes keep the `keep` fastest and the newest, and remove what is no
    record. By sizes, and not by bucket: times at different sizes are not compared, the smallest would always win.

    Raises RecordError where `keep` is no number of records, and where the store cannot be written.
    """
    request = f"prune records, {keep=}"
    if keep < 1:
        raise RecordError(request, "this keeps no record", legal=("1", "2", "…"))
    counts = Counts()

    def choose(lines: list[bytes]) -> Iterator[bytes]:
        nonlocal counts
        readable, unreadable = _readable(lines)
        dropped = _dropped([r for r in readable if isinstance(r, Record)], keep)
        dropped |= {id(r) for r in readable if failed and isinstance(r, Failure)}
        counts = Counts(len(readable) - len(dropped), 0, len(dropped), unreadable)
        return (r.line()[:-1] for r in readable if id(r) not in dropped)

    with _refused(request, store.path):
        store.rewrite(choose)
    return counts


def _dropped(records: Iterable[Record], keep: int) -> set[int]:
    """The identities of those that are neither among the fastest nor the newest of their key."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for r in records:
        groups[key_of(r)].append(r)
    dropped: set[int] = set()
    for group in groups.values():
        # Of two of one second, the one that was written later.
        newest = max(reversed(group), key=lambda r: r.when)
        slow = sorted(group, key=lambda r: median(r.us))[keep:]
        dropped |= {id(r) for r in slow if r is not newest}
    return dropped


def _of_structures(line: Line, structures: Sequence[str]) -> bool:
    return not isinstance(line, Unknown) and line.structure in structures


def _readable(lines: Iterable[bytes]) -> tuple[list[Line], int]:
    """The records of lines, and how many lines are none; an empty line is nothing."""
    parsed = [parse(line) for line in lines if line.strip()]
    records = [r for r in parsed if r is not None]
    return records, len(parsed) - len(records)


def _gathered(request: str, paths: Sequence[Path]) -> tuple[list[Line], int]:
    """The records of files and folders, each once."""
    every: dict[bytes, Line] = {}
    unreadable = 0
    for path in paths:
        file = path / FOLDER / FILE if path.is_dir() else path
        with _refused(request, file):
            if not stat.S_ISREG(file.stat().st_mode):
                # A device, a pipe or a folder: it may have no end.
                raise OSError(errno.EINVAL, "it is no regular file")
            records, bad = _readable(lines_of(os.open(file, os.O_RDONLY | os.O_NONBLOCK)))
        if not records:
            raise RecordError(request, f"{file} holds no record", hint="a file that `neptune cache export` wrote")
        every |= {r.line(): r for r in records}
        unreadable += bad
    return list(every.values()), unreadable


@contextlib.contextmanager
def _refused(request: str, file: Path | None) -> Iterator[None]:
    """What the disk refuses, as an error of the user's."""
    try:
        yield
    except OSError as error:
        raise RecordError(request, f"{file}: {error.strerror or error}; nothing was changed") from None


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
