"""bench.default: its rows, what it says of measurements, and what becomes of a row that fails."""

from __future__ import annotations

import json
from pathlib import Path

from bench import default
from bench.default_rows import ROWS

ROOT = Path(__file__).parents[3]


def row(name: str, **us: list[float]) -> dict[str, object]:
    return {"name": name, "work": 2e9, "unit": "TFLOP/s", "first": {}, "failed": {}, "us": us}


def test_rows_have_names_of_their_groups_and_work() -> None:
    assert len(ROWS) > 50 and {n.split(": ")[0] for n in ROWS} == {"prefill", "decode", "options", "rows", "products"}
    assert all(r.work > 0 and name == f"{r.group}: {r.name}" for name, r in ROWS.items())
    # Two products of 64 multiplications and additions for each of 16384² / 2 pairs and 16 heads.
    assert ROWS["prefill: depth 64 causal 16384"].work == 4 * 16384**2 / 2 * 16 * 64


def test_losses_are_told() -> None:
    rows = [row("rows: a", functional=[10.0, 11.0, 12.0], eager=[22.0], cuDNN=[9.9]), row("rows: b", functional=[5.0])]
    assert default.rates(rows[0])["eager"] == 2e9 / 22 / 1e6
    (said, loss) = default.summary(rows)
    assert "0.90 of the best other" in said and "1 rows" in said and "loss: rows: a 0.90" in loss
    assert not list(default.summary(rows[1:]))


def test_a_row_that_fails_says_why(tmp_path: Path) -> None:
    """There is no GPU here."""
    made = default._child(tmp_path, "rows: softmax 16 × 4096", first=True)
    why = made["failed"]["process"].splitlines()[-1]
    assert why and "us" not in made and default.line(made).endswith(f"process: {why}")


def test_what_is_published_is_what_was_measured() -> None:
    """The page's figures, from the file that it names."""
    rows = {r["name"]: r for r in json.loads((ROOT / "bench/results/h100-default.json").read_text())["rows"]}
    page = (ROOT / "docs/performance.md").read_text().partition("## What a plain call takes")[2].partition("\n## ")[0]
    decode = rows["decode: 64 × 8192"]
    assert f"| 64 × 8192 | {default.rates(decode)['functional']:.0f} |" in page
    long = default.rates(rows["prefill: depth 256 causal 16384"])
    assert f"| {long['functional']:.0f} ({long['functional'] / long['cuDNN']:.2f}) | 466 |" in page
