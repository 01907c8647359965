"""Operators of torch: names that none can have."""

from __future__ import annotations

import neptune
from neptune.errors import ShapeError
from neptune.frontend.builder import build, compute
from neptune.ops.softmax import figure1, softmax
from tests.errors.table import case


@case(ShapeError)
def an_operator_without_a_namespace() -> None:
    neptune.compile(figure1(), target="interpret").torch_op("softmax")


@case(ShapeError)
def an_operator_that_torch_has() -> None:
    neptune.compile(figure1(), target="interpret").torch_op("aten::softmax")


@case(ShapeError)
def an_operator_of_another_kernel() -> None:
    neptune.compile(figure1(), target="interpret").torch_op("neptune_tests::figure1")
    neptune.compile(softmax(), target="interpret").torch_op("neptune_tests::figure1")


@case(ShapeError)
def an_operator_without_tensors() -> None:
    constant = build(compute((4,), lambda i: i.astype("float32"), "y"))
    neptune.compile(constant, target="interpret").torch_op("neptune_tests::constant")
