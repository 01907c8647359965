"""What a search finds, verified and in the order of what it takes: the candidates of a superoptimized program.

    reference  ──search──▶ graphs that the axioms accept  ──draws──▶ verified  ──estimate──▶ ranked  ──model──▶ the best

The axioms and the draws are independent: a graph has to pass both. What is estimated (`cost.estimate`) is compared with
what else was found, and the best few are lowered, and predicted by the cost model like any other kernel (`predicted`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from math import isfinite

from neptune import config
from neptune.base.boundary import public
from neptune.errors import InternalError, NeptuneError
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program
from neptune.mirage.cost import Cost, batches, estimate
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import TILE, Graph, Kernel, Step, Type
from neptune.mirage.layouts import available, layouts, temporaries
from neptune.mirage.lower import Lowered, lowered_or_why
from neptune.mirage.lowering.safe import without_maxima
from neptune.mirage.order import ordered
from neptune.mirage.reference import reference
from neptune.mirage.search import Search, search
from neptune.mirage.splits import splits
from neptune.mirage.types import graph_types, kernel_types
from neptune.mirage.verifier.candidates import Candidates, Outcome
from neptune.tune import choose
from neptune.tune.budget import Worked, seconds_of
from neptune.tune.model.machine import DEFAULT, Machine
from neptune.tune.model.prediction import Prediction
from neptune.tune.params import checked_sizes
from neptune.tune.points import reference as usual_sizes
from neptune.tune.rank import ranked
from neptune.tune.slow.loops import scalar_loops
from neptune.tune.slow.products import widened_products
from neptune.tune.subject import Subject

log = logging.getLogger(__name__)
BEST, ALIKE = 20, 4
"""Graphs that are lowered and predicted, and how many at most are tried of the same grids and loops."""
SHORT = 128
"""An axis of so many elements may be whole in each program instead of cut by the grid."""
MOST = 8
"""Choices of grids of a graph at most."""
OFF = frozenset({"layouts", "order"})
"""What `Goal.without` may name: temporaries keep the order of their axes, operators that in which they are found."""


@dataclass(frozen=True)
class Candidate:
    """A verified graph: what it is estimated to take, and what the draws say of it."""

    graph: Graph
    cost: Cost
    outcome: Outcome


@dataclass(frozen=True)
class Goal:
    """What is searched: the graph of a program, at some sizes (every size and scalar by name) on a machine. `without`:
    what the optimizer leaves as it is, of `OFF`."""

    reference: Graph
    sizes: Mapping[str, int]
    machine: Machine
    bounds: Bounds = field(default_factory=Bounds)
    seed: int = 0
    without: frozenset[str] = frozenset()


class Optimizer(Iterator[Candidate]):
    """The verified graphs of a search, in the order in which it finds them. `best` are those with the least estimates
    so far; `search` says how far the search is, `mistakes` what was derived from a graph and is none."""

    def __init__(
        self,
        goal: Goal,
        deadline: float | None = None,
        workers: int = 1,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.goal, self._progress, self._deadline = goal, progress, deadline
        self._draws = Candidates(goal.reference, seed=goal.seed)
        self._outcomes: dict[int, Outcome] = {}
        self.candidates: list[Candidate] = []
        self.mistakes: list[str] = []
        report = None if progress is None else self._told
        self._search = partial(
            search, bounds=goal.bounds, seed=goal.seed, workers=workers, accept=self._accepted, progress=report
        )
        # Safe softmax takes two passes over scores, and one where the maximum is left to the repair: that comes first.
        first = without_maxima(goal.reference, self._draws.accept)
        self._further = [goal.reference] if first is not goal.reference else []
        now = time.process_time()
        half = now + (deadline - now) / 2 if deadline is not None and self._further else deadline
        self.search: Search = self._search(first, deadline=half)

    def __next__(self) -> Candidate:
        solution = next(self.search, None)
        if solution is None:
            if self.search.interrupted or not self._further:
                raise StopIteration
            before, self.search = self.search, self._search(self._further.pop(), deadline=self._deadline)
            self.search.follow(before)
            return next(self)
        outcome = self._outcomes.pop(id(solution.graph))
        graph = solution.graph if "order" in self.goal.without else tidied(solution.graph)
        first = candidate_of(graph, outcome, self.goal)
        for candidate in (first, *self._surviving(self._split(first.graph))):
            others = (replace(candidate, graph=g, cost=self._cost(g)) for g in self._regridded(candidate.graph))
            self.candidates += [candidate, *self._surviving(others)]
        return first

    def _surviving(self, derived: Iterator[Candidate]) -> Iterator[Candidate]:
        """What is derived from a graph, up to a mistake of ours: that is logged, and the search goes on."""
        try:
            yield from derived
        except Exception as error:
            text = f"a defect of the search: {error}"
            if config.read().strict:
                raise InternalError(text) from error
            log.warning("%s", text)
            self.mistakes.append(text)

    def _split(self, graph: Graph) -> Iterator[Candidate]:
        """The same graph with a loop shared out among programs, where the draws accept it."""
        if len(graph.kernels) < self.goal.bounds.max_kernels:
            for halves in map(tidied, splits(graph)):
                outcome = self._draws.outcome(halves)
                if outcome.accepted:
                    yield candidate_of(halves, outcome, self.goal)

    def _cost(self, graph: Graph) -> Cost:
        return estimate(graph, self.goal.sizes, self.goal.machine)

    def _regridded(self, graph: Graph) -> list[Graph]:
        """The same graph where short axes are whole in the programs of a kernel, and not cut by its grid."""
        lengths = {a: evaluate_size(e, self.goal.sizes) for a, e in graph.axes.items()}
        tensors = graph_types(graph)
        choices: list[Sequence[Step]]
        choices = [_grids(s, tensors, lengths) if isinstance(s, Kernel) else [s] for s in graph.steps]
        return [graph.with_steps(*steps) for steps in islice(product(*choices), 1, MOST)]

    def close(self) -> None:
        """End the search, with its processes."""
        self.search.close()

    def _accepted(self, graph: Graph) -> bool:
        outcome = self._draws.outcome(graph)
        if outcome.accepted:
            self._outcomes[id(graph)] = outcome
        return outcome.accepted

    def _told(self, search: Search) -> None:
        assert self._progress is not None
        us = min((c.cost.us for c in self.candidates), default=None)
        counts = search.counts
        self._progress(Progress(counts.states, counts.tries, search.found, us, search.seconds))

    @property
    def best(self) -> list[Candidate]:
        """The candidates with the least estimates, the least first; of equal ones, the one that was found first."""
        return list(islice(self.ranking(), BEST))

    def ranking(self) -> Iterator[Candidate]:
        """The candidates that fit the machine, the least estimate first. Of those that would be scheduled alike there
        are ALIKE, since what refuses one of them mostly refuses all."""
        alike = Counter[tuple[object, ...]]()
        for c in sorted(self.candidates, key=lambda c: c.cost.us):
            form = tuple((k.grid, k.loop) for k in c.graph.kernels)
            alike[form] += 1
            if alike[form] <= ALIKE and isfinite(c.cost.us):
                yield c


@dataclass(frozen=True)
class Progress:
    """How far a search is. `best`: the least estimate so far, microseconds; `seconds` since it began."""

    states: int
    tries: int
    verified: int
    best: float | None
    seconds: float

    def __str__(self) -> str:
        best = "nothing yet" if self.best is None else f"best {self.best:.1f} µs"
        rate = self.tries / max(self.seconds, 1e-3)
        return f"{self.states} states, {rate:,.0f} tries/s, {self.verified} verified, {best}, {self.seconds:.0f} s"


def _grids(kernel: Kernel, tensors: Mapping[str, Type], lengths: Mapping[str, int]) -> list[Kernel]:
    """The kernel as it is, and without each short axis of its grid; what is split stays, as do batches."""
    typed = kernel_types(kernel, tensors)
    split = {a for s in kernel.saves for a, parts in typed[s.value].type.items() if TILE not in parts}
    kept = {kernel.loop, *split, *batches(kernel, typed)}
    short = [a for a in kernel.grid if lengths[a] <= SHORT and a not in kept and len(kernel.grid) > 1]
    return [kernel, *(replace(kernel, grid=tuple(x for x in kernel.grid if x != a)) for a in short)]


def candidate_of(graph: Graph, outcome: Outcome, goal: Goal) -> Candidate:
    """A graph with its estimate."""
    return Candidate(graph, estimate(graph, goal.sizes, goal.machine), outcome)


def tidied(graph: Graph) -> Graph:
    """The graph with the operators of each kernel in order (`order.ordered`)."""
    tensors = graph_types(graph)
    return graph.with_kernels(lambda k: ordered(k, tensors))


@dataclass(frozen=True)
class Lowering:
    """A candidate as the compiler takes it, with what the cost model predicts of it."""

    candidate: Candidate
    lowered: Lowered
    prediction: Prediction


def predicted(candidate: Candidate, program: Program, goal: Goal, safe: bool = True) -> Lowering | str:
    """The candidate scheduled and lowered, with the prediction of its best values; else why there is none."""
    try:
        low = lowered_or_why(candidate.graph, program, safe, _orders(candidate, goal))
        by = low if isinstance(low, NeptuneError) else choose.lowered_or_why(low.template, program, strict=False)
        if isinstance(by, NeptuneError):
            return f"{by.asked}: {by.wrong.splitlines()[0]}"
        assert isinstance(low, Lowered)
        tiles = by.tiles
        choices = ranked(tiles, goal.sizes, goal.machine)
    except Exception as error:
        # A graph for which no schedule can be written down is not taken, and the others are.
        if isinstance(error, InternalError):
            return error.wrong.splitlines()[0]
        if config.read().strict:
            raise
        return f"a defect: {type(error).__name__}: {error}"
    if not choices:
        return "no values fit the machine"
    # The model counts bytes and work of tiles: of single elements it says too little.
    subject = Subject(program, tiles, choices[0].params, goal.sizes, True, {}, goal.machine)
    if slow := next(scalar_loops(subject), None):
        return f"{slow[1]['names']} computed one element at a time"
    if wide := next(widened_products(subject), None):
        return f"`{wide[0]}` multiplies {wide[1]['why']}, at the rate of float32"
    return Lowering(candidate, low, choices[0].prediction)


def _orders(candidate: Candidate, goal: Goal) -> Mapping[str, tuple[str, ...]]:
    """The best layouts of the tensors between kernels; without scipy they keep the order of their axes."""
    if "layouts" in goal.without or not (temporaries(candidate.graph) and available()):
        return {}
    tiles = {a: n for k in candidate.cost.kernels for a, n in k.tiles.items()}
    return layouts(candidate.graph, goal.sizes, goal.machine, tiles).orders


@public
def searched(
    program: Program,
    *,
    shapes: Mapping[str, int] | None = None,
    machine: Machine = DEFAULT,
    budget: str = "60s",
    max_block_ops: int = Bounds.max_block_ops,
    max_kernels: int = Bounds.max_kernels,
    seed: int = 0,
    workers: int = 1,
) -> Iterator[Candidate]:
    """The verified graphs of a program as they are found, and the one with the least estimate once more at the end.

    `neptune.mirage.search(program, …)` is this function. The options are those of `neptune.superoptimize`, `machine` is
    what times are estimated for. Raises ExpressionError for a program that has no graph, NeptuneError for a budget that
    is none.

        *_, best = neptune.mirage.search(program, shapes={"m": 16, "k": 4096, "n": 6144}, budget="10s")
    """
    sizes = usual_sizes(program, checked_sizes("shapes", program, shapes), {})
    goal = Goal(reference(program), sizes, machine, Bounds(max_block_ops, max_kernels), seed)
    optimizer = Optimizer(goal, Worked(seconds_of(budget, "search")).end, workers)
    return _best_last(optimizer)


def _best_last(optimizer: Optimizer) -> Iterator[Candidate]:
    last = None
    with closing(optimizer):
        for last in optimizer:
            yield last
    yield from (c for c in optimizer.best[:1] if c is not last)
