"""A whole program cut into parts, each with the best graph that a search finds for it, as one template.

    norm, projections │ rotation │ scores, softmax, product │ …     parts that have graphs, and stages that have none

Stages are taken in their order; a part is some that follow one another and have a graph (`reference`), of at most so
many operators. Which cuts are best is dynamic programming over predicted times: best(i) = min over j of best(j) +
part(j, i). Equal parts, as the layers of a model have them, are searched once, and those that a record has not at all.
A stage without a graph is a kernel of its own.

Source: Wu et al., "Mirage" (OSDI 2025), §1, which cuts into LAX programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from neptune.errors import NeptuneError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import variables
from neptune.ir.program import Program, Stmt, nests, seq, stages
from neptune.mirage.discoveries import Discoveries, graph_of
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import Graph
from neptune.mirage.lower import Lowered, joined
from neptune.mirage.optimize import Goal, Optimizer, Progress, predicted
from neptune.mirage.reference import graph_or_why
from neptune.mirage.renamed import of_other, prefixed
from neptune.records.structure import structure_of
from neptune.schedule.stagewise import tile_stage
from neptune.schedule.state import reads
from neptune.templates.stagewise import TILES
from neptune.tune.choose import lowered_or_why
from neptune.tune.model.constants import FITTED
from neptune.tune.model.machine import Machine
from neptune.tune.rank import ranked

STAGES, OPERATORS = 6, 12
"""Stages and operators of a part at most."""
TRIED = 4
"""Graphs of a part that are lowered, until one can be."""

ONE_KERNEL = Bounds(max_kernels=1)
PREDICTED = "predicted_nanoseconds"
"""What a record of a part has beside its graph."""


@dataclass(frozen=True)
class Part:
    """Stages that follow one another: `program` computes them, by `graph`, or (None) each in a kernel of its own.
    `us` is what that is predicted to take, with a launch."""

    program: Program
    graph: Graph | None
    us: float


@dataclass
class Partition:
    """The parts of a program in order, and how many searches they took; `shared` parts had an equal one, `recorded`
    structures a record, and for `skipped` ones there was no time."""

    program: Program
    parts: tuple[Part, ...]
    searches: int
    shared: int
    recorded: int = 0
    skipped: int = 0

    @property
    def us(self) -> float:
        """What all parts are predicted to take."""
        return sum(p.us for p in self.parts)

    def lowered(self, safe: bool = True) -> Lowered | NeptuneError:
        """All parts as one template of the program, or why they have none."""
        named = [(p.program, p.graph and prefixed(p.graph, f"p{k}_")) for k, p in enumerate(self.parts)]
        return joined(self.program, named, safe)


def partitioned(
    program: Program,
    sizes: Mapping[str, int],
    machine: Machine,
    seconds: float,
    safe: bool = True,
    kept: Discoveries | None = None,
    progress: Callable[[Progress], None] | None = None,
    bounds: Bounds = ONE_KERNEL,
) -> Partition:
    """The cuts of a program that are predicted to be fastest at some sizes.

    `seconds` is shared by the searches; a search that has begun when it is over is ended, one graph is lowered, and no
    other search begins: so they end at Ctrl-C. `kept`: what earlier searches came to, with `bounds`.
    """
    partitioner = _Partitioner(program, sizes, machine, safe, kept, progress, bounds)
    spans = list(partitioner.spans())
    many = max(1, len({partitioner.key(*s) for s in spans}))
    partitioner.each = seconds / many
    partitioner.end = time.process_time() + seconds
    best: list[tuple[float, tuple[Part, ...]]] = [(0.0, ())]
    for end in range(1, len(partitioner.nests) + 1):
        ways = ((best[a], partitioner.part(a, b)) for a, b in spans if b == end)
        best.append(min(((us + p.us, (*parts, p)) for (us, parts), p in ways if p), key=lambda w: w[0]))
    parts = best[-1][1]
    return Partition(program, parts, partitioner.searches, partitioner.hits, partitioner.recorded, partitioner.skipped)


@dataclass
class _Partitioner:
    """The parts of a program as they are priced; `found` has the graph and the time of each structure."""

    program: Program
    sizes: Mapping[str, int]
    machine: Machine
    safe: bool
    kept: Discoveries | None = None
    progress: Callable[[Progress], None] | None = None
    bounds: Bounds = ONE_KERNEL
    each: float = 1.0
    end: float = inf
    hits: int = 0
    searches: int = 0
    recorded: int = 0
    skipped: int = 0
    found: dict[str, tuple[Graph | None, float, Program]] = field(default_factory=dict)

    @property
    def nests(self) -> tuple[Stmt, ...]:
        return nests(self.program.body)

    def spans(self) -> Iterator[tuple[int, int]]:
        """The parts that are priced: single stages, and more where they have a graph of few operators."""
        for begin in range(len(self.nests)):
            yield begin, begin + 1
            for end in range(begin + 2, min(len(self.nests), begin + STAGES) + 1):
                graph = graph_or_why(self.cut(begin, end))
                if not isinstance(graph, Graph) or len(graph.steps) > OPERATORS:
                    break
                yield begin, end

    def key(self, begin: int, end: int) -> str:
        """What equal parts have in common."""
        return structure_of(self.cut(begin, end))

    def cut(self, begin: int, end: int) -> Program:
        """The program of some nests: it reads what they do not make, and makes what others read."""
        inside, others = self.nests[begin:end], (*self.nests[:begin], *self.nests[end:])
        writes = [b for n in inside for b in _writes(n)]
        read = [b for b in dict.fromkeys(b for n in inside for b in _reads(n)) if b not in writes]
        kept = {b.name for b in self.program.outputs} | {b for n in others for b in _reads(n)}
        known = self.program.globals
        buffers = [known[b] for b in (*read, *writes)]
        used = {v for b in buffers for d in b.shape for v in variables(d)}
        used |= {v for n in inside for s in stages(n) for e in s.action.values for v in variables(e)}
        return replace(
            self.program,
            inputs=tuple(known[b] for b in read),
            outputs=tuple(known[b] for b in writes if b in kept),
            temporaries=tuple(known[b] for b in writes if b not in kept),
            scalars=tuple(s for s in self.program.scalars if s.name in used),
            body=seq(*inside),
        )

    def part(self, begin: int, end: int) -> Part | None:
        """The best that is known of a part; None where it is several stages and no graph serves it."""
        program = self.cut(begin, end)
        key = self.key(begin, end)
        if key in self.found:
            self.hits += 1
            graph, us, first = self.found[key]
            graph = graph and of_other(graph, first, program)
        else:
            graph, us = self._priced(program, end - begin == 1)
            self.found[key] = graph, us, program
        return Part(program, graph, us) if us < inf else None

    def _priced(self, program: Program, alone: bool) -> tuple[Graph | None, float]:
        sizes = {s.name: self.sizes[s.name] for s in program.scalars if s.name in self.sizes}
        graph, us = self._known(program, sizes) or self._searched(program, sizes)
        plain = self._plain(program) if alone else inf
        return (graph, us) if us < plain else (None, plain)

    def _known(self, program: Program, sizes: Mapping[str, int]) -> tuple[Graph | None, float] | None:
        """What a record says of a part; None where there is none."""
        known = None if self.kept is None else self.kept.known(program, sizes, self.each)
        if known is None:
            return None
        graph = graph_of(known, program)
        if known.graph and graph is None:
            return None
        self.recorded += 1
        return graph, inf if graph is None else known.numbers.get(PREDICTED, 0) / 1e3

    def _searched(self, program: Program, sizes: Mapping[str, int]) -> tuple[Graph | None, float]:
        expression = graph_or_why(program)
        if not isinstance(expression, Graph):
            return None, inf
        if time.process_time() >= self.end:
            self.skipped += 1
            return None, inf
        self.searches += 1
        goal = Goal(expression, sizes, self.machine, self.bounds)
        search = Optimizer(goal, min(time.process_time() + self.each, self.end), progress=self.progress)
        try:
            with suppress(StopIteration):
                for _ in search:
                    pass
            graph, us = self._best(search, program, goal)
        except KeyboardInterrupt:
            self.end = time.process_time()
            return None, inf
        # Where time was over before one could be lowered, a later call may find one.
        if self.kept is not None and (graph is not None or time.process_time() < self.end):
            numbers = {} if graph is None else {PREDICTED: int(1e3 * us)}
            self.kept.keep(program, sizes, graph, self.each, search.search.exhausted, numbers)
        return graph, us

    def _best(self, search: Optimizer, program: Program, goal: Goal) -> tuple[Graph | None, float]:
        """The first graph that can be lowered, of those that are tried in time, one at least."""
        for k, candidate in enumerate([c for c in search.best if not _split(c.graph)][:TRIED]):
            if k and time.process_time() >= self.end:
                break
            way = predicted(candidate, program, goal, self.safe)
            if not isinstance(way, str):
                return candidate.graph, way.prediction.us - FITTED.first + FITTED.further
        return None, inf

    def _plain(self, program: Program) -> float:
        """What the stages take in kernels of their own."""

        def alone(sch: Schedule) -> None:
            for stage in list(sch.stages):
                tile_stage(sch, stage, TILES)

        by = lowered_or_why(alone, program, strict=False)
        choices = () if isinstance(by, NeptuneError) else ranked(by.tiles, self.sizes, self.machine)
        # Where the model says nothing, a kernel costs a launch.
        return choices[0].prediction.us - FITTED.first + FITTED.further if choices else FITTED.further


def _split(graph: Graph) -> bool:
    """True where programs fold parts of an axis: the number of parts is one number a kernel."""
    return any(k.loop in k.grid for k in graph.kernels)


def _writes(nest: Stmt) -> list[str]:
    return [b for s in stages(nest) for b in s.action.buffers]


def _reads(nest: Stmt) -> list[str]:
    return [x.buffer for s in stages(nest) for x in reads(s)]
