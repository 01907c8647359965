"""The disjunctive normal form says the same as the predicate, on every assignment."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.expr import (
    FALSE,
    TRUE,
    Const,
    Expr,
    Op,
    Select,
    Var,
    conjuncts,
    eq,
    logical_and,
    logical_or,
    ne,
    op,
    select,
)
from neptune.ir.indices.normal import LIMIT, disjuncts, negation, one_mask
from neptune.ir.text.printer import print_expr

A, B, C = Var("a"), Var("b"), Var("c")
POINTS = dict(zip("abc", np.array(list(product(range(-1, 3), repeat=3))).T, strict=True))
EVALUATOR = Evaluator(Memory(Float64()))

atoms = st.builds(
    op, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), st.sampled_from([A, B]), st.sampled_from([B, C, A + C])
)
predicates = st.recursive(
    atoms,
    lambda e: st.one_of(
        st.builds(lambda x, y: op("and", x, y), e, e),
        st.builds(lambda x, y: op("or", x, y), e, e),
        st.builds(lambda x: op("not", x), e),
    ),
    max_leaves=6,
)


def truth(e: Expr) -> np.ndarray:
    return np.broadcast_to(EVALUATOR.run(e, POINTS), POINTS["a"].shape)


@given(predicates)
def test_the_same_predicate(e: Expr) -> None:
    sets = disjuncts(e)
    if sets is None:
        return
    assert (truth(logical_or(*(logical_and(*parts) for parts in sets))) == truth(e)).all()
    for atom in (x for parts in sets for x in parts):
        assert isinstance(atom, Op) and atom.name in ("lt", "le", "gt", "ge")


@given(predicates)
def test_negation(e: Expr) -> None:
    assert (truth(negation(e)) == ~truth(e)).all()


def test_floats_keep_their_not() -> None:
    """not (x < y) is true of a NaN, y <= x is not."""
    x, y = Var("x", "float32"), Var("y", "float32")
    below = op("not", x < y)
    assert disjuncts(below) == ((below,),)
    assert [print_expr(p) for parts in disjuncts(op("not", logical_and(x < y, A < B))) or () for p in parts] == [
        "not(x < y)",
        "a >= b",
    ]


@pytest.mark.parametrize(("e", "wanted"), [(TRUE, FALSE), (FALSE, TRUE), (op("not", A < B), A < B)])
def test_constants_and_double_negation(e: Expr, wanted: Expr) -> None:
    assert negation(e) == wanted


def test_equality_is_two_comparisons() -> None:
    assert disjuncts(eq(A, B)) == ((A <= B, A >= B),)
    assert disjuncts(ne(A, B)) == ((A < B,), (A > B,))


def test_one_mask() -> None:
    x, low = Var("x", "float32"), Const(-math.inf, "float32")
    wanted = select(A <= B, x, low)
    assert one_mask(select(A > B, low, x)) == wanted
    assert one_mask(select(op("not", A <= B), low, x)) == wanted
    assert one_mask(select(B < 3, select(A > B, low, x), low)) == select(logical_and(B < 3, A <= B), x, low)
    nested = one_mask(select(B < 3, select(A < B, select(A < 1, x, low), low), low))
    assert isinstance(nested, Select) and conjuncts(nested.pred) == [B < 3, A < B, A < 1] and nested.then == x
    inside = op("exp", select(A > B, low, x))
    assert one_mask(inside) == op("exp", wanted)
    for same in (
        select(A < B, low, low),
        select(A < B, x, x),
        select(A < B, x, Const(0.0, "float32")),
        select(x < 1, low, x),
        x,
    ):
        assert one_mask(same) == same


def test_too_many_alternatives() -> None:
    two = [logical_or(Var(f"x{k}") < 0, Var(f"y{k}") < 0) for k in range(5)]
    assert disjuncts(logical_and(*two[:4])) is not None
    assert disjuncts(logical_and(*two)) is None
    assert disjuncts(logical_or(*(Const(k, "int32") > A for k in range(LIMIT + 1)))) is None
