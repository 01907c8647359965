"""The table of reducers says the truth about each row."""

from __future__ import annotations

import math
from functools import partial, reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Op, Var
from neptune.ir.reducers import BY_SYMBOL, REDUCERS, Reducer

rows = pytest.mark.parametrize("row", REDUCERS.values(), ids=REDUCERS.keys())


def fold(row: Reducer, x: int, y: int) -> int:
    """state ⊕ value, as the combine expression says (integer constants fold)."""
    (e,) = row.combine((Const(x, "int64"),), (Const(y, "int64"),))
    assert isinstance(e, Const)
    return int(e.value)


@rows
def test_rows_are_keyed_by_name_and_symbol(row: Reducer) -> None:
    assert REDUCERS[row.name] is row and BY_SYMBOL[row.symbol] is row
    assert row.symbol.endswith("=") and row.symbol not in ("=", "==", "<=", ">=", "!=")


@rows
def test_combine_keeps_order_and_dtype(row: Reducer) -> None:
    s, v = Var("s", "float16"), Var("v", "float16")
    combined = row.combine((s,) * row.width, (v,) * row.width)
    assert len(combined) == row.width
    assert all(isinstance(e, Op) and e.args == (s, v) and e.dtype == "float16" for e in combined)


@rows
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_identity_has_the_dtype_and_is_finite(row: Reducer, dtype: str) -> None:
    identity = row.identity(dtype)
    assert len(identity) == row.width
    for c in identity:
        assert c.dtype == dtype and isinstance(c.value, float if is_float(dtype) else int)
        assert math.isfinite(c.value) and DTYPES[dtype].lowest <= c.value <= DTYPES[dtype].highest


@rows
@settings(max_examples=50, deadline=None)
@given(x=st.integers(-99, 99), y=st.integers(-99, 99), z=st.integers(-99, 99))
def test_algebra(row: Reducer, x: int, y: int, z: int) -> None:
    (start,) = row.identity("int64")
    assert fold(row, int(start.value), x) == x
    assert row.associative and fold(row, fold(row, x, y), z) == fold(row, x, fold(row, y, z))
    assert row.commutative and fold(row, x, y) == fold(row, y, x)
    if row.idempotent:
        assert fold(row, x, x) == x
    if row.monotone:
        assert (fold(row, x, y) - x) * row.monotone >= 0


@rows
def test_flags_that_are_off_are_off_for_a_reason(row: Reducer) -> None:
    if not row.idempotent:
        assert fold(row, 3, 3) != 3
    if not row.monotone:
        assert {fold(row, 3, y) < 3 for y in (-2, 2)} == {True, False}


def test_reducers_fold_a_list() -> None:
    values = [3, -1, 4, 1, -5]
    results = {name: reduce(partial(fold, row), values) for name, row in REDUCERS.items()}
    assert results == {"sum": 2, "prod": 60, "max": 4, "min": -5}
