"""What was decided for a class of sizes is remembered, here and by other processes; what is damaged is not believed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from neptune.runtime import family
from neptune.runtime.family import FOLDER, Decided, class_of


def asked(tmp_path: Path | None, key: str = "k", count: int = 3, answer: int | None = 2) -> tuple[Decided, list[int]]:
    """Two variants of sizes m and n, and the m of what had to be decided."""
    came: list[int] = []

    def decide(sizes: object) -> int | None:
        came.append(sizes["m"])  # type: ignore[index]
        return answer

    return Decided(["m", "n"], count, decide, None if tmp_path is None else (tmp_path, key)), came


def test_sizes_of_a_class_are_decided_once() -> None:
    assert [class_of(n) for n in range(65)] == list(range(65))
    assert all(n <= class_of(n) < n * 9 / 8 and class_of(class_of(n)) == class_of(n) for n in range(65, 5000))
    decided, came = asked(None)
    assert [decided({"m": m, "n": 1, "scale": 0.5}) for m in (97, 104, 100, 105, 97)] == [2] * 5
    assert came == [97, 105] and decided.classes == 2


@pytest.mark.parametrize("answer", [0, None])
def test_another_process_takes_what_was_decided(tmp_path: Path, answer: int | None) -> None:
    first, _ = asked(tmp_path, answer=answer)
    assert first({"m": 5, "n": 7}) == answer
    again, came = asked(tmp_path)
    assert again({"m": 5, "n": 7}) == answer and came == []
    # Of another kernel, or machine, nothing is known.
    other, came = asked(tmp_path, "other")
    assert other({"m": 5, "n": 7}) == 2 and came == [5]


def test_two_at_once_lose_nothing(tmp_path: Path) -> None:
    one, other = asked(tmp_path)[0], asked(tmp_path)[0]
    one({"m": 1, "n": 1})
    other({"m": 2, "n": 2})
    third, came = asked(tmp_path)
    assert [third({"m": k, "n": k}) for k in (1, 2)] == [2, 2] and came == []


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"1,1": 9}', '{"1,1": "a"}', '{"1,1": -1}', '{"1,1": [0]}', "1" * 5000]
)
def test_what_no_process_of_ours_has_written_decides_nothing(tmp_path: Path, body: str) -> None:
    writer, _ = asked(tmp_path)
    assert writer._shelf is not None
    writer._shelf.write("k", body.encode())
    decided, came = asked(tmp_path)
    assert decided({"m": 1, "n": 1}) == 2 and came == [1]
    next((tmp_path / FOLDER).glob("*")).write_bytes(b"\x00 damaged")
    decided, came = asked(tmp_path)
    assert decided({"m": 1, "n": 1}) == 2 and came == [1]


def test_a_folder_that_cannot_be_used_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("no folder")
    decided, came = asked(tmp_path)
    assert [decided({"m": 1, "n": 1}) for _ in range(2)] == [2, 2] and came == [1]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "MOST", 8)
    decided, came = asked(tmp_path)
    for m in range(1, 41):
        decided({"m": m, "n": 1})
    assert decided.classes <= 8 and len(came) == 40
    assert len(json.loads(decided._shelf.read("k") or b"")) <= 8  # type: ignore[union-attr]


def test_arguments_below_1_are_of_no_class() -> None:
    decided, came = asked(None)
    assert [decided({"m": m, "n": 5}) for m in (0, -3)] == [None, None] and came == [] and decided.classes == 0


def test_threads_that_ask_at_once_get_the_same(tmp_path: Path) -> None:
    decided, _ = asked(tmp_path)
    found: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: found.extend(decided({"m": m % 16 + 1, "n": 1}) for m in range(64)))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [2] * 256 and decided.classes == 16
