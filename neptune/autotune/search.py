"""The search at one shape: rounds of candidates, each measured and kept at once, then the fastest beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from neptune.autotune.journal import Journal
from neptune.autotune.place import Executor, Lost, Outcome
from neptune.autotune.progress import Progress, State
from neptune.autotune.rounds import Search
from neptune.autotune.space import Trial
from neptune.base.choice import Choice
from neptune.errors import NeptuneError
from neptune.kernel import Kernel
from neptune.tune.budget import Clock

ROUNDS = 3
"""How often the finalists are timed, one after the other."""
RESERVE = 0.15
"""The share of the time that is kept for them."""
NOTHING_BETTER = "the model sees nothing better that is left"
TIME, ENOUGH = "the time is over", "as many candidates as were asked for"


@dataclass(frozen=True)
class Tuned:
    """What came of a search at one shape.

    `default` is the model's choice, `best` what is taken, with their microseconds (None: not measured). `candidates`
    fit the machine, `measured` of them ran, `known` of these in an earlier search; `failed` are those that did not,
    with why. `stopped` says why the search ended.
    """

    sizes: Mapping[str, int]
    default: Trial
    best: Trial
    us: float | None
    default_us: float | None
    candidates: int
    measured: int
    known: int
    failed: Mapping[str, str]
    stopped: str
    times: Mapping[Choice, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""

        def trial(t: Trial, us: float | None) -> dict[str, Any]:
            return {**t.choice.plain(), "us": us, "predicted": round(t.us, 3)}

        counts = {"candidates": self.candidates, "measured": self.measured, "known": self.known}
        best, default = trial(self.best, self.us), trial(self.default, self.default_us)
        return {
            "sizes": dict(self.sizes), "best": best, "default": default, **counts,
            "failed": dict(self.failed), "stopped": self.stopped,
        }  # fmt: skip

    def __str__(self) -> str:
        shape = shape_text(self.sizes)
        if self.us is None:
            return f"{shape}: {self.best}, predicted {self.best.us:.1f} µs; {self.stopped}"
        gain = f" ({self.default_us / self.us:.2f}× the default)" if self.default_us else ""
        kinds = Counter(why.partition(":")[0] for why in self.failed.values())
        failed = "".join(f", {n} {kind}" for kind, n in kinds.items())
        return f"{shape}: {self.us:.1f} µs{gain}, {self.best}; {self.measured} measured{failed}; {self.stopped}"


def shape_text(sizes: Mapping[str, int]) -> str:
    """Sizes for people.

    >>> shape_text({"batch": 1, "s_kv": 8192})
    'batch=1 s_kv=8192'
    """
    return " ".join(f"{n}={v}" for n, v in sizes.items())


@dataclass
class Run:
    """One search with what it needs; `most` is how many candidates may be measured."""

    sizes: Mapping[str, int]
    search: Search
    default: Trial
    kernel: Callable[[Choice], Kernel | NeptuneError]
    executor: Executor
    journal: Journal
    clock: Clock
    most: int | None
    progress: Progress
    failed: dict[str, str] = field(default_factory=dict)
    compared: set[Choice] = field(default_factory=set)

    @property
    def fresh(self) -> int:
        """How many were measured in this search."""
        return len(self.compared)

    def tuned(self) -> Tuned:
        """Search until nothing better is left, or the time or the number of candidates is used up."""
        earlier = {key: us for key, us in self.journal.known(self.sizes).items() if key in self._keys}
        self.search.known |= earlier
        self.search.prior = [key for key in self.journal.prior(self.sizes) if key in self._keys]
        try:
            stopped = self._rounds()
            if self.fresh:
                self._final()
            self._compare_best()
        except Lost as lost:
            stopped = str(lost)
        us = {t.choice: self.search.us_of(t) for t in self.search.measured}
        best = min((t for t in self.search.measured if t.choice in self.compared), key=self.search.us_of, default=None)
        return Tuned(
            self.sizes,
            self.default,
            best or self.default,
            None if best is None else us[best.choice],
            us.get(self.default.choice),
            len(self.search.trials),
            len(us),
            sum(us is not None for us in earlier.values()),
            self.failed,
            stopped,
            us,
        )

    @property
    def _keys(self) -> set[Choice]:
        return {t.choice for t in self.search.trials}

    def _rounds(self) -> str:
        """Measure round after round; why no other followed."""
        reserve = RESERVE * self.clock.seconds
        while self.clock.left > reserve:
            left = None if self.most is None else self.most - self.fresh - len(self.failed)
            if left is not None and left <= 0:
                return ENOUGH
            batch = self._batch()[:left]
            if not batch:
                return NOTHING_BETTER
            self._measure(batch)
            self.progress.round_over(self._state())
        return TIME

    def _batch(self) -> list[Trial]:
        """The next round; the model's choice is in the first one, since what is taken must not be slower."""
        batch = self.search.next_round()
        if self.default.choice in self.search.known:
            return batch
        return [self.default, *(t for t in batch if t.choice != self.default.choice)]

    def _measure(self, batch: list[Trial]) -> None:
        kernels: list[tuple[Trial, Kernel]] = []
        for trial in batch:
            compiled = self.kernel(trial.choice)
            if isinstance(compiled, NeptuneError):
                self._fails(trial, "failed", f"{compiled.asked}: {compiled.wrong}")
            else:
                kernels.append((trial, compiled))
        for k, outcome in self.executor.measured([kernel for _, kernel in kernels]):
            self._came(kernels[k][0], outcome)

    def _came(self, trial: Trial, outcome: Outcome) -> None:
        """Keep what came of a candidate that was compared with the reference, and timed."""
        if outcome.failed:
            self._fails(trial, outcome.failed, outcome.why)
            # What was stopped because the time was over may be as good as any.
            if self.clock.left or outcome.failed != "hung":
                self.journal.lost(self.sizes, trial, outcome.failed)
        else:
            self.compared.add(trial.choice)
            self._keep(trial, outcome.us, outcome.clocks)
        self.progress.measured(self._state())

    def _compare_best(self) -> None:
        """Compare what is taken, where a record alone speaks for it: that may be anybody's."""
        while self.clock.left and (best := self.search.best) is not None and best.choice not in self.compared:
            self._measure([best])

    def _final(self) -> None:
        """The fastest in rounds, one after the other, so that a clock that moves is the same for all; medians of whole
        rounds count."""
        for trial in self.search.finalists(self.default.choice):
            if trial.choice not in self.compared and self.clock.left:
                self._measure([trial])
        finalists = [t for t in self.search.finalists(self.default.choice) if t.choice in self.compared]
        times: dict[Choice, list[float]] = {t.choice: [] for t in finalists}
        clocks: Mapping[str, int] = {}
        for _ in range(ROUNDS if len(finalists) > 1 else 0):
            times_of_round: dict[Choice, float] = {}
            for trial in finalists:
                if not self.clock.left:
                    break
                kernel = self.kernel(trial.choice)
                assert not isinstance(kernel, NeptuneError), kernel
                outcome = self.executor.time(kernel)
                if outcome.failed:
                    self._fails(trial, outcome.failed, outcome.why)
                else:
                    times_of_round[trial.choice], clocks = median(outcome.us), outcome.clocks
            finalists = [t for t in finalists if t.choice in self.compared]
            if not all(t.choice in times_of_round for t in finalists):
                break
            for trial in finalists:
                times[trial.choice].append(times_of_round[trial.choice])
        for trial in finalists:
            if times[trial.choice]:
                self._keep(trial, times[trial.choice], clocks)
        self._only_finalists(finalists, times)

    def _only_finalists(self, finalists: list[Trial], times: Mapping[Choice, list[float]]) -> None:
        """What was timed once is not compared with medians of rounds: others count as no faster than the slowest
        finalist."""
        if not any(times[t.choice] for t in finalists):
            return
        slowest = max(self.search.us_of(t) for t in finalists)
        for trial in self.search.measured:
            if trial not in finalists:
                self.search.known[trial.choice] = max(self.search.us_of(trial), slowest)

    def _keep(self, trial: Trial, us: Any, clocks: Mapping[str, int]) -> None:
        self.journal.keep(self.sizes, trial, us, clocks)
        self.search.known[trial.choice] = median(us)

    def _fails(self, trial: Trial, failed: str, why: str) -> None:
        self.search.known[trial.choice] = None
        self.compared.discard(trial.choice)
        self.failed[str(trial)] = f"{failed}: {why}"
        if failed in ("wrong", "died", "hung"):
            self.progress.say(f"{trial}: {failed}: {why}")

    def _state(self) -> State:
        best = self.search.best
        us = None if best is None else self.search.us_of(best)
        candidates = len(self.search.trials)
        tried = len(self.search.known)
        return State(shape_text(self.sizes), tried, candidates, us, self.search.bound, self.clock.left)
