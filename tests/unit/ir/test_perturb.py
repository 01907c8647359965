"""Errors inside an expression, and how far they move its results."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest

from neptune.frontend import builder as nb
from neptune.ir.analysis.perturb import EXACT, LOST, Error, errors, negligible
from neptune.ir.expr import args_of, op, rewrite
from neptune.ir.program import map_exprs
from neptune.ops.attention import operator

N = nb.var("n")
EPS = 1e-6


def moved(name, size, kind="absolute"):
    """Operators of a name are off by so much, those of float32."""
    return lambda e: Error(size, kind) if e.name == name and e.dtype == "float32" else EXACT


def found(build, dtype="float32"):
    """The error of `y`, where tanh is off by EPS; `build` gets tanh(x[i]) and the index i."""
    x, w = nb.placeholder((N,), "float32", "x"), nb.placeholder((N,), "float32", "w")
    t = nb.compute((N,), lambda i: nb.tanh(x[i]), "t")
    y = build(t, w)
    out = nb.compute(y.shape, lambda *at: y[at].astype(dtype), "y") if dtype != "float32" else y
    program = nb.build([out], name="f")
    return errors(program, moved("tanh", EPS), ["t"])[out.name]


def elementwise(fn):
    return lambda t, w: nb.compute((N,), lambda i: fn(t[i], w[i]), "r")


def total(fn):
    def build(t, w):
        i = nb.reduce_axis((0, N), "k")
        return nb.compute((), lambda: nb.sum(fn(t[i], w[i]), axis=i), "r")

    return build


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (elementwise(lambda t, w: t * 50.0), Error(50 * EPS, "absolute")),
        (elementwise(lambda t, w: -t + w), Error(EPS, "absolute")),
        (elementwise(lambda t, w: t / 0.5 - t), Error(3 * EPS, "absolute")),
        (elementwise(lambda t, w: nb.maximum(t * 2.0, w)), Error(2 * EPS, "absolute")),
        (elementwise(lambda t, w: nb.select(w > 0, t, -inf)), Error(EPS, "absolute")),
        (elementwise(lambda t, w: nb.tanh(t)), Error(EPS, "absolute")),
        (elementwise(lambda t, w: nb.exp(t * 50.0)), Error(50 * EPS, "relative")),
        (elementwise(lambda t, w: nb.exp(t) * nb.exp(-t) * w), Error(2 * EPS, "relative")),
        (elementwise(lambda t, w: nb.exp(t) / nb.exp(t * 2.0)), Error(3 * EPS, "relative")),
        (elementwise(lambda t, w: nb.exp(t) + nb.exp(t * 2.0)), Error(2 * EPS, "relative")),
        (elementwise(lambda t, w: nb.exp(t) * w + nb.exp(t)), Error(EPS, "weighted")),
        (elementwise(lambda t, w: nb.select(nb.exp(t) > 0, nb.exp(t), 0.0)), Error(EPS, "relative")),
        (total(lambda t, w: nb.exp(t)), Error(EPS, "relative")),
        (total(lambda t, w: nb.exp(t) * w), Error(EPS, "weighted")),
        (elementwise(lambda t, w: w * 2.0), EXACT),
    ],
)
def test_what_each_operator_makes_of_an_error(build, want):
    got = found(build)
    assert got.kind == want.kind and got.size == pytest.approx(want.size)


def test_a_power_of_two_counts_in_units_of_log2():
    x = nb.placeholder((N,), "float32", "x")
    y = nb.compute((N,), lambda i: nb.exp(nb.tanh(x[i])), "y")
    program = nb.build([y], name="f")
    assert errors(program, moved("tanh", EPS), ["y"])["y"] == Error(EPS, "relative")
    assert errors(program, moved("exp", EPS), ["y"])["y"] == Error(EPS, "absolute")

    def power(e):
        return op("exp2", *e.args) if args_of(e, "exp") else None

    two = program.with_body(map_exprs(program.body, lambda e: rewrite(e, power)))
    assert errors(two, moved("tanh", EPS), ["y"])["y"] == Error(EPS * log(2.0), "relative")


@pytest.mark.parametrize(
    "build",
    [
        elementwise(lambda t, w: t * w),  # w may be any number
        elementwise(lambda t, w: t / w),
        elementwise(lambda t, w: w / t),
        elementwise(lambda t, w: t * t),
        elementwise(lambda t, w: nb.exp(t) - nb.exp(t * 0.5)),  # these may cancel
        elementwise(lambda t, w: nb.exp(t) - 1.0),
        elementwise(lambda t, w: nb.exp(t) + w),
        elementwise(lambda t, w: nb.exp(t) + t),
        elementwise(lambda t, w: nb.maximum(nb.exp(t), w)),
        elementwise(lambda t, w: nb.log(nb.exp(t))),
        elementwise(lambda t, w: nb.exp(nb.exp(t))),
        elementwise(lambda t, w: nb.select(t > 0, w, 0.0)),  # which side is taken may change
        elementwise(lambda t, w: nb.select(nb.exp(t) > 1.0, w, 0.0)),
        elementwise(lambda t, w: (t * 10.0).astype("int32").astype("float32")),
        total(lambda t, w: t),  # as many errors as there are elements
        lambda t, w: nb.compute((N,), lambda i: w[(t[i] * 3.0).astype("int32")], "r"),
    ],
)
def test_what_loses_track_of_an_error(build):
    assert not negligible(found(build), "float16")


def test_a_quotient_by_a_sum_with_signs_loses_track():
    def build(t, w):
        z = total(lambda a, b: nb.exp(a) * b)(t, w)
        return nb.compute((N,), lambda i: nb.exp(t[i]) / z[()], "q")

    assert found(build) == LOST

    def signed(t, w):
        z = total(lambda a, b: nb.exp(a) * b)(t, w)
        return nb.compute((N,), lambda i: nb.select(z[()] > 0, w[i], 0.0), "q")

    assert found(signed) == LOST


def test_stages_outside_make_no_errors_and_other_dtypes_neither():
    program = operator("prefill_softcap")
    assert errors(program, moved("tanh", EPS), [])["o"] == EXACT
    wide = nb.placeholder((N,), "float64", "x")
    y = nb.build([nb.compute((N,), lambda i: nb.tanh(wide[i]), "y")], name="f")
    assert errors(y, moved("tanh", EPS), ["y"])["y"] == EXACT


def test_an_operator_may_be_off_relatively():
    """As a sum is whose summands do not cancel: a multiple of it is off as much, another sum loses track."""
    x = nb.placeholder((N,), "float32", "x")
    y = nb.build([nb.compute((N,), lambda i: x[i] * nb.tanh(x[i]) * 0.5, "y")], name="f")
    assert errors(y, moved("tanh", EPS, "weighted"), ["y"])["y"] == Error(EPS, "weighted")
    z = nb.build([nb.compute((N,), lambda i: nb.tanh(x[i]) + 1.0, "y")], name="f")
    assert errors(z, moved("tanh", EPS, "weighted"), ["y"])["y"] == LOST


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8), ("float64", 53)])
def test_the_last_place_of_each_dtype(dtype, bits):
    for kind in ("relative", "weighted"):
        assert negligible(Error(2.0**-bits * 0.99, kind), dtype) and not negligible(Error(2.0**-bits, kind), dtype)
    assert not negligible(Error(1e-30, "absolute"), dtype) and not negligible(LOST, dtype) and negligible(EXACT, dtype)
    assert not negligible(Error(1e-30, "relative"), "int32")


@pytest.mark.parametrize("cap", [1.0, 50.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_the_bound_of_a_softmax_holds_for_the_worst_errors(cap, sinks):
    """tanh moved up or down at each score as it hurts most: keys with v above the result up, the others down."""
    eps, rng = 1e-3 / cap, np.random.default_rng(3)
    bound = np.expm1(
        errors(operator("prefill_softcap", softcap=cap, sinks=sinks), moved("tanh", eps), ["score"])["o"].size
    )

    def attention(t, v):
        score = cap * t
        top = max(score.max(), 0.3) if sinks else score.max()
        p = np.exp(score - top)
        return (p @ v) / (p.sum() + (np.exp(0.3 - top) if sinks else 0.0))

    worst = 0.0
    for _ in range(200):
        t, v = np.tanh(rng.normal(size=9) * rng.choice([0.01, 0.1, 3.0])), rng.normal(size=9)
        exact, size = attention(t, v), attention(t, np.abs(v))
        for sign in (1, -1):
            off = abs(attention(t + sign * np.where(v > exact, eps, -eps), v) - exact)
            assert off <= bound * size
            worst = max(worst, off / (bound * size))
    assert worst > 0.1  # a bound of the same order
