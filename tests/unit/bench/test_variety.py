"""A bounded part of `bench.variety`, and that it would notice a wrong kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")
from bench import variety
from bench.variety_programs import CHOICES, MANTISSA, draw
from bench.variety_words import Reference
from tests.tiers import sampled

pytestmark = pytest.mark.uncached

SEEDS = range(1000, 1020)
PARTS = (SEEDS[:3], SEEDS[3:12], SEEDS[12:])


@pytest.mark.parametrize("seeds", sampled(PARTS, 3), ids=str)
def test_random_programs_compile_and_are_right(seeds: range) -> None:
    outcomes = [variety.run_one(seed) for seed in seeds]
    assert {o.kind for o in outcomes} <= {"compiled", "rejected", "skipped"}, variety.summary(outcomes)
    # What TVM does not take, or is of nothing, says nothing about Neptune.
    tried = [o for o in outcomes if o.kind != "skipped"]
    assert len(tried) >= len(outcomes) / 2, variety.summary(outcomes)
    compiled = sum(o.kind == "compiled" for o in tried)
    assert compiled >= 0.9 * len(tried), variety.summary(outcomes)


def test_every_kind_of_program_is_drawn() -> None:
    specs = [draw(seed) for seed in range(1000, 1200)]
    assert {s.source for s in specs} == {"te", "builder", "primfunc"}
    assert {"float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"} <= {
        d for s in specs for d in s.dtypes
    }
    assert {"sum", "prod", "max", "min", *CHOICES} == {t.fold.reducer for s in specs for t in s.stages if t.fold}
    outputs = [t for s in specs for t in s.outputs]
    assert any(not t.shape for t in outputs) and any(d.value == 0 for t in outputs for d in t.shape)
    assert any(len(s.outputs) > 1 for s in specs)
    assert {variety.TURNS[s.seed % len(variety.TURNS)] for s in specs} == set(variety.TEMPLATES)


def test_a_difference_is_noticed() -> None:
    """One lost element of a sum, and one unit of an integer, are reported."""
    seen = 0
    for seed in SEEDS:
        spec = draw(seed)
        if any(d.value == 0 for t in (*spec.inputs, *spec.stages) for d in t.shape):
            continue
        arrays, scalars = variety.arrays_of(spec)
        near, pure = (Reference(spec, arrays, scalars, r).arrays for r in (True, False))
        for t in spec.outputs:
            wrong = np.array(near[t.name])
            if t.dtype == "bool":
                continue
            step = 1 if t.dtype not in MANTISSA else max(1.0, float(np.abs(wrong[np.isfinite(wrong)]).max(initial=0)))
            first = (0,) * wrong.ndim
            wrong[first] = wrong[first] + step if np.isfinite(wrong[first]) else step
            assert variety.compare(spec, t, near[t.name], near[t.name], pure[t.name]) is None
            assert variety.compare(spec, replace(t), wrong, near[t.name], pure[t.name]) is not None
            seen += 1
    assert seen > 15
