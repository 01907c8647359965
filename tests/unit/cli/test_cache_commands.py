"""`neptune cache`: every command, for people and as JSON; what cannot be done is one screen and exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neptune.cli.commands import app
from neptune.records.record import Failure, Record, parse
from neptune.records.store import Store

A, B = "a1" * 16, "b2" * 16
COMMANDS = ("ls", "show", "export", "import", "merge", "prune")


def record(us: float, **other: Any) -> Record:
    given = {"structure": A, "device": "H200", "template": "t", "sizes": {"n": 1000}, "params": {"BLOCK": 64}}
    return Record(**{**given, "us": [us], "versions": {"neptune": "0.1.0"}, "when": "2026-11-22T00:00:00Z", **other})


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, ["cache", *args])


def said(*args: str) -> Any:
    done = invoke(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(*args: str) -> str:
    done = invoke(*args)
    assert done.exit_code == 1 and "Traceback" not in done.output and len(done.stderr.splitlines()) < 8
    as_json = json.loads(invoke(*args, "--json").stdout)
    assert as_json["error"] == "RecordError" and as_json["message"] in done.stderr
    return str(as_json["message"])


def test_ls(store: Store) -> None:
    shipped = said("ls")
    assert (shipped["records"], shipped["unknown"], shipped["unreadable"]) == (0, 0, 0)
    assert {"softmax", "matmul", "decode_gqa"} <= {p["name"] for p in shipped["programs"]}
    store.extend([record(3.0, name="mine"), record(2.0, name="mine", sizes={"n": 1}), record(1.0, device="A100")])
    assert store.path is not None
    with store.path.open("ab") as file:
        file.write(record(1.0).line().replace(b'"time"', b'"picture"') + b"torn")
    found = said("ls")
    assert (found["records"], found["unknown"], found["unreadable"]) == (3, 1, 1)
    assert found["programs"][:2] == [
        {"structure": A, "name": "mine", "device": "H200", "records": 2, "sizes": 2, "newest": "2026-11-22T00:00:00Z"},
        {"structure": A, "name": "", "device": "A100", "records": 1, "sizes": 1, "newest": "2026-11-22T00:00:00Z"},
    ]
    text = invoke("ls").stdout
    assert A[:12] in text and A not in text and "3 records, 0 failed, 0 graphs, 1 unknown, 1 no record" in text


def test_show(store: Store) -> None:
    records = [record(float(us), params={"BLOCK": us}, numbers={"NUM_SPLITS": 2}) for us in (5, 3, 4, 2)]
    store.extend([*records, record(1.0, structure=B)])
    shown = said("show", A[:6])
    assert shown["of"] == 4 and [r["us"] for r in shown["records"]] == [[2.0], [3.0], [4.0]]
    assert len(said("show", A, "--all")["records"]) == 4
    text = invoke("show", A[:6]).stdout
    assert "t BLOCK=2 NUM_SPLITS=2" in text and "BLOCK=5" not in text and "3 of 4 records" in text
    assert {r["device"] for r in said("show", "softmax")["records"]} == {"H200"}
    for nothing in ("zzz", ""):
        assert "no record is of a program" in refused("show", nothing)


def test_what_failed_is_shown_and_can_be_forgotten(store: Store) -> None:
    made = {"structure": A, "device": "H200", "template": "t", "sizes": {"n": 1000}, "versions": {}}
    store.append(Failure(**made, params={"BLOCK": 128}, how="hung", name="mine"))
    assert [f["how"] for f in said("show", A[:6])["failed"]] == ["hung"]
    store.append(record(3.0))
    text = invoke("show", A[:6]).stdout
    assert "failed, and not tried again" in text and "hung" in text and "BLOCK=128" in text and "3.00" in text
    assert said("ls")["records"] == 1 and said("ls")["failed"] == 1
    assert said("prune")["removed"] == 0 and said("prune", "--failed")["removed"] == 1
    assert said("show", A[:6])["failed"] == []


def test_export_import_merge_prune(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(3.0), record(2.0), record(4.0), record(1.0, structure=B, name="other")]
    store.extend(records)
    file, merged = str(tmp_path / "out"), str(tmp_path / "merged")
    assert said("export", file)["kept"] == 4
    assert [parse(x) for x in Path(file).read_bytes().splitlines()] == records
    assert "1 records written to" in invoke("export", merged, "--structure", "other").stdout
    assert said("merge", merged, merged, file) == {"kept": 4, "known": 0, "removed": 0, "unreadable": 0}
    assert said("import", merged) == {"kept": 0, "known": 4, "removed": 0, "unreadable": 0}
    assert "0 records added to" in invoke("import", merged).stdout
    assert said("prune", "--keep", "1") == {"kept": 3, "known": 0, "removed": 1, "unreadable": 0}
    assert list(store.lines()) == [r.line()[:-1] for r in records[1:]]
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "new"))
    assert said("import", file, str(tmp_path / "cache"))["kept"] == 4


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "missing")
    (tmp_path / "foreign").write_bytes(b"\xff\x00 ../../etc\n")
    assert "No such file" in refused("import", missing)
    assert "holds no record" in refused("merge", missing, str(tmp_path / "foreign"))
    assert "No such file" in refused("export", str(tmp_path / "no" / "where"))
    assert "keeps no record" in refused("prune", "--keep", "0")
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "good").write_bytes(record(1.0).line())
    assert "nothing was changed" in refused("import", str(tmp_path / "good"))
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    for command in (["export", missing], ["import", missing], ["prune"]):
        assert "no folder for them" in refused(*command)
    assert said("ls")["file"] is None


def test_wrong_usage_is_json_too() -> None:
    done = invoke("prune", "--keep", "many", "--json")
    assert done.exit_code == 2 and json.loads(done.stdout)["error"] == "UsageError"
    assert invoke("import").exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    done = invoke(command, "--help")
    assert done.exit_code == 0 and "Example" in done.output and "--json" in done.output
