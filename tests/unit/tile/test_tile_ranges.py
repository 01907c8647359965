"""ranges: what the elements of locals may be, by induction over what a kernel assigns."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from neptune.ir.expr import Cast, Const, Var
from neptune.ir.ops import Range
from neptune.tile.ir import Assign, Iota, Local, Scalar, TileKernel, TStmt
from neptune.tile.passes.sums import Lows, exponents, folded_into
from neptune.tile.ranges import ROUNDS, Elements, Ranges
from tests.examples.kernels import LOWEST, column, fold, full, kernel, lit, load, loop, map_, row, tile

S, M, L = tile("s"), row("m"), row("l")
SCORE = Assign("s", map_("tanh", load()))


def ranges(*body: TStmt) -> Ranges:
    return Ranges(kernel(*body).kernels[0])


def test_what_grows_grows_without_end_on_its_side_of_0() -> None:
    grown = map_("add", map_("mul", L, lit(0.5)), fold("sum", map_("abs", S)))
    sums = ranges(Assign("l", full(0.0)), SCORE, loop(Assign("l", grown)))
    assert (sums.of(L).lo, sums.of(L).hi) == (0.0, inf)
    signed = ranges(Assign("l", full(0.0)), loop(Assign("l", map_("add", L, fold("sum", load())))))
    assert signed.of(L).sign is None


def test_maxima_lie_among_what_they_fold() -> None:
    found = ranges(Assign("m", full(-7.0)), SCORE, loop(Assign("m", map_("max", M, fold("max", S)))))
    assert (found.of(M).lo, found.of(M).hi) == (-7.0, 1.0)
    assert found.of(map_("exp", column(M))).hi < 2.8


def test_what_passes_through_copies_round_a_loop() -> None:
    names = [f"v{k}" for k in range(ROUNDS)]
    copies = [Assign(b, row(a)) for a, b in pairwise(names)]
    start = [Assign(n, full(2.0)) for n in names]
    found = ranges(*start, loop(*reversed(copies), Assign("v0", full(5.0))))
    assert [(found.of(row(n)).lo, found.of(row(n)).hi) for n in names] == [(2.0, 5.0)] * ROUNDS


def test_what_is_read_before_it_is_assigned_may_be_anything() -> None:
    found = Ranges(TileKernel("k", (), (), (Assign("m", L), Assign("l", full(1.0)))))
    assert found.of(M) == Range()


def test_positions_and_casts() -> None:
    here = Elements({"c": Const(8, "int32")})
    assert here.of(map_("add", Iota("c"), Scalar(Const(64, "int32")))) == Range(64, 71, 64, True)
    assert here.of(Cast(Iota("c"), "float32")).hi == 7
    assert here.of(map_("mod", Scalar(Var("i")), Scalar(Const(4, "int32")))).lo == 0


def test_a_sum_of_exponentials_that_holds_its_maximum_is_at_least_1() -> None:
    p = Assign("p", map_("exp", map_("sub", S, column(M))))
    rescale = map_("exp", map_("sub", row("before"), M))
    step = (
        Assign("before", M),
        Assign("m", map_("max", M, fold("max", S))),
        p,
        Assign("l", map_("add", map_("mul", L, rescale), fold("sum", tile("p")))),
    )
    start = (Assign("m", full(LOWEST)), Assign("l", full(0.0)), Assign("s", load()))
    assert Lows(kernel(*start, loop(*step)).kernels[0]).of(L).least == 1
    another = Assign("m", map_("max", M, fold("max", map_("abs", S))))
    assert Lows(kernel(*start, loop(step[0], another, *step[2:])).kernels[0]).of(L).least == 0
    given = ranges(*start, loop(*step)).given
    assert exponents(tile("p"), given) == {(S, "m")}
    assert folded_into("l", "sum", step[3].value) == [map_("mul", L, rescale), tile("p")]
    assert folded_into("l", "sum", step[3].value, lambda by: by == rescale) == [tile("p")]
    assert folded_into("m", "max", full(LOWEST)) == [] == folded_into("m", "max", Local("m", M.dims, M.dtype))
