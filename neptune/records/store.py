"""Measurements on disk: one file of lines (`neptune.records.record`) that is only ever added to.

Writers take a lock and write a line by one call at the end of the file, so that they may meet and die: a line that a
full disk cut short is taken back, one that a killed writer left is closed by the next. Readers take no lock, and pass
over what is no record. `prune` alone writes the file anew, under another name that then replaces it.

The records of a GPU that ship with Neptune are read after the user's own, which stand in their place.

Measuring goes on whatever the state of the disk: `append` and `find` raise nothing for it, and log it once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from neptune.base import private
from neptune.records.record import Discovery, Failure, Record, Said, Unknown, parse, prefix

FOLDER, FILE, LOCK = "records", "records.jsonl", "lock"
SHIPPED = Path(__file__).parent / "shipped"
PATIENCE = 10.0
"""Seconds to wait for another writer; one that was stopped while it held the lock is not waited for longer."""
CHUNK = 1 << 21
"""Bytes that are read at a time: what is searched is still in the processor's cache."""
LOG = logging.getLogger("neptune.cache")
_said: set[str] = set()
Key: TypeAlias = tuple[Any, ...]
Line: TypeAlias = Said | Unknown


@dataclass(frozen=True)
class Store:
    """The records under `root`, the cache folder, which need not exist; None for the shipped ones alone."""

    root: Path | None
    shipped: Path = SHIPPED

    @property
    def path(self) -> Path | None:
        """The file of the user's own lines, present or not."""
        return None if self.root is None else Path(self.root) / FOLDER / FILE

    def append(self, record: Line) -> bool:
        """Keep a record. False where it could not be, which is logged once; the file is then as it was."""
        try:
            self.extend([record])
        except OSError as error:
            say_once(f"no measurement is kept in {self.root}: {error.strerror or error}")
            return False
        return self.root is not None

    def extend(self, records: Iterable[Line]) -> None:
        """Keep all of these records, or none: they are written by one call. Raises OSError."""
        data = b"".join(r.line() for r in records)
        with self._writing() as path:
            if path is not None and data:
                _add(path, data)

    def rewrite(self, choose: Callable[[list[bytes]], Iterable[bytes]]) -> None:
        """Replace the lines (without their ends) by those that are chosen of them; nobody writes meanwhile, and readers
        see the one file or the other. Raises OSError, and the file is then as it was."""
        with self._writing() as path:
            # Not through `lines`, which takes a file that cannot be read for an empty one.
            if path is not None and path.exists():
                replace(path, choose(list(lines_of(_own_file(path, os.O_RDONLY)))))

    def find(self, structure: str, device: str) -> list[Record]:
        """The records of a structure on a device, oldest first: the user's, and shipped ones of what the user has not
        measured."""
        return self.told([structure], device)[0]

    def failures(self, structure: str = "", device: str = "") -> list[Failure]:
        """The user's candidates of a structure on a device that failed, oldest first; of all where none is named."""
        return (self.told([structure], device) if structure else self._read([b""]))[1]

    def told(self, structures: Sequence[str], device: str) -> tuple[list[Record], list[Failure]]:
        """What `find` and `failures` give of each of some structures, those of the first one first."""
        return self._read([prefix(structure, device) for structure in structures])

    def discoveries(self, structure: str, device: str) -> list[Discovery]:
        """What the user's searches for graphs of a structure on a device came to, oldest first."""
        lines = () if self.path is None else _lines(self.path, prefix(structure, device))
        return [d for d in map(parse, lines) if isinstance(d, Discovery)]

    def all(self) -> list[Record]:
        """Every record, as `find` gives them."""
        return self._read([b""])[0]

    def lines(self) -> Iterator[bytes]:
        """The user's own lines as they stand, without their ends; torn and foreign ones, too."""
        return iter(()) if self.path is None else _lines(self.path, b"")

    def _read(self, heads: Iterable[bytes]) -> tuple[list[Record], list[Failure]]:
        records, failures = list[Record](), list[Failure]()
        for head in heads:
            lines = [] if self.path is None else [parse(line) for line in _lines(self.path, head)]
            own = [r for r in lines if isinstance(r, Record)]
            measured = {key_of(r) for r in own}
            records += own + [r for r in _shipped(self.shipped, head) if key_of(r) not in measured]
            failures += (f for f in lines if isinstance(f, Failure))
        return records, failures

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Path | None]:
        """The file, while nobody else writes it; None where there is no cache folder. Raises OSError."""
        if self.path is None:
            yield None
            return
        folder = self.path.parent
        private.make(folder)
        if (wrong := private.wrong(folder)) is not None:
            raise PermissionError(errno.EPERM, wrong)
        with _locked(folder / LOCK):
            yield self.path


def key_of(record: Said) -> Key:
    """What was measured: records of one key are measurements of the same."""
    mappings = (record.sizes, record.params, record.numbers)
    return (record.structure, record.device, record.template, *(tuple(m.items()) for m in mappings))


# --- reading -------------------------------------------------------------------------------------


def _records(lines: Iterable[bytes]) -> list[Record]:
    return [r for r in map(parse, lines) if isinstance(r, Record)]


@lru_cache(256)
def _shipped(folder: Path, head: bytes) -> list[Record]:
    """What ships does not change while a process runs."""
    return [r for path in sorted(folder.glob("*.jsonl")) for r in _records(_lines(path, head, ours=False))]


def _lines(path: Path, head: bytes, ours: bool = True) -> Iterator[bytes]:
    """The lines of a file that begin so, without their ends; nothing where it cannot be read, or (`ours`) where others
    may have written it."""
    try:
        yield from lines_of(_own_file(path, os.O_RDONLY) if ours else os.open(path, os.O_RDONLY), head)
    except FileNotFoundError:
        return
    except OSError as error:
        say_once(f"no measurement is read from {path}: {error.strerror}")


def _own_file(path: Path, flags: int) -> int:
    """A descriptor of a file of this user's alone. Raises OSError."""
    fd = private.opened(path, flags)
    if fd is None:
        raise PermissionError(errno.EPERM, "others may write there (chmod 600)")
    return fd


def lines_of(fd: int, head: bytes = b"") -> Iterator[bytes]:
    """The lines of an open file that begin so, without their ends; closes it. Raises OSError."""
    with open(fd, "rb", buffering=0) as file:
        rest = b""
        while chunk := file.read(CHUNK):
            complete, end, chunk = (rest + chunk).rpartition(b"\n")
            yield from _begin(complete, head) if end else ()
            rest = chunk
        yield from _begin(rest, head) if rest else ()


def _begin(text: bytes, head: bytes) -> Iterator[bytes]:
    """The lines of a text that begin with `head`."""
    if not head:
        yield from text.split(b"\n")
        return
    begin = text.find(head)
    while begin >= 0:
        end = text.find(b"\n", begin)
        end = len(text) if end < 0 else end
        if begin == 0 or text[begin - 1] == ord("\n"):
            yield text[begin:end]
        begin = text.find(head, end)


# --- writing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a store. It is a file of its own, since `prune` replaces the other."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
                time.sleep(0.0005)
        yield
    finally:
        os.close(fd)


def _add(path: Path, data: bytes) -> None:
    """Write lines at the end of a file, all of them or nothing. Raises OSError."""
    fd = _own_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            # What a writer left that was killed.
            data = b"\n" + data
        try:
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def replace(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file of these lines under another name, and put it in the place of what is there. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(fd)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def say_once(text: str) -> None:
    """One warning for each thing that is wrong, however often it is."""
    if text not in _said:
        LOG.warning("%s", text)
    _said.add(text)
