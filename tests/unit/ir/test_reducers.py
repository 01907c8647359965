"""The table of reducers says the truth about each row."""

from __future__ import annotations

import itertools
import math
import operator
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Expr, Op, Select, Var, variables
from neptune.ir.ops import INTEGER
from neptune.ir.reducers import BY_OP, BY_SYMBOL, MAX_K, REDUCERS, Reducer, top_k

SCALARS = {name: row for name, row in REDUCERS.items() if row.width == 1 and row.folds == "numbers"}
INTEGERS = {name: row for name, row in REDUCERS.items() if row.width == 1 and row.folds != "bools"}
CHOICES = {name: row for name, row in REDUCERS.items() if row.best}
rows = pytest.mark.parametrize("row", SCALARS.values(), ids=SCALARS.keys())
integer_rows = pytest.mark.parametrize("row", INTEGERS.values(), ids=INTEGERS.keys())
choices = pytest.mark.parametrize("row", CHOICES.values(), ids=CHOICES.keys())


def fold(row: Reducer, x: int, y: int) -> int:
    """state ⊕ value, as the combine expression says (integer constants fold)."""
    (e,) = row.combine((Const(x, "int64"),), (Const(y, "int64"),)).result
    return int(e.value) if isinstance(e, Const) else int(INTEGER[row.op](x, y))


@pytest.mark.parametrize("row", REDUCERS.values(), ids=REDUCERS.keys())
def test_rows_are_keyed_by_name_and_symbol(row: Reducer) -> None:
    assert REDUCERS[row.name] is row and BY_SYMBOL[row.symbol] is row
    assert row.symbol.endswith("=") and row.symbol not in ("=", "==", "<=", ">=", "!=")
    assert row.width == 1 or row.leads in BY_OP


@rows
def test_combine_keeps_order_and_dtype(row: Reducer) -> None:
    s, v = Var("s", "float16"), Var("v", "float16")
    combined = row.combine((s,), (v,))
    assert not combined.lets
    assert all(isinstance(e, Op) and e.args == (s, v) and e.dtype == "float16" for e in combined.result)


@rows
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_identity_has_the_dtype_and_is_finite(row: Reducer, dtype: str) -> None:
    (c,) = row.identity(dtype)
    assert c.dtype == dtype and isinstance(c.value, float if is_float(dtype) else int)
    assert math.isfinite(c.value) and DTYPES[dtype].lowest <= c.value <= DTYPES[dtype].highest


@integer_rows
@settings(max_examples=50, deadline=None)
@given(x=st.integers(-99, 99), y=st.integers(-99, 99), z=st.integers(-99, 99))
def test_algebra(row: Reducer, x: int, y: int, z: int) -> None:
    (start,) = row.identity("int64")
    assert fold(row, int(start.value), x) == x
    assert row.associative and fold(row, fold(row, x, y), z) == fold(row, x, fold(row, y, z))
    assert row.commutative and fold(row, x, y) == fold(row, y, x)
    if row.idempotent:
        assert fold(row, x, x) == x
    assert fold(row, x, int(row.nothing("int64").value)) == x
    if row.moves:
        assert (fold(row, x, y) - x) * row.moves >= 0


@integer_rows
def test_flags_that_are_off_are_off_for_a_reason(row: Reducer) -> None:
    if not row.idempotent:
        assert fold(row, 3, 3) != 3
    if not row.moves:
        assert {fold(row, 3, y) < 3 for y in (-2, 2, 4)} == {True, False}


@rows
def test_neutral_changes_no_float(row: Reducer) -> None:
    combine = {"add": operator.add, "mul": operator.mul, "max": max, "min": min}[row.op]
    neutral = row.nothing("float32")
    assert neutral == Const(float(row.neutral), "float32")
    assert all(combine(v, row.neutral) == v for v in (-math.inf, -3.5, 0.0, 2.0, math.inf))
    (start,) = row.identity("float32")
    assert combine(float(start.value), row.neutral) == start.value


