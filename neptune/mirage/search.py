"""The search: graphs that compute what a reference graph does, the smallest first.

    rms(X)·W as five kernel-level operators     →     one kernel: matmul, acc, sqr, acc_sum, scale, sqrt, div

Iterative deepening over the number of operators a kernel has: at each number first the program as one kernel, then
cut in two and three. Graphs come out in an order that depends on graph and bounds alone. See docs/mirage.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from types import ModuleType
from typing import Any, TypeAlias

from neptune.mirage.enumeration.assemble import checked, kernel, library, narrow
from neptune.mirage.enumeration.assemble import key as key_of
from neptune.mirage.enumeration.enumerate import Counts, Solution
from neptune.mirage.enumeration.operators import PRUNES, Known, Problem
from neptune.mirage.enumeration.problems import Bounds, Plan, Source
from neptune.mirage.enumeration.shares import Share, Workers
from neptune.mirage.ir import Graph, Kernel, Type
from neptune.mirage.types import graph_types, kernel_types, saved

COMBINED = 4
"""Of a program in several kernels so many graphs are given: each kernel has solutions of its own."""
AHEAD = 4
"""One kernel is searched up to so many operators more than several are: these have their loads twice."""
FROM_SINGLE = 4
"""So many one-kernel graphs give their accumulators as tensors to cut at."""


@dataclass(frozen=True)
class Found:
    """A graph that computes the reference by the axioms, and what the search had done until then.

    `operators` is the number of block operators of its largest kernel, `seconds` since the start.
    """

    graph: Graph
    key: str
    operators: int
    states: int
    tries: int
    seconds: float


@dataclass
class _Solved:
    """A problem as far as it was searched: solutions by number of operators. `further`: the first ones did not do."""

    problem: Problem
    number: int
    further: bool = False
    upto: int = 0
    tried: int = 0
    solutions: dict[int, list[Solution]] = field(default_factory=dict)

    @property
    def first(self) -> list[Solution]:
        """The solutions of fewest operators, or all."""
        some = [s for _, s in sorted(self.solutions.items()) if s]
        return [x for s in some for x in s] if self.further else some[0] if some else []


Waiting: TypeAlias = tuple[_Solved, ...]
"""The kernels of a plan."""


class Search(Iterator[Found]):
    """The graphs found, one by one; `counts` and the rest may be read at any time.

    `exhausted` is true once everything in the bounds was looked at. `lost` counts the shares whose worker died.
    """

    def __init__(
        self,
        graph: Graph,
        bounds: Bounds,
        workers: Workers,
        deadline: float | None,
        prunes: frozenset[str],
        accept: Callable[[Graph], bool] | None,
        progress: Callable[[Search], None] | None,
    ) -> None:
        self.reference = graph
        self.bounds = bounds
        self.counts = Counts()
        self.exhausted = False
        self.interrupted = False
        self.lost = 0
        self.found = 0
        self.rejected = 0
        self._source = Source(graph, bounds, prunes)
        self._workers = workers
        self._deadline = deadline
        self._accept = accept
        self._progress = progress
        self._whole = True
        self._solved: dict[Problem, _Solved] = {}
        self._keys: set[str] = set()
        self._started = time.monotonic()
        self._types = graph_types(graph)
        self._found = self._run()

    def __next__(self) -> Found:
        return next(self._found)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def follow(self, other: Search) -> None:
        """Go on from a search that has ended: what that did counts as this one's."""
        self.counts.add(other.counts)
        self.found, self.rejected, self.lost = other.found, other.rejected, other.lost
        self._whole, self._started = other.exhausted, other._started

    def close(self) -> None:
        """End the search; its processes end too."""
        self._found.close()

    def _run(self) -> Generator[Found, None, None]:
        with self._workers:
            try:
                yield from self._deepen()
                self.exhausted = self._whole and not self.lost
            except KeyboardInterrupt:
                self.interrupted = True

    def _deepen(self) -> Iterator[Found]:
        source = self._source
        single = source.single()
        pool = list(source.between)
        plans = [*self._waiting(source.apart()), *self._planned(pool, pool)]
        grown = 0
        for size in range(1, self.bounds.max_block_ops + AHEAD + 1):
            for problem in single if size <= self.bounds.max_block_ops else ():
                for solution in self._at(self._known(problem), size):
                    graph = self._graph([(problem, solution)])
                    given = list(self._given(graph))
                    yield from given
                    if given and grown < FROM_SINGLE and problem.loop:
                        grown += 1
                        plans += self._planned(pool, self._new(graph, pool))
            plans, ready = self._divide(plans, size - AHEAD)
            for plan in ready:
                done = False
                for graph in self._combined(plan):
                    for found in self._given(graph):
                        done = True
                        yield found
                if not done and size - AHEAD < self.bounds.max_block_ops:
                    for known in plan:
                        known.further = True
                    plans.append(plan)
            if self._late():
                self._whole = False
                return

    def _planned(self, pool: list[Known], new: list[Known]) -> Iterator[Waiting]:
        yield from self._waiting(self._source.plans(pool, new))

    def _waiting(self, plans: Iterable[Plan]) -> Iterator[Waiting]:
        return (tuple(self._known(p) for p in plan) for plan in plans)

    def _new(self, graph: Graph, pool: list[Known]) -> list[Known]:
        """The accumulators of a graph that the pool lacks, added to it under names that nothing has."""
        have = {(c.form, c.free) for c in (*pool, *self._source.outputs)}
        names = {c.name for c in pool} | self._source.taken
        new: list[Known] = []
        for c in self._source.accumulated(graph):
            if (c.form, c.free) not in have:
                have.add((c.form, c.free))
                name = next(n for n in (c.name, *(f"{c.name}_{k}" for k in range(99))) if n not in names)
                names.add(name)
                new.append(c._replace(name=name))
        pool += new
        return new

    def _divide(self, plans: Iterable[Waiting], size: int) -> tuple[list[Waiting], list[Waiting]]:
        """Plans that wait for larger kernels, and those of which every kernel has a solution."""
        waiting: list[Waiting] = []
        ready: list[Waiting] = []
        for plan in plans:
            (ready if all(self._reached(p, size) for p in plan) else waiting).append(plan)
        return waiting, ready

    def _reached(self, known: _Solved, size: int) -> bool:
        """Search a problem up to this size, or to where it has solutions: those with fewest operators will do.

        If all of these are refused as parts of a program, it goes on.
        """
        while known.upto < size and (known.further or not known.first) and not self._late():
            self._at(known, known.upto + 1)
        return bool(known.first)

    def _at(self, known: _Solved, size: int) -> list[Solution]:
        """The kernels of exactly this many operators, loads counted."""
        if size > known.upto and not self._late():
            known.upto = size
            known.solutions[size] = list(self._solve(known, size))
        return known.solutions.get(size, [])

    def _known(self, problem: Problem) -> _Solved:
        return self._solved.setdefault(problem, _Solved(problem, len(self._solved)))

    def _solve(self, known: _Solved, size: int) -> Iterator[Solution]:
        problem = known.problem
        depth = size - len(problem.loads)
        if depth < 1:
            return
        paths, complete = self._workers.here.enumerator(known.number, problem).prefixes(depth, 2)
        if not complete:
            self._whole = False
            return
        shares = [Share(problem, known.number, depth, path) for path in paths]
        before, known.tried = known.tried, 0
        for result in self._workers.run(shares, before, self._deadline):
            self.counts.add(result.counts)
            known.tried += result.counts.tries
            self.lost += result.lost
            self._whole &= result.whole
            if self._progress is not None:
                self._progress(self)
            yield from result.solutions

    def _late(self) -> bool:
        if self._deadline is not None and self._workers.now() > self._deadline:
            self._whole = False
            return True
        return False

    def _combined(self, plan: Waiting) -> Iterator[Graph]:
        """Graphs of a plan: the kernels of each problem with fewest operators."""
        stages = [[(p.problem, s) for s in p.first] for p in plan]
        for chosen in islice(product(*stages), COMBINED):
            yield self._graph(chosen)

    def _graph(self, chosen: Iterable[tuple[Problem, Solution]]) -> Graph:
        types: dict[str, Type] = {t.name: self._types[t.name] for t in self.reference.inputs}
        steps: list[Kernel] = []
        for n, (problem, solution) in enumerate(chosen):
            fused = kernel(problem, solution, f"fused{n}", types)
            typed = kernel_types(fused, types)
            types |= {s.name: saved(typed[s.value].type) for s in fused.saves}
            steps.append(fused)
        outputs = tuple(replace(o, value=o.name) for o in self.reference.outputs)
        return checked(replace(self.reference, steps=tuple(steps), outputs=outputs))

    def _given(self, graph: Graph) -> Iterator[Found]:
        """A graph if it is new and accepted: with its widest and narrowest grids, with products by a library."""
        for form in (graph, checked(narrow(graph)), checked(library(graph))):
            key = key_of(form)
            if key in self._keys or not form.kernels:
                continue
            self._keys.add(key)
            if self._accept is not None and not self._accept(form):
                self.rejected += 1
                return
            self.found += 1
            size = max(k.size for k in form.kernels)
            yield Found(form, key, size, self.counts.states, self.counts.tries, self.seconds)


