"""The comparison: what is right is timed, what is wrong is named, and a run that is cut off goes on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import grid
from bench.comparison import parts, subjects, worker
from bench.comparison.columns import COLUMNS, Column, Unfit
from bench.comparison.gate import Gate
from bench.comparison.measure import Lost, measured
from bench.comparison.pool import Job, pooled
from bench.comparison.results import Key, Results
from bench.comparison.subjects import Subject
from neptune.ops.attention import OPERATORS
from neptune.ops.softmax import softmax

US = {"default": 10.0, "torch": 20.0, "twice": 5.0}


class Stub:
    """Planted times by the order of calls; nothing is captured unless it is asked for."""

    device, target = "cpu", "interpret"

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder / "gate")
        self.times: dict[Any, float] = {}

    def captured(self, call: Any) -> Any:
        return partial(call)

    def samples(self, call: Any) -> list[float]:
        return [float(getattr(call.func, "us", 7.0))] * 3

    def host(self, call: Any) -> float:
        return 99.0

    def clocks(self) -> Mapping[str, int]:
        return {"sm": 1980}


def rows_of(rows: int = 70, cols: int = 5, short: bool = False) -> Subject:
    sizes = {"rows": rows, "cols": cols}
    return Subject(
        f"softmax {rows}×{cols}", "rows", softmax, sizes, partial(torch.softmax, dim=-1), "", 1.0, short=short
    )


def column(name: str, *forms: tuple[str, Any], ours: bool = False) -> Column:
    """A column of calls with planted times: (form, function of the inputs, microseconds)."""

    def made(subject: Subject, args: Sequence[torch.Tensor], place: Any) -> Iterator[tuple[str, Any]]:
        for form, function, us in forms:

            def call(function: Any = function) -> Any:
                return function(*args)

            call.us = us
            yield form, call

    return Column(name, made, ours=ours)


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def wrong_row(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x, -1)
    y[-1] = y[-1].roll(1)
    return y


def unwritten(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x, -1)
    y[-1, -1] = torch.nan
    return y


def breaks(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("out of shared memory\nmore")


def loses(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def run(tmp_path: Path, *columns: Column, subject: Subject | None = None) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    found = dict(measured(subject or rows_of(), columns, Stub(tmp_path), said.append))
    return found, said


# --- one subject ---------------------------------------------------------------------------------


def test_the_fastest_form_counts_and_every_sample_is_kept(tmp_path: Path) -> None:
    found, _ = run(tmp_path, column("a", ("slow", right, 9.0), ("fast", right, 4.0)))
    row = found["a"]
    assert (row["us"], row["form"], row["clocks"]) == (4.0, "fast", {"sm": 1980})
    assert row["samples"] == {"slow": [[9.0] * 3] * 3, "fast": [[4.0] * 3] * 3}
    assert 0 <= row["error"] < row["allowed"] < 1e-4 and "failed" not in row and "host us" not in row


def test_the_host_is_timed_where_calls_are_short(tmp_path: Path) -> None:
    found, _ = run(tmp_path, column("a", ("", right, 4.0)), subject=rows_of(short=True))
    assert found["a"]["host us"] == 99.0


@pytest.mark.parametrize("function", [wrong_row, unwritten, lambda x: right(x) * 1.01])
def test_a_wrong_peer_is_excluded_and_said(function: Any, tmp_path: Path) -> None:
    found, _ = run(tmp_path, column("good", ("", right, 4.0)), column("bad", ("", function, 1.0)))
    assert "us" in found["good"]
    assert "us" not in found["bad"] and found["bad"]["failed"].startswith("wrong: a row is off by ")


def test_a_wrong_form_is_dropped_and_the_others_count(tmp_path: Path) -> None:
    found, _ = run(tmp_path, column("a", ("bad", wrong_row, 1.0), ("breaks", breaks, 1.0), ("good", right, 4.0)))
    assert (found["a"]["us"], found["a"]["form"]) == (4.0, "good")
    assert found["a"]["dropped"]["breaks"] == "cannot run: RuntimeError: out of shared memory"
    assert found["a"]["dropped"]["bad"].startswith("wrong: ")


def test_ours_is_held_to_less_than_a_peer(tmp_path: Path) -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        return right(x) * (1 + 6e-7)

    found, _ = run(tmp_path, column("peer", ("", off, 1.0)), column("ours", ("", off, 1.0), ours=True))
    limits = found["peer"]["allowed"], found["ours"]["allowed"]
    assert limits[0] == pytest.approx(5 * limits[1])


def test_what_does_not_apply_says_why(tmp_path: Path) -> None:
    def none(*_: Any) -> Any:
        raise Unfit("it has no softmax")

    found, _ = run(tmp_path, Column("a", none), column("b", ("", breaks, 1.0)), column("c"))
    assert found["a"] == {"failed": "it has no softmax"}
    assert found["b"] == {"failed": "cannot run: RuntimeError: out of shared memory"}
    assert found["c"]["failed"] == "it has no form that runs"


def test_a_lost_context_is_no_row(tmp_path: Path) -> None:
    said: list[str] = []
    columns = [column("a", ("", right, 1.0)), column("b", ("", loses, 1.0))]
    with pytest.raises(Lost, match="illegal memory access"):
        list(measured(rows_of(), columns, Stub(tmp_path), said.append))
    assert said[-1] == "b"


def test_our_kernel_is_the_default(tmp_path: Path) -> None:
    found, _ = run(tmp_path, COLUMNS["default"], COLUMNS["torch"], subject=rows_of(7, 5))
    assert found["default"]["us"] == found["torch"]["us"] == 7.0
    assert found["default"]["form"].startswith("softmax")


# --- processes -----------------------------------------------------------------------------------


def serving(pipe: Any, folder: str) -> None:
    """A process that measures nothing; some columns end it."""
    while (job := pipe.recv()) is not None:
        _, subject, columns = job
        for c in columns:
            pipe.send(("at", c))
            if c == "dies":
                os._exit(5)
            if c == "sleeps":
                time.sleep(60)
            if c == "quiet":
                pipe.send(("at", ""))
                os._exit(6)
        for c in columns:
            pipe.send(("row", c, {"us": 1.0, "of": subject}))
        pipe.send(("done",))


def drive(jobs: list[Job], seconds: float = 60.0, hung: float = 60.0) -> dict[tuple[str, str], Any]:
    return {(j.subject, c): row for j, c, row in pooled(jobs, 2, serving, ("",), seconds, hung)}


def test_what_dies_takes_its_own_column_along_and_no_other() -> None:
    found = drive([Job("grid", "x", ["a", "dies", "b"]), Job("grid", "y", ["a"])])
    assert found == {
        ("x", "a"): {"us": 1.0, "of": "x"},
        ("x", "b"): {"us": 1.0, "of": "x"},
        ("x", "dies"): {"failed": "its process died (5)"},
        ("y", "a"): {"us": 1.0, "of": "y"},
    }


@pytest.mark.slow
def test_where_nobody_knows_what_died_each_is_tried_alone() -> None:
    found = drive([Job("grid", "x", ["a", "quiet"])])
    assert found == {("x", "a"): {"us": 1.0, "of": "x"}, ("x", "quiet"): {"failed": "its process died (6)"}}


@pytest.mark.slow
def test_a_hang_is_ended() -> None:
    found = drive([Job("grid", "x", ["sleeps", "a"])], hung=12.0)
    assert found["x", "sleeps"]["failed"].startswith("it hung") and found["x", "a"]["us"] == 1.0


def test_the_end_of_the_time_ends_everything() -> None:
    assert drive([Job("grid", "x", ["sleeps"]), Job("grid", "y", ["sleeps"])], seconds=2.0) == {}


# --- the whole command ---------------------------------------------------------------------------


class Pipe:
    """One job, and what is said to it."""

    def __init__(self, job: Job) -> None:
        self.asked: list[Any] = [(job.part, job.subject, job.columns), None]
        self.sent: list[Any] = []

    def recv(self) -> Any:
        return self.asked.pop(0)

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part of two subjects; jobs run in this process."""
    every = {s.name: s for s in (rows_of(9, 5), rows_of(70, 3))}
    part = parts.Part("grid", "few", list(every), ("default", "torch", "cuDNN"))
    for module in (subjects, parts, worker):
        monkeypatch.setattr(module, "subjects", lambda: every)
    monkeypatch.setattr(grid, "parts", lambda: {"grid": part})
    monkeypatch.setattr(grid, "environment", lambda: {"gpu": "stub"})

    def inline(jobs: Sequence[Job], _: int, serve: Any, args: Any, *_more: float) -> Iterator[Any]:
        for job in jobs:
            pipe = Pipe(job)
            serve(pipe, *args)
            yield from ((job, m[1], m[2]) for m in pipe.sent if m[0] == "row")

    monkeypatch.setattr(grid, "pooled", inline)


