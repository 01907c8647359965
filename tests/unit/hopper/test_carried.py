"""Sums of rows that stay in lanes, and operands in pairs: which ones, and where sums are collected."""

from __future__ import annotations

import pytest

from neptune.hopper.gluon.carried import Collected, paired, step_of, with_collected
from neptune.hopper.ir import AStmt, Finish, Issue, Staged, tile_of, with_inside
from neptune.ir.expr import Cast, Const, Load, Op, Var
from neptune.tile.ir import Assign, Branch, Dot, Full, Local, Loop, Reduce, Scalar, TExpr

L, R, OUT = Local("l", ("i",), "float32"), Local("r", ("i",), "float32"), Local("out", ("i",), "float32")
P = Local("p", ("i", "j"), "float32")
ZERO, ONE = Const(0.0, "float32"), Const(1.0, "float32")
ROWS = Reduce("sum", "j", P)
START = Assign("l", Full(Scalar(ZERO), ("i",), "float32"))
READ = Assign("out", Op("div", (Scalar(ONE), L), "float32"))


def add(a: TExpr, b: TExpr) -> TExpr:
    return Op("add", (a, b), "float32")


def mul(a: TExpr, b: TExpr) -> TExpr:
    return Op("mul", (a, b), "float32")


def loop(*body: Assign) -> Loop:
    return Loop("t", Const(0, "int32"), Var("n"), body)


STEP = Assign("l", add(mul(L, R), ROWS))


@pytest.mark.parametrize(
    "step",
    [STEP, Assign("l", add(ROWS, L)), Assign("l", add(ROWS, mul(R, L)))],
)
def test_a_sum_that_a_loop_carries_is_collected_behind_it(step: Assign) -> None:
    body: tuple[AStmt, ...] = (
        START,
        Branch(Const(True, "bool"), (step, loop(step))),
        Finish(0, ("acc",), ("l",)),
        READ,
    )
    found, names = with_collected(body)
    assert names == {"l"} and found == (*body[:3], Collected("l"), READ)


def test_it_may_be_scaled_alone() -> None:
    scaled = Assign("l", mul(L, R))
    assert step_of(scaled) is not None
    assert with_collected((START, loop(scaled, Assign("l", add(L, ROWS))), READ))[1] == {"l"}


@pytest.mark.parametrize(
    "body",
    [
        (START, loop(STEP, READ)),  # read while it is summed
        (START, loop(STEP), READ, loop(STEP)),  # and summed after
        (Assign("l", Full(Scalar(ONE), ("i",), "float32")), loop(STEP), READ),  # every lane would start with 1
        (START, loop(Assign("l", add(L, Reduce("max", "j", P)))), READ),
        (START, loop(Assign("l", add(L, Reduce("sum", "i", P)))), READ),
        (START, loop(Assign("l", add(mul(L, L), ROWS))), READ),
        (START, loop(Assign("l", add(mul(L, R), R))), READ),
        (START, loop(Assign("l", add(add(L, R), ROWS))), READ),  # r would be added in each lane
        (START, loop(Assign("l", R)), READ),
        (START, Branch(Op("lt", (Load("l", (), "float32"), ZERO), "bool"), ()), loop(STEP), READ),
        (loop(START, STEP), READ),
        (START, loop(STEP)),  # nothing reads it
    ],
)
def test_other_sums_are_of_whole_rows(body: tuple[AStmt, ...]) -> None:
    assert with_collected(body) == (body, frozenset())


# --- operands in pairs -------------------------------------------------------------------------

ACC = Local("acc", ("i", "e"), "float32")


def operand(dtype: str) -> TExpr:
    return Local("x", ("i", "j"), dtype)


def made(dtype: str = "float16") -> Assign:
    return Assign("x", Cast(P, dtype))


def product(dtype: str = "float16") -> Issue:
    staged = tile_of(Staged("v", Load("v_turn", (), "int32"), ("j", "e"), dtype))
    return Issue("acc", Dot(operand(dtype), staged, ACC))


def looped(*body: AStmt) -> AStmt:
    return with_inside(Loop("t", Const(0, "int32"), Var("n"), ()), body)


def late(dtype: str = "float16") -> AStmt:
    return looped(product(dtype), made(dtype))


TOTAL = Assign("total", Reduce("sum", "j", operand("float16")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_loops_one_after_another_carry(dtype: str) -> None:
    assert paired((made(dtype), late(dtype), late(dtype), product(dtype))) == {"x"}


@pytest.mark.parametrize(
    "body",
    [
        (made(), late(), product()),  # one loop: the compiler keeps pairs together
        (looped(made(), product()), looped(made(), product())),  # made where it is used
        (made("float8_e4m3fn"), late("float8_e4m3fn"), late("float8_e4m3fn")),  # four to a register
        (made(), late(), late(), TOTAL),
    ],
)
def test_others_stay_tiles(body: tuple[AStmt, ...]) -> None:
    assert paired(body) == frozenset()
