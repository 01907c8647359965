"""The replay: what it keeps of a compilation, and that it sees what changes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from neptune.frontend import builder as nt
from neptune.ops.softmax import softmax
from qa import replay
from qa.replay_compare import ASPECTS, Comparison, aspects, compare, difference, shown
from qa.replay_corpus import KINDS, combinations, items
from qa.replay_extract import Record, compilation, reducer, text


@pytest.fixture(scope="module")
def row_softmax() -> Record:
    return compilation(softmax, "softmax_online")


def _compared(old: Record, new: Record) -> Comparison:
    return compare({"softmax": old}, {"softmax": new})


def test_a_repair_is_taken_apart(row_softmax: Record) -> None:
    (l,) = row_softmax["repairs"]  # noqa: E741
    assert (l["stage"], l["reducer"], l["g"], l["h"]) == ("l", "+=", ["g = exp(c - r)"], ["h = t*exp(r - r')"])
    names = {o.partition(":")[0] for o in l["obligations"]}
    assert {"update", "commute", "compose", "defined", "range"} <= names
    assert row_softmax["template"] == "softmax_online"
    assert row_softmax["trace"][-1].startswith("sch.partition(")
    assert row_softmax["facts"]["traversals"] == {"x": 2}
    assert set(row_softmax["source"]) == {"pointers", "descriptors"}


def test_every_aspect_of_a_kernel_is_filled(row_softmax: Record) -> None:
    found = aspects(row_softmax)
    assert tuple(found) == ASPECTS
    # What only some records have: refusals, random requests, casts, assumptions, what waits, exact checks.
    empty = {a for a in ASPECTS if not found[a]}
    rare = {"crash", "refusal", "requests", "granted", "checks", "made"}
    assert empty <= rare | {f"repair.{part}" for part in ("deferral", "casts", "assumptions")}


def test_what_waits_and_what_is_assumed_is_kept() -> None:
    rows, cols = nt.var("rows"), nt.var("cols")
    x, y = (nt.placeholder((rows, cols), "float32", n) for n in "xy")
    j, k = nt.reduce_axis((0, cols), "j"), nt.reduce_axis((0, cols), "k")
    s = nt.compute((rows,), lambda i: nt.sum(nt.abs(x[i, j]), axis=j), "s")
    t = nt.compute((rows,), lambda i: nt.sum(x[i, k] / s[i] * y[i, k], axis=k), "t")
    made = compilation(lambda: t, "softmax_online")
    waiting = next(r for r in made["repairs"] if r["stage"] == "t")
    assert any("1.0 / s" in x or "s[i]" in x for x in waiting["deferral"])


def test_a_refusal_is_told_from_a_crash() -> None:
    refused = compilation(softmax, "matmul")
    assert (refused["status"], refused["error"]) == ("refused", "ScheduleError")
    assert aspects(refused)["refusal"][:1] == ["ScheduleError"] and not aspects(refused)["crash"]

    def crash() -> None:
        raise KeyError("x")

    crashed = compilation(crash)
    assert (crashed["status"], crashed["error"], crashed["where"]) == ("crashed", "KeyError", "test_replay.py: crash")
    assert aspects(crashed)["crash"] and not aspects(crashed)["refusal"]


def test_equal_records_do_not_differ(row_softmax: Record) -> None:
    found = _compared(row_softmax, compilation(softmax, "softmax_online"))
    assert not found.differs and found.same == 1
    assert "no difference" in "\n".join(shown(found, 3))


@pytest.mark.parametrize("part", ["h", "obligations", "assumptions", "reducer"])
def test_a_changed_repair_is_seen(row_softmax: Record, part: str) -> None:
    other = copy.deepcopy(row_softmax)
    changed = other["repairs"][0]
    changed[part] = "*=" if part == "reducer" else [*changed[part][1:], "something else"]
    found = _compared(row_softmax, other)
    assert found.differs and list(found.found) == [f"repair.{part}"]


def test_a_changed_h_is_shown_with_both_sides(row_softmax: Record) -> None:
    other = copy.deepcopy(row_softmax)
    other["repairs"][0]["h"] = ["h = t"]
    shows = "\n".join(shown(_compared(row_softmax, other), 3))
    assert "== repair.h: 1 items differ (softmax 1), in 1 ways" in shows
    assert "- l (rolling_update): h = t*exp(r - r')" in shows and "+ l (rolling_update): h = t" in shows


def test_another_template_differs_in_its_trace_and_programs(row_softmax: Record) -> None:
    found = _compared(row_softmax, compilation(softmax, "softmax_row"))
    assert {"template", "trace", "fused", "tiles", "source"} <= set(found.found)
    assert "program" not in found.found


def test_what_follows_from_another_status_is_not_told(row_softmax: Record) -> None:
    found = _compared(row_softmax, compilation(softmax, "matmul"))
    assert set(found.found) == {"status", "refusal"}


def test_a_missing_item_is_a_difference_and_a_new_one_is_none(row_softmax: Record) -> None:
    assert compare({"a": row_softmax}, {}).differs
    assert not compare({}, {"a": row_softmax}).differs


def test_an_ignored_aspect_is_not_compared(row_softmax: Record) -> None:
    other = {**row_softmax, "source": {}}
    assert _compared(row_softmax, other).differs
    assert not compare({"a": row_softmax}, {"a": other}, frozenset({"source"})).differs


def test_where_stages_come_from_is_apart_from_what_they_do(row_softmax: Record) -> None:
    lines = [x for x in row_softmax["fused"].splitlines() if not x.startswith("  made ")]
    bare = {**row_softmax, "fused": "\n".join(lines)}
    said = {**row_softmax, "fused": "\n".join([lines[0], "  made m_init as init of m", *lines[1:]])}
    assert list(_compared(bare, said).found) == ["made"]


def test_order_matters_in_programs_alone() -> None:
    assert not difference("repair.obligations", ["a", "b"], ["b", "a"])
    assert difference("tiles", ["a", "b"], ["b", "a"])


def test_messages_are_without_places() -> None:
    error = ValueError("in /home/someone/neptune/ir/expr.py:12 <Op at 0x7f12ab>, line 3")
    assert text(error) == "in expr.py <Op at 0x>, line 3"
    assert text(ValueError('File "/a/b.py", line 12, in f')) == 'File "b.py, in f'


def test_a_reducer_is_read_from_the_program() -> None:
    assert reducer("m", ["  l: l[i] += x[i]", "  m: m[i] max= x[i] init -inf"]) == "max="
    assert reducer("best", ["best: a[i], b[i] argmax= x[i, j], j"]) == "argmax="
    assert reducer("absent", ["m: m[i] max= x[i]"]) == ""


@pytest.mark.slow
def test_items_of_every_kind_have_names_of_their_own() -> None:
    assert replay.KINDS == KINDS
    names = list(items())
    assert {n.partition("/")[0] for n in names} == set(KINDS)
    assert sum_of(names, "fuzz/") == 800 and sum_of(names, "variety/") == 300
    assert "flash_attention packed=False" in combinations() and "matmul" in combinations()


def sum_of(names: list[str], prefix: str) -> int:
    return len([n for n in names if n.startswith(prefix)])


@pytest.mark.slow
def test_random_requests_are_repeated() -> None:
    item = items(("fuzz",))["fuzz/9000001 by requests"]
    first = item(None)
    assert first["requests"]["steps"] and not compare({"a": first}, {"a": item(first)}).differs
    fewer = {**first, "requests": {**first["requests"], "steps": []}}
    assert item(fewer)["granted"] == [] and item(fewer)["status"] == "compiled"


def test_the_command_records_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.jsonl.gz", tmp_path / "new.jsonl"
    for file in (old, new):
        assert replay.main(["record", "--out", str(file), "--items", "operators/softmax by softmax_o"]) == 0
    assert replay.main(["compare", str(old), str(new)]) == 0
    assert "1 items the same; no difference" in capsys.readouterr().out
    header, rows = replay.load(new)
    assert header["verify"] == 0 and list(rows) == ["operators/softmax by softmax_online"]
    none = tmp_path / "none.jsonl"
    none.write_text(new.read_text().splitlines(keepends=True)[0])
    assert [replay.main(["compare", str(old), str(none), *more]) for more in ([], ["--common"])] == [1, 0]
    new.write_text(new.read_text().replace("exp(r - r')", "exp(r' - r)"))
    assert replay.main(["compare", str(old), str(new)]) == 1
    assert "repair.h" in capsys.readouterr().out
