"""Views of values are groups of axes: what is merged is told apart again, and indices are right at every point."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from neptune.errors import Unsupported
from neptune.graph.imports import Import
from neptune.graph.sizes import Sizes, divided, same
from neptune.graph.values import AxisOf, Value, alike, view
from neptune.ir.expr import Const, Expr
from neptune.ir.integers import evaluate_size


def counted(shape: Sequence[int], free: Sequence[int] = ()) -> Value:
    """A value whose element is its row-major position, over axes of which some are expanded."""

    def at(i: tuple[Expr, ...]) -> Expr:
        e: Expr = Const(0, "int32")
        for k, n in enumerate(shape):
            if k not in free:
                e = e * n + i[k]
        return e

    return Value(tuple((AxisOf(n, k in free),) for k, n in enumerate(shape)), torch.int64, at)


def elements(v: Value) -> list[int]:
    sizes = [int(a.size) for a in v.axes]
    points = itertools.product(*map(range, sizes))
    return [evaluate_size(v.at(tuple(Const(i, "int32") for i in p)), {}) for p in points]


@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((2, 3, 4), (6, 4)),
        ((6, 4), (2, 3, 4)),
        ((2, 12), (2, 3, 4)),
        ((2, 3, 4), (24,)),
        ((24,), (1, 4, 6)),
        ((4, 6), (8, 3)),
    ],
)
def test_a_view_keeps_the_order_of_elements(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    made = view(counted(shape), to, Sizes())
    assert elements(made) == list(range(24))
    assert [len(g) == 0 for g in made.groups] == [n == 1 for n in to]


def test_a_view_that_merges_and_splits_again_is_no_arithmetic() -> None:
    v = counted((2, 3, 4))
    there = view(v, (6, 4), Sizes())
    assert [len(g) for g in there.groups] == [2, 1]
    back = view(there, (2, 3, 4), Sizes())
    assert back.groups == v.groups and back.at is v.at


def test_a_view_across_dimensions_is_refused() -> None:
    with pytest.raises(Unsupported, match="cuts a dimension of 4 into 3"):
        view(counted((4, 6)), (3, 8), Sizes())


def test_heads_that_share_keys_are_laid_over_each_other_by_one_division() -> None:
    q = counted((8, 5))
    k = view(counted((2, 4, 5), free=(1,)), (8, 5), Sizes())
    a, b = alike((q, k), 0, Sizes())
    assert [len(v.groups[0]) for v in (a, b)] == [1, 1]
    assert elements(b) == [(h // 4) * 5 + d for h in range(8) for d in range(5)]


def test_sizes_that_torch_writes_in_two_ways_are_the_same() -> None:
    s, t = sympy.symbols("s t", integer=True, positive=True)
    assert same(s * 4, 4 * s * s / s) and not same(s, t) and not same(s, 8)
    assert divided(s * t, s) == t and divided(s, t) is None and divided(12, 4) == 3 and divided(12, 5) is None


def test_every_table_row_has_an_operator_of_torch() -> None:
    from neptune.graph.importer import ROWS

    assert all(isinstance(target, torch._ops.OpOverload) for target in ROWS)


def test_numbers_take_the_dtype_beside_them() -> None:
    made = Import()
    one: Any = made.value(2, like=torch.float16)
    assert one.at(()).dtype == "float32" and made.value(2).dtype == torch.int64
    with pytest.raises(Unsupported, match="argument"):
        made.value("x")
