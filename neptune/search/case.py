"""A request to superoptimize a program, what is at hand for it, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from neptune.driver.device import at_hand
from neptune.driver.pipeline import kernel_or_why
from neptune.errors import NeptuneError
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.mirage.discoveries import Discoveries
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.optimize import Lowering, Progress
from neptune.records.store import Store
from neptune.report.search import Report, Tier, Way
from neptune.runtime.artifact import PREDICTION
from neptune.runtime.launching.launch import parse_target
from neptune.schedule.template import Rewriting
from neptune.tune.budget import Clock
from neptune.tune.model.machine import Machine

SEARCHED = 0.7
"""The part of a budget that the search has; the rest is for what comes of it."""
NO_BETTER = "none that is predicted to be faster than the template"
NO_TIME = "none, since the budget is 0"
OnProgress: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True)
class Options:
    """How to search: seconds, bounds, and the rest as `superoptimize` has it."""

    seconds: float
    bounds: Bounds
    seed: int = 0
    workers: int = 1
    safe: bool = True
    records: Store | None = None
    progress: OnProgress | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """What a record says of the bounds."""
        return {
            "max_block_ops": self.bounds.max_block_ops,
            "max_kernels": self.bounds.max_kernels,
            "safe": self.safe + 0,
        }


@dataclass(frozen=True)
class Optimized:
    """The kernel of an expression, what the search came to, and the graphs that were predicted, the fastest first."""

    kernel: Kernel
    report: Report
    ways: tuple[Lowering, ...] = ()


@dataclass
class Case:
    """A program to superoptimize: the template's kernel, `options` of `compile` for any other, typical `sizes` (every
    size and scalar by name), the machine, and the time. `took`: seconds of each step so far, in order."""

    loops: Program
    how: Options
    base: Kernel
    template: Way
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    machine: Machine
    clock: Clock
    took: list[tuple[str, float]] = field(default_factory=list)

    def template_kernel(self, why: str, **more: Any) -> Optimized:
        """The template's kernel, and why."""
        return Optimized(self.base, Report("", why, self.template, **more))

    def kernel(self, template: Rewriting) -> Kernel | NeptuneError:
        """The kernel of a graph, or why the compiler refuses it."""
        return kernel_or_why(self.loops, template, **self.options)

    @property
    def at_hand(self) -> bool:
        """True where the target's GPU is there to be timed on."""
        return at_hand(parse_target(self.base.target))

    @cached_property
    def discoveries(self) -> Discoveries:
        """What records have of searches with these bounds."""
        return Discoveries(self.how.records, self.machine.device, self.how.numbers)

    @contextmanager
    def timing(self, step: str) -> Iterator[None]:
        """Take the time of a step, also of one that fails."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.took.append((step, time.monotonic() - begin))


def predicted_us(kernel: Kernel) -> float | None:
    """What the cost model predicts of a kernel, None where it says nothing."""
    prediction = kernel.explain(json=True).get(PREDICTION)
    return None if prediction is None else float(prediction["us"])


def first_lines(wrong: Exception | str) -> str:
    """What is the matter, on one line."""
    text = wrong.text if isinstance(wrong, NeptuneError) else str(wrong)
    return " ".join(line.strip() for line in text.splitlines()[:3])


def compiled_tiers(kernel: Kernel) -> list[Tier]:
    """The exact checks that compilation made of a kernel, on loops and on tiles, as tiers of its graph."""
    return [Tier(f"exact, {what}", _checked(c)) for what, c in kernel.explain(json=True)["checks"].items()]


def _checked(c: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, c["seeds"]))
    return f"{c['verdict']}: by the {c['model']}; {c['draws']} draws, {c['elements']} elements; seeds {seeds}"
