"""Cheaper forms of functions: their errors on all floats, and the programs that take them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neptune.frontend import builder as nb
from neptune.ir.analysis.forms import ERFC, FORMS, cheaper
from neptune.ir.expr import Const, Load, Op, op, walk
from neptune.ir.program import stages
from neptune.ir.text.printer import print_expr
from neptune.ops.attention import OPERATORS, operator
from neptune.ops.linear import matmul

X = Load("x", (), "float32")
EX2, RSQRT = 2.0**-22, 2.0**-22.9
"""What the instructions of GPUs may be off by, relatively."""
ERF, ERFC_OF = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)
LAST = 1 << 31
STRIDE = 4099


def tanh_of(x, scale, ex2, rsqrt):
    """The form on float32 numbers, each operation rounded, with the instructions as far off as they may be."""
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        e = (np.exp2((x * np.float32(scale)).astype(np.float64)) * (1 + ex2)).astype(np.float32)
        w = e + np.float32(1)
        r = ((1 + rsqrt) / np.sqrt(w.astype(np.float64))).astype(np.float32)
        return np.float32(1) - r * r * np.float32(2)


def worst_of(bits):
    """The largest error of the form of tanh on the float32 numbers with these bits, and on their negatives."""
    x = bits.astype(np.uint32).view(np.float32)
    want = np.tanh(x.astype(np.float64))
    off = 0.0
    for sign in (1, -1):
        for ex2 in (EX2, -EX2):
            for rsqrt in (RSQRT, -RSQRT):
                got = tanh_of(np.float32(sign) * x, 2 * np.log2(np.e), ex2, rsqrt)
                off = max(off, np.abs(got - sign * want).max())
    return off


def test_tanh_is_within_its_error_on_floats_of_the_whole_range():
    finite = np.arange(0, 0x7F800000, STRIDE)
    near = np.arange(0x3D000000, 0x41200000, 61)  # 0.03 to 10, where it moves
    worst = max(worst_of(finite), worst_of(near))
    assert 0.5 * FORMS["tanh"].error < worst < FORMS["tanh"].error


@pytest.mark.slow
def test_tanh_is_within_its_error_on_all_floats():
    # Below 2^-27 the power of two is 1, and above 64 it is all of the sum: there the strides above suffice.
    for first in range(0x32000000, 0x42800001, 1 << 22):
        assert worst_of(np.arange(first, first + (1 << 22))) < FORMS["tanh"].error


def test_tanh_at_the_ends_is_exact_and_keeps_nan():
    x = np.float32([np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, np.nan])
    got = tanh_of(x, 2 * np.log2(np.e), 0.0, 0.0)
    assert got[:4].tolist() == [1, -1, 1, -1] and np.isnan(got[6])
    assert abs(got[4:6]).max() < 1e-7


def erf_of(x, ex2):
    """1 + erf(x) as the form has it, each operation rounded, with the power of two as far off as it may be."""
    a = np.abs(x)
    with np.errstate(over="ignore", under="ignore"):
        p = a * np.float32(ERFC[-1])
        for c in ERFC[-2:0:-1]:
            p = (p + np.float32(c)) * a
        small = np.exp2((-(p + np.float32(ERFC[0])) * a).astype(np.float64)) * (1 + ex2)
    return np.where(x < 0, small.astype(np.float32), np.float32(2) - small.astype(np.float32))


def worst_of_erf(x):
    """The largest errors of the form: of 1 + |erf|, and of 1 + erf itself."""
    want = 1 + ERF(x.astype(np.float64)).astype(np.float64)
    exact = np.where(x < 0, ERFC_OF(np.abs(x).astype(np.float64)).astype(np.float64), want)
    off = np.max([np.abs(erf_of(x, e) - exact) for e in (EX2, -EX2)], 0)
    return (off / (1 + np.abs(want - 1))).max(), (off / np.maximum(exact, 1e-300)).max()


def test_one_and_erf_is_within_its_error_on_floats_of_the_whole_range():
    bits = np.concatenate([np.arange(0, 0x7F800000, 16 * STRIDE), np.arange(0x3C000000, 0x41200000, 977)])
    near = bits.astype(np.uint32).view(np.float32)
    worst = max(worst_of_erf(near)[0], worst_of_erf(-near)[0])
    assert 0.5 * FORMS["erf"].error < worst < FORMS["erf"].error


def test_one_and_erf_is_relatively_near_where_little_is_left():
    """Of a gelu far below 0: erf itself is -1 in all places there, and 1 + erf of float32 numbers nothing."""
    x = np.linspace(-4.0, 0.0, 20001, dtype=np.float32)
    assert worst_of_erf(x)[1] < 2 * FORMS["erf"].error


def test_one_and_erf_at_the_ends_is_exact_and_keeps_nan():
    x = np.float32([np.inf, -np.inf, 3e38, -3e38, 10.0, -20.0, 0.0, -0.0, np.nan])
    got = erf_of(x, 0.0)
    assert got[:8].tolist() == [2, 0, 2, 0, 2, 0, 1, 1] and np.isnan(got[8])


def test_the_form_of_erf_takes_in_a_factor():
    """Of x·c with c above 0, so that the sign is that of x."""
    made = FORMS["erf"].make(op("erf", X * 0.5) + 1.0)
    assert made == FORMS["erf"].make(op("add", Const(1.0, "float32"), op("erf", X * 0.5)))
    text = print_expr(made)
    assert "x[] < 0.0" in text and f"+ {0.5 * ERFC[0]!r}) * abs(x[])" in text
    below = print_expr(FORMS["erf"].make(op("erf", X * -0.5) + 1.0))
    assert "x[] * (-0.5) < 0.0" in below and f"+ {ERFC[0]!r}) * abs(x[] * (-0.5))" in below
    for c in (1e30, 1e-30):
        assert print_expr(FORMS["erf"].make(op("erf", X * c) + 1.0)).count(f"abs(x[] * {c})") > 7
    for other in (op("erf", X), op("erf", X) + 2.0, op("tanh", X) + 1.0, 1.0 - op("erf", X)):
        assert FORMS["erf"].make(other) is None


def test_the_form_is_the_one_that_is_measured_here():
    """Its operators and constants, of tanh(x·c): one multiplication in front of the power of two."""
    made = FORMS["tanh"].make(op("tanh", op("mul", X, op("mul", X, X)) * 0.25))
    power = next(n for n in walk(made) if getattr(n, "name", "") == "exp2")
    assert print_expr(power) == "exp2(x[] * (x[] * x[]) * (0.25 * (2.0 * log2e())))"
    assert print_expr(FORMS["tanh"].make(op("tanh", X))) == (
        "1.0 - rsqrt(exp2(x[] * (2.0 * log2e())) + 1.0) * rsqrt(exp2(x[] * (2.0 * log2e())) + 1.0) * 2.0"
    )


def taken(program):
    """The stages that take it; no other one is changed."""
    changed, found = cheaper(program)
    names = [t.stage for t in found]
    for before, after in zip(stages(program.body), stages(changed.body), strict=True):
        left = {n.name for v in after.action.values for n in walk(v) if isinstance(n, Op)}
        assert "tanh" not in left if before.name in names else before == after
    return names


@pytest.mark.parametrize("name", [n for n, o in OPERATORS.items() if "softcap" in o])
def test_capped_scores_of_short_results_take_it(name):
    assert taken(operator(name)) == taken(operator(name, dtype="bfloat16")) == ["score"]
    assert taken(operator(name, sinks=True)) == ["score"]
    assert taken(operator(name, softcap=135.0)) == ["score"] and taken(operator(name, softcap=136.0)) == []
    assert taken(operator(name, softcap=1080.0, dtype="bfloat16")) == ["score"]


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"lse": True}])
def test_results_in_float32_keep_the_plain_form(options):
    program = operator("prefill_softcap", **options)
    assert taken(program) == [] and cheaper(program)[0] is program


def test_tanh_as_a_result_keeps_the_plain_form():
    x = nb.placeholder((8,), "float32", "x")
    assert taken(nb.build([nb.compute((8,), lambda i: nb.tanh(x[i]).astype("bfloat16"), "y")], name="f")) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gelu_of_short_results_takes_it(dtype):
    program = matmul(dtype, activation="gelu")
    changed, (found,) = cheaper(program)
    assert found.operators == ("erf",) and "erf" in str(program) and "erf" not in str(changed)


def test_a_gelu_in_float32_and_erf_alone_keep_theirs():
    assert cheaper(matmul("float32", activation="gelu"))[1] == ()
    x = nb.placeholder((8,), "float32", "x")
    assert cheaper(nb.build([nb.compute((8,), lambda i: nb.erf(x[i]).astype("bfloat16"), "y")], name="f"))[1] == ()
    # What may cancel.
    less = nb.build([nb.compute((8,), lambda i: (1.0 + nb.erf(x[i]) - x[i]).astype("bfloat16"), "y")], name="f")
    assert cheaper(less)[1] == ()


def test_one_stage_of_two_takes_it():
    """Of softmax over capped scores, scaled by a gate: the gate is a factor of the result, and stays exact."""
    n = nb.var("n")
    x, g, v = (nb.placeholder((n,), "float32", name) for name in "xgv")
    k = nb.reduce_axis((0, n), "k")
    p = nb.compute((n,), lambda i: nb.exp(nb.tanh(x[i]) * 30.0), "p")
    s = nb.compute((), lambda: nb.sum(p[k] * v[k], axis=k), "s")
    gate = nb.compute((n,), lambda i: nb.tanh(g[i]), "gate")
    o = nb.compute((n,), lambda i: (gate[i] * s[()]).astype("float16"), "o")
    assert taken(nb.build([o], name="f")) == ["p"]
