"""What the text for TVM reads many times: nested, in loops of one round, and where it is not chosen."""

from __future__ import annotations

import pytest
import torch

from neptune.codegen.llvm import compile_llvm
from neptune.ir.expr import Const, Expr, Load, Var, binary, cast, eq, logical_and, ne, op, select
from neptune.ir.program import Buffer, For, Program, Stage, Store
from neptune.verify.evaluate import evaluate

pytest.importorskip("tvm")

I = Var("i")  # noqa: E741
LENGTH = 8
MINUS = binary("sub", 0, I)
DATA = Load("k", (binary("mod", op("abs", MINUS), LENGTH),), "int32")
ROUNDED = cast(binary("mul", cast(MINUS, "bfloat16"), cast(I, "bfloat16")), "int32")
VALUES = {
    "abs of abs": op("abs", binary("sub", op("abs", MINUS), 2)),
    "mod of abs": binary("mod", op("abs", MINUS), 3),
    "div of abs": binary("floordiv", op("abs", MINUS), 3),
    "by data": binary("floordiv", binary("sub", 7, I), DATA),
    "mod by data of abs": binary("mod", binary("mod", op("abs", MINUS), DATA), 5),
    "mod of a rounding": binary("mod", binary("mod", ROUNDED, 5), 3),
    "div of a rounding by data": binary("mod", binary("floordiv", ROUNDED, DATA), 5),
    "by data at data": binary("mod", 7, Load("k", (binary("mod", binary("mod", 7, DATA), LENGTH),), "int32")),
    "what is not chosen": select(binary("lt", I, 2), binary("mod", binary("floordiv", 9, DATA), 5), op("abs", DATA)),
    "what is not asked": select(logical_and(binary("lt", I, 2), eq(binary("mod", 9, DATA), 0)), DATA, ROUNDED),
    "abs of a rounding": op("abs", binary("mod", op("abs", ROUNDED), 5)),
}


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("name", VALUES)
def test_nested_and_at_an_index(name: str, rounds: int) -> None:
    """Read at that index, and as the value itself."""
    inside = binary("mod", VALUES[name], LENGTH)
    check(binary("add", Load("k", (inside,), "int32"), VALUES[name]), rounds)


def check(value: Expr, rounds: int) -> None:
    """Compile y[i] = value and compare it with the evaluator."""
    k, y = Buffer("k", (Const(LENGTH, "int32"),), "int32"), Buffer("y", (Const(rounds, "int32"),), "int32")
    body = For("i", Const(0, "int32"), Const(rounds, "int32"), Stage("s", Store("y", (I,), value)), "serial")
    program = Program("p", (k,), (y,), (), (), (), body)
    data = torch.tensor([3, -2, 5, 1, -4, 2, 7, -1], dtype=torch.int32)
    got = torch.zeros(rounds, dtype=torch.int32)
    compile_llvm(program)([data], [got])
    assert got.tolist() == evaluate(program, {"k": data.numpy()}, {})["y"].tolist()


@pytest.mark.parametrize("guarded", [False, True])
def test_a_deep_expression_is_compiled_in_no_time(guarded: bool) -> None:
    """Twenty roundings and divisions by data, each inside the other; where names were written out five took minutes."""
    deep, by = cast(Load("k", (I,), "int32"), "bfloat16"), Load("k", (I,), "int32")
    for _ in range(20):
        deep = binary("sub", binary("mul", deep, Const(-1.0, "bfloat16")), Const(1.0, "bfloat16"))
    value: Expr = cast(deep, "int32")
    for _ in range(20):
        value = binary("mod", binary("add", value, 9), by)
    check(select(ne(by, 0), value, 0) if guarded else value, LENGTH)
