"""The benchmarks that need no GPU: what they compile, and the tables they print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import latency, resources
from bench.sass import LoopStats, Report
from tests.tiers import sampled

CASE = resources.Case(64, resources.Tile(128, 64, 8, 3), causal=True, lse=True)
LOOP = LoopStats("k", 0, 16, 300, 8, 0, 34, 17, 0, 2, 0, 0, 0)


def report(clean: int, masked: int | None) -> Report:
    loops = [replace(LOOP, instructions=clean)]
    loops += [] if masked is None else [replace(LOOP, start=32, end=48, instructions=masked, selects=9)]
    return Report("k", 100, 0, 4096, (), tuple(loops))


@pytest.mark.slow
def test_generated_attention_needs_no_more_than_the_hand_written(tmp_path: Path) -> None:
    row = resources.compare(CASE, tmp_path)
    ours = row["generated"]
    assert (ours["spill_bytes"], ours["warnings"]) == (0, [])
    assert row["ratio"]["clean"] <= 1.02 and row["ratio"]["masked"] <= 1.02


def test_figures_tell_the_clean_loop_from_the_masked_one() -> None:
    found = resources.figures(report(300, 400))
    assert (found["clean"], found["masked"]) == (300, 400)
    assert resources.figures(report(300, None))["masked"] is None


def test_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "generated", lambda case, folder: report(303, None))
    monkeypatch.setattr(resources, "by_hand", lambda case: report(300, 400))
    text = resources.line("sm_90", resources.compare(CASE, tmp_path))
    assert text.startswith(
        "| causal +lse d64 128x64 w8 s3 | 100 / 100 | 1.000 | 0 / 0 | 303 / 300 | 1.010 | - / 400 | - |"
    )
    assert text.endswith("| 17/34 | - |")
    assert resources.line("other", {"case": "c", "error": "no\nmore"}) == "| c | no |"
    assert resources.HEADS["sm_90"].count("|") == text.count("|")


@pytest.mark.slow
def test_other_targets() -> None:
    row = resources.other("cuda:80", replace(CASE, tile=resources.Tile(64, 64, 4, 2)))
    assert row["matrix"] == "mma" and row["registers"] > 64
    assert resources.HEADS["other"].count("|") == resources.line("other", row).count("|")


@pytest.mark.parametrize("name", sampled(["program causal", "te causal"], 2))
def test_latency(name: str) -> None:
    row = latency.measure(name, 1)
    assert "error" not in row
    steps = [row["median"][k] for k in ("begin", "schedule", "lower", "text")]
    assert row["worst"] == pytest.approx(sum(steps)) and min(steps) > 0
    assert latency.line(row).count("|") == 9


@pytest.mark.slow
@pytest.mark.parametrize("name", list(latency.CACHED_CASES))
def test_latency_of_cached_kernels(name: str) -> None:
    row = latency.measure_cached(name, 1)
    assert "error" not in row
    median = row["median"]
    assert min(median[k] for k in ("warm", "cold", "fresh")) > 0
    assert latency.short_line(row, "median").count("|") == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", list(latency.AUTOMATIC_CASES))
def test_latency_of_automatic_compilations(name: str) -> None:
    """From the cache it takes a small part of the time; the cache of the session has nothing to do with it."""
    row = latency.measure_automatic(name, 1)
    least = row["least"]
    assert 0 < least["warm"] <= least["fresh"] < least["cold"] / 5
    assert latency.short_line(row, "least").count("|") == 5


@pytest.mark.slow
def test_failures_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(latency.CASES, "broken", "raise ValueError('no')")
    assert latency.line(latency.measure("broken", 1)) == "| broken | ValueError: no |"
    monkeypatch.setitem(latency.CACHED_CASES, "broken", "raise ValueError('no')")
    assert latency.short_line(latency.measure_cached("broken", 1), "median") == "| broken | ValueError: no |"
    monkeypatch.setitem(latency.AUTOMATIC_CASES, "broken", "int('x')")
    row = latency.measure_automatic("broken", 1)
    assert latency.short_line(row, "least").startswith("| broken | ValueError: invalid literal")
