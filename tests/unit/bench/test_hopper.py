"""The measurements for Hopper end in time, whatever a row does, and say what is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest

from bench.hopper import PARTS, _rows, measured
from bench.hopper_options import OPTIONS, product_kernel, visited
from bench.hopper_prepare import prepare
from bench.hopper_timing import HUNG, Planned, against


def options(tmp_path: Path, seconds: float = 100.0) -> Namespace:
    of: dict[str, Any] = {"parts": PARTS, "rounds": 5, "depths": (64,), "lengths": (512, 4096)}
    return Namespace(seconds=seconds, each=100.0, json=tmp_path / "rows.json", **of)


def test_the_most_telling_rows_come_first(tmp_path: Path) -> None:
    names = [row.name for row in _rows(options(tmp_path))]
    assert names[:5] == [
        *("rate 128 4096 causal", "rate 64 4096 causal", "rate 256 4096 causal", "rate 128 4096 full"),
        "product 4096 4096 4096",
    ]
    kinds = {name.split()[0] for name in names}
    assert kinds == {
        "rate",
        "product",
        "option",
        "softcap",
        "lse",
        "grouped",
        "cross-entropy",
        "fused",
        "tuned",
        "error",
    }


def test_rows_end_with_the_time_and_with_their_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: dict[str, Any] = {}

    def fails() -> dict[str, Any]:
        raise ValueError("no such thing")

    made = [("a", lambda: {"ours": 1.0}), ("b", fails), ("a", fails), ("c", lambda: {"ours": 2.0})]
    measured(starmap(Planned, made), rows, options(tmp_path))
    assert rows == {"a": {"ours": 1.0}, "b": {"failed": "ValueError: no such thing"}, "c": {"ours": 2.0}}
    assert '"c"' in (tmp_path / "rows.json").read_text()
    later: dict[str, Any] = {}
    measured(starmap(Planned, made), later, options(tmp_path, 0.0))
    assert later == {} and "the time is over" in capsys.readouterr().out


def test_kernels_are_compiled_before_their_rows_where_no_gpu_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    made = prepare([partial(product_kernel, 64, 64, 64, form) for form in ("asynchronous", "none")], 1)
    assert made["kernels"] == 2 and os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    (failed,) = made["failed"]
    assert "form" in failed and "'none'" in failed
    assert any((tmp_path / "accepted").rglob("*")), "the verdict on its asynchronous form is kept"
    assert "prepared" in capsys.readouterr().out


def test_a_row_that_hangs_ends_the_process() -> None:
    text = "import time\nfrom bench.hopper_timing import at_most\nwith at_most(0.1, 'row'):\n    time.sleep(100)\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert done.returncode == HUNG and "row: no end in 0 s" in done.stdout


@pytest.mark.parametrize(
    ("ours", "lost"), [((98.0, 99.0, 99.5), False), ((90.0, 95.0, 97.5), True), ((100.0, 101.0, 102.0), False)]
)
def test_a_goal_is_lost_beyond_the_noise(ours: tuple[float, ...], lost: bool) -> None:
    made = {"ours": ours[1], "cudnn": 99.0, "quartiles": {"ours": [ours[0], ours[2]], "cudnn": [98.0, 100.0]}}
    found = against(made, "cudnn", 1.0)
    assert found["lost"] is lost and found["ratio"] == ours[1] / 99.0


def test_tiles_that_a_mask_visits() -> None:
    assert visited(lambda i, j: j <= i, 256, 64, 128) == 6
    assert visited(OPTIONS["window"].sees, 4096, 128, 128) == sum(min(t, 8) + 1 for t in range(32))
    assert visited(OPTIONS["documents"].sees, 4096, 128, 128) == 4 * sum(range(1, 9))
    assert visited(OPTIONS["prefix"].sees, 4096, 128, 128) == sum(max(t + 1, 8) for t in range(32))
    assert visited(lambda i, j: j <= i, 130, 128, 64) == 2 + 3
