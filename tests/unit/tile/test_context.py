"""contents: what tiles hold where a guard is false, and when that is forgotten.

align_to: common dimensions, one pattern.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Load, Op, Var, select
from neptune.ir.program import Stage, Update
from neptune.tile.context import Contents, align_to
from neptune.tile.ir import Local, Rearrange, Scalar

J, N = Var("j"), Var("n")
GUARD = J < N
INF = Const(-math.inf, "float32")
LOWEST = Const(-3.4028234663852886e38, "float32")
TILES = ("s", "t", "u", "m", "p")


def tile(name: str) -> Load:
    return Load(name, (J,), "float32")


X = Load("x", (J,), "float32")


def masked(load: Load) -> list[Expr]:
    return [GUARD]


def unmasked(load: Load) -> list[Expr]:
    return []


def outside(contents: Contents, e: Expr) -> object:
    return contents.outside(e, GUARD, masked, TILES)


def exp(e: Expr) -> Expr:
    return Op("exp", (e,), "float32")


def test_masked_loads_are_zero() -> None:
    contents = Contents()
    assert outside(contents, X) == "0" and outside(contents, X * 2.0) == "0" and outside(contents, X * X) == "0"
    assert contents.outside(X, GUARD, unmasked, TILES) is None
    assert outside(contents, X + 3.0) is None


@pytest.mark.parametrize("other", [tile("t"), Const(math.inf, "float32"), Var("scale", "float32")])
def test_zero_times_what_may_be_infinite(other: Expr) -> None:
    assert outside(Contents(), X * other) is None


@pytest.mark.parametrize("divisor", [tile("t"), Const(0.0, "float32"), X])
def test_zero_divided_by_what_may_be_zero(divisor: Expr) -> None:
    assert outside(Contents(), X / divisor) is None
    assert outside(Contents(), X / 2.0) == "0"


def scores() -> Contents:
    contents = Contents()
    contents.store("m", LOWEST, masked)
    contents.store("s", select(GUARD, tile("u") * 0.5, INF), masked)
    return contents


def test_what_a_mask_leaves_does_not_count() -> None:
    """A product in the branch that is not taken may be anything."""
    contents = Contents()
    contents.store("s", select(GUARD, X * tile("u"), INF), masked)
    assert outside(contents, tile("s")) == "-inf"


def test_an_exponential_below_a_maximum() -> None:
    contents = scores()
    contents.update("m", "max")
    contents.store("p", exp(tile("s") - tile("m")), masked)
    assert outside(contents, tile("p")) == "0"


@pytest.mark.parametrize("reducer", ["sum", "min", "prod"])
def test_other_reductions_may_reach_minus_infinity(reducer: str) -> None:
    contents = scores()
    contents.update("m", reducer)
    assert outside(contents, exp(tile("s") - tile("m"))) is None


def test_a_start_at_minus_infinity() -> None:
    contents = scores()
    contents.store("m", INF, masked)
    contents.update("m", "max")
    assert outside(contents, exp(tile("s") - tile("m"))) is None


def test_a_copy_of_a_maximum_is_one() -> None:
    contents = scores()
    contents.update("m", "max")
    contents.store("t", tile("m"), masked)
    contents.update("m", "max")
    assert outside(contents, exp(tile("s") - tile("t"))) == "0"


def test_a_copy_is_not_what_the_original_becomes() -> None:
    contents = scores()
    contents.store("t", tile("m"), masked)
    contents.update("m", "max")
    assert outside(contents, exp(tile("t") - tile("m"))) is None


def test_loads_keep_the_masks_they_had() -> None:
    contents = Contents()
    contents.store("t", X, unmasked)
    assert outside(contents, tile("t")) is None
    contents.store("t", X, masked)
    assert outside(contents, tile("t")) == "0"


def test_knowledge_goes_with_what_it_rests_on() -> None:
    contents = Contents()
    contents.store("s", X, masked)
    contents.store("t", tile("s") * 2.0, masked)
    contents.store("u", tile("t") * 2.0, masked)
    assert outside(contents, tile("u")) == "0"
    contents.store("s", Const(5.0, "float32"), masked)
    assert not {outside(contents, tile("u")), outside(contents, tile("t"))} & {"0", "1", "-inf"}


def test_a_tile_in_terms_of_itself() -> None:
    contents = Contents()
    contents.store("t", X, masked)
    contents.store("t", tile("t") * 2.0, masked)
    assert outside(contents, tile("t")) is not None and outside(contents, tile("t")) != "0"


def test_two_elements_of_one_tile() -> None:
    other = Load("t", (Var("i"),), "float32")
    assert outside(Contents(), tile("t") - tile("t")) == "0"
    assert outside(Contents(), tile("t") - other) is None


def test_stages_that_may_run() -> None:
    contents = scores()
    grow = Stage("m", Update(("m",), (), "max", (X,), None))
    contents.may_run([grow])
    assert outside(contents, exp(tile("s") - tile("m"))) == "0"
    contents.may_run([Stage("m", Update(("m",), (), "sum", (X,), None))])
    assert outside(contents, exp(tile("s") - tile("m"))) is None


# --- einops -------------------------------------------------------------------------------------

T = Local("t", ("a", "b"), "float32")


@pytest.mark.parametrize(
    "dims, pattern",
    [
        (("b", "a"), "a b -> b a"),
        (("c", "a", "b"), "a b -> 1 a b"),
        (("b", "c", "a"), "a b -> b 1 a"),
        (("a", "c", "b", "d"), "a b -> a 1 b 1"),
    ],
)
def test_a_pattern(dims: tuple[str, ...], pattern: str) -> None:
    assert align_to(T, dims) == Rearrange(T, pattern)


def test_what_needs_nothing() -> None:
    scalar = Scalar(Const(1.0, "float32"))
    point = Local("p", (), "float32")
    assert align_to(T, ("a", "b")) is T
    assert align_to(scalar, ("a",)) is scalar and align_to(point, ("a", "b")) is point


def test_patterns_do_not_pile_up() -> None:
    spread = align_to(Local("v", ("a",), "float32"), ("a", "b"))
    assert align_to(spread, ("b", "a")) == Rearrange(Local("v", ("a",), "float32"), "a -> 1 a")


def test_unit_dimensions_of_other_nodes() -> None:
    spread = align_to(Local("v", ("a",), "float32"), ("a", "b"))
    double = Op("add", (spread, spread), "float32")
    assert align_to(double, ("b", "a")) == Rearrange(double, "a 1 -> 1 a")


def test_every_permutation_means_what_it_says() -> None:
    einops = pytest.importorskip("einops")
    tile = Local("t", ("a", "b", "c"), "float32")
    data = np.arange(24).reshape(2, 3, 4)
    for dims in itertools.permutations("abc"):
        found = align_to(tile, dims)
        pattern = found.pattern if isinstance(found, Rearrange) else "a b c -> a b c"
        wanted = data.transpose([("a", "b", "c").index(d) for d in dims])
        assert found.dims == dims and np.array_equal(einops.rearrange(data, pattern), wanted)


def test_a_dimension_that_the_target_lacks() -> None:
    with pytest.raises(InternalError, match="aligned"):
        align_to(T, ("a",))
