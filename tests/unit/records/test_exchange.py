"""Records go from store to store whole and once; pruning keeps the fastest and the newest, and what nobody knows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from neptune.errors import RecordError
from neptune.records.exchange import Counts, export_records, import_records, merge_records, prune_records
from neptune.records.record import Record, parse
from neptune.records.store import Store

NONE = Path("/nowhere")
A, B = "a" * 32, "b" * 32


def record(us: float, minute: int = 0, **other: Any) -> Record:
    given = {"structure": A, "device": "H200", "template": "t", "sizes": {"n": 1000}, "params": {"BLOCK": 64}}
    return Record(**{**given, "us": [us], "versions": {}, "when": f"2026-11-22T00:{minute:02}:00Z", **other})


UNKNOWN = record(1.0).line().replace(b'"time"', b'"picture"')


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", NONE)


def filled(store: Store, *records: Record, junk: bytes = b"") -> Store:
    store.extend(records)
    assert store.path is not None
    with store.path.open("ab") as file:
        file.write(junk)
    return store


def parsed(path: Path) -> list[Any]:
    return [parse(line) for line in path.read_bytes().splitlines()]


def test_export_and_import_keep_every_digit(store: Store, tmp_path: Path) -> None:
    records = [record(0.1 + 0.2, 1), record(1 / 3, 2, structure=B), record(5.0, 3)]
    filled(store, *records, junk=UNKNOWN + b"torn\n")
    assert export_records(store, tmp_path / "all") == Counts(4, 0, 0, 1)
    assert parsed(tmp_path / "all") == [*records, parse(UNKNOWN)]
    assert export_records(store, tmp_path / "some", [B]) == Counts(1, 0, 3, 1)
    assert parsed(tmp_path / "some") == [records[1]]
    other = filled(Store(tmp_path / "other", NONE), records[2])
    assert import_records(other, [tmp_path / "all", tmp_path / "some"]) == Counts(3, 1, 0, 0)
    assert other.all() == [records[2], *records[:2]]
    assert import_records(other, [tmp_path / "all"]) == Counts(0, 4, 0, 0)
    assert import_records(Store(tmp_path / "third", NONE), [tmp_path / "cache"]) == Counts(4, 0, 0, 1)


def test_an_import_of_a_file_without_records_changes_nothing(store: Store, tmp_path: Path) -> None:
    filled(store, record(1.0))
    (tmp_path / "good").write_bytes(record(2.0).line())
    for name, data in (("empty", b""), ("foreign", b'{"us": 3}\n' * 3)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordError, match="holds no record"):
            import_records(store, [tmp_path / "good", tmp_path / name])
    with pytest.raises(RecordError, match="No such file"):
        import_records(store, [tmp_path / "good", tmp_path / "missing"])
    assert store.all() == [record(1.0)]


def test_what_may_have_no_end_is_not_read(store: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(RecordError, match="no regular file"):
            import_records(store, [path])


def test_merge_is_a_union_in_order(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(record(1.0).line() + record(2.0).line() + b"torn")
    (tmp_path / "b").write_bytes(record(2.0).line() + record(3.0).line() + UNKNOWN)
    assert merge_records([tmp_path / "a", tmp_path / "b"], tmp_path / "b") == Counts(4, 0, 0, 1)
    assert parsed(tmp_path / "b") == [record(1.0), record(2.0), record(3.0), parse(UNKNOWN)]
    with pytest.raises(RecordError, match="No such file"):
        merge_records([tmp_path / "a"], tmp_path / "nowhere" / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_prune_keeps_the_fastest_and_the_newest_of_each(store: Store) -> None:
    slow_and_new = record(9.0, 50)
    one = [record(5.0, 1), record(3.0, 2), record(4.0, 3), record(6.0, 40), slow_and_new]
    others = [
        record(7.0, 1, params={"BLOCK": 32}),
        record(7.0, 1, sizes={"n": 1001}),
        record(7.0, 1, device="A100"),
        record(7.0, 1, structure=B),
        record(7.0, 1, template="u"),
        record(7.0, 1, numbers={"NUM_SPLITS": 2}),
    ]
    filled(store, *one, *others, junk=b"foreign\n" + UNKNOWN + one[0].line()[:50])
    assert prune_records(store, 1) == Counts(9, 0, 3, 2)
    assert store.all() == [one[1], slow_and_new, *others]
    assert list(store.lines())[-1] == UNKNOWN[:-1]
    assert store.path is not None and store.path.stat().st_mode & 0o777 == 0o600
    assert prune_records(store, 1) == Counts(9, 0, 0, 0) and store.append(record(8.0, 59))


def test_prune_of_several(store: Store) -> None:
    records = [record(float(us), us) for us in (5, 3, 4, 6, 2)]
    filled(store, *records)
    assert prune_records(store, 5) == Counts(5, 0, 0, 0)
    assert prune_records(store, 2) == Counts(3, 0, 2, 0)
    # The newest is of minute 6.
    assert store.all() == [records[1], records[3], records[4]]


def test_of_one_second_the_last_line_is_the_newest(store: Store) -> None:
    records = [record(us) for us in (1.0, 3.0, 2.0)]
    filled(store, *records)
    prune_records(store, 1)
    assert store.all() == [records[0], records[2]]


def test_prune_of_nothing_and_of_what_cannot_be_read(store: Store) -> None:
    assert prune_records(store, 3) == Counts() and store.all() == []
    filled(store, record(1.0))
    assert store.path is not None
    store.path.chmod(0o666)
    before = store.path.read_bytes()
    with pytest.raises(RecordError, match="others may write"):
        prune_records(store, 3)
    assert store.path.read_bytes() == before
