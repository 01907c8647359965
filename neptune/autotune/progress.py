"""What a tuner says while it runs: a bar on a terminal, a line for each round elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO


@dataclass(frozen=True)
class State:
    """Where a search stands. `best` and `bound` are microseconds, of the fastest so far and below which the model sees
    nothing that is left; `left` are seconds."""

    shape: str
    measured: int
    candidates: int
    best: float | None
    bound: float | None
    left: float

    def __str__(self) -> str:
        best = "nothing yet" if self.best is None else f"best {self.best:.1f} µs"
        bound = "nothing better left" if self.bound is None else f"the rest not below {self.bound:.1f} µs"
        return f"{self.shape}: {self.measured} of {self.candidates} measured, {best}, {bound}, {self.left:.0f} s left"


class Progress:
    """Lines on a stream; the context is the time in which something is shown. `quiet`: nothing is."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Nothing is left on a plain stream."""

    def say(self, line: str) -> None:
        """A line that stays."""
        if not self._quiet:
            print(line, file=self._stream, flush=True)

    def measured(self, state: State) -> None:
        """After each candidate."""

    def round_over(self, state: State) -> None:
        """After each round of candidates."""
        self.say(str(state))


class Bar(Progress):
    """One line on a terminal, drawn by rich: how much of the time is over, and where the search stands."""

    def __init__(self, seconds: float, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Rich

        super().__init__(stream=stream)
        console = Console(file=self._stream)
        self._rich = Rich(TextColumn("tune"), BarColumn(24), TextColumn("{task.description}"), console=console)
        self._task = self._rich.add_task("starting", total=seconds)
        self._seconds = seconds

    def __enter__(self) -> Progress:
        self._rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._rich.stop()

    def say(self, line: str) -> None:
        from rich.markup import escape

        self._rich.console.print(escape(line), highlight=False)

    def measured(self, state: State) -> None:
        self._rich.update(self._task, completed=self._seconds - state.left, description=str(state))

    def round_over(self, state: State) -> None:
        self.measured(state)


def shown(seconds: float, quiet: bool = False, stream: Any = None) -> Progress:
    """A bar where the stream (by default the standard error) is a terminal and rich is installed, else plain lines."""
    stream = sys.stderr if stream is None else stream
    if not quiet and stream.isatty():
        try:
            return Bar(seconds, stream)
        except ModuleNotFoundError:
            pass
    return Progress(quiet, stream)
