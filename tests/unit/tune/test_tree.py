"""A tree that takes a variant where it was measured."""

from __future__ import annotations

import random

import pytest

from neptune.runtime.family import Cut, pick
from neptune.tune.tree import grafted

TREE = Cut(("m",), 100, Cut(("m", "n"), 5000, 0, 1), 2)


def test_the_bucket_is_taken_as_far_as_the_tree_does_not_tell_it_apart():
    tree = grafted(TREE, {"m": 90, "n": 30}, 7, [])
    for m in range(1, 260):
        for n in (1, 16, 17, 30, 32, 33, 55, 100):
            before, inside = pick(TREE, {"m": m, "n": n}), 64 < m <= 100 and 16 < n <= 32 and m * n <= 5000
            assert pick(tree, {"m": m, "n": n}) == (7 if inside else before), (m, n)


@pytest.mark.parametrize("seed", range(20))
def test_others_keep_what_they_have(seed):
    draw = random.Random(seed)
    points = [{"m": draw.randint(1, 200), "n": draw.randint(1, 200)} for _ in range(40)]
    at, *others = list({(p["m"], p["n"]): p for p in points}.values())
    tree = grafted(TREE, at, 7, others)
    assert pick(tree, at) == 7 and all(pick(tree, p) == pick(TREE, p) for p in others)


def test_sizes_of_one():
    tree = grafted(0, {"m": 1}, 3, [{"m": 2}])
    assert [pick(tree, {"m": m}) for m in (1, 2, 3)] == [3, 0, 0]
