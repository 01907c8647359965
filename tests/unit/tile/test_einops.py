"""align_to: common dimensions, one pattern."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from neptune.errors import InternalError
from neptune.ir.expr import Const, Op
from neptune.tile.context import align_to
from neptune.tile.ir import Local, Rearrange, Scalar

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
