"""exp2: powers of two, maxima in units of log2, scales folded into the exponent; and when not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from neptune.ir.evaluate.floats import Rounded
from neptune.ir.expr import Cast, Const, Op, Select, Var, op, walk
from neptune.tile.ir import Assign, Branch, Local, Reduce, Scalar, StoreTile, TExpr, TileProgram, TStmt
from neptune.tile.passes.exp2 import exp2
from tests.examples.kernels import (
    LOWEST,
    TILE,
    Array,
    C,
    N,
    apply,
    assigned,
    body_of,
    column,
    count,
    fold,
    full,
    inputs,
    keeps_meaning,
    kernel,
    lit,
    load,
    loop,
    map_,
    nodes,
    put,
    row,
    same,
    tile,
)
from tests.examples.tile_examples import where

J = Var("j")
H = Cast(load("h", shift=J), "float32")
"""Scores that are not at the extremes."""
INSIDE = map_("lt", map_("add", C, Scalar(J)), Scalar(Const(7, "int32")))
M, L = row("m"), row("l")
START = (Assign("m", full(LOWEST)), Assign("l", full(0.0)))


def times(e: TExpr, c: float) -> Op:
    return map_("mul", e, lit(c))


def exp(e: TExpr) -> Op:
    return map_("exp", e)


def masked(e: TExpr, other: float = -math.inf) -> Select:
    return where(INSIDE, e, lit(other))


def step(score: TExpr) -> tuple[TStmt, ...]:
    """One step of an online sum of exponentials of `score`."""
    return (
        Assign("score", score),
        Assign("prev", M),
        Assign("m", map_("max", M, fold("max", tile("score")))),
        Assign("p", exp(map_("sub", tile("score"), column(M)))),
        Assign("f", exp(map_("sub", row("prev"), M))),
        Assign("l", map_("add", map_("mul", L, row("f")), fold("sum", tile("p")))),
    )


def online(score: TExpr, *end: TStmt, also: Sequence[TStmt] = ()) -> TileProgram:
    return kernel(*START, loop(*step(score), *also), *(end or (put(L),)))


def converted(program: TileProgram, name: str = "m") -> bool:
    """True if a maximum is kept in units of log2."""
    new = [n for e in assigned(program, name) for n in walk(e) if isinstance(n, Scalar)]
    return any(isinstance(x, Op) and x.name == "log2e" for s in new for x in walk(s.expr))


def check(before: TileProgram, data: dict[str, Array] | None = None) -> TileProgram:
    """The pass keeps the meaning, in float64, exactly, and in float32 with every node rounded."""
    after = keeps_meaning(exp2, before, data)
    same(before, after, data, exact=False, domain=Rounded(), tolerance=1e-5)
    assert count(after, "exp") == 0
    return after


# --- what it is for ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.125, 1.0, 3.0])
def test_a_scale_and_log2e_become_one_factor(scale: float) -> None:
    after = check(online(times(H, scale)))
    (p,) = assigned(after, "p")
    assert converted(after) and assigned(after, "score") == [H]
    factor = Scalar(op("mul", Const(scale, "float32"), op("log2e")))
    exponent = map_("sub", Op("mul", (tile("score"), factor), "float32"), column(M))
    assert p == Op("exp2", (exponent,), "float32")


def test_the_scale_moves_out_of_a_mask() -> None:
    after = check(online(masked(times(H, 0.5))))
    assert converted(after) and assigned(after, "score") == [masked(H)]


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_a_scale_that_turns_the_order_stays(scale: float) -> None:
    after = check(online(masked(times(H, scale))))
    assert converted(after) and assigned(after, "score") == [masked(times(H, scale))]


def test_a_mask_of_another_value_keeps_its_scale() -> None:
    after = check(online(masked(times(H, 0.5), -5.0)))
    assert assigned(after, "score") == [masked(times(H, 0.5), -5.0)]


def test_rows_without_any_score() -> None:
    none = where(map_("lt", C, Scalar(J - J)), times(H, 0.5), lit(-math.inf))
    assert converted(check(online(none)))


def test_a_score_with_another_use_keeps_its_scale() -> None:
    also = (Assign("z1", map_("add", tile("z1"), tile("score"))),)
    before = kernel(Assign("z1", full(0.0, TILE)), *START, loop(*step(times(H, 0.5)), *also), put(tile("z1")), put(L))
    assert assigned(check(before), "score") == [times(H, 0.5)]


def test_a_score_that_leaves_the_loop_keeps_its_scale() -> None:
    before = kernel(Assign("score", full(0.0, TILE)), *START, loop(*step(times(H, 0.5))), put(tile("score")), put(L))
    assert times(H, 0.5) in assigned(check(before), "score")


def test_a_score_that_the_next_step_reads_keeps_its_scale() -> None:
    seen = Assign("seen", map_("add", row("seen"), fold("max", tile("score"))))
    before = kernel(
        Assign("score", full(0.0, TILE)),
        Assign("seen", full(0.0)),
        *START,
        loop(seen, *step(times(H, 0.5))),
        put(row("seen")),
        put(L, "u"),
    )
    assert times(H, 0.5) in assigned(check(before), "score")


def test_two_pieces() -> None:
    """A clean loop and a masked branch, as `partition` leaves them."""
    masked_tail = where(
        map_("lt", C, Scalar(Const(3, "int32"))), times(Cast(load("h"), "float32"), 0.5), lit(-math.inf)
    )
    before = kernel(*START, loop(*step(times(H, 0.5))), Branch(N > 1, step(masked_tail)), put(L))
    after = check(before)
    assert converted(after) and not any(n == lit(0.5) for n in nodes(after))


def test_several_exponents_of_one_maximum() -> None:
    also = (
        Assign(
            "q", map_("add", row("q"), fold("sum", exp(map_("add", map_("sub", tile("score"), column(M)), lit(0.25)))))
        ),
    )
    before = kernel(Assign("q", full(0.0)), *START, loop(*step(times(H, 0.5)), *also), put(row("q")), put(L, "u"))
    assert converted(check(before))


def test_an_exponent_with_a_factor_around_the_maximum() -> None:
    also = (Assign("q", map_("add", row("q"), fold("sum", exp(times(map_("sub", tile("score"), column(M)), 2.0))))),)
    before = kernel(Assign("q", full(0.0)), *START, loop(*step(times(H, 0.5)), *also), put(row("q")), put(L, "u"))
    assert converted(check(before))


def test_an_exponential_inside_a_maximum() -> None:
    """The scale under the maximum moves out; the exponential under it is rewritten all the same."""
    fresh = fold("max", times(map_("tanh", exp(H)), 0.5))
    body = (Assign("m", map_("max", M, fresh)), Assign("l", map_("add", L, exp(map_("sub", row("l"), M)))))
    check(kernel(*START, loop(*body), put(L)))


def test_two_maxima() -> None:
    second = (
        Assign("m2", map_("max", row("m2"), fold("max", map_("sub", tile("score"), column(M))))),
        Assign("q", map_("add", row("q"), exp(map_("sub", map_("sub", row("m2"), M), row("m2"))))),
    )
    before = kernel(
        Assign("m2", full(LOWEST)),
        Assign("q", full(0.0)),
        *START,
        loop(*step(times(H, 0.5)), *second),
        put(row("q")),
        put(L, "u"),
    )
    check(before)


def test_a_whole_row_at_once() -> None:
    h = Cast(load("h"), "float32")
    before = kernel(
        Assign("m", map_("max", lit(LOWEST), fold("max", times(h, 0.5)))),
        put(exp(map_("sub", times(h, 0.5), column(M)))),
    )
    assert converted(check(before))


def lse_of(program: TileProgram) -> TExpr:
    last = body_of(program)[-1]
    assert isinstance(last, StoreTile)
    return last.value


# --- maxima read outside of exponents ------------------------------------------------------------


@pytest.mark.parametrize("way", ["gt", "le"])
def test_the_log_sum_exp(way: str) -> None:
    branches = (map_("add", M, map_("log", L)), lit(-math.inf))
    lse = where(map_(way, L, lit(0.0)), *(branches if way == "gt" else branches[::-1]))
    after = check(online(masked(times(H, 0.5)), put(lse)))
    # l > 0 says that the maximum is not at its start any more: no choice in the log-sum-exp but the user's.
    assert converted(after) and sum(isinstance(e, Select) for e in walk(lse_of(after))) == 1


def test_a_choice_that_a_nan_passes() -> None:
    """A sum that is NaN is not <= 0, although its maximum has not moved: max may drop NaN."""
    choice = where(map_("le", L, lit(0.0)), lit(0.0), M)
    after = check(online(masked(times(H, 0.5)), put(choice)))
    assert sum(isinstance(e, Select) for e in walk(lse_of(after))) == 2


@pytest.mark.parametrize("bias", [-1e30, 0.0])
def test_an_untouched_maximum_is_itself(bias: float) -> None:
    """In units of log2 the finite start is the finite start: read in natural units it must not shrink."""
    none = where(map_("lt", C, Scalar(J - J)), H, lit(-math.inf))
    after = apply(exp2, online(none, put(L), put(map_("sub", M, lit(bias)), "u")))
    same(
        online(none, put(L), put(map_("sub", M, lit(bias)), "u")), after, exact=False, domain=Rounded(), tolerance=1e-5
    )


def test_a_choice_that_says_nothing_of_the_maximum() -> None:
    """The condition is positive although the row has no score."""
    none = where(map_("lt", C, Scalar(J - J)), H, lit(-math.inf))
    other = where(map_("gt", row("g"), lit(0.0)), M, lit(0.0))
    before = kernel(Assign("g", full(1.0)), *START, loop(*step(none)), put(other), put(L, "u"))
    same(before, apply(exp2, before), exact=False, domain=Rounded(), tolerance=1e-5)


def test_a_sum_of_exponentials_of_something_else() -> None:
    """It is positive, but says nothing of this maximum."""
    none = where(map_("lt", C, Scalar(J - J)), H, lit(-math.inf))
    other = (Assign("g", map_("add", row("g"), fold("sum", exp(map_("sub", H, column(row("b"))))))),)
    value = where(map_("gt", row("g"), lit(0.0)), M, lit(0.0))
    start = (Assign("b", full(1.0)), Assign("g", full(0.0)))
    before = kernel(*start, *START, loop(*step(none), *other), put(value), put(L, "u"))
    same(before, apply(exp2, before), exact=False, domain=Rounded(), tolerance=1e-5)


def test_the_maximum_itself() -> None:
    assert converted(check(online(masked(times(H, 0.5)), put(L), put(M, "u"))))


# --- where it must keep the plain form -----------------------------------------------------------


@pytest.mark.parametrize("mask", [LOWEST, -2e38, -1e30])
def test_masks_at_the_finite_extreme(mask: float) -> None:
    """A row that is masked all over has equal weights, not none."""
    none = where(map_("lt", C, Scalar(J - J)), times(H, 0.5), lit(mask))
    assert not converted(check(online(none)))
    assert not converted(check(online(masked(times(H, 0.5), mask))))


@pytest.mark.parametrize("buffer", ["x", "w"])
def test_a_mask_from_memory(buffer: str) -> None:
    data = inputs()
    data[buffer][:2] = LOWEST
    data[buffer][2, 3:] = LOWEST
    after = apply(exp2, online(map_("add", times(H, 0.5), load(buffer))))
    same(online(map_("add", times(H, 0.5), load(buffer))), after, data, exact=False, domain=Rounded(), tolerance=1e-5)
    assert not converted(after) and count(after, "exp") == 0


@pytest.mark.parametrize(
    "score",
    [
        where(INSIDE, H, Scalar(Var("scale", "float32"))),
        map_("min", H, lit(-LOWEST)),
        map_("max", times(H, 0.5), lit(LOWEST)),
        map_("add", H, Scalar(Var("scale", "float32"))),
        map_("mul", Cast(load("h"), "float32"), Scalar(Var("scale", "float32"))),
        times(times(H, 1e20), 1e15),
        map_("mul", times(H, 1e20), times(H, 1e15)),
        map_("div", H, lit(1e-38)),
        map_("div", H, map_("add", H, H)),
        times(H, math.inf),
        where(INSIDE, H, lit(math.inf)),
    ],
)
def test_scores_of_unknown_size(score: TExpr) -> None:
    assert not converted(apply(exp2, online(score)))


@pytest.mark.parametrize(
    "score",
    [
        times(map_("tanh", times(load("x"), 0.02)), 50.0),
        map_("div", H, lit(8.0)),
        map_("neg", map_("abs", H)),
        map_("sub", times(H, 0.5), times(Cast(map_("add", C, Scalar(J)), "float32"), 0.125)),
        map_("max", H, lit(-3.0)),
        masked(masked(times(H, 0.5))),
    ],
)
def test_scores_of_known_size(score: TExpr) -> None:
    if any(n == load("x") for n in walk(score)):
        data = {**inputs(), "x": np.full((4, 8), -3.4e38)}
        assert converted(check(online(score), data))
    else:
        assert converted(check(online(score)))


def test_a_score_that_grows_from_step_to_step() -> None:
    grown = Assign("g", times(tile("g"), 1e12))
    before = kernel(Assign("g", full(1.0, TILE)), *START, loop(grown, *step(map_("add", tile("g"), H))), put(L))
    assert not converted(apply(exp2, before))


@pytest.mark.parametrize("start", [0.0, -math.inf, -3.0])
def test_another_start(start: float) -> None:
    before = kernel(Assign("m", full(start)), Assign("l", full(0.0)), loop(*step(masked(H))), put(L))
    data = inputs()
    assert not converted(keeps_meaning(exp2, before, data))


def test_a_minimum() -> None:
    body = (
        Assign("m", map_("min", M, fold("min", H))),
        Assign("l", map_("add", L, fold("sum", exp(map_("sub", column(M), H))))),
    )
    before = kernel(Assign("m", full(-LOWEST)), Assign("l", full(0.0)), loop(*body), put(L))
    assert not converted(check(before))


def test_a_maximum_that_is_also_assigned_otherwise() -> None:
    before = kernel(*START, loop(*step(H), Assign("m", map_("add", M, M))), put(L))
    assert not converted(keeps_meaning(exp2, before))


def test_a_maximum_that_no_exponent_reads() -> None:
    before = kernel(*START, loop(Assign("m", map_("max", M, fold("max", H)))), put(M))
    assert apply(exp2, before) == before


def test_a_copy_that_is_not_only_a_copy() -> None:
    """`prev` is a maximum or something else: it stays in natural units."""
    before = kernel(Assign("prev", full(0.25)), *START, loop(*step(H)), put(map_("add", row("prev"), L)))
    assert converted(check(before))


def test_large_terms_beside_the_maximum_that_cancel() -> None:
    big = map_("sub", load("w"), load("w"))
    also = (
        Assign("q", map_("add", row("q"), fold("sum", exp(map_("sub", map_("add", tile("score"), big), column(M)))))),
        Assign("q", map_("add", row("q"), fold("sum", exp(map_("sub", map_("sub", load("w"), column(M)), load("w")))))),
    )
    before = kernel(Assign("q", full(0.0)), *START, loop(*step(times(H, 0.5)), *also), put(row("q")), put(L, "u"))
    data = {**inputs(), "w": np.full((4, 8), 3e38)}
    after = apply(exp2, before)
    same(before, after, data, exact=False, domain=Rounded(), tolerance=1e-5)


def test_short_exponents_are_scaled_in_float32() -> None:
    """Scaled in float16, e^10 would be off by a percent."""
    h = Local("hh", TILE, "float16")
    before = kernel(Assign("hh", load("h")), put(Cast(Op("exp", (h,), "float16"), "float32")))
    data = {**inputs(), "h": np.linspace(-8, 10, 32).reshape(4, 8).round(2)}
    after = apply(exp2, before)
    same(before, after, data, exact=False, domain=Rounded(), tolerance=1e-3)
    assert not any(isinstance(n, Op) and n.name == "mul" and n.dtype == "float16" for n in nodes(after))


def test_reductions_are_left_alone() -> None:
    before = kernel(put(fold("sum", exp(times(load("w"), 0.5)))))
    after = check(before)
    assert sum(isinstance(n, Reduce) for n in nodes(after)) == 1
