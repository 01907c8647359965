"""What is right is not rejected: functions that only a repair uses, logarithms of sums, means over constant lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

import neptune
from bench.chains import fusing
from neptune.driver.pipeline import as_program
from neptune.frontend.builder import (
    abs,
    build,
    compute,
    exp,
    log,
    max,
    min,
    placeholder,
    prod,
    reduce_axis,
    sum,
    tanh,
    var,
)
from neptune.ir.expr import Const, Expr, rewrite
from neptune.ir.program import Program, map_exprs
from neptune.verify.exact import check_exact
from neptune.verify.logarithms import Logarithm
from neptune.verify.rationals import OrderedRationals
from neptune.verify.shrink import shrink

pytestmark = pytest.mark.uncached

ROWS, COLS = var("rows"), var("cols")
X, Y, Z = (placeholder((ROWS, COLS), name=n) for n in "xyz")


def row(fold: Callable[..., Any], f: Callable[[Any, Any], Any], name: str) -> Any:
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS,), lambda i: fold(f(i, j), axis=j), name)


def share_of_each() -> Any:
    """Π exp(x) / Σ exp(x): the repair takes logarithms, and the expression none (D5)."""
    s = row(sum, lambda i, j: exp(X[i, j]), "s")
    return row(prod, lambda i, j: exp(X[i, j]) / s[i], "g")


def logarithm_of_a_maximum() -> Any:
    """max log(exp(c) + r) over an r that is such a maximum itself (D6)."""
    a = row(max, lambda i, j: log(exp(X[i, j]) + 1.0), "a")
    b = row(max, lambda i, j: log(exp(X[i, j]) + abs(a[i])), "b")
    q = row(max, lambda i, j: log(exp(tanh(Z[i, j])) + abs(b[i])), "q")
    return row(sum, lambda i, j: exp(Y[i, j] - q[i]), "o")


def logarithm_of_a_variance() -> Any:
    """Likewise over a variance, whose numbers are too long for Python's decimals (D6)."""
    n = COLS.astype("float32")
    s = row(sum, lambda i, j: X[i, j], "s")
    v = row(sum, lambda i, j: (X[i, j] - s[i] / n) * (X[i, j] - s[i] / n), "v")
    q = row(max, lambda i, j: log(exp(tanh(Z[i, j])) + abs(v[i])), "q")
    return row(sum, lambda i, j: exp(Y[i, j] - q[i]), "o")


def softly(x: Any, y: Any, z: Any) -> Any:
    a = torch.log(torch.exp(x) + 1).amax(-1, keepdim=True)
    b = torch.log(torch.exp(x) + a.abs()).amax(-1, keepdim=True)
    q = torch.log(torch.exp(torch.tanh(z)) + b.abs()).amax(-1, keepdim=True)
    return torch.exp(y - q).sum(-1)


def spread(x: Any, y: Any, z: Any) -> Any:
    v = x.var(-1, correction=0, keepdim=True) * x.shape[-1]
    return torch.exp(y - torch.log(torch.exp(torch.tanh(z)) + v).amax(-1, keepdim=True)).sum(-1)


FUSED: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "a product of shares": (share_of_each, lambda x: torch.softmax(x, -1).prod(-1)),
    "a logarithm of a maximum": (logarithm_of_a_maximum, softly),
    "a logarithm of a variance": (logarithm_of_a_variance, spread),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_right_is_not_rejected(name):
    expression, reference = FUSED[name]
    kernel = neptune.compile(expression(), fusing(as_program(expression())), target="llvm")
    assert len(kernel.facts.kernels) == 1 and not kernel.build.rejections
    assert all(c.accepted for c in kernel.build.checks.values())
    torch.manual_seed(0)
    tensors = {n: torch.randn(3, 20) for n in "xyz"}
    got = kernel(*(tensors[n] for n in kernel.inputs))
    torch.testing.assert_close(got, reference(**{n: tensors[n] for n in kernel.inputs}), rtol=1e-4, atol=1e-12)


# --- a rejection that a model made up is no rejection, and a true one stays -------------------------


def changed(program: Program, old: float, new: float, dtype: str = "float32") -> Program:
    def fix(e: Expr) -> Expr | None:
        return Const(new, dtype) if isinstance(e, Const) and (e.value, e.dtype) == (old, dtype) else None

    return program.with_body(map_exprs(program.body, lambda e: rewrite(e, fix)))


