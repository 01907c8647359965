"""The tables of docs/performance.md are those of the results, and the page lists every loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.comparison import tables
from bench.comparison.tuning import Replayed, replayed

ROW = {
    "setup": "softmax 3×4", "default": {"us": 10.0}, "sizes given": {"us": 8.0}, "best": 5.0, "torch": 9.8,
    "torch.compile": "failed", "candidates": [
        {"variant": "softmax_row BLOCK_M=1", "us": 5.0, "predicted": 6.0},
        {"variant": "softmax_row BLOCK_M=2", "us": "failed", "predicted": 1.0},
    ],
}  # fmt: skip


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ROW, ROW | {"setup": "<b>", "best": 10.0, "torch": 2.5, "torch.compile": 40.0}]
    kept = report.results
    found = {"environment": {"gpu": "stub"}, "us": rows}
    monkeypatch.setattr(report, "results", lambda name: found if name == "choice-search" else kept(name))
    monkeypatch.setattr(tables, "rows", lambda: GRID)


def row(us: float, **more: Any) -> dict[str, Any]:
    return {"part": "grid", "us": us, "form": "flash", **more}


NONE = {"part": "grid", "subject": "s", "column": "c", "failed": "it has no softcap"}
GRID = {
    "grid": {
        "prefill_causal 1×1024": {"default": row(100.0), "cuDNN": row(80.0), "FlexAttention": row(150.0)},
        "prefill_causal 8×1024": {
            "default": row(400.0), "FlexAttention": row(800.0), "torch.compile": row(200.0), "cuDNN": NONE,
        },
        "prefill_causal 1×128": {"default": row(5.0, **{"host us": 31.4}), "cuDNN": row(4.0)},
    },
    "tuner": {"softmax 8192×8192": {"tuner": {
        "part": "tuner", "us": 10.2, "regret": 0.02, "default regret": 0.05, "seconds": 31.0, "seconds to 3 %": 4.25,
        "measured": 30, "exhaustive": 200, "candidates": 936,
    }}},
    "best": {"softmax 4096×16384": {"default": row(10.0), "by hand": row(12.5)}},
}  # fmt: skip


def cells(table: report.Lines, *key: str) -> list[str]:
    (found,) = (list(r) for r in table if tuple(r[: len(key)]) == key)
    return found[len(key) :]


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    text = report.PAGE.read_text()
    assert {m[2] for m in report.MARKED.finditer(text)} == set(report.TABLES)
    assert report.updated(text) == text, "python -m bench.report"
    planted = text.replace("| 378 | 448 |", "| 379 | 448 |")
    assert report.updated(planted) == text != planted


@pytest.mark.usefixtures("planted")
def test_speeds_are_beside_the_default() -> None:
    assert report.search()[1] == ("`softmax 3×4`", "10.0", "1.25", "2.00", "1.02", "–", "1")
    assert report.markdown([("a", "b"), ("1", "2")]) == "| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.mark.usefixtures("planted")
def test_every_loss_is_listed_worst_first() -> None:
    assert list(report.losses()) == ["<b>: 0.25 of torch", "softmax 3×4: 0.50 of the best found"]
    assert report.means().startswith("2 setups: the best found takes 0.707 of the default's time, 0.50 at worst")


@pytest.mark.usefixtures("planted")
def test_the_grid_says_what_is_faster_what_does_not_apply_and_what_nobody_tried() -> None:
    columns = ("tuned", "cuDNN", "FlashAttention-2", "FlexAttention", "torch.compile")
    assert tables.attention()[0] == ("operator", "length", "unit", "default", *columns)
    found = cells(tables.attention(), "`prefill_causal`", "1024")
    # 4 · 32 heads · 1024 · 1025 / 2 · 128 in 100 µs; eight times that in 400.
    assert found == [
        "TFLOP/s", "86 / 172", "not measured", "1.25 / –", "not measured", "0.67 / 0.50", "not measured / 2.00",
    ]  # fmt: skip
    assert cells(tables.host(), "`prefill_causal`", "128") == ["31", "–", *["not measured"] * 3]
    # 0.8; 1.5 and 2; 1.5 and 0.5 of the fastest compiler. The length 128 does not count.
    means = cells(tables.means(), "`prefill_causal`")
    assert means == ["–", "0.80 (0.80), 1", "–", "1.73 (1.50), 2", "0.50 (0.50), 1", "0.87 (0.50), 2", "–"]
    assert cells(tables.tuner(), "`softmax 8192×8192`") == ["4.2 s", "31.0 s", "2.0 %", "5.0 %", "30", "200", "936"]
    helion, by_hand = (tables.best()[0].index(c) - 1 for c in ("Helion", "by hand"))
    softmax = cells(tables.best(), "`softmax 4096×16384`")
    assert (softmax[helion], softmax[by_hand]) == ("not measured", "0.80")
    assert tables.losses() == [
        "prefill_causal 8×1024: 0.50 of torch.compile (grid)", "prefill_causal 1×1024: 0.80 of cuDNN (grid)",
        "prefill_causal 1×128: 0.80 of cuDNN (grid)",
    ]  # fmt: skip
    assert tables.failed() == ["grid | s | c: it has no softcap"]
    missing = tables.unmeasured()
    assert "grid | prefill_causal 1×1024 | FlashAttention-2" in missing and len(missing) == len(set(missing))
    assert "grid | prefill_causal 1×1024 | cuDNN" not in missing


@pytest.mark.usefixtures("planted")
def test_a_search_is_replayed_on_what_was_measured() -> None:
    assert report.replay()[1:] == [
        ("`softmax`", "1", "2", "2", "2, at most 2", "0.0 / 0.0 %"),
        ("`<b>`", "1", "2", "2", "2, at most 2", "0.0 / 0.0 %"),
    ]  # fmt: skip


def test_what_the_model_puts_far_behind_is_missed() -> None:
    def row(*candidates: tuple[float, float]) -> dict[str, Any]:
        made = enumerate(candidates)
        return {"candidates": [{"variant": f"row N={2**n}", "predicted": p, "us": us} for n, (p, us) in made]}

    # The best is predicted to be five times slower than what is measured first, and no neighbour speaks for it.
    far = row(*((10.0 + n, 10.0 + n) for n in range(8)), (18.5, 20.0), (50.0, 5.0))
    assert replayed(far) == Replayed(None, 8, 10, 1.0)
    near = row(*((10.0 + n, 10.0 + n) for n in range(8)), (11.5, 5.0))
    assert replayed(near) == Replayed(3, 8, 9, 0.0)


def test_variants_in_few_words() -> None:
    long = "matmul BLOCK_M=16 BLOCK_N=128 BLOCK_K=128 GROUP_M=8 num_warps=4 num_stages=3"
    assert report.short(long) == "matmul 16×128×128 w4 s3 group 8"
    assert report.rate_of("decode_gqa b1 1024", 13.2) == "318 GB/s"


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
    assert text.count("data:image/png;base64,") == 3 and "&lt;b&gt;: 0.25 of torch" in text and "<b>" not in text
