"""What a correction learns from planted measurements, and where it must do nothing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from neptune.autotune import learn
from neptune.autotune.learn import BOUND, LEAST, MOST, Correction, Samples, learned


def planted(factors: dict[int, float], count: int = 600, sizes: int = 6, seed: int = 0) -> Samples:
    """Measurements that differ from the model by a factor for each tile, and by one of each size."""
    rng = np.random.default_rng(seed)
    tile, at = rng.choice(sorted(factors), count), np.arange(count) % sizes
    predicted = rng.uniform(90, 110, count)
    of_size = np.exp(rng.normal(0, 0.5, sizes))[at]
    measured = predicted * np.array([factors[t] for t in tile]) * of_size * np.exp(rng.normal(0, 0.002, count))
    return Samples({"BLOCK_M": np.log2(tile), "us": rng.normal(0, 1, count)}, at, predicted, measured)


def at(*tiles: int) -> dict[str, np.ndarray]:
    return {"BLOCK_M": np.log2(tiles), "us": np.zeros(len(tiles))}


def test_what_is_planted_is_learned_whatever_the_level_of_each_size():
    pytest.importorskip("sklearn")
    slow, fast = learned({"f": planted({64: 1.03, 128: 0.98})}).factor("f", at(64, 128))
    # Boosting stops before it has taken over all that it sees.
    assert 0.75 < np.log(slow / fast) / np.log(1.03 / 0.98) < 1.02


def test_nothing_is_learned_of_the_level_alone():
    pytest.importorskip("sklearn")
    s = planted({64: 1.0, 128: 1.0})
    far = learned({"f": Samples(s.features, s.sizes, s.predicted, 3 * s.measured)})
    assert far.factor("f", at(64, 128)) == pytest.approx([1, 1], abs=0.005)


def test_a_family_without_records_is_left_alone():
    pytest.importorskip("sklearn")
    taught = learned({"f": planted({64: 1.04, 128: 0.98})})
    assert not np.all(taught.factor("f", at(64, 128)) == 1)
    assert np.all(taught.factor("g", at(64, 128)) == 1)
    assert np.all(Correction().factor("f", at(64, 128)) == 1)


@pytest.mark.parametrize(("asked", "held"), [(BOUND, BOUND), (1.10, 1.10), (9.0, MOST)])
def test_no_correction_is_beyond_its_bound(asked, held):
    pytest.importorskip("sklearn")
    many = planted({64: 1.3, 128: 0.9, 256: 0.8}, count=9900)
    found = learned({"f": many}, asked).factor("f", at(64, 128, 256))
    assert 0.98 * np.log(held) < np.log(found.max()) <= np.log(held) and np.log(found.min()) >= -np.log(held)


@pytest.mark.parametrize(("count", "sizes", "learns"), [(LEAST - 1, 6, False), (LEAST, 6, True), (1200, 1, False)])
def test_few_measurements_or_one_size_teach_nothing(count, sizes, learns):
    pytest.importorskip("sklearn")
    taught = learned({"f": planted({64: 1.04, 128: 0.98}, count, sizes)})
    assert (set(taught.families) == {"f"}) == learns


def test_a_template_without_a_tile_is_told_from_those_that_have_it():
    pytest.importorskip("sklearn")
    s = planted({64: 1.05, 128: 1.05})
    none = {"BLOCK_M": np.full(len(s), learn.ABSENT), "us": s.features["us"]}
    both = Samples(
        {n: np.concatenate([s.features[n], none[n]]) for n in none}, np.tile(s.sizes, 2), np.tile(s.predicted, 2),
        np.concatenate([s.measured, s.measured / 1.05]),
    )  # fmt: skip
    taught = learned({"f": both})
    having, lacking = taught.factor("f", at(64))[0], taught.factor("f", {"us": np.zeros(1)})[0]
    assert 0.75 < np.log(having / lacking) / np.log(1.05) < 1.02


def test_far_candidates_weigh_less_and_do_not_move_the_level():
    s = planted({64: 1.0, 128: 1.0}, sizes=2)
    measured = s.measured.copy()
    slow = np.arange(len(s)) >= 400
    measured[slow] *= 20
    target, weight = learn.beside_the_model(Samples(s.features, s.sizes, s.predicted, measured))
    assert np.abs(target[~slow]).max() < 0.02 and np.all(target[slow] == 10 * np.log(BOUND))
    assert weight[slow].max() < 0.01 * weight[~slow].min()


def test_without_scikit_learn_there_is_no_correction(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert not learn.available()
    assert learned({"f": planted({64: 1.04, 128: 0.98})}) == Correction()
