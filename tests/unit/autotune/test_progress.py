"""What is said while a search runs: lines elsewhere, a bar on a terminal, nothing where that is asked for."""

from __future__ import annotations

import io

from neptune.autotune.progress import Bar, Progress, State, shown

STATE = State("m=64", 8, 312, 41.25, 39.0, 51.6)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_state_in_words() -> None:
    assert str(STATE) == "m=64: 8 of 312 measured, best 41.2 µs, the rest not below 39.0 µs, 52 s left"
    assert str(State("", 0, 3, None, None, 0)) == ": 0 of 3 measured, nothing yet, nothing better left, 0 s left"


def test_lines_elsewhere() -> None:
    stream = io.StringIO()
    with shown(60, stream=stream) as progress:
        progress.measured(STATE)
        assert not stream.getvalue()
        progress.round_over(STATE)
        progress.say("x wrong: [y]")
    assert stream.getvalue() == f"{STATE}\nx wrong: [y]\n" and "\x1b" not in stream.getvalue()


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    with shown(60, stream=stream) as progress:
        assert isinstance(progress, Bar)
        progress.measured(STATE)
        progress.say("x wrong: [y]")
        progress.round_over(STATE)
    assert "best 41.2 µs" in stream.getvalue() and "x wrong: [y]" in stream.getvalue()


def test_nothing_where_that_is_asked_for() -> None:
    stream = Terminal()
    with shown(60, quiet=True, stream=stream) as progress:
        progress.say("x")
        progress.round_over(STATE)
    assert type(progress) is Progress and not stream.getvalue()
