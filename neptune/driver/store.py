"""Compiled kernels on disk, by key: what `neptune.compile` finds again in a later process.

An entry is a file: a line with the format and the SHA-256 of the rest, then the JSON of a packed Artifact and its key.
Entries are written under another name and renamed, so that writers may meet and die; what is not whole, not of this
format, not of this key or not of this user is not there. They are private (folder 0700, files 0600).

Nothing here raises for the state of the disk: a cache that cannot be used is not used, which is logged once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neptune import private
from neptune.errors import NeptuneError
from neptune.runtime.artifact import Artifact, Packed, pack, unpack
from neptune.versions import versions

FOLDER = "compiled"
MAGIC = b"neptune-cache 1 "
SUFFIX, UNFINISHED = ".json", ".tmp"
MAX_BYTES = 512 << 20
MAX_ENTRIES = 4096
ABANDONED = 3600.0
"""Seconds after which an unfinished entry belongs to a process that is gone."""
LOG = logging.getLogger("neptune.cache")
_said: set[str] = set()


@dataclass(frozen=True)
class Store:
    """The entries under `root`, which need not exist; `max_bytes` and `max_entries` bound what is kept."""

    root: Path
    max_bytes: int = MAX_BYTES
    max_entries: int = MAX_ENTRIES

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def path(self, key: str) -> Path:
        """Return the path of a key's entry, present or not."""
        return self.folder / f"{key}{SUFFIX}"

    def usage(self) -> tuple[int, int]:
        """Return the number of entries and their size in bytes. Raises OSError if the folder cannot be read."""
        sizes = [n for _, n, path in self._files() if path.endswith(SUFFIX)] if self.folder.exists() else []
        return len(sizes), sum(sizes)

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored; None if it can, or could once the folder is made."""
        present = next((p for p in (self.folder, *self.folder.parents) if os.path.lexists(p)), self.folder)
        if not present.is_dir():
            return f"{present} is no folder"
        if present == self.folder and not private.own(present.stat()):
            return "others may write there"
        return None if os.access(present, os.W_OK | os.X_OK) else f"{present} cannot be written"

    def get(self, key: str) -> Artifact | None:
        """The Artifact of a key; None where there is none that can be believed."""
        if not self._private():
            return None
        path = self.path(key)
        try:
            data = private.read(path)
        except OSError:
            return None
        artifact = None if data is None else _decode(key, data)
        if artifact is None:
            LOG.debug("cache entry %s is damaged or foreign, and ignored", path)
            return None
        # The time of the last use, by which entries are removed.
        with contextlib.suppress(OSError):
            os.utime(path)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an Artifact; an entry that is there is replaced."""
        try:
            private.make(self.folder)
            if self._private():
                self._write(key, _encode(key, artifact))
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
        """Remove the entries that were used least recently, and what dead writers left."""
        files = sorted(self._files())
        now, size, count = time.time(), sum(n for _, n, _ in files), len(files)
        over = size > self.max_bytes or count > self.max_entries
        for used, n, path in files:
            if path.endswith(UNFINISHED):
                gone = now - used > ABANDONED
            else:
                # A tenth more than needed, so that not every entry that comes removes one.
                gone = over and (size > 0.9 * self.max_bytes or count > 0.9 * self.max_entries)
            if gone:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                size, count = size - n, count - 1

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(time of the last use, bytes, path) of every entry, unfinished ones too."""
        with os.scandir(self.folder) as entries:
            for e in entries:
                if e.name.endswith((SUFFIX, UNFINISHED)):
                    with contextlib.suppress(FileNotFoundError):
                        s = e.stat(follow_symlinks=False)
                        yield s.st_mtime, s.st_size, e.path


# --- entries -------------------------------------------------------------------------------------


def _encode(key: str, artifact: Artifact) -> bytes:
    packed = pack(artifact, versions())
    body = json.dumps({"key": key, "manifest": packed.manifest, "files": dict(packed.files)}).encode()
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _decode(key: str, data: bytes) -> Artifact | None:
    head, _, body = data.partition(b"\n")
    if head != MAGIC + hashlib.sha256(body).hexdigest().encode():
        return None
    try:
        entry = json.loads(body)
        if entry["key"] != key:
            return None
        return unpack(Packed(entry["manifest"], entry["files"]))
    except (NeptuneError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _say_once(text: str) -> None:
    """One warning a process, whatever goes wrong how often."""
    if not _said:
        LOG.warning("%s", text)
    _said.add(text)
