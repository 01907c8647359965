"""Which kernels are looked for: a program as problems, alone and cut at tensors in device memory.

T = Σk(x·w) / √Σk(x·x)
  →  one kernel: loop k | no loop
  →  two, cut at s = Σk(x·x): [x → s], [x, w, s → T]
  →  two, k split: [x, w → p], [p, x → T], p = Σk(x·w) but for the grid part of k
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, TypeAlias

from neptune.mirage.enumeration.abstract import ALL_BITS, GRID_BIT, Labels, inside, label, values
from neptune.mirage.enumeration.algebra import Algebra, Written
from neptune.mirage.enumeration.composites import COMPOSITE, chains
from neptune.mirage.enumeration.operators import PRUNES, Known, Problem
from neptune.mirage.ir import Graph, Kernel, Node
from neptune.mirage.ops import OPS
from neptune.mirage.types import graph_types


@dataclass(frozen=True)
class Bounds:
    """What is searched: operators a kernel (loads are counted, saves are not), kernels, inputs a kernel, operators.

    `operators` None: all of `ops.OPS`.
    """

    max_block_ops: int = 11
    max_kernels: int = 3
    max_inputs: int = 4
    operators: frozenset[str] | None = None


Stage: TypeAlias = tuple[Problem, ...]
"""One kernel to be found, once for each loop that it may have."""
Plan: TypeAlias = tuple[Problem, ...]
"""Kernels in order; each loads inputs and what those before it save."""


@dataclass
class Source:
    """A reference graph as forms: what kernels load and what they are to make."""

    graph: Graph
    bounds: Bounds
    prunes: frozenset[str] = PRUNES
    inputs: dict[str, Known] = field(init=False)
    outputs: tuple[Known, ...] = field(init=False)
    between: tuple[Known, ...] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.labels = Labels(Algebra(), tuple(graph.axes))
        forms_of = values(graph, self.labels)
        self.inputs = {t.name: self._known(t.name, *forms_of[t.name]) for t in graph.inputs}
        self.outputs = tuple(self._known(o.name, *forms_of[o.value]) for o in graph.outputs)
        forms = {forms_of[o.value] for o in graph.outputs} | {forms_of[t.name] for t in graph.inputs}
        between: dict[tuple[Any, int], Known] = {}
        for step in graph.steps:
            value = forms_of[step.name]
            sums = self.sums(value.form)
            if isinstance(step, Node) and sums and value not in forms:
                name = f"{step.name}_kept" if step.name in self.taken else step.name
                # Of values that a map of one makes, the last stands for all.
                between[sums, value.free] = self._known(name, *value)
        self.between = tuple(between.values())
        self._operators = frozenset(OPS if self.bounds.operators is None else self.bounds.operators)
        self._labels = tuple(dict.fromkeys(_labels(graph)))
        self._outer = frozenset(self._outer_maps())

    @property
    def taken(self) -> set[str]:
        """Names that tensors of ours may not have."""
        return {*self.inputs, *(o.name for o in self.graph.outputs)}

    def sums(self, form: int) -> Written:
        """The sum symbols anywhere in a form."""
        return tuple(sorted(_symbols(self.labels.algebra.written(form))))

    def _known(self, name: str, form: int, free: int) -> Known:
        return Known(name, self.labels.algebra.written(form), free)

    def _outer_maps(self) -> Iterator[tuple[str, ...]]:
        types = graph_types(self.graph)
        for step in self.graph.steps:
            if isinstance(step, Node) and all(set(types[o]) != set(types[step.name]) for o in step.operands):
                yield tuple(a for a in self.labels.axes if a in types[step.name])

    def reads(self, known: Known) -> frozenset[str]:
        """The inputs that a form has."""
        return frozenset(_inputs(known.form))

    def summed(self, targets: Sequence[Known], loads: Sequence[Known]) -> tuple[str, ...]:
        """The axes that a kernel may loop over: it loads them, and its results do not have them."""
        has = 0
        for x in loads:
            has |= x.free
        return tuple(
            a
            for a in self.labels.axes
            if self.labels.of(a, has) == ALL_BITS and all(self.labels.of(a, t.free) in (0, GRID_BIT) for t in targets)
        )

    def stage(self, targets: Sequence[Known], loads: Sequence[Known]) -> Stage:
        """One kernel for these results: with each loop that it may have, or with none where it may have none.

        The axes split over the grid are those of which a result has the grid part; all results must then, as programs
        write disjoint parts. Nothing comes back where a kernel would load more than the bounds allow.
        """
        parts_of = self.labels.of
        splits = tuple(a for a in self.labels.axes if any(parts_of(a, t.free) == GRID_BIT for t in targets))
        mixed = any(parts_of(a, t.free) != GRID_BIT for a in splits for t in targets)
        again = any(parts_of(a, x.free) == GRID_BIT for a in splits for x in loads)
        if mixed or again or not loads or len(loads) > self.bounds.max_inputs:
            return ()
        loops = self.summed(targets, loads)
        base = Problem(
            self.labels.axes,
            tuple(loads),
            tuple(targets),
            None,
            splits,
            self._operators,
            self._labels,
            self._outer,
            self.prunes,
        )
        return tuple(replace(base, loop=loop) for loop in loops) or (base,)

    def single(self) -> Stage:
        """The program as one kernel, with each loop and with none: statistics of a whole axis beside its elements."""
        stages = self.stage(self.outputs, self._needed(self.outputs))
        return (*stages, replace(stages[0], loop=None)) if stages and stages[0].loop else stages

    def _needed(self, targets: Sequence[Known], held: frozenset[str] = frozenset()) -> list[Known]:
        reads = frozenset().union(*(self.reads(t) for t in targets)) - held
        return [x for n, x in self.inputs.items() if n in reads]

    def plans(self, pool: Sequence[Known], new: Sequence[Known]) -> Iterator[Plan]:
        """The program cut at one or two tensors of the pool, of which one at least is new.

        One kernel makes one, or two that a loop accumulates, or each has its own, the second reading the first or not.
        """
        two = list(combinations(pool, 2))
        held = [pair for pair in two if not any(c in self.between for c in pair)]
        for cuts in (*((c,) for c in pool), *held):
            if self.bounds.max_kernels > 1 and any(c in new for c in cuts):
                producer = self.stage(cuts, self._needed(cuts))
                for last in self._last(cuts):
                    yield from product(producer, *last)
        for pair in two if self.bounds.max_kernels > 2 else ():
            for c, d in (pair, pair[::-1]):
                if c in new or d in new:
                    yield from self._three(c, d)

    def _three(self, c: Known, d: Known) -> Iterator[Plan]:
        first = self.stage((c,), self._needed((c,)))
        if self.reads(c) <= self.reads(d) and sorted(_symbols(c.form)) != sorted(_symbols(d.form)):
            chained = self.stage((d,), [c, *self._needed((d,), self.reads(c))])
            for last in self._last((d,), 1):
                yield from product(first, chained, *last)
        if c.name < d.name:
            second = self.stage((d,), self._needed((d,)))
            for last in self._last((c, d), 1):
                yield from product(first, second, *last)

    def apart(self) -> Iterator[Plan]:
        """Each result in a kernel of its own, of inputs alone or also of results before it."""
        if 1 < len(self.outputs) <= self.bounds.max_kernels:
            for last in self._each(()):
                yield from product(*last)

    def _last(self, ready: Sequence[Known], more: int = 0) -> Iterator[tuple[Stage, ...]]:
        """The kernels that make the results of what is ready and of inputs: one for all, or one for each.

        `more` kernels make what is ready beside the first.
        """
        yield from ((stage,) for stage in self._of_ready(self.outputs, ready))
        if 1 < len(self.outputs) < self.bounds.max_kernels - more:
            yield from self._each(ready)

    def _each(self, ready_before: Sequence[Known]) -> Iterator[tuple[Stage, ...]]:
        """A kernel for each result, those of fewer sums first. Each reads what is ready and part of it, or inputs."""
        order = sorted(self.outputs, key=lambda t: len([*_symbols(t.form)]))
        ways: list[list[Stage]] = []
        for k, t in enumerate(order):
            ready = [c for c in (*ready_before, *order[:k]) if self._inside(c, t)]
            ways.append([self.stage((t,), self._needed((t,))), *(self._of_ready((t,), ready) if ready else ())])
        yield from product(*ways)

    def _inside(self, c: Known, t: Known) -> bool:
        """True where the inputs and sums of one form are among those of another, which has more."""
        rest = Counter(_symbols(t.form))
        rest.subtract(_symbols(c.form))
        return self.reads(c) <= self.reads(t) and c.form != t.form and min(rest.values(), default=0) >= 0

    def _of_ready(self, targets: Sequence[Known], ready: Sequence[Known]) -> Iterator[Stage]:
        """The kernel that makes some results of what is ready and of inputs.

        These are the inputs that nothing ready has, or also those that the results have more often than all that is
        ready together: X of X·W/√ΣX² beside √ΣX².
        """
        held = sum((_inputs(c.form) for c in ready), Counter[str]())
        wanted = sum((_inputs(t.form) for t in targets), Counter[str]())
        least = [x for n, x in self.inputs.items() if n in wanted and n not in held]
        often = [x for n, x in self.inputs.items() if wanted[n] > held[n]]
        for more in (least, often) if often != least else (least,):
            yield self.stage(targets, [*ready, *more])

    def accumulated(self, graph: Graph) -> list[Known]:
        """What the accumulators of a graph hold, and what they hold where their axis is split over the grid too."""
        types = graph_types(graph)
        tensors = values(graph, self.labels)
        held_values: list[Known] = []
        for kernel in graph.kernels:
            unsaved = replace(kernel, saves=())
            split = replace(unsaved, grid=(kernel.loop,) if kernel.loop else ())
            for form, mark in ((unsaved, ""), (split, "_part")):
                forms = inside(form, self.labels, tensors, types)
                held = [n.name for n in kernel.nodes if OPS[n.op].kind == "accumulate"]
                held_values += [self._known(f"{n}{mark}", *forms[n]) for n in held]
        return held_values


def _labels(graph: Graph) -> Iterator[tuple[str, Any]]:
    for step in graph.steps:
        for node in step.nodes if isinstance(step, Kernel) else (step,):
            if node.op == "opaque" or node.constant is not None:
                yield node.op, label(node)
    for chain in chains(graph):
        yield COMPOSITE, chain


def _inputs(form: Any) -> Counter[str]:
    """How often each input stands in a written form."""
    counts = Counter[str]()
    if isinstance(form, tuple):
        if len(form) == 2 and isinstance(form[0], tuple) and form[0][:1] == ("input",):
            counts[form[0][1]] += form[1]
        else:
            for x in form:
                counts += _inputs(x)
    return counts


def _symbols(form: Any) -> Iterator[tuple[str, str]]:
    """The sum symbols in a written form, each as often as it stands there; those of a maximum among them."""
    if not isinstance(form, tuple):
        return
    if len(form) == 2 and isinstance(form[0], tuple) and form[0] and form[0][0] == "sum" and isinstance(form[1], int):
        yield from [form[0][1]] * form[1]
    elif len(form) == 3 and form[0] == "max":
        yield from (x for x, n in form[1] for _ in range(n))
        yield from _symbols(form[2])
    else:
        for x in form:
            yield from _symbols(x)
