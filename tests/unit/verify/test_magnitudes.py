"""Comparing as rounded, at all magnitudes: what overflows or underflows on the way is seen, what is right passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neptune.frontend.builder import (
    abs,
    build,
    compute,
    exp,
    log,
    max,
    placeholder,
    pow,
    reduce_axis,
    select,
    sum,
    tanh,
    var,
)
from neptune.fusion.schedule import Schedule
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.evaluate.floats import Rounded, Stochastic, round_to
from neptune.ir.expr import Load, Var, binary
from neptune.ir.program import Program
from neptune.ops.softmax import softmax
from neptune.tile.arrange import arrange, started
from neptune.tile.localize import localize
from neptune.tune.choose import named
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.instances import COUNT, batched
from neptune.verify.magnitudes import compare_magnitudes, draw_scaled

ROWS, COLS = var("rows"), var("cols")
SIZES = {"rows": 5, "cols": 7}
X, Y, P = placeholder((ROWS, COLS), name="x"), placeholder((ROWS, COLS), name="y"), placeholder((ROWS,), name="p")
W = placeholder((COLS, 3), "float16", "w")


def row(fold: Callable[..., Any], f: Callable[[Any, Any], Any], name: str) -> Any:
    """A reduction of each row."""
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS,), lambda i: fold(f(i, j), axis=j), name)


def made(result: Any, *inputs: Any) -> Program:
    return build(result, inputs=list(inputs), name="t")


def power_of_share(late: bool) -> Program:
    """Σ (x / Σ|x|)⁴, the division in front of the sum or behind it (D1)."""
    s = row(sum, lambda i, j: abs(X[i, j]), "s")
    if not late:
        return made(row(sum, lambda i, j: pow(X[i, j] / s[i], 4.0), "t"), X)
    fourth = row(sum, lambda i, j: pow(X[i, j], 4.0), "fourth")
    return made(compute((ROWS,), lambda i: fourth[i] * pow(1.0 / s[i], 4.0), "t"), X)


def half_precision(late: bool) -> Program:
    """Shares that become float16 before a product, or numbers that do before the division (D2)."""
    j = reduce_axis((0, COLS), "j")
    r = row(max, lambda i, k: abs(tanh(X[i, k])), "r")

    def term(i: Any, c: Any) -> Any:
        share = tanh(X[i, j]) if late else tanh(X[i, j]) / r[i]
        return share.astype("float16").astype("float32") * W[j, c].astype("float32")

    t = compute((ROWS, 3), lambda i, c: sum(term(i, c), axis=j), "t")
    return made(compute((ROWS, 3), lambda i, c: t[i, c] / r[i], "o") if late else t, X, W)


def weighted(late: bool) -> Program:
    """Σ softmax(x) y, divided by the sum of exponentials in front or behind (the first form of D3)."""
    m = row(max, lambda i, j: X[i, j], "m")
    e = row(sum, lambda i, j: exp(X[i, j] - m[i]), "e")
    if not late:
        return made(row(sum, lambda i, j: exp(X[i, j] - m[i]) / e[i] * Y[i, j], "t"), X, Y)
    t = row(sum, lambda i, j: exp(X[i, j] - m[i]) * Y[i, j], "t")
    return made(compute((ROWS,), lambda i: t[i] / e[i], "o"), X, Y)


def hidden(late: bool) -> Program:
    """exp(x - m + p) where y > 0: x - m + p is large where m is not yet the maximum, which may be hidden (D3)."""
    m = row(max, lambda i, j: X[i, j], "m")
    if not late:
        return made(row(sum, lambda i, j: select(Y[i, j] > 0.0, exp(X[i, j] - m[i] + P[i]), 0.0), "t"), X, Y, P)
    t = row(sum, lambda i, j: select(Y[i, j] > 0.0, exp(X[i, j] + P[i]), 0.0), "t")
    return made(compute((ROWS,), lambda i: t[i] * exp(-m[i]), "o"), X, Y, P)


def share(late: bool) -> Program:
    """Σ x / Σ|x| · y (D4)."""
    s = row(sum, lambda i, j: abs(X[i, j]), "s")
    if not late:
        return made(row(sum, lambda i, j: X[i, j] / s[i] * Y[i, j], "t"), X, Y)
    t = row(sum, lambda i, j: X[i, j] * Y[i, j], "t")
    return made(compute((ROWS,), lambda i: t[i] / s[i], "o"), X, Y)


def softmax_mean(late: bool) -> Program:
    """Σ exp(x) / Σ exp(x) · x (the second form of D4)."""
    s = row(sum, lambda i, j: exp(X[i, j]), "s")
    if not late:
        return made(row(sum, lambda i, j: exp(X[i, j]) / s[i] * X[i, j], "t"), X)
    t = row(sum, lambda i, j: exp(X[i, j]) * X[i, j], "t")
    return made(compute((ROWS,), lambda i: t[i] / s[i], "o"), X)


DEFECTS = (power_of_share, half_precision, weighted, hidden, share, softmax_mean)


@pytest.mark.parametrize("program", DEFECTS, ids=lambda f: f.__name__)
def test_what_leaves_the_range_on_the_way_is_found(program):
    found = compare_magnitudes(program(False), program(True), SIZES)
    assert found.difference is not None and "about" in found.difference.message
    assert compare_magnitudes(program(False), program(False), SIZES).difference is None


@pytest.mark.parametrize("program", DEFECTS, ids=lambda f: f.__name__)
def test_no_exact_model_sees_it_and_a_check_that_asks_for_it_does(program):
    before, after = program(False), program(True)
    # Large numbers of the ordered check overflow in this one, too.
    assert program is hidden or check_exact(before, after).accepted
    report = check_exact(before, after, magnitudes=True)
    assert report.verdict == "rejected" and (program is hidden or "with x about" in str(report.counterexample))


# What is right at every magnitude, in another order.
RIGHT = {
    "a sum in two": (
        lambda: made(row(sum, lambda i, j: X[i, j] * Y[i, j], "t"), X, Y),
        lambda: made(row(sum, lambda i, j: Y[i, j] * X[i, j], "t"), X, Y),
    ),
    "log of a product": (
        lambda: made(compute((ROWS,), lambda i: log(abs(P[i]) * 2.0), "t"), P),
        lambda: made(compute((ROWS,), lambda i: log(abs(P[i])) + 0.6931471805599453, "t"), P),
    ),
    "a difference": (
        lambda: made(row(sum, lambda i, j: X[i, j] - Y[i, j], "t"), X, Y),
        lambda: made(row(sum, lambda i, j: 0.0 - (Y[i, j] - X[i, j]), "t"), X, Y),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_only_rounds_otherwise_passes(name):
    before, after = (make() for make in RIGHT[name])
    found = compare_magnitudes(before, after, SIZES)
    assert found.difference is None and found.compared > 100


@pytest.mark.parametrize("template", ["softmax_online", "softmax_row", "flash_attention", "stagewise"])
def test_a_template_that_is_right_passes(template):
    sch = Schedule(softmax())
    named(template)[1](sch)
    fused = localize(arrange(started(sch.program)), strict=False)
    report = check_exact(softmax(), fused, magnitudes=True)
    assert report.accepted and any("instances agree" in note for note in report.notes)


# --- what is assumed -----------------------------------------------------------------------------


def test_inputs_satisfy_what_is_assumed_up_to_its_edges():
    x, y = (Load(n, (Var("i"), Var("j")), "float32") for n in "xy")
    product = RangePredicate(binary("mul", x, y), 1e30, 1e-20, Var("cols"))
    before, after = share(False), share(True)
    assert compare_magnitudes(before, after, SIZES, ranges=[product]).difference is None
    # One that allows too much is of no use.
    wide = replace(product, below=1e300, above=0.0)
    assert compare_magnitudes(before, after, SIZES, ranges=[wide]).difference is not None
    for limit in (1e30, 3e37):
        here = replace(product, below=limit, above=0.0)
        # Just inside of the limit, where it overflows: a bound that is too large by a few decades is found.
        overflows = replace(here, below=limit * 1e12)
        assert compare_magnitudes(before, after, SIZES, ranges=[overflows]).difference is not None


def test_a_bound_on_what_is_not_there_leaves_nothing_to_compare():
    foreign = RangePredicate(Load("z", (), "float32"), 1.0)
    assert compare_magnitudes(share(False), share(True), SIZES, ranges=[foreign]).compared == 0


def test_inputs_stay_in_their_dtypes():
    inputs = draw_scaled(half_precision(False), SIZES, 0)
    assert inputs.count > 50 and set(inputs.values) == {"x", "w"}
    for n, dtype in (("x", "float32"), ("w", "float16")):
        v = inputs.values[n]
        assert np.isfinite(v).all() and (round_to(v, dtype) == v).all()
    assert np.abs(inputs.values["w"]).max() > 6e4 and np.abs(inputs.values["x"]).max() > 1e38


# --- parts ---------------------------------------------------------------------------------------


def test_many_instances_at_once_are_each_by_itself():
    program = half_precision(True)
    inputs = draw_scaled(program, SIZES, 3)
    many = evaluate(batched(program, program.outputs), inputs.values, {**SIZES, COUNT: inputs.count}, Rounded())["o"]
    for k in range(0, inputs.count, 9):
        one = evaluate(program, {n: v[k] for n, v in inputs.values.items()}, SIZES, Rounded())["o"]
        np.testing.assert_array_equal(one, many[k])


def test_scalars_have_a_value_for_each_instance():
    scale = var("scale", "float32")
    program = made(compute((ROWS,), lambda i: P[i] * scale, "t"), P)
    inputs = draw_scaled(program, SIZES, 0)
    sizes = {"rows": 5, "scale": inputs.values["scale"], COUNT: inputs.count}
    got = evaluate(batched(program, program.outputs), {"p": inputs.values["p"]}, sizes, Rounded())["t"]
    with np.errstate(all="ignore"):
        want = round_to(inputs.values["p"] * inputs.values["scale"][:, None], "float32")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_random_rounding_takes_one_of_two_neighbours(dtype):
    x = np.random.default_rng(0).standard_normal(2000) * 10.0 ** np.random.default_rng(1).uniform(-8, 4, 2000)
    got = Stochastic(0).round(x, dtype)
    near = round_to(x, dtype)
    assert (round_to(got, dtype) == got).all()
    assert 0.2 < np.mean(got != near) < 0.7
    np.testing.assert_allclose(got, x, rtol=2.0**-7, atol=1e-7)
    np.testing.assert_array_equal(Stochastic(0).round(near, dtype), near)
    odd = np.array([np.inf, -np.inf, np.nan, 0.0, 1e39])
    np.testing.assert_array_equal(Stochastic(0).round(odd, dtype), [np.inf, -np.inf, np.nan, 0.0, np.inf])


def test_results_that_are_not_sure_do_not_count():
    """1e8 + 1 - 1e8 is 0 or 8 in float32: neither says anything of another order."""

    def program(first: bool) -> Program:
        big = 1e8
        return made(compute((ROWS,), lambda i: (P[i] + big) - big if first else P[i] + (big - big), "t"), P)

    assert compare_magnitudes(program(True), program(False), SIZES).difference is None


def test_nothing_to_scale():
    a = placeholder((ROWS,), "int32", "a")
    program = made(compute((ROWS,), lambda i: a[i] + 1, "t"), a)
    assert compare_magnitudes(program, program, SIZES).compared == 0


def test_digits_that_are_said_to_be_lost_are_allowed_and_no_others():
    """max (log (exp x / l) + y) folds x + y: beside 50 that has six digits behind the point, of a result near 0."""

    def program(scale: float | None) -> Program:
        l = row(sum, lambda i, j: exp(X[i, j]), "l")  # noqa: E741
        if scale is None:
            return made(row(max, lambda i, j: log(exp(X[i, j]) / l[i]) + Y[i, j], "t"), X, Y)
        u = row(max, lambda i, j: log(exp(X[i, j])) + Y[i, j], "u")
        return made(compute((ROWS,), lambda i: u[i] - log(l[i]) * scale, "t"), X, Y)

    i, j = Var("i"), Var("j")
    x, y = Load("x", (i, j), "float32"), Load("y", (i, j), "float32")
    folded = binary("add", log(exp(x)), y)
    finite, said = RangePredicate(folded, 3.4e38), RangePredicate(folded, np.inf, rounded=True)

    def differs(scale: float, *ranges: RangePredicate) -> int:
        compared = [compare_magnitudes(program(None), program(scale), SIZES, k, ranges=ranges) for k in range(6)]
        assert all(c.compared for c in compared)
        return len([c for c in compared if c.difference is not None])

    assert differs(1.0, finite) > 0 and differs(1.0, finite, said) == 0
    assert differs(1.0 + 1e-5, finite, said) == 6
