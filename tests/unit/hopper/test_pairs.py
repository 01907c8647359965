"""Operands in pairs: those that several loops carry, and no others."""

from __future__ import annotations

import pytest

from neptune.hopper.gluon.carried import paired
from neptune.hopper.ir import AStmt, Issue, Staged, tile_of, with_inside
from neptune.ir.expr import Cast, Const, Load, Var
from neptune.tile.ir import Assign, Dot, Local, Loop, Reduce, TExpr

P = Local("p", ("i", "j"), "float32")
ACC = Local("acc", ("i", "e"), "float32")


def operand(dtype: str) -> TExpr:
    return Local("x", ("i", "j"), dtype)


def made(dtype: str = "float16") -> Assign:
    return Assign("x", Cast(P, dtype))


def product(dtype: str = "float16") -> Issue:
    staged = tile_of(Staged("v", Load("v_turn", (), "int32"), ("j", "e"), dtype))
    return Issue("acc", Dot(operand(dtype), staged, ACC))


def loop(*body: AStmt) -> AStmt:
    return with_inside(Loop("t", Const(0, "int32"), Var("n"), ()), body)


def late(dtype: str = "float16") -> AStmt:
    return loop(product(dtype), made(dtype))


READ = Assign("total", Reduce("sum", "j", operand("float16")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_loops_one_after_another_carry(dtype: str) -> None:
    assert paired((made(dtype), late(dtype), late(dtype), product(dtype))) == {"x"}


@pytest.mark.parametrize(
    "body",
    [
        (made(), late(), product()),  # one loop: the compiler keeps pairs together
        (loop(made(), product()), loop(made(), product())),  # made where it is used
        (made("float8_e4m3fn"), late("float8_e4m3fn"), late("float8_e4m3fn")),  # four to a register
        (made(), late(), late(), READ),
    ],
)
def test_others_stay_tiles(body: tuple[AStmt, ...]) -> None:
    assert paired(body) == frozenset()
