"""numpy's and torch's functions of elements mean the same of expressions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neptune.frontend.builder import build, compute, maximum, placeholder, var
from neptune.ir import expr as ir
from neptune.ir.expr import OPS, Var, binary, op
from neptune.verify.evaluate import evaluate

X, Y = Var("x", "float32"), Var("y", "float32")
P, Q = Var("p", "bool"), Var("q", "bool")
N, M = Var("n"), Var("m")


@pytest.mark.parametrize(
    "name", [r.name for r in OPS.values() if r.kind == "math" and r.arity == 1 and r.name != "rsqrt"]
)
def test_functions_of_one_value(name):
    ours = op(name, X)
    if name in ("erf", "erfc", "lgamma", "sigmoid"):
        assert getattr(torch, name)(X) == ours
    else:
        assert getattr(torch, name)(X) == ours == getattr(np, {"round": "rint"}.get(name, name))(X)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (np.maximum(X, 0), maximum(X, 0)),
        (torch.maximum(X, Y), maximum(X, Y)),
        (np.power(X, 2), binary("pow", X, 2)),
        (np.float32(2) * X, 2.0 * X),
        (X / np.float64(3), X / 3.0),
        (N + np.int64(3), N + 3),
        (np.less(X, Y), X < Y),
        (torch.where(X > 0, X, 0.0), ir.select(X > 0, X, 0.0)),
        (np.logical_and(P, Q), ir.logical_and(P, Q)),
        (np.bitwise_xor(N, M), N ^ M),
        (np.invert(N), ~N),
        (np.remainder(N, M), N % M),
        (np.sign(X), ir.sign(X)),
        (torch.isnan(X), ir.is_nan(X)),
        (X**2, binary("pow", X, 2)),
        (2.0**X, binary("pow", 2.0, X)),
        (abs(X), op("abs", X)),
    ],
)
def test_operators(theirs, ours):
    assert theirs == ours


def test_a_program_of_numpys_and_torchs_functions():
    n = var("n")
    x = placeholder((n,), "float32", "x")
    y = compute((n,), lambda i: np.exp(x[i]) + torch.sigmoid(x[i]) * np.float32(2), "y")
    values = np.linspace(-3, 3, 7, dtype="float32")
    (result,) = evaluate(build(y), {"x": values}, {"n": 7}).values()
    np.testing.assert_allclose(result, np.exp(values) + 2 / (1 + np.exp(-values.astype("float64"))), rtol=1e-6)


def test_a_lambda_may_carry_values_of_the_loop_around_it():
    n = var("n")
    x = placeholder((n,), "float32", "x")
    made = [compute((n,), lambda i, k=k: x[i] * k, "y") for k in (2, 3)]
    assert made[0] is not made[1]
    assert [str(t.body.value.args[1].value) for t in made] == ["2.0", "3.0"]
