"""A bound on inputs holds for what it was told of them, by their extremes."""

from __future__ import annotations

import math

import numpy as np

from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.expr import Load, Var, op

X, Y = (Load(n, (Var("i"),), "float32") for n in "xy")


def test_a_predicate_holds_up_to_its_edges() -> None:
    n = Var("n")
    p = RangePredicate(X * Y, 3.4e38, 1.2e-38, n)
    assert p.text == "1.2e-38 < |x[i] * y[i]| < 3.4e+38 / n"
    assert p.buffers == {"x", "y"}
    sizes = {"n": 4}

    def holds(x: float, y: float) -> bool:
        return p.holds({"x": np.array([x, 0.0, math.inf]), "y": np.array([1.0, y])}, sizes)

    assert holds(1e18, 1e19) and holds(-1e-18, 1e-19)
    assert not holds(1e19, 1e19) and not holds(1e-19, 1e-20)
    assert p.holds({"x": np.zeros(3), "y": np.ones(3)}, sizes)


def test_a_count_that_is_not_known_is_the_largest_array() -> None:
    p = RangePredicate(X, 100.0, count=None)
    assert p.text == "|x[i]| < 1e+02 / n"
    assert p.holds({"x": np.full(9, 10.0)}, {}) and not p.holds({"x": np.full(10, 10.0)}, {})


def test_exponents() -> None:
    p = RangePredicate(op("exp", X), 3.4e38)
    assert p.holds({"x": np.array([88.0, -1e30])}, {}) and not p.holds({"x": np.array([89.0])}, {})
