"""No record that was kept is lost or torn: writers at once, killed ones, full disks. Nothing foreign is believed."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from neptune.records import store as module
from neptune.records.record import Record, Unknown, parse
from neptune.records.store import LOCK, SHIPPED, Store, key_of
from tests.unit.records.store_writers import LONGEST, SOME, STRUCTURE, numbered
from tests.work import calls

ROOT = Path(__file__).resolve().parents[3]
NONE = Path("/nowhere")
WRITERS = 8


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_said", set())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", NONE)


def file_of(store: Store) -> Path:
    assert store.path is not None
    return store.path


def writer(what: str, store: Store, number: int, told: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.records.store_writers", what, str(store.root), str(number)]
    out = subprocess.PIPE if told is None else told.open("w")
    return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


# --- one writer ----------------------------------------------------------------------------------


def test_what_is_kept_is_found(store: Store) -> None:
    first, second = numbered(0, 0), numbered(0, 1)
    assert store.find(STRUCTURE, "H200") == [] and store.all() == []
    assert store.append(first) and store.append(second) and store.append(first)
    assert store.find(STRUCTURE, "H200") == [first, second, first] == store.all()
    assert store.find(STRUCTURE, "A100") == [] == store.find(STRUCTURE[:-1] + "4", "H200")
    status = file_of(store).stat()
    assert status.st_mode & 0o777 == 0o600 and file_of(store).parent.stat().st_mode & 0o777 == 0o700


def test_another_store_of_the_folder_reads_them(store: Store) -> None:
    store.append(numbered(0, 0))
    assert store.root is not None
    assert Store(store.root, NONE).all() == [numbered(0, 0)]
    assert Store(None, NONE).all() == [] and not Store(None, NONE).append(numbered(0, 0))


def test_many_are_kept_at_once_or_none(store: Store) -> None:
    records = [numbered(1, k) for k in range(5000)]
    store.extend(records)
    assert store.all() == records and file_of(store).stat().st_size > module.CHUNK // 2


def test_lines_that_fall_on_the_edge_of_a_chunk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [numbered(0, k, more=k) for k in range(40)]
    store.extend(records)
    for chunk in (1, 7, 100, 263, 264, 265, 4096):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert store.all() == records == store.find(STRUCTURE, "H200")


def test_the_work_of_finding_does_not_grow_with_the_records_of_others(store: Store) -> None:
    def work() -> int:
        return calls(lambda: store.find(STRUCTURE, "H200"))

    store.append(numbered(0, 0))
    work()
    before = work()
    others = [Record(**{**vars(numbered(2, k)), "structure": f"{k:032x}"}) for k in range(2000)]
    store.extend(others)
    store.append(numbered(0, 1))
    assert len(store.find(STRUCTURE, "H200")) == 2 and work() < 3 * before


def test_appending_does_not_read_what_is_there(store: Store) -> None:
    store.append(numbered(0, 0))
    before = calls(lambda: store.append(numbered(0, 0)))
    store.extend([numbered(2, k) for k in range(2000)])
    assert calls(lambda: store.append(numbered(0, 0))) <= before


# --- torn and foreign lines ----------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 30, 100, -1])
def test_a_torn_line_is_closed_by_the_next_writer(store: Store, cut: int) -> None:
    store.append(numbered(0, 0))
    torn = numbered(0, 1).line()[:cut]
    with file_of(store).open("ab") as file:
        file.write(torn)
    # A line that lacks nothing but its end is a record.
    whole = [numbered(0, 1)] if cut == -1 else []
    assert store.find(STRUCTURE, "H200") == [numbered(0, 0), *whole] == store.all()
    assert store.append(numbered(0, 2))
    assert store.find(STRUCTURE, "H200") == [numbered(0, 0), *whole, numbered(0, 2)] == store.all()
    assert list(store.lines()) == [numbered(0, 0).line()[:-1], torn, numbered(0, 2).line()[:-1]]


def test_damaged_and_foreign_lines_are_passed_over(store: Store) -> None:
    draw = random.Random(0)
    records = [numbered(0, k) for k in range(50)]
    store.extend(records)
    junk = [draw.randbytes(draw.randint(1, 500)).replace(b"\n", b"") for _ in range(50)]
    junk += [numbered(0, 7).line()[:-40], b"{}", b"null", b"\0" * 4096, b'"' + numbered(0, 0).line()[:-1]]
    kind = numbered(0, 3).line().replace(b'"kind":"time"', b'"kind":"picture"')[:-1]
    lines = [*(r.line()[:-1] for r in records), *junk, kind]
    draw.shuffle(lines)
    file_of(store).write_bytes(b"\n".join(lines) + b"\n")
    for found in (store.all(), store.find(STRUCTURE, "H200")):
        assert Counter(map(key_of, found)) == Counter(map(key_of, records))
    assert [x for x in map(parse, store.lines()) if isinstance(x, Unknown)] == [Unknown(kind)]
    assert store.append(numbered(0, 99)) and store.find(STRUCTURE, "H200")[-1] == numbered(0, 99)


def test_a_head_within_a_line_is_no_line(store: Store) -> None:
    inner = numbered(0, 0).line()[:-1]
    store.append(numbered(0, 5))
    with file_of(store).open("ab") as file:
        file.write(b"x" + inner + b"\n" + inner + b"\n")
    assert store.find(STRUCTURE, "H200") == [numbered(0, 5), numbered(0, 0)]


# --- several writers -----------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_writers_lose_nothing_and_tear_nothing(store: Store) -> None:
    for process in [writer("many", store, w) for w in range(WRITERS)]:
        finished(process)
    lines = file_of(store).read_bytes().splitlines(keepends=True)
    assert len(lines) == WRITERS * 10_000
    assert set(lines) == {numbered(w, k).line() for w in range(WRITERS) for k in range(10_000)}


def test_two_writers_and_a_reader(store: Store) -> None:
    """The same, small: a reader beside them sees whole records only."""
    processes = [writer("some", store, w) for w in range(2)]
    looks = 0
    while any(p.poll() is None for p in processes):
        seen = store.find(STRUCTURE, "H200")
        for w in range(2):
            mine = [r for r in seen if r.params == {"writer": w}]
            assert mine == [numbered(w, k, more=k % LONGEST) for k in range(len(mine))]
        looks += 0 < len(seen) < 2 * SOME
    for p in processes:
        finished(p)
    assert looks and len(store.all()) == 2 * SOME


def test_killed_writers_lose_nothing_that_they_had_kept(store: Store, tmp_path: Path) -> None:
    draw = random.Random(1)
    kept: set[tuple[int, int]] = set()
    for number in range(8):
        told = tmp_path / f"told {number}"
        process = writer("endless", store, number, told)
        while not told.stat().st_size:
            time.sleep(0.005)
        time.sleep(draw.uniform(0.01, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        # Of the last line, which may be torn, nobody knows.
        kept |= {(number, int(k)) for k in told.read_text().split("\n")[:-1]}
        assert store.append(numbered(99, number))
    found = store.all()
    assert len(kept) > 50
    assert {(r.params["writer"], r.sizes["n"] - 1) for r in found} >= kept | {(99, n) for n in range(8)}
    for r in found:
        w, k = r.params["writer"], r.sizes["n"] - 1
        assert r == numbered(w, k, more=0 if w == 99 else k % LONGEST)


def test_a_stopped_writer_is_not_waited_for_for_ever(store: Store, monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    store.append(numbered(0, 0))
    with open(file_of(store).parent / LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not store.append(numbered(0, 1))
    assert [r.getMessage() for r in caplog.records] == [
        f"no measurement is kept in {store.root}: another process holds its lock"
    ]
    assert store.append(numbered(0, 1)) and store.all() == [numbered(0, 0), numbered(0, 1)]


def test_writers_wait_while_the_file_is_replaced(store: Store) -> None:
    store.append(numbered(0, 0))

    def choose(lines: list[bytes]) -> Iterator[bytes]:
        # A writer that comes now must find the new file, not the one that goes.
        late.append(writer("limited", store, 3))
        time.sleep(1.0)
        yield from lines

    late: list[subprocess.Popen[str]] = []
    store.rewrite(choose)
    written = int(finished(late[0]))
    assert written > 10 and store.all() == [numbered(0, 0), *(numbered(3, k) for k in range(written))]


# --- disks that do not want ----------------------------------------------------------------------


def test_a_write_that_is_cut_short_is_taken_back(store: Store) -> None:
    process = writer("limited", store, 0)
    out, err = process.communicate(timeout=120)
    count = int(out)
    size = file_of(store).stat().st_size
    assert 0 < count < 200 and size <= 20_000 < size + len(numbered(0, count).line())
    assert file_of(store).read_bytes() == b"".join(numbered(0, k).line() for k in range(count))
    assert err.count("no measurement is kept in") == 1 == len(err.strip().splitlines()) and "Traceback" not in err
    assert store.append(numbered(0, count)) and len(store.all()) == count + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(small_disk, NONE)
    kept = 0
    while store.append(numbered(0, kept, more=100)):
        kept += 1
    assert not store.append(numbered(0, kept, more=100))
    assert [r.getMessage() for r in caplog.records] == [
        f"no measurement is kept in {small_disk}: No space left on device"
    ]
    assert kept > 20 and store.all() == [numbered(0, k, more=100) for k in range(kept)]
    data = file_of(store).read_bytes()
    assert data == b"".join(numbered(0, k, more=100).line() for k in range(kept))
    with pytest.raises(OSError, match="No space left"):
        store.rewrite(lambda lines: lines)
    # Nothing is left of the attempt, and what was there is.
    assert file_of(store).read_bytes() == data and len(list(file_of(store).parent.iterdir())) == 2
    (small_disk / "records" / "records.jsonl").write_bytes(data[: len(data) // 2])
    assert store.append(numbered(9, 9)) and store.all()[-1] == numbered(9, 9)


@pytest.mark.parametrize("what", ["a file", "a link", "others may write", "a file that others may write", "a folder"])
def test_what_is_not_this_users_alone_is_not_used(store: Store, what: str, tmp_path: Path, caplog) -> None:
    store.append(numbered(0, 0))
    file, folder = file_of(store), file_of(store).parent
    if what == "others may write":
        folder.chmod(0o777)
    elif what == "a file that others may write":
        file.chmod(0o666)
    elif what == "a link":
        file.rename(tmp_path / "theirs")
        file.symlink_to(tmp_path / "theirs")
    elif what == "a file":
        folder.rename(tmp_path / "moved")
        folder.write_text("")
    else:
        file.unlink()
        file.mkdir()
    assert not store.append(numbered(0, 1))
    assert store.all() == ([numbered(0, 0)] if what == "others may write" else [])
    said = [r.getMessage() for r in caplog.records if "kept" in r.getMessage()]
    assert len(said) == 1 and str(store.root) in said[0] and "\n" not in said[0]


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = Store(blocked / "cache", NONE)
    assert not store.append(numbered(0, 0)) and not store.append(numbered(0, 1))
    assert store.all() == [] == store.find(STRUCTURE, "H200")
    assert len({r.getMessage() for r in caplog.records}) == len(caplog.records) <= 2


# --- what ships ----------------------------------------------------------------------------------


def test_shipped_records_come_after_the_users_own(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    theirs = [numbered(0, k) for k in range(3)]
    (shipped / "h200.jsonl").write_bytes(b"".join(r.line() for r in theirs) + b"junk\n")
    store = Store(tmp_path / "cache", shipped)
    assert store.find(STRUCTURE, "H200") == theirs == store.all() and list(store.lines()) == []
    mine = Record(**{**vars(theirs[1]), "us": [99.0]})
    store.append(mine)
    assert store.find(STRUCTURE, "H200") == [mine, theirs[0], theirs[2]] == store.all()
    assert Store(None, shipped).find(STRUCTURE, "H200") == theirs


def test_every_shipped_line_is_a_record() -> None:
    files = sorted(SHIPPED.glob("*.jsonl"))
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    assert files and sum(map(len, lines)) <= 2_000_000
    assert all(isinstance(r, Record) and r.line() == line for line in lines for r in [parse(line)])
    assert Store(None).all() == [parse(line) for line in lines]
