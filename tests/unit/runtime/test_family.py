"""The tree by which a launch picks a variant, and variants that are made when they are used first.

What was decided for a class of sizes is remembered, here and by other processes; what is damaged is not believed.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from neptune.errors import FusionError
from neptune.runtime import family
from neptune.runtime.family import (
    FOLDER,
    Cut,
    Decided,
    Members,
    class_of,
    conditions,
    names_of,
    pick,
    read_tree,
    sizes_of,
    tree_json,
)

TREE = Cut(("s_q",), 16, 1, Cut(("batch", "heads"), 64, 2, 0))
SIZES = {
    (1, 1, 1): 1, (16, 9, 9): 1, (17, 8, 8): 2, (17, 8, 9): 0, (10**12, 1, 64): 2, (0, 0, 0): 1, (17, 0, 10**9): 2,
}  # fmt: skip


def described(tree=TREE, own=0):
    variants = [{"template": t, "params": {}, "numbers": n} for t, n in (("a", []), ("b", ["PARTS"]), ("a", []))]
    return {"tree": tree_json(tree), "own": own, "variants": variants}


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_pick_a_variant_by_comparisons_and_products(sizes):
    named = dict(zip(("s_q", "batch", "heads"), sizes, strict=True))
    assert pick(TREE, named) == pick(read_tree(tree_json(TREE)), named) == SIZES[sizes]


def test_conditions_say_what_the_tree_does():
    texts = [conditions(TREE, k) for k in range(3)]
    assert texts == ["s_q > 16 and batch·heads > 64", "s_q <= 16", "s_q > 16 and batch·heads <= 64"]
    for s_q in (1, 16, 17, 99):
        for batch in (1, 8, 9):
            sizes = {"s_q": s_q, "batch": batch, "heads": 8}
            holds = [eval(t.replace("batch·heads", "batch * heads"), {}, dict(sizes)) for t in texts]
            assert holds.index(True) == pick(TREE, sizes) and sum(holds) == 1
    assert conditions(Cut(("m",), 8, 0, Cut(("m",), 64, 1, 0)), 0) == "(m <= 8) or (m > 64)"
    assert conditions(0, 0) == "" and conditions(0, 1) == ""
    assert sizes_of(TREE) == {"s_q", "batch", "heads"} and sizes_of(3) == set()


def test_members_are_made_once_and_when_they_are_used():
    made = []
    members = Members(described(), "own", lambda k: made.append(k) or f"made {k}")
    assert members.of({"s_q": 99, "batch": 9, "heads": 9}) == "own" and not made
    assert [members.of({"s_q": 1, "batch": 9, "heads": 9}) for _ in range(3)] == ["made 1"] * 3 and made == [1]
    assert members.all() == ["own", "made 1", "made 2"] and made == [1, 2]
    assert names_of(described()) == ["a", "b", "a 2"]


def test_a_number_that_one_variant_has_picks_it():
    members = Members(described(), 0, lambda k: k)
    long = {"s_q": 99, "batch": 9, "heads": 9}
    assert members.of(long) == 0 and members.of(long, {"PARTS": 3}) == 1
    # No variant has it: the one that is taken says what is legal.
    assert members.of(long, {"NO": 3}) == 0


def test_what_cannot_be_made_is_not_used(caplog):
    def make(k):
        raise FusionError("compile", "a check rejects it")

    members = Members(described(), "own", make)
    assert members.of({"s_q": 1, "batch": 1, "heads": 1}) == "own"
    assert "variant b is not used" in caplog.text and "a check rejects it" in caplog.text
    caplog.clear()
    assert members.member(1) == "own" and not caplog.text


def test_what_is_refused_at_a_launch_is_replaced_for_good():
    members = Members(described(), "own", lambda k: f"made {k}")
    small, large = {"s_q": 1, "batch": 1, "heads": 1}, {"s_q": 99, "batch": 9, "heads": 9}
    assert members.instead(members.of(small)) == "own" == members.of(small)
    assert members.instead("own") == "made 2" == members.of(small) == members.of(large)
    assert members.instead(members.of(small)) is None


# --- classes ------------------------------------------------------------------------------------


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
