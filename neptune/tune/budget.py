"""How long a search may take: "60s", "5m" or "1h", and what is left of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from neptune.errors import NeptuneError

SECONDS = {"s": 1, "m": 60, "h": 3600}
LEGAL = ("60s", "5m", "1h")


def seconds_of(budget: object, asked: str = "tune", least: float = 1e-3) -> float:
    """The seconds of a budget. NeptuneError for what is none, and for one of less than `least`; `asked` says what for.

    >>> seconds_of("90s"), seconds_of("1.5m")
    (90.0, 90.0)
    """
    asked = f"{asked} with budget={budget!r:.40}"
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", budget) if isinstance(budget, str) else None
    if match is None:
        raise NeptuneError(asked, "this is no number with a unit", legal=LEGAL)
    seconds = float(match[1]) * SECONDS[match[2]]
    if seconds < least:
        raise NeptuneError(asked, "in no time nothing is measured", legal=LEGAL)
    return seconds


def checked_count(name: str, what: str, count: object, asked: str = "tune", least: int = 1) -> int | None:
    """A number of at least `least` that a caller gave as `name`, None for none. NeptuneError for anything else."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        legal = (str(least), str(least + 1), "…")
        raise NeptuneError(f"{asked} with {name}={count!r:.40}", f"this is no number of {what}", legal=legal)
    return count


@dataclass(frozen=True)
class Clock:
    """A budget that began when it was made."""

    seconds: float
    begin: float = field(default_factory=time.monotonic)
    now = staticmethod(time.monotonic)

    @property
    def end(self) -> float:
        """The moment of `now()` at which it is over."""
        return self.begin + self.seconds

    @property
    def left(self) -> float:
        """Seconds, 0 at least."""
        return max(0.0, self.end - self.now())


@dataclass(frozen=True)
class Worked(Clock):
    """A budget of what this process computes, so that what comes of it does not depend on what else a machine does."""

    begin: float = field(default_factory=time.process_time)
    now = staticmethod(time.process_time)
