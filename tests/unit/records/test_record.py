"""A record reads back as itself, and whatever else a line may be raises nothing and is not believed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neptune.errors import RecordError
from neptune.records import exchange
from neptune.records.record import (
    FIELDS,
    MAX_LINE,
    MAX_SAMPLES,
    Discovery,
    Failure,
    Record,
    Unknown,
    bucket_of,
    now,
    parse,
    prefix,
)
from neptune.records.store import Store
from neptune.tune.model.machine import DEVICES
from neptune.versions import versions

STRUCTURE = "0123456789abcdef" * 2
GOOD: dict[str, Any] = {
    "structure": STRUCTURE,
    "device": "H200",
    "template": "flash_decoding",
    "sizes": {"s_kv": 4096, "batch": 1},
    "params": {"num_warps": 4, "o_combine.num_warps": 8},
    "numbers": {"NUM_SPLITS": 4},
    "us": [12.5, 13, 11.75],
    "versions": {"neptune": "0.1.0", "torch": "2.11.0+cu130", "triton": None},
    "clocks": {"sm": 1980, "memory": 3201.5},
    "when": "2026-11-22T23:07:44Z",
    "name": "decode_gqa",
}


def record(**other: Any) -> Record:
    return Record(**{**GOOD, **other})


def line_with(**other: Any) -> bytes:
    """A line as somebody else may write it; a value of `...` leaves its key out."""
    said = {**json.loads(record().line()), **other}
    return json.dumps({k: v for k, v in said.items() if v is not ...}, separators=(",", ":")).encode()


def test_a_record_reads_back() -> None:
    r = record()
    assert r.line().startswith(prefix(STRUCTURE, "H200")) and r.line().count(b"\n") == 1
    assert parse(r.line()) == r == parse(r.line()[:-1]) and parse(line_with()) == r
    assert r.us == (12.5, 13.0, 11.75) and r.bucket == {"batch": 1, "s_kv": 4096}
    assert list(r.sizes) == ["batch", "s_kv"] and r.line() == record(sizes={"batch": 1, "s_kv": 4096}).line()


def test_every_machine_and_the_present_versions_and_time_fit() -> None:
    for device in DEVICES:
        r = record(device=device, versions=versions(), when=now())
        assert parse(r.line()) == r


words = st.text("abcXYZ019_.-", min_size=0, max_size=10).map(lambda x: "a" + x)
counts = st.dictionaries(words, st.integers(1, 2**63 - 1), max_size=5)


@settings(max_examples=80, deadline=None)
@given(counts, counts, st.lists(st.floats(0.1, 1e9), min_size=1), st.dictionaries(words, words | st.none()))
def test_any_record_reads_back(sizes: Any, params: Any, us: Any, made: Any) -> None:
    r = record(sizes=sizes, params=params, numbers=params, us=us, versions=made)
    assert parse(r.line()) == r


def test_buckets() -> None:
    assert bucket_of({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 1 << 40}) == {
        "a": 1, "b": 2, "c": 4, "d": 4, "e": 8, "f": 1 << 40,
    }  # fmt: skip


PATHS = ("../x", "a/b", "/etc/passwd", "a\\b", "..", ".hidden", "~", "a b", "a\n", "a\0", "é", "", "-x", "a" * 81)
WRONG: dict[str, tuple[Any, ...]] = {
    "kind": ("space", "", None),
    "structure": (STRUCTURE[:-1], STRUCTURE.upper(), STRUCTURE + "0", "../" + STRUCTURE[3:], None, 7),
    "device": (*(p for p in PATHS if p != "a b"), " H200", "H200 ", "a  b", 5),
    "template": (*PATHS, None, ["a"]),
    "name": (*(p for p in PATHS if p), None),
    "sizes": (*({p: 1} for p in PATHS), {"n": 0}, {"n": -1}, {"n": 1.0}, {"n": True}, {"n": "1"}, {"n": 1 << 63}, [1],
              None, {f"n{k}": 1 for k in range(65)}),
    "params": ({"n": -1}, {"n": 2.5}, {"n": False}, {"a/b": 1}, "x", None),
    "numbers": ({"n": -1}, {"n": None}, {"../n": 1}, 3),
    "us": ([], [5e-324], [-1.0], [True], ["1"], [None], 3.0, [1e10], [1.0] * (MAX_SAMPLES + 1), {"a": 1.0}, None),
    "versions": ({"a": 1}, {"a/b": "1"}, {"a": "../1"}, {"a": ""}, {"a": "1" * 81}, {"a": "1 2"}, [], None),
    "clocks": ({"sm": 0}, {"sm": -1.0}, {"sm": True}, {"sm": 1e7}, {"s/m": 1}, None),
    "when": ("", "2026-11-22", "2026-13-22T23:07:44Z", "2026-02-30T00:00:00Z", "2026-11-22T23:07:44+00:00",
             "2026-11-22T23:07:44Z\n", 5, None),
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_what_no_record_holds(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(RecordError, match=f"^a tuning record with {field}="):
            record(**{field: value})
        assert not isinstance(parse(line_with(**{field: value})), Record), value


def test_every_field_is_refused_something() -> None:
    assert set(WRONG) == {f.name for f in fields(Record)}
    # `how` and `graph` are refused below.
    assert set(FIELDS) == {*WRONG, "how", "graph"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-400", "9" * 5000])
def test_numbers_that_are_none(number: str) -> None:
    assert parse(record(us=[77.0]).line().replace(b"77.0", number.encode())) is None
    assert parse(record(us=[77.0]).line()) is not None


def test_a_line_must_be_whole_and_say_each_thing_once() -> None:
    line = record().line()
    assert all(parse(line[:k]) is None for k in range(len(line) - 1))
    assert all(parse(line[k:]) is None for k in range(1, 40))
    assert parse(line[:-2] + b',"us":[1.0]}\n') is None
    assert parse(line[:-2] + b',"more":1}\n') is None
    assert parse(line_with(us=...)) is None and parse(line_with(name=...)) is None
    assert parse(line + line) is None
    assert parse(line.replace(b'"us":', b'"us":' + b" " * MAX_LINE)) is None
    assert parse(line.replace(b"decode_gqa", b"d\xc3\xa9code")) is None
    assert parse(prefix(STRUCTURE, "H200") + b'"kind":"time","x":' + b"[" * 50000 + b"]" * 50000 + b"}") is None
    assert parse(b'{"record":1,"structure":"ab"}') is None and parse(b"__import__('os').getpid()") is None


def test_other_kinds_and_later_schemas_are_kept_as_they_are() -> None:
    other = line_with(kind="picture", us=..., more={"nodes": [1, 2]})
    later = line_with(record=2, us={"median": 4})
    for line in (other, later):
        kept = parse(line + b"\n")
        assert isinstance(kept, Unknown) and kept.line() == line + b"\n"
        assert parse(line[:-1]) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 500), st.integers(0, 500))
@example(b"", 0, 0)
@example(b"\xff\xfe", 3, 9)
def test_no_bytes_raise(some: bytes, at: int, to: int) -> None:
    line = record().line()
    for text in (some, line[:at] + some + line[to:], prefix(STRUCTURE, "H200") + some):
        found = parse(text)
        assert found is None or isinstance(found, Unknown) or parse(found.line()) == found


def test_a_record_does_not_change() -> None:
    r = record()
    with pytest.raises(AttributeError):
        r.device = "A100"  # type: ignore[misc]
    sizes = {"n": 4}
    kept = record(sizes=sizes)
    sizes["n"] = 8
    assert kept.sizes == {"n": 4} and replace(kept, us=[1.0]).us == (1.0,)


def test_records_need_neither_torch_nor_tvm() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "triton", "tvm", "tvm_ffi", "click", "rich")))
from neptune.records import believe, exchange, record, store
from neptune.records.record import structure_of
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_failure_is_a_line_of_its_own_kind() -> None:
    made = {"structure": "a" * 32, "device": "H200", "template": "t", "sizes": {"n": 8, "m": 4}, "params": {"B": 2}}
    said = Failure(**made, how="wrong", versions={"neptune": "1"}, name="row")
    assert parse(said.line()) == said and b'"kind":"failed"' in said.line() and list(said.sizes) == ["m", "n"]
    for wrong in ({"how": "slow"}, {"how": ""}, {"sizes": {"n": 0}}, {"template": "../t"}, {"device": "a/b"}):
        with pytest.raises(RecordError):
            Failure(**{**made, "how": "hung", "versions": {}, **wrong})
    # Neither kind takes the fields of the other.
    assert parse(said.line().replace(b'"how":"wrong"', b'"us":[1.0]')) is None
    assert parse(said.line().replace(b'"kind":"failed"', b'"kind":"time"')) is None
    assert parse(said.line().replace(b'"how":"wrong"', b'"how":"slow"')) is None


def test_what_a_search_came_to_is_a_line_of_its_own_kind(tmp_path) -> None:
    made = {"structure": "a" * 32, "device": "H200", "sizes": {"n": 8}, "params": {"max_kernels": 3}}
    said = Discovery(
        **made, graph="graph g\n  axis i: m\n", versions={"neptune": "1"}, numbers={"tries": 5}, name="row"
    )
    none = Discovery(**made, graph="", versions={})
    assert [parse(x.line()) for x in (said, none)] == [said, none] and b'"kind":"graph"' in said.line()
    for wrong in ("\0", "a\tb", "é", "x" * (1 << 15) + "x", None, 3):
        with pytest.raises(RecordError):
            Discovery(**{**made, "graph": wrong, "versions": {}})
    assert parse(said.line().replace(b'"graph":"graph', b'"us":[1.0],"graph":"graph')) is None
    store = Store(tmp_path, shipped=tmp_path / "none")
    assert store.append(said) and store.append(none)
    assert store.discoveries("a" * 32, "H200") == [said, none]
    assert store.discoveries("a" * 32, "A100") == store.discoveries("b" * 32, "H200") == []
    assert store.all() == store.failures() == [] and exchange.prune_records(store, 1, failed=True).removed == 0


def test_failures_are_no_measurements(tmp_path) -> None:
    store = Store(tmp_path, shipped=tmp_path / "none")
    made = {"device": "H200", "template": "t", "sizes": {"n": 8}, "params": {"B": 2}, "how": "died", "versions": {}}
    first, second = (Failure(structure=x * 32, **made) for x in "ab")
    assert store.append(first) and store.append(second)
    assert store.find("a" * 32, "H200") == store.all() == []
    assert store.failures("a" * 32, "H200") == [first] and store.failures() == [first, second]
    assert store.failures("a" * 32, "A100") == []
    assert exchange.prune_records(store, 1).removed == 0 and exchange.prune_records(store, 1, failed=True).removed == 2
    assert store.failures() == []
