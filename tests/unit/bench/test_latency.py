"""How long compilations take: every kind of row is measured, and a failure is a row."""

from __future__ import annotations

import pytest

from bench import latency
from tests.tiers import sampled


@pytest.mark.parametrize("name", sampled(list(latency.CASES), 1))
def test_latency(name: str) -> None:
    row = latency.measure(name, 1)
    assert "error" not in row
    steps = [row["median"][k] for k in ("begin", "schedule", "lower", "text")]
    assert row["worst"] == pytest.approx(sum(steps)) and min(steps) > 0
    assert latency.line(row).count("|") == 9


# Global attention is compiled by the template of causal attention, into fewer loops.
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in latency.AUTOMATIC_CASES if n != "attention, global"])
def test_latency_of_automatic_compilations(name: str) -> None:
    """From the cache it takes a small part of the time; the cache of the session has nothing to do with it."""
    row = latency.measure_automatic(name, 1)
    least = row["least"]
    assert 0 < least["warm"] <= least["fresh"] < least["cold"] / 5
    assert latency.line(row).count("|") == 5


@pytest.mark.slow
def test_failures_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(latency.CASES, "broken", "raise ValueError('no')")
    assert latency.line(latency.measure("broken", 1)) == "| broken | ValueError: no |"
    monkeypatch.setitem(latency.AUTOMATIC_CASES, "broken", "int('x')")
    row = latency.measure_automatic("broken", 1)
    assert latency.line(row).startswith("| broken | ValueError: invalid literal")
