"""What the pages say of plain calls is what the results hold, and how a block is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import default_tables as tables
from bench.default import COMPILE, OURS, SAMPLES
from bench.default_rows import ROWS

NAMES = ("prefill: depth 64 causal 1024", "decode: 1 × 8192")
GPU = {"gpu": "a GPU", "torch": "2", "triton": "3", "cuda": "13", "python": "3.12"}


def row(name: str, **us: float) -> dict[str, Any]:
    samples = {column: [one] * SAMPLES for column, one in us.items()}
    return {"name": name, "work": 1e9, "unit": ROWS[name].unit, "date": "2026-01-02", "failed": {}, "us": samples}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"environment": GPU, "rows": rows}))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> tables.Rows:
    first, second = NAMES
    old = written(tmp_path / "old.json", row(first, functional=1.0), row(second, functional=100.0, cuDNN=96.0))
    again = row(first, functional=10.0, cuDNN=9.0, compile=12.0, **{"FlashAttention-2": 20.0})
    new = written(tmp_path / "new.json", again | {"date": "2026-01-03"}, {"name": second, "failed": {"process": "no"}})
    return tables.results([old, new])


def test_pages_say_what_was_measured() -> None:
    assert not [page.name for page, _ in tables.changed(tables.results())], "python -m bench.default_tables"
    page = (tables.ROOT / "docs/performance.md").read_text()
    assert {m[2] for m in tables.MARKED.finditer(page)} == set(tables.BLOCKS) - {"said"}
    assert page.count("| 64 × 8192 | 4") == 1
    planted = page.replace("| 64 × 8192 | 4", "| 64 × 8192 | 3")
    assert tables.updated(planted, tables.results()) == page


def test_the_later_file_counts_and_what_failed_does_not(rows: tables.Rows) -> None:
    assert list(rows) == list(NAMES)
    assert rows[NAMES[0]]["us"][OURS][0] == 10.0 and rows[NAMES[1]]["us"][OURS][0] == 100.0


def test_a_ratio_above_1_is_a_win_of_ours_and_a_loss_is_bold(rows: tables.Rows) -> None:
    # 1e9 operations in 10 µs; of cuDNN's 9 and FlashAttention-2's 20 µs.
    head, _, line = tables.group("prefill", rows).splitlines()
    assert head == f"| TFLOP/s | `{OURS}` | × cuDNN | × FlashAttention-2 | `{COMPILE}` | × the fastest |"
    assert line == "| depth 64 causal 1024 | 100 | **0.90** | 2.00 | 83 | **0.75** |"
    # Nobody has measured `compile` of decode.
    head, _, line = tables.group("decode", rows).splitlines()
    assert (head, line) == ("| GB/s | `functional` | × cuDNN |", "| 1 × 8192 | 10000 | **0.96** |")


def test_what_could_not_run_has_no_figure(rows: tables.Rows) -> None:
    second = "prefill: depth 64 causal 4096"
    elsewhere = {"environment": {"gpu": "NVIDIA A100"}}
    more = dict(rows) | {second: row(second, functional=10.0, cuDNN=10.0) | elsewhere}
    # Of another GPU than most rows.
    assert tables.group("prefill", more).splitlines()[-1] == "| depth 64 causal 4096 (A100) | 100 | 1.00 | – | – | – |"


def test_every_loss_is_listed_worst_first_and_means_are_geometric(rows: tables.Rows) -> None:
    assert [line.split(" | ")[1:] for line in tables.losses(rows).splitlines()[2:]] == [
        [f"`{COMPILE}`", "0.750", "cuDNN |"], [f"`{OURS}`", "0.900", "cuDNN |"], [f"`{OURS}`", "0.960", "cuDNN |"],
    ]  # fmt: skip
    assert tables.mean({"a": 2.0, "b": 8.0}) == pytest.approx(4.0)
    assert "| prefill | 0.90 | **0.90** | 1 | 0.75 | **0.75** | 1 |" in tables.means(rows)
    assert "| rows | – | – | – | – | – | – |" in tables.means(rows)
    assert "prefill 0.90 (0.90), decode 0.96 (0.96)." in tables.said(rows).replace("\n", " ")


def test_where_and_when_it_was_measured_and_what_is_missing_is_said(rows: tables.Rows) -> None:
    said, _, missing = tables.machine(rows).replace("\n", " ").partition(" Not measured: ")
    assert said.startswith("a GPU, torch 2, triton 3, CUDA 13, Python 3.12; 2026-01-02 to 2026-01-03.")
    assert "in 0 of 2 rows" in said and "decode: 1 × 131072" in missing and NAMES[0] not in missing
    moved = row(NAMES[0], functional=10.0) | {"us": {OURS: [10.0] * SAMPLES + [11.0] * SAMPLES}}
    assert tables.drift(moved) == 1.1
    assert "in 1 of 2 rows" in tables.machine(dict(rows) | {NAMES[0]: rows[NAMES[0]] | moved})