@pytest.mark.parametrize("by", [1.01, 0.5, 2.0])
def test_a_wrong_program_with_such_functions_is_rejected(by):
    program = build(logarithm_of_a_maximum(), name="o")
    assert check_exact(program, changed(program, 1.0, by)).verdict == "rejected"


def test_functions_that_only_one_side_uses_have_true_values():
    product = build(row(prod, lambda i, j: exp(X[i, j]), "g"), name="g")
    logs = row(sum, lambda i, j: log(exp(X[i, j])), "t")
    assert check_exact(product, build(compute((ROWS,), lambda i: exp(logs[i]), "g"), name="g")).accepted
    wrong = compute((ROWS,), lambda i: exp(logs[i] * 1.5), "g")
    assert check_exact(product, build(wrong, name="g")).verdict == "rejected"


def test_numbers_of_any_length_have_a_text():
    model, long = OrderedRationals(0), Fraction(3**20000, 7**9000)
    numbers = (long, -long, long.numerator, Logarithm(long, Fraction(5, 3)), Fraction(1, 3), 7)
    assert len({model._hash("log", x) for x in numbers}) == len(numbers)


# --- means over constant lengths -------------------------------------------------------------------


def about_mean(length: int, mean: Callable[[Any], Any], scale: Callable[[Any], Any] = lambda v: v) -> Any:
    x = placeholder((ROWS, length), name="x")
    j, k = (reduce_axis((0, length), n) for n in "jk")
    s = compute((ROWS,), lambda i: sum(x[i, j], axis=j), "s")
    v = compute((ROWS,), lambda i: sum((x[i, k] - mean(s[i])) * (x[i, k] - mean(s[i])), axis=k), "v")
    return compute((ROWS,), lambda i: scale(v[i]), "o")


MEANS = {
    "divided": about_mean(777, lambda s: s / 777.0),
    "multiplied": about_mean(777, lambda s: s * (1.0 / 777.0)),
    "one less": about_mean(777, lambda s: s / 777.0, lambda v: v / 776.0),
    "a power of two": about_mean(512, lambda s: s / 512.0, lambda v: v * (1.0 / 511.0)),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_sum_about_a_mean_over_a_constant_length(name):
    kernel = neptune.compile(MEANS[name], target="llvm")
    assert not kernel.build.rejections and all(c.accepted for c in kernel.build.checks.values())
    x = torch.randn(3, 512 if name == "a power of two" else 777)
    variance = x.var(-1) if name in ("one less", "a power of two") else x.var(-1, correction=0) * x.shape[-1]
    torch.testing.assert_close(kernel(x), variance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MEANS)
def test_counts_stay_counts_where_constants_are_made_small(name):
    program = build(MEANS[name], name="o")
    (small,) = shrink(program)
    (length,) = {d.value for b in small.inputs for d in b.shape if isinstance(d, Const)}
    floats = {math.fabs(e.value) for e in constants(small)} - {0.0}
    assert length <= 4 and floats <= {float(length), length - 1.0, 1 / length, 1 / (length - 1)}


def constants(program: Program) -> list[Const]:
    found: list[Const] = []

    def see(e: Expr) -> Expr | None:
        if isinstance(e, Const) and e.dtype == "float32":
            found.append(e)
        return None

    map_exprs(program.body, lambda e: rewrite(e, see))
    return found


def test_a_wrong_count_is_rejected():
    right = build(MEANS["divided"], name="o")
    assert check_exact(right, changed(right, 777.0, 776.0)).verdict == "rejected"
    assert check_exact(right, changed(right, 777, 776, "int32")).verdict == "rejected"
    assert check_exact(right, replace(right)).accepted


@pytest.mark.parametrize("low", [True, False])
def test_what_overflows_behind_the_loop_is_folded_into_the_finite_start(low):
    """A deferred min of what is infinite is the 3.4e38 that it starts from, as it is unfused (D13)."""
    fold, sign = (min, 1) if low else (max, -1)
    r = row(min, lambda i, j: abs(X[i, j]), "r")
    o = row(fold, lambda i, j: sign * tanh(abs(X[i, j])) * (r[i] * r[i]), "o")
    kernel = neptune.compile(o, target="llvm")
    assert len(kernel.facts.kernels) == 1 and not kernel.build.rejections
    x = torch.tensor([[1e25, 2e25, 3e25], [1.0, 2.0, 3.0]])
    want = sign * torch.tensor([torch.finfo(torch.float32).max, math.tanh(1.0)])
    torch.testing.assert_close(kernel(x), want)
