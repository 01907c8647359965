"""Names that generated code could not use are refused at the door."""

from __future__ import annotations

import pytest

import neptune
from neptune.errors import ExpressionError
from neptune.frontend import builder as nt
from neptune.frontend.assemble import Tensor
from neptune.ir.names import fits

BAD = [
    "lambda",
    "tl",
    "triton",
    "grid",
    "num_warps",
    "range",
    "x_ptr",
    "stride_x",
    "offs_i",
    "k_kernel",
    "__x",
    "x_",
    "inf",
    "µ",
]


def rows(name: str) -> Tensor:
    n = nt.var("n")
    x = nt.placeholder((n,), "float32", name)
    return nt.compute((n,), lambda i: x[i] + 1.0, "y")


@pytest.mark.parametrize("name", BAD)
def test_bad_names(name: str) -> None:
    assert not fits(name)
    with pytest.raises(ExpressionError) as e:
        neptune.compile(rows(name), target="llvm")
    assert name in str(e.value) and len(str(e.value).splitlines()) <= 8


@pytest.mark.parametrize("name", ["x", "m_prev", "BLOCK_M", "q1", "score"])
def test_good_names(name: str) -> None:
    assert fits(name)


def test_the_name_of_a_kernel() -> None:
    with pytest.raises(ExpressionError):
        neptune.compile(rows("x"), target="llvm", name="tl")
