"""The tables of searches: that they notice what they look for."""

from dataclasses import replace

from bench.mirage_search import Searched, Way, differing, exhausted, measured


def test_searches_that_differ_are_told() -> None:
    one = measured("LoRA", 1, 60.0, Way())
    assert one.row["exhausted"] and one.sure() == len(one.chain) == one.row["graphs"]
    assert differing([one, one]) == [] and one.row["compared"] == len(one.chain)
    other = Searched({**one.row, "workers": 2}, (*one.chain[:-1], (one.chain[-1][0], "other")))
    assert differing([one, other]) == ["LoRA has other graphs with 2 processes and hash seed 0"]
    # Of a search that was ended, the last size says nothing.
    ended = replace(one, row={**one.row, "exhausted": False}, chain=one.chain[:-1])
    assert ended.sure() < len(ended.chain) and differing([one, ended]) == []


def test_nothing_is_found_without_prunes_that_they_miss() -> None:
    rows = exhausted("LoRA", 2.0)
    assert rows[-1]["graphs"] and rows[-1]["states of all"] > 10 * rows[-1]["states"]
    assert not any(r["missed"] or r["more"] for r in rows)
