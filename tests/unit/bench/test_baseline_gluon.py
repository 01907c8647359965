"""The hand-written Gluon attention's table of tiles; what it compiles to is in tests/unit/hopper/test_compiled.py."""

import itertools
from collections import Counter

from bench.baselines.flash_attention_gluon import balanced


def test_every_tile_is_given_once_and_evenly() -> None:
    tiles, first = balanced(7, 1000, 128, 128, True, 10, near=7)
    assert Counter(tiles) == Counter(range(7 * 8))
    assert first[0] == 0 and first[-1] == len(tiles)
    work = [sum(t % 8 + 2 for t in tiles[a:b]) for a, b in itertools.pairwise(first)]
    assert max(work) - min(work) <= 9  # one heaviest tile


def test_near_heads_come_before_others() -> None:
    tiles, first = balanced(9, 1000, 128, 128, True, 5, near=3)
    assert Counter(tiles) == Counter(range(9 * 8))
    for a, b in itertools.pairwise(first):
        bands = [t // 8 // 3 for t in tiles[a:b]]
        assert bands == sorted(bands) and set(bands) == {0, 1, 2}