@pytest.mark.parametrize("name, meet", [("all", operator.and_), ("any", operator.or_)])
def test_truth_values(name: str, meet: Any) -> None:
    row = REDUCERS[name]
    (start,) = row.identity("bool")
    assert start == row.nothing("bool") and isinstance(start.value, bool)
    for a, b in itertools.product((False, True), repeat=2):
        (e,) = row.combine([Var("a", "bool")], [Var("b", "bool")]).result
        folded = run(e, {"a": a, "b": b})
        assert folded == meet(a, b) and meet(a, start.value) == a
        assert (int(folded) - int(a)) * row.moves >= 0


def test_reducers_fold_a_list() -> None:
    values = [3, -1, 4, 1, -5]
    results = {name: reduce(partial(fold, row), values) for name, row in INTEGERS.items()}
    bits = {"bitor": 3 | -1 | 4 | 1 | -5, "bitxor": 3 ^ -1 ^ 4 ^ 1 ^ -5}
    assert results == {"sum": 2, "prod": 60, "max": 4, "min": -5} | bits


def test_each_row_takes_its_kind_alone() -> None:
    for row in REDUCERS.values():
        taken = {d for d in DTYPES if row.takes(d)}
        bools, floats = {"bool"}, {d for d in DTYPES if is_float(d)}
        others = {"bools": {*DTYPES} - bools, "integers": bools | floats, "numbers": bools}[row.folds]
        assert taken == {*DTYPES} - others


# --- choices of pairs --------------------------------------------------------------------------

