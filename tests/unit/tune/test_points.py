"""Typical sizes, and those around them, of programs of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.ops.attention import operator, prefill_causal
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.tune.points import MOST, MOST_BYTES, TYPICAL_BYTES, _bytes, class_sizes, points, reference

PROGRAMS = {"attention": prefill_causal(), "decode": operator("decode_gqa"), "matmul": matmul(), "softmax": softmax()}


def test_lengths_are_long_and_repetitions_few():
    assert reference(PROGRAMS["attention"], {}, {}) == {"batch": 8, "heads": 8, "s_q": 4096, "s_kv": 4096}
    assert reference(PROGRAMS["matmul"], {}, {}) == {"m": 4096, "k": 4096, "n": 4096}
    assert reference(PROGRAMS["softmax"], {"rows": 3}, {"cols": 100}) == {"rows": 3, "cols": 100}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("typical", [{}, {"m": 7, "s_q": 1, "batch": 2, "cols": 5}], ids=["none", "some"])
def test_points_are_distinct_fit_and_keep_what_is_given(name, typical):
    program = PROGRAMS[name]
    known = {n: v for n, v in typical.items() if n in {s.name for s in program.scalars}}
    bounds = {n: 512 for n in ("k", "s_kv", "rows") if n in {s.name for s in program.scalars}}
    found = points(program, known, bounds)
    assert found == points(program, known, bounds) and 1 < len(found) <= MOST
    assert found[0] == reference(program, known, bounds)
    assert len({tuple(p.items()) for p in found}) == len(found)
    for p in found:
        assert all(p[n] == v for n, v in known.items()) and all(p[n] <= v for n, v in bounds.items())
        assert _bytes(program, p) <= MOST_BYTES
    assert _bytes(program, found[0]) <= TYPICAL_BYTES


def test_all_sizes_given_and_none_there_are_one_point():
    assert points(PROGRAMS["softmax"], {"rows": 4, "cols": 9}, {}) == ({"rows": 4, "cols": 9},)
    x = placeholder((8, 9), name="x")
    assert points(build(compute((8, 9), lambda i, j: x[i, j] * 2.0, "y"), name="double"), {}, {}) == ({},)


def test_large_tensors_are_made_smaller():
    b, c, h, w = var("b"), var("c"), var("h"), var("w")
    x, p = placeholder((b, c, h, w), name="x"), reduce_axis((0, w), "p")
    program = build(compute((b, c, h), lambda i, j, k: sum(x[i, j, k, p], axis=p), "y"), name="wide")
    typical = reference(program, {}, {})
    assert typical["b"] == 8 and typical["h"] < 4096 and _bytes(program, typical) <= TYPICAL_BYTES


def test_the_sizes_of_a_class_are_legal():
    assert class_sizes(PROGRAMS["softmax"], {"rows": 0, "cols": 1000}) == {"cols": 1024}
    program = PROGRAMS["softmax"]
    narrow = tuple(
        replace(s, hi=1010, divisor=1) if s.name == "cols" else replace(s, divisor=6) for s in program.scalars
    )
    assert class_sizes(replace(program, scalars=narrow), {"rows": 102, "cols": 1000}) == {"rows": 108, "cols": 1000}
