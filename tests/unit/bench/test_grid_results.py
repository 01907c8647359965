"""The file of `bench.grid`'s results: cut off anywhere, it goes on to the same file; what is missing is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.comparison.results import Key, Results

PLAN = [Key("grid", s, c) for s in ("x", "y") for c in ("default", "torch", "slow")]


def test_a_cut_at_any_point_gives_the_same_file(tmp_path: Path) -> None:
    def go(file: Path, count: int) -> None:
        results = Results(file, PLAN, {"gpu": "stub"})
        results.write()
        # As processes finish, which is not the plan's order.
        for key in sorted(results.missing(), key=lambda k: k.column)[:count]:
            results.add(key, {"us": float(len(str(key)))} if key.column != "slow" else {"failed": "too slow"})

    whole = tmp_path / "whole.json"
    go(whole, len(PLAN))
    for cut in range(len(PLAN) + 1):
        file = tmp_path / f"{cut}.json"
        go(file, cut)
        assert len(json.loads(file.read_text())["not measured"]) == len(PLAN) - cut
        go(file, len(PLAN))
        assert file.read_text() == whole.read_text()
    assert list(tmp_path.glob("*.part")) == []


def test_what_was_not_reached_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    results = Results(file, PLAN, {"gpu": "stub"})
    results.add(PLAN[4], {"us": 1.0})
    kept = json.loads(file.read_text())
    assert kept["not measured"] == [str(k) for k in PLAN if k != PLAN[4]]
    assert kept["rows"] == [{"part": "grid", "subject": "y", "column": "torch", "us": 1.0, "environment": 0}]


def test_another_machine_is_another_environment(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    Results(file, PLAN, {"gpu": "a"}).add(PLAN[0], {"us": 1.0})
    Results(file, PLAN, {"gpu": "b"}).add(PLAN[1], {"us": 2.0})
    Results(file, PLAN, {"gpu": "a"}).add(PLAN[2], {"failed": "no"})
    kept = json.loads(file.read_text())
    assert kept["environments"] == [{"gpu": "a"}, {"gpu": "b"}]
    assert [r["environment"] for r in kept["rows"]] == [0, 1, 0]
    results = Results(file, PLAN, {"gpu": "a"})
    assert results.missing() == PLAN[3:] and results.missing(again=True) == PLAN[2:]


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"environments": [')
    with pytest.raises(ValueError, match="Expecting"):
        Results(file, PLAN, {})
    assert file.read_text() == '{"environments": ['
