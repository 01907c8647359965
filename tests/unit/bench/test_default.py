"""bench.default: its rows, what it says of measurements, and what becomes of a row that fails."""

from __future__ import annotations

from pathlib import Path

from bench import default
from bench.default_rows import ROWS


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
    assert "0.90 of the fastest other" in said and "1 rows" in said and "loss: rows: a 0.90" in loss
    assert not list(default.summary(rows[1:]))


def test_columns_are_compared_round_by_round() -> None:
    """In one of three rounds the clock is half as fast, of both; the medians of all samples would say 3.0."""
    n = default.SAMPLES
    ours, other = [10.0] * 2 * n + [20.0] * n, [15.0] * n + [30.0] * 2 * n
    assert default.rounds(ours) == [10.0, 10.0, 20.0]
    made = row("rows: a", functional=ours, compile=[9.0] * 3 * n, eager=other, cuDNN=[])
    assert default.speeds("functional", made) == {"eager": 1.5}
    assert default.speeds("compile", made)["eager"] == 30 / 9 and not default.speeds("functional", row("rows: b"))


def test_a_row_that_fails_says_why(tmp_path: Path) -> None:
    """There is no GPU here."""
    made = default._child(tmp_path, "rows: softmax 16 × 4096", first=True)
    why = made["failed"]["process"].splitlines()[-1]
    assert why and "us" not in made and default.line(made).endswith(f"process: {why}")
