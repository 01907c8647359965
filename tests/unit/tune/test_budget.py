"""Budgets: what is one, and what is left of it."""

from __future__ import annotations

import pytest

from neptune.errors import NeptuneError
from neptune.tune.budget import Clock, checked_count, seconds_of


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("1.5m", 90), ("2h", 7200), ("0.25s", 0.25)])
def test_budgets(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["60", "0s", "0.0m", "-1s", "1d", "s", "", "1 s", "1e3s", "٣s", 60, None, "9999999s"])
def test_what_is_no_budget(text: object) -> None:
    with pytest.raises(NeptuneError, match="60s, 5m, 1h"):
        seconds_of(text)


@pytest.mark.parametrize("trials", [0, -1, True, 1.5, "3"])
def test_what_is_no_number_of_trials(trials: object) -> None:
    with pytest.raises(NeptuneError, match="no number of candidates"):
        checked_count("trials", "candidates", trials)


def test_a_clock_ends_at_nothing() -> None:
    clock = Clock(10.0)
    assert 9.0 < clock.left <= 10.0
    assert Clock(10.0, clock.begin - 20).left == 0.0
