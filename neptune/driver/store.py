"""Compiled kernels on disk, by key: what `neptune.compile` finds again in a later process.

An entry is a file of `neptune.shelf`: the JSON of a packed Artifact and its key. What is not of this key is not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from neptune import private
from neptune.errors import NeptuneError
from neptune.runtime.artifact import Artifact, Packed, pack, unpack
from neptune.shelf import Shelf
from neptune.versions import versions

FOLDER = "compiled"
MAGIC = b"neptune-cache 1 "


@dataclass(frozen=True)
class Store(Shelf):
    """The entries under `root`, which need not exist; `max_bytes` and `max_entries` bound what is kept."""

    name: str = FOLDER
    magic: bytes = MAGIC
    max_bytes: int = 512 << 20
    max_entries: int = 4096

    def get(self, key: str) -> Artifact | None:
        """The Artifact of a key; None where there is none that can be believed."""
        body = self.read(key)
        artifact = None if body is None else _decode(key, body)
        if artifact is not None:
            self.used(key)
        elif body is not None:
            self.ignored(key)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an Artifact; an entry that is there is replaced."""
        self.write(key, _encode(key, artifact))


def _encode(key: str, artifact: Artifact) -> bytes:
    packed = pack(artifact, versions())
    return json.dumps({"key": key, "manifest": packed.manifest, "files": dict(packed.files)}).encode()


def _decode(key: str, body: bytes) -> Artifact | None:
    try:
        entry = private.understood(body)
        if entry["key"] != key:
            return None
        return unpack(Packed(entry["manifest"], entry["files"]))
    except (NeptuneError, ValueError, TypeError, KeyError):
        return None
