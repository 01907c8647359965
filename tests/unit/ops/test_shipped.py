"""The table of shipped operators."""

from __future__ import annotations

import pytest

from neptune.ir.program import Program
from neptune.ops.options import DTYPES
from neptune.ops.shipped import OPERATORS, Shipped, signature


@pytest.mark.parametrize("shipped", OPERATORS.values(), ids=OPERATORS)
def test_every_operator_is_made_for_every_dtype(shipped: Shipped) -> None:
    eight = shipped.family == "float8"
    for dtype in ("float8_e4m3fn", "float8_e5m2") if eight else DTYPES:
        program = shipped(dtype=dtype)
        assert isinstance(program, Program) and program.inputs[0].dtype == dtype
    assert signature(program).startswith(f"{program.inputs[0].name}: ")


@pytest.mark.parametrize("shipped", OPERATORS.values(), ids=OPERATORS)
def test_every_operator_is_described(shipped: Shipped) -> None:
    assert len(shipped.summary) > 20 and shipped.task
    assert shipped.summary[-1] != "." and "\n" not in shipped.summary


def test_calls_are_python() -> None:
    assert OPERATORS["geglu"].call == "linear.gated_linear(activation='gelu_tanh', trans_b=True)"
    assert OPERATORS["kernel_density"].call == "mixture.kernel_density(depth=64)"


def test_options_replace_those_of_the_table() -> None:
    assert "k: f32[cols, 8]" not in signature(OPERATORS["kernel_density"](depth=8))
    assert "y: f32[cols, 8]" in signature(OPERATORS["kernel_density"](depth=8))
