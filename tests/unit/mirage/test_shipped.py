"""The shipped operators as kernel graphs: the same results in float64, or the reason why they are none."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.errors import ExpressionError
from neptune.ir.integers import evaluate_size
from neptune.mirage.reference import reference
from neptune.mirage.types import graph_types
from neptune.ops.shipped import OPERATORS, Shipped
from neptune.verify.evaluate import evaluate
from tests.unit.mirage.arrays import run

REASONS = ("`select`", "the index of ", "of int", "of float8", "reduction `top2`")
"""Masks, packed or rotated indices, integers, 8-bit floats, choices."""


def outcome(operator: Shipped) -> str:
    program = operator()
    try:
        graph = reference(program)
    except ExpressionError as error:
        return next((reason for reason in REASONS if reason in error.wrong), error.wrong)
    graph_types(graph)
    sizes = {s.name: 3 + k if s.dtype == "int32" else 0.7 for k, s in enumerate(program.scalars)}
    rng = np.random.default_rng(0)
    given = {b.name: rng.uniform(-1, 1, [evaluate_size(d, sizes) for d in b.shape]) for b in program.inputs}
    wanted = evaluate(program, given, sizes)
    for name, y in run(graph, given, sizes).items():
        np.testing.assert_allclose(y, wanted[name], rtol=1e-8, atol=1e-12)
    return "a graph"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_shipped_operator_is_a_graph_or_says_why_not() -> None:
    found = [outcome(o) for o in OPERATORS.values()]
    assert set(found) <= {"a graph", *REASONS}, found
    assert found.count("a graph") >= 33
