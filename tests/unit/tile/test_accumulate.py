"""accumulate: starts fold into first uses, rescales into the sums behind them."""

from __future__ import annotations

import math

import pytest

from neptune.ir.expr import Const, Op
from neptune.tile.ir import Assign, Dot, Full, Local, Rearrange, Scalar, TileKernel
from neptune.tile.passes.accumulate import accumulate
from tests.examples.kernels import (
    LOWEST,
    assigned,
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

HIGHEST = -LOWEST


@pytest.mark.parametrize("reducer, op, start", [("sum", "add", 0.0), ("prod", "mul", 1.0)])
def test_an_identity_start_goes(reducer: str, op: str, start: float) -> None:
    before = kernel(Assign("a", full(start)), Assign("a", map_(op, row("a"), fold(reducer, load("w")))), put(row("a")))
    assert assigned(keeps_meaning(accumulate, before), "a") == [fold(reducer, load("w"))]


@pytest.mark.parametrize("reducer, start", [("max", LOWEST), ("min", HIGHEST)])
def test_the_finite_start_of_an_extreme_stays(reducer: str, start: float) -> None:
    """max(lowest, -inf) is lowest: the second row of x has nothing but -inf."""
    value = load("x") if reducer == "max" else map_("neg", load("x"))
    before = kernel(Assign("a", full(start)), Assign("a", map_(reducer, row("a"), fold(reducer, value))), put(row("a")))
    (merged,) = assigned(keeps_meaning(accumulate, before), "a")
    assert isinstance(merged, Op) and merged.args[0] == lit(start)


@pytest.mark.parametrize(
    "reducer, op, start", [("sum", "add", 1.0), ("prod", "mul", 0.0), ("max", "max", -math.inf), ("max", "max", 0.0)]
)
def test_another_start_stays(reducer: str, op: str, start: float) -> None:
    before = kernel(Assign("a", full(start)), Assign("a", map_(op, row("a"), fold(reducer, load("w")))), put(row("a")))
    assert len(assigned(keeps_meaning(accumulate, before), "a")) == 2


def test_a_product_starts_without_its_accumulator() -> None:
    a, b = load("w"), Rearrange(load("x"), "r c -> c r")
    acc = Local("s", ("r", "r"), "float32")
    start = Assign("s", Full(lit(0.0), acc.dims, "float32"))
    first = accumulate_body((start, Assign("s", Dot(a, b, acc))))
    assert first == (Assign("s", Dot(a, b, None)),)
    other = (Assign("s", Full(lit(1.0), acc.dims, "float32")), Assign("s", Dot(a, b, acc)))
    assert accumulate_body(other) == other


def accumulate_body(body: tuple[Assign, ...]) -> tuple[object, ...]:
    return accumulate(TileKernel("k", (), (), body)).body


def test_a_rescale_joins_its_sum() -> None:
    before = kernel(
        Assign("l", full(2.0)),
        loop(
            Assign("f", fold("sum", load("w"))),
            Assign("l", map_("mul", row("l"), row("f"))),
            Assign("l", map_("add", row("l"), row("f"))),
        ),
        put(row("l")),
    )
    after = keeps_meaning(accumulate, before)
    assert assigned(after, "l") == [full(2.0), map_("add", map_("mul", row("l"), row("f")), row("f"))]


def test_a_read_in_between_keeps_both() -> None:
    before = kernel(
        Assign("l", full(2.0)),
        Assign("l", map_("mul", row("l"), fold("sum", load("w")))),
        Assign("d", row("l")),
        Assign("l", map_("add", row("l"), row("d"))),
        put(map_("add", row("l"), row("d"))),
    )
    assert len(assigned(keeps_meaning(accumulate, before), "l")) == 3


def test_two_reads_of_the_accumulator_keep_both() -> None:
    before = kernel(
        Assign("l", fold("sum", load("w"))),
        Assign("l", map_("mul", row("l"), row("l"))),
        Assign("l", map_("add", row("l"), row("l"))),
        put(row("l")),
    )
    assert len(assigned(keeps_meaning(accumulate, before), "l")) == 3


def test_a_start_read_twice_stays() -> None:
    twice = map_("add", row("a"), map_("mul", row("a"), fold("sum", load("w"))))
    before = kernel(Assign("a", full(0.0)), Assign("a", twice), put(row("a")))
    assert len(assigned(keeps_meaning(accumulate, before), "a")) == 2


def test_a_start_that_broadcasts_stays() -> None:
    """Without the start, the tile would lose its columns."""
    spread = map_("add", tile("a"), Rearrange(fold("sum", load("w")), "r -> r 1"))
    before = kernel(Assign("a", full(0.0, ("r", "c"))), Assign("a", spread), put(tile("a")))
    assert len(assigned(keeps_meaning(accumulate, before), "a")) == 2


def test_a_start_outside_of_a_loop_stays() -> None:
    step = Assign("a", map_("add", row("a"), fold("sum", load("w"))))
    before = kernel(Assign("a", full(0.0)), loop(step), put(row("a")))
    assert len(assigned(keeps_meaning(accumulate, before), "a")) == 2


def test_integer_extremes() -> None:
    t = Scalar(Const(-(2**31), "int32"))
    start = Full(t, ("r",), "int32")
    a = Local("a", ("r",), "int32")
    step = (Assign("a", start), Assign("a", Op("max", (a, a), "int32")))
    assert accumulate_body(step) == step
