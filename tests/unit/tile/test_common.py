"""common: what is computed twice in one statement gets a name."""

from __future__ import annotations

import pytest

import neptune
from bench.chain_programs import ROW_CHAINS
from neptune.ops.attention import prefill_causal
from neptune.tile.ir import Assign
from neptune.tile.passes.common import common
from tests.examples.kernels import (
    apply,
    assigned,
    column,
    count,
    fold,
    keeps_meaning,
    kernel,
    load,
    loop,
    map_,
    put,
    row,
    tile,
)

START = (Assign("a", load("w")), Assign("l", fold("max", load("w"))))
CENTRED = map_("sub", tile("a"), column(row("l")))


def test_a_square_of_a_difference() -> None:
    after = keeps_meaning(common, kernel(*START, put(map_("mul", CENTRED, CENTRED))))
    assert assigned(after, "a_sub") == [CENTRED] and count(after, "sub") == 1


def test_the_largest_first_and_its_parts_with_it() -> None:
    square = map_("mul", CENTRED, CENTRED)
    after = keeps_meaning(common, kernel(*START, put(map_("add", square, square))))
    assert (count(after, "sub"), count(after, "mul"), count(after, "add")) == (1, 1, 1)


def test_in_a_loop_it_is_computed_in_each_iteration() -> None:
    body = (
        Assign("l", map_("add", row("l"), fold("sum", map_("mul", CENTRED, CENTRED)))),
        Assign("a", map_("add", tile("a"), load())),
    )
    after = keeps_meaning(common, kernel(*START, loop(*body), put(map_("mul", CENTRED, tile("a")))))
    assert len(assigned(after, "a_sub")) == 1 and count(after, "sub") == 2


def test_what_stands_once_stays() -> None:
    before = kernel(*START, Assign("b", CENTRED), put(map_("mul", CENTRED, tile("b"))))
    assert apply(common, before) == before


@pytest.mark.compared
@pytest.mark.parametrize("name", ["variance", "weighted_variance"])
def test_running_moments_take_their_difference_once(name: str) -> None:
    chain = next(c for c in ROW_CHAINS if c.name == name)
    kernel = neptune.compile(chain.build(chain.depth), chain.template, target="llvm")
    assert "_sub * " in kernel.source or "_sub)" in kernel.source
    tiles = kernel.build.tiles
    assert [common(k) for k in tiles.kernels] == list(tiles.kernels)


@pytest.mark.compared
def test_attention_has_nothing_to_name() -> None:
    forms = {s.name: s.made for s in neptune.compile(prefill_causal(), "flash_attention", target="llvm").build.trail}
    assert forms["tile-common"] == forms["tile-crosswise"]
