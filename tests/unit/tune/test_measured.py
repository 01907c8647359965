"""What records do to predictions: believed, weighed against the model, or nothing."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest

from neptune.base.choice import Choice
from neptune.tune.measured import BOUND, MODEL, NEVER, OCTAVE, Measured, Sample

AT = {"m": 1024, "n": 64}
TIMES = {1: 10.0, 2: 12.0, 3: 14.0}
"""What the model predicts, by BLOCK, at all sizes; another value takes 20."""


def predict(template, choices, points):
    return np.array([[TIMES.get(c["BLOCK"], 20.0) for _ in points] for c in choices])


def sample(us, weight=0.5, sizes=AT):
    return Sample(sizes, {Choice("t", {"BLOCK": b}): t for b, t in us.items()}, weight)


def factors(*samples, at=AT, blocks=(1, 2, 3, 4)):
    return Measured.of(samples, predict).factors("t", [{"BLOCK": b} for b in blocks], [at])[:, 0]


def test_nothing_measured_changes_nothing():
    assert (factors() == 1.0).all() and Measured().candidates("t") == []


def test_what_these_versions_measured_is_believed_and_nothing_else_is_a_candidate():
    found = factors(sample({1: 15.0, 2: 12.0, 3: 13.0}, weight=1.0))
    corrected = np.array([10.0, 12.0, 14.0]) * found[:3]
    # The times themselves, but for what is common to all of them.
    assert corrected / corrected[1] == pytest.approx(np.array([15.0, 12.0, 13.0]) / 12.0)
    assert found[3] == pytest.approx(NEVER)


def test_other_versions_weigh_against_the_model():
    found = np.log(factors(sample({1: 15.0, 2: 12.0, 3: 14.0})))
    share = 0.5 / (0.5 + MODEL)
    assert found[:3] == pytest.approx([share * log(1.5), 0.0, 0.0])
    # What was not measured is no better than what the model overrated there.
    assert found[3] == pytest.approx(found[0])


def test_what_the_model_underrates_makes_nothing_else_faster():
    found = factors(sample({1: 9.0, 2: 12.0, 3: 14.0}))
    assert found[0] < 1 and found[3] == 1.0


def test_an_octave_counts_half_and_far_away_the_model_is_alone():
    us = {1: 10.5, 2: 12.0, 3: 14.0}
    off = [np.log(factors(sample(us), at={**AT, "m": 1024 << k}))[0] for k in (1, 2, 40)]
    weights = [0.5 * OCTAVE**k for k in (1, 2)]
    assert off[:2] == pytest.approx([w / (w + MODEL) * log(1.05) for w in weights]) and off[2] < 1e-6
    # Sizes are apart in all of their names.
    assert factors(sample(us), at={"m": 2048, "n": 32})[0] == pytest.approx(np.exp(off[1]))


def test_sizes_measured_elsewhere_change_no_more_than_the_bound():
    for far, us in ((0, {1: 100.0, 2: 12.0, 3: 14.0}), (1, {1: 0.1, 2: 12.0, 3: 14.0})):
        found = factors(sample(us), at={**AT, "m": 1025})
        assert (found <= BOUND + 1e-9).all() and (found >= 1 / BOUND - 1e-9).all()
        assert found[far] == pytest.approx(BOUND) and factors(sample(us))[far] > BOUND


def test_one_record_says_nothing_of_other_versions():
    assert factors(sample({1: 500.0})) == pytest.approx(1.0)


def test_what_is_believed_most_counts_where_several_measured():
    old, new = sample({1: 15.0, 2: 12.0, 3: 14.0}), sample({1: 8.0, 2: 12.0, 3: 14.0}, weight=1.0)
    for order in ((old, new), (new, old)):
        assert factors(*order)[:3] == pytest.approx(factors(new)[:3])


def test_what_is_predicted_to_run_nowhere_says_nothing(monkeypatch):
    monkeypatch.setitem(TIMES, 2, inf)
    assert np.isfinite(factors(sample({1: 15.0, 2: 12.0, 3: 14.0}))[[0, 2, 3]]).all()


def test_the_fastest_of_each_sample_are_candidates():
    found = Measured.of([sample({b: 10.0 + b for b in range(1, 9)})], predict)
    assert [c["BLOCK"] for c in found.candidates("t")] == [1, 2, 3] and found.candidates("u") == []
