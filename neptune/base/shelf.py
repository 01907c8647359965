"""Files by key that many processes write and read: what is kept between runs, each with a digest of itself.

A file is a line with the format and the SHA-256 of the rest, then the rest. It is written under another name and moved,
so that writers may meet and die; what is not whole, not of this format or not of this user is not there. Files are
private (folder 0700, files 0600).

Nothing here raises for the state of the disk: a folder that cannot be used is not used, which is logged once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neptune.base import private

SUFFIX, UNFINISHED = ".json", ".tmp"
ABANDONED = 3600.0
"""Seconds after which an unfinished file belongs to a process that is gone."""
LOCKS = 64
PATIENCE, PAUSE = 300.0, 0.02
"""Seconds to wait for what another process makes, and between looks."""
LOG = logging.getLogger("neptune.cache")
_holding = threading.local()
_said: set[str] = set()


@dataclass(frozen=True)
class Shelf:
    """The files of one folder under `root`, which need not exist. `magic` begins each; `max_bytes`, `max_entries` bound
    what is kept: what was used least recently goes first."""

    root: Path
    name: str
    magic: bytes
    max_bytes: int
    max_entries: int

    @property
    def folder(self) -> Path:
        return self.root / self.name

    def path(self, key: str) -> Path:
        """Return the path of a key's file, present or not."""
        return self.folder / f"{key}{SUFFIX}"

    def usage(self) -> tuple[int, int]:
        """Return the number of files and their size in bytes. Raises OSError if the folder cannot be read."""
        sizes = [n for _, n, path in self._files() if path.endswith(SUFFIX)] if self.folder.exists() else []
        return len(sizes), sum(sizes)

    def trouble(self) -> str | None:
        """Return the reason why nothing can be kept; None if it can, or could once the folder is made."""
        present = next((p for p in (self.folder, *self.folder.parents) if os.path.lexists(p)), self.folder)
        if not present.is_dir():
            return f"{present} is no folder"
        if present == self.folder and not private.own(present.stat()):
            return "others may write there"
        return None if os.access(present, os.W_OK | os.X_OK) else f"{present} cannot be written"

    def read(self, key: str) -> bytes | None:
        """What was written under a key; None where nothing is that can be believed."""
        if not self._private():
            return None
        try:
            data = private.read(self.path(key))
        except OSError:
            return None
        head, _, body = (data or b"").partition(b"\n")
        if head != self.magic + hashlib.sha256(body).hexdigest().encode():
            self.ignored(key)
            return None
        return body

    def ignored(self, key: str) -> None:
        """Say that what is there is not believed."""
        LOG.debug("cache entry %s is damaged or foreign, and ignored", self.path(key))

    def used(self, key: str) -> None:
        """Set the time of the last use, by which files are removed."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Be the only one, of all threads and processes, to make what a key stands for, for `PATIENCE` seconds at most.

        A lock goes with its process, however that ends. Keys share LOCKS of them; one who has one takes no other, so
        that nobody waits in a circle. Without locks, as on some file systems, nobody waits.
        """
        if getattr(_holding, "one", False):
            yield
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                folder = self.root / "locks"
                private.make(folder)
                number = int(hashlib.sha256(key.encode()).hexdigest(), 16) % LOCKS
                file = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(_free, file)
                _wait_for(file)
            _holding.one = True
            try:
                yield
            finally:
                _holding.one = False

    def write(self, key: str, body: bytes) -> None:
        """Keep a text; one that is there is replaced."""
        try:
            private.make(self.folder)
            if self._private():
                self._write(key, self.magic + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
                self._shrink()
        except OSError as error:
            _say_once(f"no kernel is cached in {self.root}: {error.strerror or error}")

    def _private(self) -> bool:
        """Return True if the folder is this user's alone: nobody else can have put anything in it."""
        try:
            wrong = private.wrong(self.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            _say_once(f"no cached kernel is used from {self.root}: {error.strerror}")
            return False
        if wrong is not None:
            _say_once(f"no kernel is cached in {self.folder}: {wrong}")
        return wrong is None

    def _write(self, key: str, data: bytes) -> None:
        fresh = self.folder / f"{key}.{secrets.token_hex(8)}{UNFINISHED}"
        opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(opened, "wb") as file:
                file.write(data)
            os.replace(fresh, self.path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise

    def _shrink(self) -> None:
        """Remove the files that were used least recently, and what dead writers left."""
        files = sorted(self._files())
        now, size, count = time.time(), sum(n for _, n, _ in files), len(files)
        over = size > self.max_bytes or count > self.max_entries
        for used, n, path in files:
            if path.endswith(UNFINISHED):
                gone = now - used > ABANDONED
            else:
                # A tenth more than needed, so that not every file that comes removes one.
                gone = over and (size > 0.9 * self.max_bytes or count > 0.9 * self.max_entries)
            if gone:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                size, count = size - n, count - 1

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(time of the last use, bytes, path) of every file, unfinished ones too."""
        with os.scandir(self.folder) as entries:
            for e in entries:
                if e.name.endswith((SUFFIX, UNFINISHED)):
                    with contextlib.suppress(FileNotFoundError):
                        s = e.stat(follow_symlinks=False)
                        yield s.st_mtime, s.st_size, e.path


def _wait_for(file: int) -> None:
    """Lock a file; after PATIENCE seconds go on without."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(PAUSE)


def _free(file: int) -> None:
    """Unlock a file and close it: closed alone, it stays locked while a child that was forked meanwhile has it open."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _say_once(text: str) -> None:
    """One warning a process, whatever goes wrong how often."""
    if not _said:
        LOG.warning("%s", text)
    _said.add(text)