def command(file: Path, tmp_path: Path, *more: str) -> int:
    import argparse

    options = argparse.Namespace(
        json=file, part=["grid"], columns=[], only=[""], seconds=60.0, workers=1, again=False, budget="",
        search=1.0, exhaustive=1.0,
    )  # fmt: skip
    return grid.measure(options, f"{__name__}:Stub", {"folder": tmp_path})


@pytest.mark.usefixtures("few")
def test_a_run_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.json"
    command(whole, tmp_path)
    assert "not measured:" in capsys.readouterr().out
    for cut in range(1, 4):
        file, add = tmp_path / f"{cut}.json", Results.add
        left = [cut]

        def until(self: Results, key: Key, row: Any, add: Any = add, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            add(self, key, row)

        with monkeypatch.context() as patch:
            patch.setattr(Results, "add", until)
            with pytest.raises(KeyboardInterrupt):
                command(file, tmp_path)
        assert len(json.loads(file.read_text())["rows"]) == cut
        command(file, tmp_path)
        assert file.read_text() == whole.read_text()


def test_what_has_no_record_stays_not_measured() -> None:
    keys = [Key("first", s, c) for s in ("a", "b") for c in ("default", "tuned")]
    found = list(grid.jobs(keys, ["first"], [], [""], lambda subject: subject == "b"))
    assert [(j.subject, j.columns) for j in found] == [("a", ["default"]), ("b", ["default", "tuned"])]


@pytest.mark.usefixtures("few")
def test_what_was_chosen_is_measured_and_no_more(tmp_path: Path) -> None:
    missing = grid.plan()
    (job,) = grid.jobs(missing, ["grid"], ["torch"], ["9×5"])
    assert (job.subject, job.columns) == ("softmax 9×5", ["torch"])
    assert list(grid.jobs(missing, ["best"], [], [""])) == []
    two = list(grid.jobs(missing, ["grid"], [], [""]))
    assert [(j.subject, j.columns) for j in two] == [(n, ["default", "torch"]) for n in ("softmax 9×5", "softmax 70×3")]


def test_the_plan_has_every_setup_once() -> None:
    keys = grid.plan()
    assert len(keys) == len(set(keys)) > 1200
    of = {p: [k for k in keys if k.part == p] for p in ("first", "grid", "best", "ablation", "tuner")}
    assert sum(map(len, of.values())) == len(keys)
    heads = [k.subject for k in of["grid"] if k.column == "default"]
    assert len([n for n in heads if n.startswith(tuple(OPERATORS))]) == 10 * 9 * 2
    # The lengths that tell most are first.
    assert {n.rpartition("×")[2] for n in heads[:80]} == {"1024", "4096", "8192", "16384"}
    assert len({k.subject for k in of["first"]}) == len({k.subject for k in of["best"]}) == 12
    assert len(of["tuner"]) == 6 * 3


def test_a_lost_context_ends_its_process_and_names_what_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"a": column("a", ("", right, 1.0)), "b": column("b", ("", loses, 1.0))}
    monkeypatch.setattr(worker, "COLUMNS", columns)
    monkeypatch.setattr(worker, "subjects", lambda: {"s": rows_of()})
    pipe = Pipe(Job("grid", "s", ["a", "b"]))

    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ends)
    with pytest.raises(SystemExit):
        worker.serve(pipe, f"{__name__}:Stub", {"folder": tmp_path}, 1.0, 1.0)
    assert pipe.sent[-1][:2] == ("row", "b") and "illegal memory access" in pipe.sent[-1][2]["failed"]
    assert pipe.sent[-2] == ("at", "b")


def test_the_gate_lets_one_in_at_a_time(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from bench.comparison.gate import Gate\n"
        "with Gate(Path(sys.argv[1])) as g:\n"
        "    with g: print('in', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    gate = Gate(tmp_path / "gate")
    with gate, gate:
        other = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "gate")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdin is not None and other.stdout is not None
        assert select.select([other.stdout], [], [], 8.0)[0] == []
    assert other.stdout.readline() == b"in\n"
    beats: list[int] = []
    gate.beat = lambda: beats.append(1) or other.kill() if len(beats) > 1 else beats.append(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.comparison.gate.BEAT", 0.1)
        with gate:  # who holds it was killed, and has lost it
            assert len(beats) >= 2
    other.wait()
