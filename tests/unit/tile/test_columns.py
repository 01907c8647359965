"""Masks of columns, as one comparison for each side: the same elements, for all integers that data may have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.hopper.ir import Levers
from neptune.ir.expr import Const, Expr, Op, Select, Var, conjuncts, op, walk
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import (
    Assign,
    Dot,
    Iota,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.columns import in_columns, limits
from neptune.tile.pipeline import lower
from neptune.tile.printer import print_texpr
from neptune.verify.instances import number
from qa.masks import cases
from tests.examples.lowering import scheduled
from tests.examples.walks import walked

LOW, HIGH = -(2**31), 2**31 - 1
ROWS, COLUMNS = 4, 8
ENV = {"n": 123, "i0": 1, "t": 3, "w": HIGH}
KNOWN = ("n", "i0")
AT = np.array([LOW, -37, 121, HIGH])
"""Data of rows; `w` is a number that is no size."""
COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def scalar(e: Expr | int) -> Scalar:
    return Scalar(Const(e, "int32") if isinstance(e, int) else e)


def var(name: str) -> Var:
    return Var(name, "int32")


ROW: TExpr = Op("add", (scalar(op("mul", var("i0"), Const(120, "int32"))), Iota("i")), "int32")
DATA: TExpr = Local("data", ("i",), "int32")
COLUMN: TExpr = Op("add", (scalar(op("mul", var("t"), Const(40, "int32"))), Iota("j")), "int32")
SCORE: TExpr = Local("s", ("i", "j"), "float32")
HIDDEN = Scalar(Const(float("-inf"), "float32"))


def across(e: TExpr) -> TExpr:
    return e if not e.dims else Rearrange(e, "j -> 1 j" if e.dims == ("j",) else "i -> i 1")


def value(e: TExpr, env: Mapping[str, int]) -> Any:
    """The elements, of integers that wrap around: as numbers that a register holds."""
    match e:
        case Scalar(x):
            return np.int64(number(x, env))
        case Iota(axis):
            return np.arange(ROWS if axis == "i" else COLUMNS, dtype=np.int64)
        case Local("data", _, _):
            return AT
        case Rearrange(arg, pattern):
            found = value(arg, env)
            return found[None, :] if pattern == "j -> 1 j" else found[:, None]
        case Op(name, (a, b), _):
            x, y = value(a, env), value(b, env)
            if (x.ndim == 1 and y.ndim == 2) or (x.ndim == 2 and y.ndim == 1):
                raise AssertionError("tiles of one dim meet those of two")
            if name in COMPARE:
                return COMPARE[name](x, y)
            if name in ("and", "or"):
                return x & y if name == "and" else x | y
            made = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "mul": np.multiply}[name](
                x, y
            )
            assert np.all((made >= LOW) & (made <= HIGH)), f"{name} leaves int32"
            return made
    raise AssertionError(f"{type(e).__name__} in a condition")


def of(name: str, a: TExpr, b: TExpr) -> TExpr:
    """A comparison over rows and columns; of one dim where both sides have one."""
    if "i" not in a.dims + b.dims:
        return Rearrange(Op(name, (a, b), "bool"), "j -> 1 j")
    return Op(name, (across(a), across(b)), "bool")


NUMBERS = [scalar(0), scalar(121), scalar(var("n")), scalar(var("w")), scalar(LOW), scalar(HIGH), ROW, DATA]
SIMPLE = st.builds(
    lambda name, side, x: of(name, COLUMN, x) if side else of(name, x, COLUMN),
    st.sampled_from(sorted(COMPARE)), st.booleans(), st.sampled_from(NUMBERS),
)  # fmt: skip
APART = st.builds(
    lambda name, x, row: Op(name, (Op("sub", (across(row), across(COLUMN)), "int32"), x), "bool"),
    st.sampled_from(sorted(COMPARE)), st.sampled_from([scalar(3), scalar(var("n"))]), st.just(ROW),
)  # fmt: skip
PREDICATES = st.recursive(
    SIMPLE | APART,
    lambda x: st.builds(lambda n, a, b: Op(n, (a, b), "bool"), st.sampled_from(["and", "or"]), x, x),
    max_leaves=5,
)
STORE = StoreTile(
    "o",
    (Rearrange(ROW, "i -> i 1"),),
    SCORE,
    Rearrange(Op("lt", (ROW, scalar(var("n"))), "bool"), "i -> i 1"),
    ("i", "j"),
)


@settings(max_examples=500, deadline=None)
@given(PREDICATES, st.sampled_from([3, -1]))
def test_the_same_elements_are_left(pred: TExpr, at: int) -> None:
    """Columns are what they are: of another axis than keys they may begin below 0."""
    env = {**ENV, "t": at}
    choice = Select(pred, SCORE, HIDDEN)
    made, *_ = in_columns((Assign("x", choice), STORE), KNOWN)
    assert isinstance(made, Assign) and isinstance(made.value, Select)
    assert made.value.then == SCORE and made.value.other == HIDDEN
    before, after = (np.broadcast_to(value(p, env), (ROWS, COLUMNS)) for p in (pred, made.value.pred))
    # Rows from n on leave nothing: 120, 121 and 122 do.
    stored = value(ROW, env) < env["n"]
    assert stored.sum() == 3
    np.testing.assert_array_equal(before[stored], after[stored])


@settings(max_examples=100, deadline=None)
@given(st.lists(SIMPLE | APART, min_size=1, max_size=5))
def test_of_a_conjunction_one_comparison_a_side_is_left(parts: list[TExpr]) -> None:
    pred = reduce(lambda a, b: Op("and", (a, b), "bool"), parts)
    made, *_ = in_columns((Assign("x", Select(pred, SCORE, HIDDEN)), STORE), KNOWN)
    assert isinstance(made, Assign) and isinstance(made.value, Select)
    found = limits(made.value.pred)
    assert found is not None and found.others == ()
    assert len(conjuncts(made.value.pred)) == sum(x is not None for x in (found.first, found.last))


# --- the masks that there are --------------------------------------------------------------------


def conditions(name: str) -> list[TExpr]:
    """The conditions of the loops of attention with a mask."""
    made = lower(scheduled(attention(heads=2, depth=64, causal=False, mask=cases()[name].mask), flash_attention))
    kernel = walked(made, Levers(2, 2, "table", tiles={"BLOCK_N": 64})).kernel
    loops: list[TStmt] = [s for s in walk_stmts(kernel.body) if isinstance(s, Loop)]
    every = [
        x for s in loops for y in walk_stmts((s,)) if isinstance(y, Assign) for e in stmt_exprs(y) for x in walk(e)
    ]
    return [x.pred for x in every if isinstance(x, Select) and len(x.pred.dims) == 2]


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("causal", None, "(((i0 * 64 + iota(i1)) + s_kv) - s_q)"),
        ("segments", "start", "min((max(end, -2147483647) - 1), (s_kv - 1))"),
    ],
)
def test_masks_compare_columns_with_numbers_of_rows(name: str, first: str | None, last: str) -> None:
    """Causal queries that there are see no key behind the last: nothing asks whether a key is there."""
    found = conditions(name)
    assert found
    for pred in found:
        said = limits(pred)
        assert said is not None and said.others == ()
        shown = tuple(None if x is None else print_texpr(x) for x in (said.first, said.last))
        assert shown == (first, last)


def test_where_rows_are_folded_those_behind_the_last_count() -> None:
    """A maximum or a product over rows sees them, too: the end of the columns is asked."""
    both = Op("and", (of("le", COLUMN, ROW), of("lt", COLUMN, scalar(var("n")))), "bool")
    folded = Assign("top", Reduce("max", "i", Local("x", ("i", "j"), "float32")))
    turned, right = Local("x", ("e", "i"), "float16"), Local("y", ("i", "j"), "float16")
    product = Assign("g", Dot(turned, right, None))
    for more, ends in (((), 1), ((folded,), 2), ((product,), 2)):
        made, *_ = in_columns((Assign("x", Select(both, SCORE, HIDDEN)), *more, STORE), KNOWN)
        assert isinstance(made, Assign)
        mins = [x for x in walk(made.value) if isinstance(x, Op) and x.name == "min"]
        assert len(mins) == ends - 1
