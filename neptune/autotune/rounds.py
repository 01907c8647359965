"""What is measured next, and when nothing better is left: a function of the model's order and of what was measured.

A round is half neighbours of the fastest so far (one value changed), half what the model puts next. Predictions of a
template are corrected by how far they were off where it was measured, those of a neighbour by how far they were off
beside it. What is then predicted to be slower than the best
by more than the model errs (MARGIN) is never measured; where that is all that is left, the search is over.

    round 1: what records put first, the model's first, and the first of each other template that comes close
    round 2: neighbours of the fastest three | the next of the order
    …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from statistics import median
from typing import Any

from neptune.autotune.space import Trial
from neptune.base.choice import Choice

ROUND = 8
"""Candidates of a round."""
PRIOR = 4
"""Of these, what records of other versions or sizes put first."""
MARGIN = 1.25
"""By how much the model may put the best too far back: on 363 measured kernels that no constant was fitted to, its
first choice was 24 % slower than the best at worst."""
PARENTS = 3
"""The fastest, whose neighbours are tried."""
FINAL, CLOSE = 6, 1.06
"""What is measured again in interleaved rounds: so many at most, and none that was slower by that much."""


@dataclass
class Search:
    """The trials of one shape in the model's order, and what came of those that were tried: microseconds, None where it
    failed. `prior` are those that records put first which are not believed: the first few are measured first."""

    trials: Sequence[Trial]
    known: dict[Choice, float | None] = field(default_factory=dict)
    prior: Sequence[Choice] = ()

    @property
    def best(self) -> Trial | None:
        """The fastest so far."""
        return min(self.measured, key=self.us_of, default=None)

    @property
    def measured(self) -> list[Trial]:
        """Those that ran, in the model's order."""
        return [t for t in self.trials if self.known.get(t.choice) is not None]

    @property
    def bound(self) -> float | None:
        """Microseconds: what is left is not faster than that, as far as the model can be believed; None: nothing is."""
        left = self._left()
        return left[0][0] / MARGIN if left else None

    def us_of(self, trial: Trial) -> float:
        """Microseconds of a trial that ran."""
        us = self.known[trial.choice]
        assert us is not None
        return us

    @property
    def _ratios(self) -> Mapping[str, float]:
        """Measured over predicted by template and form, under "" of all."""
        ratios: dict[str, list[float]] = {}
        for t in self.measured:
            for name in ("", t.choice.kind):
                ratios.setdefault(name, []).append(self.us_of(t) / t.us)
        return {name: median(values) for name, values in ratios.items()}

    def hopeful(self) -> list[Trial]:
        """What was not tried and may be faster than the best, the most promising first."""
        best = self.best
        most = inf if best is None else MARGIN * self.us_of(best)
        return [t for us, t in self._left() if us <= most]

    def next_round(self) -> list[Trial]:
        """What to measure now; nothing where the model's bound says that nothing better is left."""
        first = [t for t in self._told() if t.choice not in self.known]
        return (first + [t for t in self._by_the_model() if t not in first])[:ROUND]

    def _told(self) -> list[Trial]:
        """What records put first."""
        trials = {t.choice: t for t in self.trials}
        return [trials[key] for key in self.prior if key in trials][:PRIOR]

    def _by_the_model(self) -> list[Trial]:
        hopeful = self.hopeful()
        if self.best is None:
            return _first(hopeful)
        near = [t for t in hopeful if any(neighbours(t, p) for p in self._parents())][: ROUND // 2]
        others = (t for t in hopeful if t not in near)
        return [*near, *islice(others, ROUND - len(near))]

    def finalists(self, always: Choice | None = None) -> list[Trial]:
        """The fastest, to be measured again beside each other; with the one of the choice `always`, if it ran."""
        order = sorted(self.measured, key=self.us_of)
        close = [t for t in order[:FINAL] if self.us_of(t) <= CLOSE * self.us_of(order[0])]
        return close + [t for t in order if t.choice == always and t not in close]

    def _parents(self) -> list[Trial]:
        return sorted(self.measured, key=self.us_of)[:PARENTS]

    def _left(self) -> list[tuple[float, Trial]]:
        """What was not tried, with predictions corrected by the measurements of its template, or of all, in order. Near
        one of the fastest, the model may err as it did there."""
        ratios = self._ratios
        parents = [(p, self.us_of(p) / p.us) for p in self._parents()]

        def corrected(t: Trial) -> float:
            near = [ratio for p, ratio in parents if neighbours(t, p)]
            return t.us * min([ratios.get(t.choice.kind, ratios.get("", 1.0)), *near])

        left = ((corrected(t), t) for t in self.trials if t.choice not in self.known)
        return sorted(left, key=lambda x: x[0])


def _first(order: Sequence[Trial]) -> list[Trial]:
    """The first of the order; in the place of the last ones the first of other templates that come close."""
    if not order:
        return []
    leaders = {t.choice.kind: t for t in reversed(order) if t.us <= MARGIN * order[0].us}
    kept = order[: ROUND - len(leaders)] if len(leaders) < ROUND else []
    chosen = [*kept, *(t for t in leaders.values() if t not in kept)]
    more = [t for t in order if t not in chosen][: ROUND - len(chosen)]
    return sorted(chosen + more, key=lambda t: t.us)[:ROUND]


def neighbours(a: Trial, b: Trial) -> bool:
    """True if two trials of one template differ in one value, by one step of powers of two or one stage, or in a number
    of parts that one of them leaves to the launch."""
    one, other = a.choice.values, b.choice.values
    differ = [(one.get(n), other.get(n)) for n in one.keys() | other.keys() if one.get(n) != other.get(n)]
    return a.choice.kind == b.choice.kind and len(differ) == 1 and _step(*differ[0])


def _step(one: Any, other: Any) -> bool:
    """True if there is no value between two: words have no order, and without a number a launch chooses one."""
    if one is None or other is None or isinstance(one, str):
        return True
    return bool(max(one, other) == 2 * min(one, other) or abs(one - other) == 1)
