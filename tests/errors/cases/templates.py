"""Templates that are declared wrongly, and programs that shipped ones do not take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import neptune
from neptune.errors import ExpressionError, FusionError, ScheduleError
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.attention_variants import sigmoid_attention
from neptune.ops.linear import matmul
from neptune.ops.softmax import figure1, softmax
from neptune.ops.statistics import weighted_mean
from neptune.tune import choose
from neptune.verify.exact import Counterexample, ExactReport
from tests.errors.table import case
from tests.examples.kernel_examples import rows_program

M, N, K = var("m"), var("n"), var("k")


# --- declarations ----------------------------------------------------------------------------------


def plain(sch: Any, block: Any) -> None:
    """What the declarations below are about."""


@case(ScheduleError)
def a_name_twice():
    neptune.template(BLOCK=[16], choices={"block": [1, 2]})(plain)


@case(ScheduleError)
def no_candidates():
    neptune.template(BLOCK=[])(plain)


@case(ScheduleError)
def candidates_that_are_a_number():
    neptune.template(BLOCK=16)(plain)


@case(ScheduleError)
def an_argument_that_is_not_declared():
    neptune.template(TILE=[16])(plain)


@case(ScheduleError)
def an_argument_that_is_not_declared_by_the_class():
    neptune.Template("plain", plain, {"TILE": (16,)})


@case(ScheduleError)
def candidates_that_are_no_powers_of_two():
    neptune.compile(rows_program(), neptune.template(BLOCK=[48])(plain), target="llvm")


chosen = neptune.template(choices={"block": [1, 2]})(plain)


@case(ScheduleError)
def a_choice_that_there_is_not():
    chosen.with_choices(blocks=1)


@case(ScheduleError)
def a_choice_of_another_value():
    chosen.with_choices(block=3)


# --- programs that a template does not take --------------------------------------------------------------


def _on(template: str, make: Callable[[], Program]) -> Callable[[], object]:
    return lambda: neptune.compile(make(), template, target="llvm")


def product(f: Callable[..., Any], dtype: str = "float32", rank: int = 2) -> Callable[[], Program]:
    """One stage `c` that is a function of a[m, k], b[k, n], a reduce axis and its indices."""

    def make() -> Program:
        a, b, p = placeholder((M, K), dtype, "a"), placeholder((K, N), dtype, "b"), reduce_axis((0, K), "p")
        at: Callable[..., Any] = (lambda i, j: f(a, b, p, i, j)) if rank == 2 else (lambda i: f(a, b, p, i))
        return build(compute((M, N)[:rank], at, "c"), name="product")

    return make


case(ScheduleError, "causal_attention_without_a_mask")(_on("causal_attention", lambda: prefill_global(depth=32)))
case(ScheduleError, "matmul_of_two_reductions")(_on("matmul", softmax))
case(ScheduleError, "matmul_of_none")(_on("matmul", product(lambda a, b, p, i, j: exp(a[i, j]))))
case(ScheduleError, "matmul_of_a_max")(_on("matmul", product(lambda a, b, p, i, j: max(a[i, p] * b[p, j], axis=p))))
case(ScheduleError, "matmul_of_a_row")(
    _on("matmul", product(lambda a, b, p, i: sum(a[i, p] * a[i, p], axis=p), rank=1))
)
case(ScheduleError, "matmul_in_float16")(
    _on("matmul", product(lambda a, b, p, i, j: sum(a[i, p] * b[p, j], axis=p), "float16"))
)


@case(ScheduleError)
def matmul_of_a_chain_of_products():
    a, b, d = placeholder((M, K), name="a"), placeholder((K, N), name="b"), placeholder((N, K), name="d")
    p, q = reduce_axis((0, K), "p"), reduce_axis((0, N), "q")
    c = compute((M, N), lambda i, j: sum(a[i, p] * b[p, j], axis=p), "c")
    e = compute((M, K), lambda i, j: sum(c[i, q] * d[q, j], axis=q), "e")
    neptune.compile(e, "matmul", target="llvm", inputs=[a, b, d])


@case(ScheduleError)
def norm_linear_with_a_statistic_of_columns():
    a, b = placeholder((M, K), name="a"), placeholder((K, N), name="b")
    p, q = reduce_axis((0, K), "p"), reduce_axis((0, K), "q")
    top = compute((N,), lambda j: max(b[q, j], axis=q), "top")
    c = compute((M, N), lambda i, j: sum(a[i, p] * (b[p, j] - top[j]), axis=p), "c")
    neptune.compile(c, "norm_linear", target="llvm", inputs=[a, b])


@case(ScheduleError)
def matmul_beside_another_result():
    a, b, p = placeholder((M, K), name="a"), placeholder((K, N), name="b"), reduce_axis((0, K), "p")
    s = compute((M, K), lambda i, p: a[i, p] * 2.0, "s")
    c = compute((M, N), lambda i, j: sum(s[i, p] * b[p, j], axis=p), "c")
    neptune.compile([c, s], "matmul", target="llvm", inputs=[a, b])


@case(FusionError)
def a_program_that_differs(monkeypatch: pytest.MonkeyPatch):
    """No sound template ends here: the check is made to find what is not there."""
    found = Counterexample({"m": 2, "n": 3}, 7, "y", (1, 0), "output y[1, 0] differs")
    report = ExactReport("field pair", 1, (7,), ({"m": 2, "n": 3},), "rejected", 0, found, "1 draws, no bound")
    monkeypatch.setattr("neptune.driver.passes.check", lambda *_, **__: report)
    neptune.compile(softmax(), "softmax_online", target="llvm")


case(ScheduleError, "three_kernels_of_more")(_on("softmax_three_kernel", prefill_causal))
case(ScheduleError, "three_kernels_of_two")(_on("softmax_three_kernel", figure1))
case(ScheduleError, "three_kernels_of_sums_side_by_side")(_on("softmax_three_kernel", weighted_mean))
case(ScheduleError, "packed_attention_of_heads_with_keys_of_their_own")(_on("packed_attention", prefill_causal))
case(ScheduleError, "attention_without_reductions_of_rows")(
    _on("attention_unfused", partial(sigmoid_attention, 16, flat=True))
)


def rows(result: Callable[[Any, Any, Any], Any]) -> Callable[[], Program]:
    """Softmax's two reductions `top` and `total` over x[m, n], and a result of its own."""

    def make() -> Program:
        x, axes = placeholder((M, N), name="x"), [reduce_axis((0, N), "j") for _ in range(2)]
        top = compute((M,), lambda i: max(x[i, axes[0]], axis=axes[0]), "top")
        total = compute((M,), lambda i: sum(exp(x[i, axes[1]] - top[i]), axis=axes[1]), "total")
        return build(result(x, top, total), name="rows")

    return make


