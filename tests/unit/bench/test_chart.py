"""The README's chart: a bar for each figure, and the same picture of the same figures."""

from __future__ import annotations

import json
from pathlib import Path

from bench import chart

ROOT = Path(__file__).parents[3]
RUN = ROOT / "bench" / "results" / "h200-speed.json"


def test_rates_are_by_the_median_and_halved_under_a_mask() -> None:
    row = {"shape": [1, 2, 1000, 50], "causal": False, "cuDNN": {"ms": [0.1, 0.2, 0.3]}, "neptune": {"ms": None}}
    assert chart.rate(row, "cuDNN") == 2.0
    assert chart.rate(row | {"causal": True}, "cuDNN") == 1.0
    assert chart.rate(row, "neptune") is None and chart.rate(row, "FlexAttention") is None


def test_the_picture_is_that_of_the_figures(tmp_path: Path) -> None:
    again = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for out in again:
        assert chart.main([str(RUN), str(out)]) == 0
    first, second = (out.read_text() for out in again)
    assert first == second and "<svg" in first
    fewer = json.loads(RUN.read_text())
    fewer["results"] = fewer["results"][:-1]
    chart.draw(fewer, again[1])
    assert again[1].read_text() != first
