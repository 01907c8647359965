"""Folders and files that are one user's alone: what somebody else could have written is not believed; and JSON that
anybody may have written, which is read by one function that fails in one way. docs/trust.md says what is trusted."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

DEEPEST, LONGEST = 64, 40
"""Levels of nesting and digits of a number that files of ours stay far below."""


def make(folder: Path) -> None:
    """Make a folder for this user alone, with those above it. One that is there stays as it is. Raises OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def wrong(folder: Path) -> str | None:
    """Why what is in a folder cannot be believed; None if it is this user's alone. Raises OSError, as lstat does."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        return "this is not a folder"
    return None if own(status) else "others may write there (chmod 700)"


def own(status: os.stat_result) -> bool:
    """True for what belongs to this user, and what nobody else may write."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def opened(path: Path, flags: int) -> int | None:
    """A descriptor of a file of this user (made with 0600); None where somebody else could have written it. Raises
    OSError where it is not there, or is a link."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and own(status):
        return fd
    os.close(fd)
    return None


def read(path: Path) -> bytes | None:
    """The bytes of a file of this user; None where somebody else could have written it. Raises OSError."""
    fd = opened(path, os.O_RDONLY)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        return file.read()


def others_may_write(status: os.stat_result) -> bool:
    """True for what somebody else than this user and root may have written, or may yet write."""
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def understood(text: str | bytes) -> Any:
    """What a text says that anybody may have written. Raises ValueError and nothing else: for what is no JSON, for
    numbers of more than `LONGEST` digits, which Python does not turn into text or a float, and for what is nested more
    than `DEEPEST` deep, on which others run out of stack.
    """
    try:
        said = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [said]
    for _ in range(DEEPEST):
        level = [x for y in level for x in (y.values() if isinstance(y, dict) else y if isinstance(y, list) else ())]
        if not level:
            return said
    raise ValueError("it is nested too deeply")


def _whole(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)
