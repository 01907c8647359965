"""What is measured next, on planted times: the model's order, corrected, and when the search is over."""

from __future__ import annotations

import random

from neptune.autotune.rounds import FINAL, MARGIN, PRIOR, ROUND, Search, neighbours
from neptune.autotune.space import Trial
from neptune.base.choice import Choice


def trial(us: float, template: str = "a", **params: int) -> Trial:
    return Trial(Choice(template, params), us)


def measure(search: Search, us: object = lambda t: t.us) -> list[Trial]:
    batch = search.next_round()
    search.known |= {t.choice: us(t) for t in batch}  # type: ignore[operator]
    return batch


def test_the_first_round_is_the_models_order() -> None:
    trials = [trial(10 + 0.1 * k, n=k) for k in range(20)]
    assert Search(trials).next_round() == trials[:ROUND]


def test_other_templates_that_come_close_are_in_the_first_round() -> None:
    trials = [trial(10 + 0.01 * k, n=k) for k in range(20)]
    close, far = trial(11.0, "b", n=0), trial(10 * MARGIN + 1, "c", n=0)
    first = Search([*trials, close, far]).next_round()
    assert close in first and far not in first and len(first) == ROUND
    assert first[: ROUND - 1] == trials[: ROUND - 1]


def test_a_prediction_is_corrected_by_its_template() -> None:
    """b is twice as fast as the model says: it comes first from then on."""
    a = [trial(10 + 0.01 * k, "a", n=3 * k) for k in range(30)]
    b = [trial(12 + 0.01 * k, "b", n=3 * k) for k in range(30)]
    search = Search([*a, *b])
    measure(search, lambda t: t.us / (2 if t.template == "b" else 1))
    assert search.best is not None and search.best.template == "b"
    assert {t.template for t in search.next_round()} == {"b"}


def test_half_of_a_round_are_neighbours_of_the_fastest() -> None:
    near = trial(11.9, BLOCK_M=64, num_warps=8)
    trials = [
        trial(10.0, BLOCK_M=64, num_warps=4),
        *(trial(11 + 0.01 * k, BLOCK_M=1 << 20, n=3 * k) for k in range(40)),
    ]
    search = Search([*trials, near])
    measure(search)
    assert search.next_round()[0] == near
    assert near not in Search([*trials, near], dict.fromkeys((t.choice for t in trials[:3]), None)).next_round()


def test_neighbours() -> None:
    assert neighbours(trial(1, m=64, s=2), trial(1, m=128, s=2)) and neighbours(
        trial(1, m=64, s=3), trial(1, m=64, s=4)
    )
    for other in (trial(1, m=64, s=2), trial(1, m=256, s=2), trial(1, m=128, s=3), trial(1, "b", m=128, s=2)):
        assert not neighbours(trial(1, m=64, s=2), other)


def test_the_search_ends_where_the_model_sees_nothing_better() -> None:
    trials = [trial(10.0, n=0), trial(10.0 * MARGIN - 0.1, n=3), trial(10.0 * MARGIN + 0.1, n=6)]
    search = Search(trials, {trials[0].choice: 10.0})
    assert search.next_round() == [trials[1]] and search.bound == trials[1].us / MARGIN
    search.known[trials[1].choice] = 30.0
    # Both were off by 1 and 2.4 times: the middle of that holds for the rest.
    assert search.next_round() == [] and search.bound is not None and search.bound > 10.0
    search.known[trials[2].choice] = None
    assert search.bound is None


def test_what_fails_is_never_tried_again_nor_taken() -> None:
    trials = [trial(10.0 + k / 100, n=3 * k) for k in range(12)]
    search = Search(trials)
    assert measure(search, lambda t: None) == trials[:8]
    assert search.best is None and search.next_round() == trials[8:]
    measure(search, lambda t: None)
    assert search.next_round() == [] and search.finalists() == []


def test_finalists_are_close_and_few_and_with_the_default() -> None:
    trials = [trial(10.0 + k / 100, n=k) for k in range(12)]
    search = Search(trials, {t.choice: t.us for t in trials[:11]} | {trials[11].choice: 40.0})
    assert search.finalists() == trials[:FINAL]
    assert search.finalists(trials[11].choice) == [*trials[:FINAL], trials[11]]
    search.known[trials[0].choice] = 5.0
    assert search.finalists() == [trials[0]]


def test_the_best_is_found_where_the_model_errs_as_much_as_it_is_known_to() -> None:
    """Random spaces: predictions off by up to a tenth either way. The search must end with the best there is."""
    for seed in range(20):
        rng = random.Random(seed)
        trials = sorted(
            (trial(rng.uniform(10, 60), rng.choice("abc"), n=3 * k) for k in range(300)), key=lambda t: t.us
        )
        true = {t.choice: t.us * rng.uniform(0.9, 1.1) for t in trials}
        search = Search(trials)
        while measure(search, lambda t, true=true: true[t.choice]):
            pass
        assert search.best is not None and true[search.best.choice] == min(true.values())
        assert len(search.known) < len(trials) / 2


def test_what_records_put_first_is_measured_whatever_the_model_says() -> None:
    trials = [trial(10 + 0.1 * k, n=k) for k in range(20)] + [trial(500.0 + k, n=100 + k) for k in range(9)]
    search = Search(
        trials,
        prior=[trial(0, n=108).choice, trial(0, n=3).choice, Choice("gone", {}), *(t.choice for t in trials[20:])],
    )
    first = measure(search)
    assert first[:2] == [trials[28], trials[3]] and len(first) == ROUND
    # A few of them, and the model's own beside; no more of them later.
    told = [t for t in first if t.us >= 500]
    assert len(told) == PRIOR - 1 and trials[0] in first
    assert not [t for t in measure(search) if t.us >= 500]
