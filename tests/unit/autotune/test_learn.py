"""The order of a tuner's candidates, corrected by planted lessons; and where it stays the model's.

What a correction learns from planted measurements, and where it must do nothing.

What a correction learns from is what the cost model predicts.
"""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest

import neptune
from neptune.autotune import learn
from neptune.autotune.learn import BOUND, LEAST, MOST, Correction, Lesson, Samples, features, learned, ordered
from neptune.autotune.space import Form, Trial, forms_of, trials
from neptune.base.choice import Choice
from neptune.ops.linear import matmul
from neptune.tune.choose import lowered
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import DEFAULT, DEVICES
from neptune.tune.model.prediction import SPENT

SIZES = {"m": 2048, "n": 2048, "k": 2048}
OTHERS = ({"m": 1024, "n": 2048, "k": 4096}, {"m": 4096, "n": 4096, "k": 1024}, {"m": 512, "n": 4096, "k": 4096})


@cache
def forms() -> tuple[Form, ...]:
    program = matmul()
    return forms_of(program, "matmul", lambda t: neptune.compile(program, t, target="llvm"))


def slower(t: Trial) -> float:
    """What the model does not know: eight warps are slower, four faster."""
    return 1.04 if t.params["num_warps"] == 8 else 0.96


@cache
def lessons(count: int = 3 * LEAST) -> tuple[Lesson, ...]:
    each = [(s, t) for s in OTHERS for t in trials(forms(), s, DEFAULT)[: count // len(OTHERS)]]
    level = {s["m"]: 1.0 + k for k, s in enumerate(OTHERS)}
    return tuple(Lesson(t.choice, s, t.us * slower(t) * level[s["m"]]) for s, t in each)


def test_what_lessons_teach_changes_the_order_within_the_bound() -> None:
    pytest.importorskip("sklearn")
    before = trials(forms(), SIZES, DEFAULT)
    after, said = ordered(forms(), before, lessons(), SIZES, DEFAULT)
    assert f"corrected by {len(lessons())} measurements" in said
    assert [t.us for t in after] == sorted(t.us for t in after)
    alone = {t.choice: t.us for t in before}
    assert {t.choice for t in after} == alone.keys() and len(after) == len(before)
    factors = {w: [t.us / alone[t.choice] for t in after[:300] if t.params["num_warps"] == w] for w in (4, 8)}
    assert np.mean(factors[8]) / np.mean(factors[4]) > 1.05
    assert all(1 / BOUND - 1e-9 <= f <= BOUND + 1e-9 for of in factors.values() for f in of)
    # The order is nearer to the truth than the model's.
    true = {t.choice: t.us * slower(t) for t in before}
    assert true[after[0].choice] <= true[before[0].choice]


@pytest.mark.parametrize("count", [0, LEAST - 1])
def test_few_lessons_teach_nothing(count: int) -> None:
    before = trials(forms(), SIZES, DEFAULT)
    assert ordered(forms(), before, lessons()[:count], SIZES, DEFAULT) == (before, "")


def test_one_size_teaches_nothing() -> None:
    before = trials(forms(), SIZES, DEFAULT)
    same = [Lesson(x.choice, SIZES, x.us) for x in lessons()]
    assert ordered(forms(), before, same, SIZES, DEFAULT) == (before, "")


def test_without_scikit_learn_the_order_is_the_models_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_regressor", lambda: None)
    before = trials(forms(), SIZES, DEFAULT)
    after, said = ordered(forms(), before, lessons(), SIZES, DEFAULT)
    assert after == before and "by the model alone" in said and "scikit-learn" in said


def test_lessons_of_templates_that_are_gone_say_nothing() -> None:
    gone = [Lesson(Choice("gone", x.choice.params), x.sizes, x.us) for x in lessons()]
    before = trials(forms(), SIZES, DEFAULT)
    if learn.available():
        assert ordered(forms(), before, gone, SIZES, DEFAULT) == (before, "")
    assert not learn.correction(forms(), gone, DEFAULT).families


# --- correct ------------------------------------------------------------------------------------


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


# --- features -----------------------------------------------------------------------------------

MACHINE = DEVICES["H200"]
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")


@pytest.fixture(scope="module")
def asked():
    model = Model(lowered("matmul", matmul()).tiles)
    columns = {"m": 4096, "n": 4096, "k": 4096, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8}
    columns = {n: np.full(3, v, float) for n, v in columns.items()}
    # The last needs more shared memory than there is.
    columns |= {"BLOCK_M": np.array([64.0, 128, 128]), "num_stages": np.array([2.0, 3, 40])}
    found = model.predict_all(columns, MACHINE)
    return found, features(found, columns, TILES)


def test_every_column_is_finite_and_what_does_not_fit_is_zero(asked):
    found, table = asked
    assert set(table) == {*SPENT, "us", "waves", "resident", "programs", "num_warps", "num_stages", *TILES}
    assert np.isinf(found.us[2])
    assert all(np.isfinite(c).all() and c.shape == (3,) and c[2] == 0 for c in table.values())


def test_columns_say_what_the_prediction_says(asked):
    found, table = asked
    (kernel,) = found.kernels
    assert table["us"][:2] == pytest.approx(np.log2(found.us[:2]))
    assert table["BLOCK_M"][:2].tolist() == [6, 7] and table["num_stages"][:2] == pytest.approx(np.log2([2, 3]))
    assert table["waves"][:2] == pytest.approx(np.log2(kernel.waves[:2]))
    for k in range(2):
        busiest = max(table[unit][k] for unit in SPENT[:-1]) * found.us[k] / kernel.us[k]
        assert busiest == pytest.approx(kernel.share[k])


def test_a_product_keeps_the_matrix_unit_busy_for_as_long_as_its_operations_take(asked):
    found, table = asked
    cycles = 2 * 4096**3 / MACHINE.matrix["float16"] / MACHINE.processors
    assert table["matrix"][:2] * found.us[:2] == pytest.approx(cycles / MACHINE.clock / 1e3)