def search(
    graph: Graph,
    bounds: Bounds = Bounds(),  # noqa: B008
    *,
    seed: int = 0,
    workers: int = 1,
    deadline: float | None = None,
    prune: bool | frozenset[str] = True,
    accept: Callable[[Graph], bool] | None = None,
    progress: Callable[[Search], None] | None = None,
) -> Search:
    """The graphs within `bounds` that compute what `graph` does by the axioms, fewest operators first.

    `graph` has kernel-level operators alone (`reference`). `workers` processes share the work; the graphs are the
    same for any number. `deadline` is a moment of `time.process_time()`, at which the search ends, as it does at
    Ctrl-C: what else a machine does changes nothing. `prune` names what prunes (of `PRUNES`); False is all but the
    expression, for tests of the theorem. `accept` decides on a graph before it is given. The search makes no random
    choice: `seed` is there for those who pass one to verifier and search alike, and changes nothing.
    """
    prunes = prune if isinstance(prune, frozenset) else PRUNES if prune else PRUNES - {"expression"}
    return Search(graph, bounds, Workers(workers), deadline, prunes, accept, progress)


class _Callable(ModuleType):
    """A module that can be called, since users call it by its name, which importing it binds in the package."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        """`neptune.mirage.optimize.searched`."""
        from neptune.mirage.optimize import searched

        return searched(*args, **named)


sys.modules[__name__].__class__ = _Callable