case(ScheduleError, "three_kernels_of_which_one_has_no_columns")(
    _on("softmax_three_kernel", rows(lambda x, top, total: compute((M,), lambda i: total[i] * 2.0, "y")))
)


@case(ScheduleError)
def three_kernels_of_which_one_has_no_rows():
    x, w, axes = placeholder((M, N), name="x"), placeholder((N,), name="w"), [reduce_axis((0, N), "j") for _ in "ab"]
    top = compute((M,), lambda i: max(x[i, axes[0]], axis=axes[0]), "top")
    f = compute((N,), lambda j: w[j] - top[0], "f")

    def term(i: Expr) -> Any:
        return sum(f[axes[1]] * exp(x[i, axes[1]] - top[i]), axis=axes[1])

    total = compute((M,), term, "total")
    y = compute((M, N), lambda i, j: x[i, j] / total[i], "y")
    neptune.compile(y, "softmax_three_kernel", target="llvm")


@case(ScheduleError)
def no_template_applies(monkeypatch):
    # The last one takes every program.
    monkeypatch.setattr(choose, "AUTOMATIC", ("flash_attention", "matmul", "matmul_split"))
    neptune.compile(rows_program(), target="llvm")


# --- shipped operators -----------------------------------------------------------------------------


@case(ExpressionError)
def an_activation_that_is_not_shipped():
    matmul(activation="swish")


@case(ExpressionError)
def a_product_of_integers():
    matmul("int8")
