"""The order of a tuner's candidates, corrected by planted lessons; and where it stays the model's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import neptune
from neptune.autotune import learn
from neptune.autotune.learn import BOUND, LEAST, Lesson, ordered
from neptune.autotune.space import Form, Trial, forms_of, trials
from neptune.base.choice import Choice
from neptune.ops.linear import matmul
from neptune.tune.model.machine import DEFAULT

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