PairOf = tuple[float, int]
LAST = 2**31 - 1
COMPARE = {
    "gt": operator.gt,
    "lt": operator.lt,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


def key(row: Reducer, pair: PairOf) -> tuple[int, float, int]:
    """Sorts pairs as the rows are documented to: NaN, then by value, then by index."""
    value, index = pair
    return (0, 0.0, index) if value != value else (1, -value if row.best == "gt" else value, index)


def run(e: Expr, env: dict[str, Any]) -> Any:
    match e:
        case Const(value, _):
            return value
        case Var(name, _):
            return env[name]
        case Select(p, a, b):
            return run(a, env) if run(p, env) else run(b, env)
        case Op(name, args, _):
            return COMPARE[name](*(run(a, env) for a in args))
    raise AssertionError(e)


def merged(row: Reducer, a: list[PairOf], b: list[PairOf]) -> list[PairOf]:
    """state ⊕ value of two sorted lists, each filled up with the identity."""
    k = row.width // 2
    dtypes = [*["float32"] * k, *["int32"] * k]
    names = [[Var(f"{side}{t}", d) for t, d in enumerate(dtypes)] for side in "sv"]
    nothing = row.identity(*dtypes)
    env: dict[str, Any] = {}
    for group, part in zip(names, (a, b), strict=True):
        full = part + [(float(nothing[0].value), int(nothing[k].value))] * (k - len(part))
        flat = [*(v for v, _ in full), *(i for _, i in full)]
        env |= {v.name: x for v, x in zip(group, flat, strict=True)}
    combined = row.combine(*names)
    for name, e in combined.lets:
        env[name.name] = run(e, env)
    found = [run(e, env) for e in combined.result]
    return list(zip(found[:k], found[k:], strict=True))


def same(a: list[PairOf], b: list[PairOf]) -> bool:
    return repr(a) == repr(b)


numbers = st.sampled_from([1.0, 2.0, 3.0, -math.inf, math.inf, math.nan])


@choices
def test_nothing_comes_behind_every_value(row: Reducer) -> None:
    compare = COMPARE[row.best]
    assert not any(compare(row.neutral, v) for v in (-math.inf, -1.0, math.inf))
    assert row.nothing("float32") == row.identity(*["float32"] * (row.width // 2), *["int32"] * (row.width // 2))[0]
    assert row.nothing("int8").value == (-128 if row.best == "gt" else 127)


@choices
@settings(max_examples=60, deadline=None)
@given(data=st.lists(numbers, max_size=20), cut=st.integers(0, 20), turn=st.booleans())
def test_choices_merge_to_the_first_of_all_in_any_order(row: Reducer, data: list[float], cut: int, turn: bool) -> None:
    k = row.width // 2
    pairs = [(v, i) for i, v in enumerate(data)]
    nothing = (float(row.identity(*["float32"] * k, *["int32"] * k)[0].value), LAST)
    wanted = (sorted(pairs, key=partial(key, row)) + [nothing] * k)[:k]
    a, b = (sorted(part, key=partial(key, row))[:k] for part in (pairs[:cut], pairs[cut:]))
    assert same(merged(row, b, a) if turn else merged(row, a, b), wanted)


@choices
def test_elements_win_against_the_identity(row: Reducer) -> None:
    worst = -math.inf if row.best == "gt" else math.inf
    assert merged(row, [], [(worst, 7)])[0] == (worst, 7)
    assert merged(row, [], [])[0] == (worst, LAST)


@choices
def test_parts_may_be_written_one_after_the_other(row: Reducer) -> None:
    k = row.width // 2
    names = [[Var(f"{side}{t}", "float32" if t < k else "int32") for t in range(2 * k)] for side in "sv"]
    for t, e in enumerate(row.combine(*names).result):
        assert variables(e) & {v.name for v in names[0]} <= {f"s{t}"}


def test_rows_of_the_k_largest() -> None:
    assert [top_k(k).width for k in range(1, MAX_K + 1)] == list(range(2, 2 * MAX_K + 1, 2))
    assert top_k(2).identity("int8", "int8", "int64", "int64")[1:3] == (Const(-128, "int8"), Const(2**63 - 1, "int64"))


# --- sums of exponentials ---------------------------------------------------------------------------


def exponentials(values: list[float], order: list[int], tile: int) -> tuple[float, float]:
    """The pair of `values`, folded tile by tile in some order with the reducer's own code."""

    def merge(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        names = [Var(n, "float64") for n in ("a", "b", "x", "y")]
        combined = REDUCERS["lse"].combine(names[:2], names[2:])
        env: dict[str, np.float64] = {n.name: np.float64(v) for n, v in zip(names, (*a, *b), strict=True)}
        for let, e in combined.lets:
            env[let.name] = run(e, env)
        m, s = (run(e, env) for e in combined.result)
        return float(m), float(s)

    def run(e: Expr, env: dict[str, np.float64]) -> np.float64:
        match e:
            case Var(name, _):
                return env[name]
            case Const(value, _):
                return np.float64(value)
            case Op(name, args, _):
                parts = [run(a, env) for a in args]
                table = {"max": np.maximum, "add": np.add, "sub": np.subtract, "mul": np.multiply, "exp": np.exp}
                return np.float64(table[name](*parts))
            case _:
                raise AssertionError(e)

    start, none = REDUCERS["lse"].identity("float64", "float64"), (float("nan"), float("nan"))
    total = none
    for k in range(0, len(order), tile):
        part = (float(start[0].value), float(start[1].value))
        for at in order[k : k + tile]:
            part = merge(part, (values[at], 1.0))
        total = part if total is none else merge(total, part)
    return total


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(st.floats(-700, 700), st.just(-math.inf)), min_size=1, max_size=9),
    tile=st.integers(1, 4),
    rotate=st.integers(0, 8),
)
def test_any_order_of_tiles_gives_the_log_sum_exp(values: list[float], tile: int, rotate: int) -> None:
    order = [(k + rotate) % len(values) for k in range(len(values))]
    m, total = exponentials(values, order, tile)
    if all(v == -math.inf for v in values):
        assert total == 0 and math.isfinite(m)
    else:
        assert m == max(values) and total == pytest.approx(sum(math.exp(v - m) for v in values), rel=1e-12)


def test_two_of_minus_infinity_make_nothing() -> None:
    values = [-math.inf, -math.inf]
    assert exponentials(values, [0, 1], 1)[1] == 0
