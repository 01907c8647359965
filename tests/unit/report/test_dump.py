"""NEPTUNE_DUMP: what is written, that the forms are those of the compilation, and that nothing mixes."""

from __future__ import annotations

import json

import pytest

import neptune
from neptune.codegen.for_cpu import in_partial_sums
from neptune.errors import ScheduleError
from neptune.ir.text.parser import parse_program
from neptune.report.dump import file_names
from neptune.report.snapshots import Snapshot
from neptune.tile.pipeline import PASSES
from tests.examples.kernel_examples import rows_fused, rows_program


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NEPTUNE_DUMP", str(tmp_path / "out"))
    return tmp_path / "out"


def in_sums(text: str) -> str:
    """What target llvm runs of a program."""
    return str(in_partial_sums(parse_program(text)))


def test_every_step_and_every_pass_has_its_file(folder):
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    files = {f.name: f.read_text() for f in (folder / "rows-1").iterdir()}
    numbered = sorted(n for n in files if n[0].isdigit())
    order = [n.split("-", 1)[1].split(".")[0] for n in numbered]
    called = [t.split("(")[0].removeprefix("sch.") for t in kernel.build.trace]
    forms = [c for c in called if c != "param"]
    assert [n.split("-")[1] for n in order if n.startswith("schedule-")] == forms
    assert [n for n in order if n.startswith("tile-")] == ["tile-translate", *(f"tile-{p.name}" for p in PASSES)]
    assert [n for n in order if "-" not in n] == ["import", "place", "addresses", "generate"]
    assert order[0] == "import" and order[-1] == "generate"
    assert set(files) - set(numbered) == {"explain.txt", "explain.json", "report.html", "index.txt"}
    by_name = dict(zip(order, (files[n] for n in numbered), strict=True))
    assert by_name["import"] == kernel.ir("loops") and in_sums(by_name["place"]) == kernel.ir("fused")
    assert by_name[f"tile-{PASSES[-1].name}"] == kernel.ir("tile") and by_name["generate"] == kernel.source
    assert files["explain.txt"] == kernel.explain()
    assert json.loads(files["explain.json"]) == kernel.explain(json=True)
    assert all(n in files["index.txt"] for n in numbered)


def test_a_step_is_the_program_that_it_left_behind(folder):
    neptune.compile(rows_program(), rows_fused, target="llvm")
    texts = [f.read_text() for f in sorted((folder / "rows-1").glob("*-schedule-*.txt"))]
    assert len(set(texts)) == len(texts), "each of these primitives changes something"
    for text in texts:
        assert str(parse_program(text)) == text


def test_two_compilations_do_not_mix(folder):
    for block in (16, 32):
        neptune.compile(rows_program(), rows_fused, target="llvm", params={"BLOCK_M": block})
    params = [json.loads((folder / f"rows-{k}" / "explain.json").read_text())["params"] for k in (1, 2)]
    assert [p["BLOCK_M"] for p in params] == [16, 32]


def test_a_failed_compilation_leaves_its_steps_and_the_error(folder):
    def broken(sch):
        i, j = sch.loops("t")
        sch.split(j, sch.param("BLOCK_N", [16]))
        sch.bind(i, "grid.w")

    with pytest.raises(ScheduleError, match=r"grid\.w"):
        neptune.compile(rows_program(), broken, target="llvm")
    names = sorted(f.name for f in (folder / "rows-1").iterdir())
    assert names == ["00-import.txt", "01-schedule-split.txt", "error.txt", "index.txt"]
    assert "'grid.w' is not a grid axis" in (folder / "rows-1" / "error.txt").read_text()


def test_names_are_safe_and_sort_as_they_came():
    trail = [Snapshot(n, n, "", "") for n in ("import", "schedule-inline-a/b", "é", *"abcdefgh", "generate")]
    names = file_names(trail)
    assert names == sorted(names) and names[-1] == "11-generate.py"
    assert names[1:3] == ["01-schedule-inline-a_b.txt", "02-_.txt"]
    assert len({len(n.split("-")[0]) for n in file_names(trail * 20)}) == 1


def test_nothing_is_written_where_nobody_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("NEPTUNE_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    neptune.compile(rows_program(), rows_fused, target="llvm")
    assert list(tmp_path.iterdir()) == []
