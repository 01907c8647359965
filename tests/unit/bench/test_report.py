"""The tables of docs/performance.md are those of the results, and the page lists every loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report

ROW = {
    "setup": "softmax 3×4", "default": {"us": 10.0}, "sizes given": {"us": 8.0}, "best": 5.0, "torch": 9.8,
    "torch.compile": "failed", "candidates": [{"us": 5.0, "predicted": 6.0}, {"us": "failed", "predicted": 1.0}],
}  # fmt: skip


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ROW, ROW | {"setup": "<b>", "best": 10.0, "torch": 2.5, "torch.compile": 40.0}]
    kept = report.results
    found = {"environment": {"gpu": "stub"}, "us": rows}
    monkeypatch.setattr(report, "results", lambda name: found if name == "choice-search" else kept(name))


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    text = report.PAGE.read_text()
    assert {m[2] for m in report.MARKED.finditer(text)} == set(report.TABLES)
    assert report.updated(text) == text, "python -m bench.report"
    assert report.updated(text.replace("| 399 |", "| 400 |")) == text != text.replace("| 399 |", "| 400 |")


@pytest.mark.usefixtures("planted")
def test_speeds_are_beside_the_default() -> None:
    assert report.search()[1] == ("`softmax 3×4`", "10.0", "1.25", "2.00", "1.02", "–", "1")
    assert report.markdown([("a", "b"), ("1", "2")]) == "| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.mark.usefixtures("planted")
def test_every_loss_is_listed_worst_first() -> None:
    assert list(report.losses()) == ["<b>: 0.25 of torch", "softmax 3×4: 0.50 of the best found"]
    assert report.means().startswith("2 setups: the best found takes 0.707 of the default's time, 0.50 at worst")


@pytest.mark.usefixtures("planted")
def test_the_page_stands_alone_and_a_dry_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    copy, out = tmp_path / "performance.md", tmp_path / "report.html"
    copy.write_text("<!-- table search -->\n<!-- end -->\n")
    monkeypatch.setattr(report, "PAGE", copy)
    assert report.main(["--out", str(out), "--dry-run"]) == 0
    assert not out.exists() and copy.read_text() == "<!-- table search -->\n<!-- end -->\n"
    assert report.main(["--out", str(out)]) == 0
    assert "| `softmax 3×4` | 10.0 |" in copy.read_text()
    text = out.read_text()
    assert text.count("data:image/png;base64,") == 2 and "&lt;b&gt;: 0.25 of torch" in text and "<b>" not in text
