"""The boundary between the user's code and ours: an error that crosses it ends at the user's own line.

Frames of Neptune below the user's line say nothing to a user, and hide the line that does. They are kept with
NEPTUNE_TRACEBACK=1, and always for an InternalError, whose reader is us.

Before → after, for a template with a wrong name::

    kernel.py, line 9: neptune.compile(expr, mine)         kernel.py, line 9: neptune.compile(expr, mine)
    neptune/driver/passes.py, line 170: step.run(work)     kernel.py, line 4: sch.loops("scroe")
    neptune/driver/passes.py, line 82: template(w.schedule)  neptune.errors.ScheduleError: unknown stage `scroe`
    kernel.py, line 4: sch.loops("scroe")
    neptune/schedule/schedule.py, line 95: …
    neptune/schedule/state.py, line 263: raise …
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from neptune import config
from neptune.errors import NeptuneError

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = str(Path(__file__).parents[1]) + "/"
PACKAGE_NAME = __name__.partition(".")[0]
LIBRARY = str(Path(functools.__file__).parent) + "/"


def public(function: Function) -> Function:
    """Let NeptuneErrors that leave `function` show none of our frames (Python 3.11 and later)."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NeptuneError as error:
            if not config.full_tracebacks():
                error.__traceback__ = users_frames(error.__traceback__)
                # What Neptune tried before is no news to the user.
                error.__suppress_context__ |= isinstance(error.__context__, NeptuneError)
            # A bare raise adds no frame of its own; before Python 3.11 it restores the whole traceback.
            raise

    return call  # type: ignore[return-value]


def frames_of_package() -> int:
    """How many frames above its caller the first one stands that is not of this package: for a warning's stacklevel."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package (templates that come with it are ours, too), and without
    those of the standard library, through which it calls itself."""
    frames: list[TracebackType] = []
    while traceback is not None:
        if not _is_ours(traceback.tb_frame):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for t in reversed(frames):
        kept = TracebackType(kept, t.tb_frame, t.tb_lasti, t.tb_lineno)
    return kept


def _is_ours(frame: FrameType) -> bool:
    """Return True for a frame of Neptune or of the standard library."""
    file = frame.f_code.co_filename
    if file == "<string>":
        # Methods that `dataclass` writes run in the module of their class.
        return str(frame.f_globals.get("__name__")).startswith("neptune.")
    return file.startswith(PACKAGE) or (file.startswith(LIBRARY) and "site-packages" not in file)
