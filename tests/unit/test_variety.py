"""A bounded part of `bench.variety`, and that it would notice a wrong kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")
from bench import variety
from bench.variety_programs import MANTISSA, draw
from bench.variety_words import Reference

SEEDS = range(1000, 1024)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_right_or_refused(seed: int) -> None:
    outcome = variety.run_one(seed)
    assert outcome.kind in ("compiled", "rejected", "skipped"), outcome


def test_most_programs_compile_and_every_kind_is_drawn() -> None:
    specs = [draw(seed) for seed in SEEDS]
    assert {s.source for s in specs} == {"te", "builder", "primfunc"}
    assert len({d for s in specs for d in s.dtypes}) >= 8
    assert any(len(s.outputs) > 1 for s in specs) and any(not t.shape for s in specs for t in s.outputs)


def test_a_difference_is_noticed() -> None:
    """One lost element of a sum, and one unit of an integer, are reported."""
    seen = 0
    for seed in SEEDS:
        spec = draw(seed)
        arrays, scalars = variety.arrays_of(spec)
        near, pure = (Reference(spec, arrays, scalars, r).arrays for r in (True, False))
        for t in spec.outputs:
            if t.dtype == "bool":
                continue
            wrong = np.array(near[t.name])
            step = 1 if t.dtype not in MANTISSA else max(1.0, float(np.abs(wrong[np.isfinite(wrong)]).max(initial=0)))
            wrong[(0,) * wrong.ndim] += step
            assert variety.compare(spec, t, near[t.name], near[t.name], pure[t.name]) is None
            assert variety.compare(spec, replace(t), wrong, near[t.name], pure[t.name]) is not None
            seen += 1
    assert seen > 20
