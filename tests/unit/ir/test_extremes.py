"""Extremes over a tile: never exceeded, and reached where one variable moves one atom; by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.expr import Const, Expr, Load, Var, binary, maximum, minimum
from neptune.ir.indices.affine import Scope, as_nonnegative, poly, to_expr
from neptune.ir.indices.extremes import Extremes

I0, I1, J, M, C, BM = Var("i0"), Var("i1"), Var("j"), Var("m"), Var("c"), Var("BM")
ROW = I0 * BM + I1
SCOPE = Scope(
    {"i0": (Const(0, "int32"), (M + BM - 1) // BM - 1), "i1": (Const(0, "int32"), BM - 1)}, {"m": 1, "c": 1, "BM": 1}
)
GUARDS = as_nonnegative(ROW < M) or []
EVALUATOR = Evaluator(Memory(Float64()))


def over_tile(e: Expr, sizes: dict[str, int], largest: bool) -> int:
    """By brute force, over the rows of the tile that there are."""
    rows = np.arange(min(sizes["BM"], sizes["m"] - sizes["i0"] * sizes["BM"]))
    values = np.broadcast_to(EVALUATOR.run(e, {**sizes, "i1": rows}), rows.shape)
    return int(values.max() if largest else values.min())


def check(e: Expr, *, exact: bool) -> None:
    for largest in (True, False):
        found = Extremes(SCOPE, GUARDS).of(poly(e), ["i1"], largest=largest)
        assert found is not None
        bound = to_expr(found)
        for m in (1, 3, 4, 5, 11, 16):
            for bm in (1, 2, 4, 8):
                for c in (1, 3, 7):
                    for i0 in range(-(-m // bm)):
                        sizes = {"m": m, "BM": bm, "c": c, "i0": i0, "j": 2}
                        wanted, got = over_tile(e, sizes, largest), int(EVALUATOR.run(bound, sizes))
                        assert got == wanted if exact else got >= wanted if largest else got <= wanted, (sizes, got)


@pytest.mark.parametrize(
    "e",
    [
        ROW,
        J - ROW,
        ROW // C,
        (ROW + J - M) // C * C,
        J - (ROW + 1) // 4,
        minimum(ROW, M - 3),
        maximum(ROW // 2, J) - M,
        (J - ROW) // C,
        ROW // C // 2,
    ],
    ids=str,
)
def test_one_atom_that_moves(e: Expr) -> None:
    check(e, exact=True)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_are_bounds(data: st.DataObject) -> None:
    parts = [ROW, J - ROW, ROW // C, (J - ROW) // C, minimum(ROW, J), M - maximum(ROW, C)]
    chosen = data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3))
    total = chosen[0]
    for p in chosen[1:]:
        total = binary(data.draw(st.sampled_from(["add", "sub"])), total, p)
    check(total, exact=False)


@pytest.mark.parametrize(
    "e", [ROW % C, ROW // (C - 1), ROW // ROW, ROW * Var("w"), Load("x", (ROW,), "int32")], ids=str
)
def test_unknown_directions(e: Expr) -> None:
    assert Extremes(SCOPE, GUARDS).of(poly(e), ["i1"], largest=True) is None


def test_data() -> None:
    def answer(load: Load, name: str, largest: bool) -> Expr:
        assert (load.buffer, name) == ("x", "i1")
        return Var("top" if largest else "bottom")

    e = J - Load("x", (ROW,), "int32") * 2
    found = Extremes(SCOPE, GUARDS, answer).of(poly(e), ["i1"], largest=True)
    assert found == poly(J - Var("bottom") * 2)
