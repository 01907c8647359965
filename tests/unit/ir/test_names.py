"""Programs have other names where generated code uses theirs itself."""

from __future__ import annotations

import keyword

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend import builder as nt
from neptune.frontend.assemble import Tensor, build
from neptune.ir.evaluate.program import evaluate
from neptune.ir.names import fits, usable, with_usable_names

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
    assert not fits(name) and fits(usable(name))
    if not keyword.iskeyword(name):
        made = with_usable_names(build(rows(name)))
        assert all(fits(n) for n in made.globals) and len(made.inputs) == 1
        y = evaluate(made, {made.inputs[0].name: np.arange(3.0)}, {"n": 3})["y"]
        assert y.tolist() == [1.0, 2.0, 3.0]


def test_an_argument_keeps_its_name_for_the_caller() -> None:
    kernel = neptune.compile(rows("max"), target="interpret", name="tl")
    assert kernel(max=torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["x", "m_prev", "BLOCK_M", "q1", "score"])
def test_good_names(name: str) -> None:
    assert fits(name)
