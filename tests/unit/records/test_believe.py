"""What records say: believed where versions and sizes are the same, and a prior, on one scale, where they are not."""

from __future__ import annotations

from typing import Any

import pytest

from neptune.base.choice import Choice
from neptune.records.believe import OTHER_SIZES, OTHER_VERSIONS, best
from neptune.records.record import Record

A = "a" * 32
NOW = {"python": "3.12", "neptune": "2", "torch": "3", "triton": "4"}
OLD = {**NOW, "triton": "3"}
SIZES = {"n": 1000, "m": 8}


def record(block: int, *us: float, **other: Any) -> Record:
    given = {"structure": A, "device": "H200", "template": "t", "sizes": SIZES, "versions": NOW}
    return Record(**{**given, "params": {"BLOCK": block}, "us": us, **other})


def said(*records: Record) -> list[tuple[int, float, float]]:
    return [(b.choice.params["BLOCK"], b.us, b.weight) for b in best(records, A, SIZES, "H200", NOW)]


def test_nothing_is_known_of_others() -> None:
    other = [record(1, 1.0, structure="b" * 32), record(1, 1.0, device="A100"), record(1, 1.0, sizes={"n": 1000})]
    other += [record(1, 1.0, sizes={"n": 1025, "m": 8}), record(1, 1.0, sizes={"n": 512, "m": 8})]
    assert said(*other) == said() == []


def test_all_samples_of_the_same_versions_count() -> None:
    assert said(record(1, 5.0, 9.0), record(2, 4.0), record(1, 6.0)) == [(2, 4.0, 1.0), (1, 6.0, 1.0)]
    # Python's own version changes no kernel.
    assert said(record(1, 5.0, versions={**NOW, "python": "3.10"})) == [(1, 5.0, 1.0)]


@pytest.mark.parametrize("name", ["neptune", "torch", "triton"])
@pytest.mark.parametrize("version", [None, "9"])
def test_other_versions_are_a_prior(name: str, version: str | None) -> None:
    assert said(record(1, 5.0, versions={**NOW, name: version})) == [(1, 5.0, OTHER_VERSIONS)]


def test_what_is_believed_stands_in_the_place_of_a_prior() -> None:
    found = said(record(1, 50.0, versions=OLD), record(1, 5.0), record(1, 1.0, sizes={"n": 999, "m": 8}))
    assert found == [(1, 5.0, 1.0)]


def test_exact_sizes_of_any_version_weigh_more_than_a_bucket() -> None:
    near = record(2, 1.0, sizes={"n": 1001, "m": 8})
    assert said(near, record(1, 5.0, versions=OLD)) == [(1, 5.0, OTHER_VERSIONS), (2, 5.0, OTHER_SIZES)]
    assert OTHER_VERSIONS > OTHER_SIZES > OTHER_VERSIONS * OTHER_SIZES
    assert said(record(1, 5.0, versions=OLD, sizes={"n": 999, "m": 8})) == [(1, 5.0, OTHER_VERSIONS * OTHER_SIZES)]


def test_times_of_others_are_scaled_by_what_both_have_measured() -> None:
    now = [record(1, 10.0), record(2, 12.0)]
    half = {"sizes": {"n": 600, "m": 8}}
    before = [record(1, 5.0, **half), record(2, 6.0, **half), record(3, 4.0, **half), record(4, 20.0, **half)]
    assert said(*now, *before) == [(1, 10.0, 1.0), (2, 12.0, 1.0), (3, 8.0, OTHER_SIZES), (4, 40.0, OTHER_SIZES)]


def test_the_nearest_sizes_come_first() -> None:
    far, near = record(1, 1.0, sizes={"n": 520, "m": 8}), record(1, 7.0, sizes={"n": 900, "m": 8})
    more = record(2, 2.0, sizes={"n": 520, "m": 8})
    assert said(far, near, more) == [(1, 7.0, OTHER_SIZES), (2, 14.0, OTHER_SIZES)]


def test_numbers_of_a_launch_are_a_candidates_own() -> None:
    two, four = (record(1, us, numbers={"NUM_SPLITS": n}) for us, n in ((3.0, 2), (2.0, 4)))
    assert [(b.choice, b.us) for b in best([two, four], A, SIZES, "H200", NOW)] == [
        (Choice("t", {"BLOCK": 1, "NUM_SPLITS": 4}), 2.0),
        (Choice("t", {"BLOCK": 1, "NUM_SPLITS": 2}), 3.0),
    ]


def test_the_order_of_records_says_nothing() -> None:
    records = [record(k, 10.0 + k, versions=v, sizes={"n": n, "m": 8})
               for k in range(3) for v in (NOW, OLD) for n in (1000, 900, 513)]  # fmt: skip
    assert said(*records) == said(*reversed(records)) and len(said(*records)) == 3
