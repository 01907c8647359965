"""Offsets of blocks: never overlapping, optimal for few, never below the bound for many."""

import random

import pytest

from neptune.runtime.calls.offsets import EXACT, Block, Plan, plan


def drawn(rng: random.Random, count: int, steps: int = 6) -> list[Block]:
    ends = [sorted(rng.choices(range(steps), k=2)) for _ in range(count)]
    return [Block(rng.randrange(1, 9), first, last) for first, last in ends]


def disjoint(blocks: list[Block], found: Plan) -> bool:
    pairs = [(k, n) for k in range(len(blocks)) for n in range(k)]
    at = found.offsets
    return all(
        not blocks[k].meets(blocks[n]) or at[k] + blocks[k].size <= at[n] or at[n] + blocks[n].size <= at[k]
        for k, n in pairs
    )


def least(blocks: list[Block]) -> int:
    """The least size of all plans, by trying every offset below a size, for a few small blocks."""

    def fits(placed: list[tuple[Block, int]], rest: list[Block], room: int) -> bool:
        if not rest:
            return True
        b, *others = rest
        return any(
            all(not b.meets(p) or at + b.size <= lo or lo + p.size <= at for p, lo in placed)
            and fits([*placed, (b, at)], others, room)
            for at in range(room - b.size + 1)
        )

    return next(n for n in range(1, 1000) if fits([], blocks, n))


@pytest.mark.parametrize("seed", range(12))
def test_few_blocks_lie_as_well_as_any_offsets_do(seed: int) -> None:
    blocks = drawn(random.Random(seed), 5)
    found = plan(blocks)
    assert disjoint(blocks, found)
    assert found.bound <= found.size == least(blocks)


def test_eight_blocks_meet_a_bound_that_orders_by_size_and_life_do_not() -> None:
    rows = [(5, 4, 5), (2, 0, 3), (1, 4, 6), (4, 2, 5), (1, 3, 4), (2, 2, 5), (2, 5, 6), (5, 0, 3)]
    blocks = [Block(*row) for row in rows]
    found = plan(blocks)
    assert disjoint(blocks, found)
    assert found.size == found.bound == 14
    # A ninth block that meets nothing: then the orders alone decide, and the gap is there to be read.
    more = plan([*blocks, Block(1, 9, 9)])
    assert (more.size, more.bound) == (15, 14)


def test_many_blocks_have_a_bound_and_do_not_overlap() -> None:
    rng = random.Random(1)
    for count in (EXACT + 1, 30):
        blocks = drawn(rng, count, 12)
        found = plan(blocks)
        assert disjoint(blocks, found)
        assert found.bound <= found.size <= 1.5 * found.bound


def test_offsets_are_aligned() -> None:
    found = plan([Block(100, 0, 1), Block(60, 1, 2), Block(100, 2, 3)], alignment=256)
    assert found == Plan((0, 256, 0), 512, 512) or found == Plan((256, 0, 256), 512, 512)
    assert plan([]) == Plan((), 0, 0)
