"""Locks that a process which forks does not hand on.

A child of fork has one thread, and would wait for ever for a lock that another thread of its parent held.
"""

from __future__ import annotations

import os
import threading
import weakref

_ALL: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A lock that one thread may take several times; free in a child of fork unless the thread that forked has it.

    >>> lock = Lock()
    >>> with lock, lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._held = threading.RLock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()

    def _forked(self) -> None:
        if not self._held._is_owned():  # type: ignore[attr-defined]
            self._held = threading.RLock()


def _forked() -> None:
    for lock in _ALL:
        lock._forked()


os.register_at_fork(after_in_child=_forked)
