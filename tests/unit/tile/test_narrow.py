"""narrow: one element of what is the same along an axis."""

from __future__ import annotations

import pytest

from neptune.tile.ir import Assign, Local, Rearrange, TExpr
from neptune.tile.passes.narrow import narrow
from tests.examples.kernels import (
    TILE,
    apply,
    assigned,
    column,
    fold,
    full,
    keeps_meaning,
    kernel,
    lit,
    load,
    loop,
    map_,
    put,
    row,
    tile,
)

SUMS = Assign("s", fold("sum", load()))


def spread(t: TExpr) -> Rearrange:
    """A column's values for a whole tile: its second dimension has length one."""
    return column(t)


def added(value: TExpr) -> Assign:
    return Assign("b", map_("add", tile("b"), value))


def test_one_element_is_kept() -> None:
    """b is the same in every column: its sums are."""
    out = Assign("a", map_("add", tile("a"), map_("mul", load("w"), tile("b"))))
    before = kernel(
        SUMS,
        Assign("a", full(0.0, TILE)),
        Assign("b", full(0.0, TILE)),
        loop(out, added(spread(row("s")))),
        put(map_("add", tile("a"), tile("b"))),
    )
    after = keeps_meaning(narrow, before)
    assert {v.dims for v in assigned(after, "b")} == {("r", "1")}
    # Another tile that starts from the same value keeps its own.
    assert {v.dims for v in assigned(after, "a")} == {TILE}


@pytest.mark.parametrize(
    "use",
    [
        lambda: put(tile("b")),
        lambda: put(fold("sum", tile("b"))),
        lambda: put(map_("mul", tile("b"), lit(2.0))),
        lambda: put(map_("mul", tile("b"), tile("b"))),
    ],
)
def test_what_is_read_as_it_is_stays(use) -> None:  # type: ignore[no-untyped-def]
    before = kernel(SUMS, Assign("b", full(0.0, TILE)), loop(added(spread(row("s")))), use())
    assert apply(narrow, before) == before


def test_what_varies_stays() -> None:
    before = kernel(Assign("b", full(0.0, TILE)), loop(added(load())), put(map_("add", tile("b"), load("w"))))
    assert apply(narrow, before) == before


def test_rows_are_no_tiles() -> None:
    again = Assign("s", map_("add", row("s"), lit(1.0)))
    before = kernel(SUMS, loop(again), put(row("s")))
    assert apply(narrow, before) == before
    assert isinstance(row("s"), Local)
