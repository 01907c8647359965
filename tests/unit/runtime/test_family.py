"""The tree by which a launch picks a variant, and variants that are made when they are used first."""

from __future__ import annotations

import pytest

from neptune.errors import FusionError
from neptune.runtime.family import Cut, Members, conditions, names_of, pick, read_tree, sizes_of, tree_json

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
