"""Kernels of one program timed on the GPU that they are for, each time a record.

Times are those of the tuner (`neptune.runtime.bench.GpuCalls`), so that the records of both compare. A graph's kernel
is recorded as the template `mirage-` with a digest of the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from neptune.errors import NeptuneError
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.mirage.ir import Graph
from neptune.mirage.optimize import Lowering
from neptune.mirage.printer import print_graph
from neptune.records.record import Record, structure_of
from neptune.records.store import Store
from neptune.runtime.bench import GpuCalls, captured, drawn
from neptune.runtime.launching.launch import Target
from neptune.tune.budget import Clock
from neptune.tune.choose import shipped_templates
from neptune.versions import versions

DIGITS = 12
"""Of the digest of a graph."""


@dataclass(frozen=True)
class Stopwatch:
    """What times kernels of `loops` at some sizes (every size and scalar by name) on the present GPU, a `target` that
    is called `device` in records; without `records` nothing is kept."""

    loops: Program
    sizes: Mapping[str, int]
    target: Target
    device: str
    records: Store | None
    calls: GpuCalls = field(default_factory=GpuCalls)

    def ways(
        self, ways: Sequence[Lowering], compiled: Callable[[Lowering], Kernel | NeptuneError], clock: Clock
    ) -> tuple[list[tuple[float, Lowering, Kernel]], list[Exception]]:
        """The kernels of graphs, the fastest first, with their microseconds, of those that compile (and pass the checks
        of that) before the time is over, one at least; and why others have none."""
        took, wrong = list[tuple[float, Lowering, Kernel]](), list[Exception]()
        for way in ways:
            if took and not clock.left:
                break
            kernel = compiled(way)
            if isinstance(kernel, NeptuneError):
                wrong.append(kernel)
                continue
            try:
                took.append((self.graph(way.candidate.graph, kernel), way, kernel))
            except (NeptuneError, RuntimeError) as error:
                wrong.append(error)
        return sorted(took, key=lambda t: t[0]), wrong

    def graph(self, graph: Graph, kernel: Kernel) -> float:
        """Microseconds of the kernel of a graph. Raises RuntimeError for one that the GPU refuses."""
        name = f"mirage-{hashlib.sha256(print_graph(graph).encode()).hexdigest()[:DIGITS]}"
        return self._kept(self._samples(kernel), name, kernel.params)

    def template(self, kernel: Kernel) -> float:
        """Microseconds of a template's kernel, as a launch chooses among its variants."""
        us = self._samples(kernel)
        own = kernel.chosen(**self._known)
        # The code of a template of the caller's own may change under its name.
        return self._kept(us, own.template, own.params) if own.template in shipped_templates() else median(us)

    @cached_property
    def _known(self) -> dict[str, int]:
        names = {s.name for s in self.loops.scalars}
        return {n: v for n, v in self.sizes.items() if n in names}

    @cached_property
    def _args(self) -> Sequence[Any]:
        return drawn(self.loops, self.sizes, self.target.device)

    def _samples(self, kernel: Kernel) -> list[float]:
        return self.calls.samples(captured(lambda: kernel(*self._args)))

    def _kept(self, us: list[float], template: str, params: Mapping[str, int]) -> float:
        if self.records is not None and self.records.root is not None:
            record = Record(
                structure=structure_of(self.loops),
                device=self.device,
                template=template,
                sizes=self._known,
                params=params,
                us=us,
                versions=versions(),
                name=self.loops.name,
            )
            self.records.append(record)
        return median(us)
