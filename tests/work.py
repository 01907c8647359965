"""Work is counted, not timed: a busy machine changes no count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(act: Callable[[], object]) -> int:
    """The number of Python functions that are called while `act` runs.

    >>> calls(lambda: None)
    1
    """
    count = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
