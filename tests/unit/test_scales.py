"""Deferring may take a bounding scale out once, and says so; out of a square it is refused."""

from __future__ import annotations

import pytest

import neptune
from neptune.errors import FusionError
from neptune.frontend import builder as nt
from neptune.frontend.assemble import Tensor
from neptune.fusion.roles import Predecessor, Roles
from neptune.fusion.scales import scale_degree
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const, Load, Var, op

A = Load("a", (Var("i"),), "float32")
ONE = Const(1.0, "float32")
ROLES = Roles((Predecessor(A, "max", None),), frozenset({"j"}))


def chain(power: int) -> Tensor:
    """z[i] = Σ_j (x[i, j] / max_j |x[i, j]|)^power, written as a product."""
    n, k = nt.var("n"), nt.var("k")
    x = nt.placeholder((n, k), "float32", "x")
    j1, j2 = nt.reduce_axis((0, k), "j"), nt.reduce_axis((0, k), "j")
    a = nt.compute((n,), lambda i: nt.max(nt.abs(x[i, j1]), axis=j1), "a")

    def term(i: Var) -> object:
        value = x[i, j2] / a[i]
        for _ in range(power - 1):
            value = value * (x[i, j2] / a[i])
        return nt.sum(value, axis=j2)

    return nt.compute((n,), term, "z")


def test_degrees() -> None:
    assert scale_degree(ONE / A, ROLES) == 1
    assert scale_degree(ONE / A / A, ROLES) == 2
    assert scale_degree(ONE / op("pow", A, Const(3.0, "float32")), ROLES) == 3
    assert scale_degree(op("sqrt", A), ROLES) == 0.5
    assert scale_degree(ONE / A, Roles((Predecessor(A, "sum", None),), frozenset())) == 0


def roll(power: int) -> Schedule:
    sch = Schedule(neptune.compiler.as_program(chain(power)))
    sch.rolling_update("z", sch.loops("a")[1])
    return sch


def test_a_scale_is_deferred_and_reported() -> None:
    details = roll(1).decisions[-1].details
    assert any(d.startswith("assumed, not proved") and "float32" in d for d in details)


def test_the_scale_of_a_square_is_not() -> None:
    with pytest.raises(FusionError, match="overflows where the expression does not"):
        roll(2)
