"""Ranges cover what the sets need, visit nothing twice, and call clean only what lies in one set: by enumeration."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.ir.expr import FALSE, Const, Expr, Op, Var
from neptune.ir.program import ZERO, For, seq
from neptune.schedule.solve_bounds import MOST, Alternative, Bound, Solved
from neptune.schedule.visited import Range, ranges, usable
from neptune.verify.instances import number

N = 12
LOOP = For("j", ZERO, Var("n"), seq())


def value(e: Expr) -> int:
    return number(e, {"n": N})


def upper(some: int, every: int) -> Bound:
    return Bound(True, Const(some, "int32"), Const(every, "int32"))


def lower(some: int, every: int) -> Bound:
    return Bound(False, Const(some, "int32"), Const(every, "int32"))


ends = st.integers(0, N + 2)
bounds = st.one_of(
    st.builds(lambda a, b: upper(max(a, b), min(a, b)), ends, ends),
    st.builds(lambda a, b: lower(min(a, b), max(a, b)), ends, ends),
)
alternatives = st.builds(Alternative, st.lists(bounds, min_size=1, max_size=2).map(tuple), st.booleans())
solved = st.builds(Solved, st.just(FALSE), st.lists(alternatives, min_size=1, max_size=3).map(tuple), st.booleans())


def inside(b: Bound, j: int, *, everywhere: bool) -> bool:
    at = value(b.everywhere if everywhere else b.somewhere)
    return j < at if b.upper else j >= at


def needed(s: Solved, j: int) -> bool:
    return not s.skips or any(all(inside(b, j, everywhere=False) for b in a.bounds) for a in s.alternatives)


def full(s: Solved, j: int) -> bool:
    return any(not a.open and all(inside(b, j, everywhere=True) for b in a.bounds) for a in s.alternatives)


def clean_of(r: Range) -> set[int]:
    if r.begins is None or r.ends is None:
        return set()
    lo, hi = value(r.lo), value(r.hi)
    begin = reduce(max, map(value, r.begins), lo)
    return set(range(begin, reduce(min, map(value, r.ends), hi)))


@settings(max_examples=400, deadline=None)
@given(st.lists(solved, min_size=1, max_size=3))
def test_ranges(given_: list[Solved]) -> None:
    kept = usable(given_)
    found = ranges(kept, LOOP)
    tiles = [j for r in found for j in range(value(r.lo), value(r.hi))]
    assert len(tiles) == len(set(tiles)), "twice"
    assert tiles == sorted(tiles) and all(0 <= j < N for j in tiles)
    assert {j for j in range(N) if all(needed(s, j) for s in kept)} <= set(tiles)
    for r in found:
        assert all(full(s, j) for s in kept for j in clean_of(r))
    assert all(value(a.hi) <= value(b.lo) or value(b.hi) <= value(b.lo) for a, b in pairwise(found))


def test_one_set_after_another_is_exact() -> None:
    """A start, a window and an end: three ranges, and nothing between them."""
    sets = (
        Alternative((upper(2, 1),)),
        Alternative((lower(4, 5), upper(7, 6))),
        Alternative((lower(9, 10),)),
    )
    found = ranges([Solved(FALSE, sets, True)], LOOP)
    assert [(value(r.lo), value(r.hi)) for r in found] == [(0, 2), (4, 7), (9, N)]


@pytest.mark.parametrize("window", [(4, 7), (0, 9), (9, 9), (11, 3)])
def test_what_a_range_has_visited_the_next_leaves_out(window: tuple[int, int]) -> None:
    sets = (Alternative((upper(5, 5),)), Alternative((lower(window[0], 0), upper(window[1], N))))
    found = ranges([Solved(FALSE, sets, True)], LOOP)
    tiles = [j for r in found for j in range(value(r.lo), value(r.hi))]
    assert tiles == sorted({*range(5), *range(*window)})


def test_a_bound_that_is_exact_cuts_nothing_off_its_own_range() -> None:
    scanned = Solved(FALSE, (Alternative((lower(3, 3), upper(8, 8))),), True)
    (alone,) = ranges([scanned], LOOP)
    assert (alone.begins, alone.ends) == ((), ()) and clean_of(alone) == set(range(3, 8))
    both = Solved(FALSE, (Alternative((upper(5, 5),)), Alternative((upper(8, 6),), open=True)), True)
    (hull,) = ranges([both], LOOP)
    assert value(hull.hi) == 8 and clean_of(hull) == set(range(5))


def test_sets_of_which_one_has_no_start() -> None:
    sets = (Alternative((upper(6, 6),)), Alternative((upper(6, 6), lower(2, 2))))
    (hull,) = ranges([Solved(FALSE, sets, False)], LOOP)
    assert (value(hull.lo), value(hull.hi)) == (0, N) and clean_of(hull) == set(range(6))


def test_too_many_alternatives_leave_a_predicate_alone() -> None:
    def of(count: int) -> Solved:
        return Solved(
            Var(f"p{count}", "bool"), tuple(Alternative((lower(k, k), upper(k + 1, k))) for k in range(count)), True
        )

    assert usable([of(1), of(MOST)]) == [of(1), of(MOST)]
    assert usable([of(2), of(MOST), of(1)]) == [of(2), of(1)]


def test_a_few_elements_have_no_clean_tiles() -> None:
    few = Bound(True, Const(1, "int32"), Op("floordiv", (Const(4, "int32"), Var("BN")), "int32"))
    window = Alternative((lower(3, 4), upper(7, 6)))
    first, second = ranges([Solved(FALSE, (Alternative((few,)), window), True)], LOOP)
    assert first.begins is None and second.ends is not None


def test_alternatives_between_the_same_ends_share_a_clean_range() -> None:
    tail = lower(2, 3)
    sets = (Alternative((upper(5, 4), tail)), Alternative((upper(8, 7), tail)))
    (r,) = ranges([Solved(FALSE, sets, True)], LOOP)
    assert clean_of(r) == set(range(3, 7))
