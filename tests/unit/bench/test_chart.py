"""The README's picture: that of the results, and the same for the same figures."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from bench import chart
from bench.default_tables import results


def test_the_picture_is_that_of_the_results(tmp_path: Path) -> None:
    again = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for out in again:
        chart.draw(results(), out)
    first, second = (out.read_text() for out in again)
    assert first == second and "<svg" in first
    kept = chart.PICTURE.read_text()
    # Another matplotlib draws another file.
    assert first == kept or f"Matplotlib v{matplotlib.__version__}" not in kept, "python -m bench.default_tables"


def test_other_figures_are_another_picture(tmp_path: Path) -> None:
    rows = dict(results())
    drawn = [name for name in rows if chart.NAMED.fullmatch(name)]
    assert len(drawn) == 18
    chart.draw(rows, tmp_path / "all.svg")
    del rows[drawn[-1]]
    chart.draw(rows, tmp_path / "fewer.svg")
    assert (tmp_path / "all.svg").read_text() != (tmp_path / "fewer.svg").read_text()
