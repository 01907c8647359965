"""What a masked value does downstream: every claim of "unchanged", and every near miss."""

from __future__ import annotations

import math

import pytest

from neptune.ir.analysis.absorb import NEG_INF, ONE, ZERO, Known, Same, absorbed, conjunct_false, known_value, unchanged
from neptune.ir.expr import TRUE, Cast, Const, Expr, Load, Var, cast, op, select
from neptune.ir.program import Stage, Store, Update

ROW, COL = Var("i"), Var("j")
PRED = COL <= ROW
S, SCORE, P = (Load(n, (ROW, COL), "float32") for n in ("s", "score", "p"))
M, L = Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
LOW = Const(-math.inf, "float32")
MASK = Stage("score", Store("score", (ROW, COL), select(PRED, S, LOW)))
MAX = Stage("m", Update(("m",), (ROW,), "max", (SCORE,), None))
EXP = Stage("p", Store("p", (ROW, COL), op("exp", SCORE - M)))
SUM = Stage("l", Update(("l",), (ROW,), "sum", (P,), None))
FLASH = [MASK, MAX, EXP, SUM]
CARRIED = frozenset({"m", "l"})


def holds(body: list[Stage], carried: frozenset[str] = CARRIED, finite: frozenset[str] = CARRIED) -> bool:
    return unchanged(body, carried, conjunct_false(PRED), {}, finite)


def test_flash_attention_absorbs_its_mask() -> None:
    assert holds(FLASH)


def test_with_repair() -> None:
    prev = Stage("m_prev", Store("m_prev", (ROW,), M))
    rescale = Stage("r", Store("r", (ROW,), op("exp", Load("m_prev", (ROW,), "float32") - M)))
    repair = Stage("l_repair", Store("l", (ROW,), L * Load("r", (ROW,), "float32")))
    assert holds([MASK, prev, MAX, EXP, rescale, repair, SUM])
    other_row = Stage("l_repair", Store("l", (ROW,), L * Load("r", (ROW + 1,), "float32")))
    assert not holds([MASK, prev, MAX, EXP, rescale, other_row, SUM])
    moved = Stage("l_repair", Store("l", (ROW,), Load("l", (ROW + 1,), "float32")))
    assert not holds([MASK, moved])


def test_an_accumulator_that_starts_from_minus_infinity_gives_nan() -> None:
    assert not holds(FLASH, finite=frozenset({"l"}))


@pytest.mark.parametrize(
    "body",
    [
        [Stage("score", Store("score", (ROW, COL), S)), MAX, EXP, SUM],  # no mask
        [MASK, MAX, EXP, Stage("l", Update(("l",), (ROW,), "max", (P,), None))],  # max(l, 0) is not l
        [MASK, MAX, Stage("l", Update(("l",), (ROW,), "sum", (SCORE,), None))],  # l - inf
        [MASK, MAX, EXP, Stage("l", Update(("l",), (ROW,), "sum", (P + 1.0,), None))],
        # The neighbour's score may be visible.
        [MASK, MAX, Stage("p", Store("p", (ROW, COL), op("exp", Load("score", (ROW, COL - 1), "float32") - M))), SUM],
        # p is written in even rows only: in the others it is what it was before.
        [MASK, MAX, Stage("p", EXP.action, ROW % 2 < 1), SUM],
        [*FLASH, Stage("x", Store("l", (ROW,), L + L))],
        [*FLASH, Stage("x", Store("l", (ROW,), Cast(Cast(L, "float16"), "float32")))],
    ],
)
def test_near_misses(body: list[Stage]) -> None:
    assert not holds(body)


def test_given_values() -> None:
    body = [Stage("score", Store("score", (ROW, COL), S), PRED), MAX, EXP, SUM]
    pred = conjunct_false(PRED)
    assert not unchanged(body, CARRIED, pred, {}, CARRIED)
    assert not unchanged(body, CARRIED, pred, {"score": NEG_INF}, CARRIED)  # read where it was not written
    guarded = [Stage(s.name, s.action, PRED) for s in body]
    assert unchanged(guarded, CARRIED, pred, {"score": NEG_INF}, CARRIED)


OLD = Same("x", True)
X, Y = Load("x", (), "float32"), Load("y", (), "float32")


@pytest.mark.parametrize(
    ("e", "known"),
    [
        (LOW, NEG_INF),
        (Const(0.0, "float32"), ZERO),
        (Const(1.0, "float32"), ONE),
        (Const(2.0, "float32"), None),
        (TRUE, None),
        (X - X, ZERO),
        (LOW - X, NEG_INF),
        (LOW - Y, None),
        (X + Const(0.0, "float32"), OLD),
        (X * Const(1.0, "float32"), OLD),
        (LOW * Const(0.0, "float32"), None),  # NaN
        (LOW * Const(2.0, "float32"), NEG_INF),
        (LOW * Const(-2.0, "float32"), None),
        (LOW * op("log2e"), NEG_INF),
        (Const(0.0, "float32") / X, ZERO),
        (Const(0.0, "float32") / Const(0.0, "float32"), None),
        (X / X, None),  # 0/0 where x is 0
        (op("exp", LOW), ZERO),
        (op("exp2", X - X), ONE),
        (op("exp", X), None),
        (op("abs", X), None),
        (select(PRED, X, LOW), NEG_INF),
        (select(ROW < 3, X, X), OLD),
        (select(ROW < 3, X, LOW), None),
        (cast(LOW, "float16"), NEG_INF),
        (cast(LOW, "int32"), None),
        (cast(LOW, "float8_e4m3fn"), None),
        (LOW.astype("float16") - X.astype("float16"), None),  # the finite extreme overflows to -inf
        (X.astype("float16").astype("float32") - X, None),
    ],
)
def test_values(e: Expr, known: Known) -> None:
    assert known_value(e, {"x": OLD}, conjunct_false(PRED)) == known


def test_reducers() -> None:
    assert absorbed("sum", ZERO) and absorbed("max", NEG_INF) and absorbed("prod", ONE)
    assert not absorbed("min", NEG_INF) and not absorbed("sum", None) and not absorbed("max", ZERO)


def test_tuples_are_not_followed() -> None:
    pair = Stage("t", Update(("m", "l"), (ROW,), "max", (SCORE, SCORE), None))
    assert not holds([MASK, pair])
