"""Whether a region is Neptune's: its kernel's predicted time against the bound for Inductor's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from torch.fx import Node

from neptune.driver import tiers
from neptune.driver.device import machine_for
from neptune.driver.pipeline import kernel_or_why
from neptune.errors import NeptuneError, NeptunePerformanceWarning, Unsupported, answered
from neptune.graph.bound import Bound, bound_of
from neptune.graph.importer import Imported, imported
from neptune.graph.regions import Region
from neptune.graph.sizes import hint
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime.launching.launch import parse_target
from neptune.tune.points import sizes_of
from neptune.tune.subject import subject_of

Take: TypeAlias = Literal["predicted", "all", "none"]
TAKES: tuple[Take, ...] = ("predicted", "all", "none")


@dataclass(frozen=True)
class Judged:
    """A region and what became of it. `predicted`: microseconds of Neptune's kernel at the example's sizes; `bound`:
    the least for Inductor's; `why`: why it was taken or left. Without a kernel no template, or no Program, has it, for
    `boundary` where that is one node's doing."""

    region: Region
    taken: bool
    why: str
    made: Imported | None = None
    kernel: Kernel | None = None
    predicted: float | None = None
    bound: Bound | None = None
    boundary: Node | None = None


def choice(region: Region, target: str, take: Take) -> Judged:
    """Import and compile a region, and say who has it."""
    if take == "none":
        return Judged(region, False, 'take="none"')
    machine = machine_for(parse_target(target))
    bound = bound_of(region.nodes, machine)
    if take == "predicted" and bound.launches <= 1 and not bound.products:
        return Judged(region, False, "one pass over memory, as Inductor's kernel is", bound=bound)
    importing = answered(imported, region.nodes, region.outputs, region.name)
    if isinstance(importing, Unsupported):
        return Judged(region, False, f"not expressed: {importing}", bound=bound, boundary=importing.node)
    sizes = example_sizes(importing)
    kernel = _compiled(importing.program, target, tuple(sizes.items()))
    if isinstance(kernel, NeptuneError):
        return Judged(region, False, f"not compiled: {_short(kernel)}", importing, bound=bound)
    us = predicted(kernel, sizes)
    if take == "all":
        return Judged(region, True, 'take="all"', importing, kernel, us, bound)
    if us is None:
        return Judged(region, False, "the cost model predicts nothing for it", importing, kernel, None, bound)
    taken = us < bound.us
    word = "below" if taken else "not below"
    return Judged(region, taken, f"predicted time {word} the bound for Inductor", importing, kernel, us, bound)


def _short(error: NeptuneError) -> str:
    return f"{error.asked}: {error.wrong}".replace("\n", " ")[:300]


@lru_cache(maxsize=256)
def _compiled(program: Program, target: str, sizes: tuple[tuple[str, int], ...]) -> Kernel | NeptuneError:
    """The kernel by which a Program is judged: one for all layers of a model; or why it does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        if dict(sizes).keys() >= set(sizes_of(program)):
            return tiers.quick(program, None, target, dict(sizes))
        return kernel_or_why(program, target=target)


class Serving:
    """What serves a region that is taken: the kernel by which it was judged, until the better one takes over between
    two calls (`neptune.driver.tiers`)."""

    def __init__(self, judged: Kernel, program: Program, sizes: Mapping[str, int]) -> None:
        self.kernel, target = judged, judged.target
        if sizes.keys() >= set(sizes_of(program)) and tiers.applies(target):
            self.kernel = tiers.first(program, None, target, sizes, self._take_over)

    def _take_over(self, better: Kernel) -> None:
        self.kernel = better


@lru_cache(maxsize=256)
def serving(kernel: Kernel, program: Program, sizes: tuple[tuple[str, int], ...]) -> Serving:
    """What serves all regions that were judged by one kernel."""
    return Serving(kernel, program, dict(sizes))


def example_sizes(region: Imported) -> dict[str, int]:
    """The sizes of a Program in the example that a graph was traced with."""
    sizes: dict[str, int] = {}
    for buffer, node, merges in zip(region.program.inputs, region.inputs, region.merges, strict=True):
        shape = [hint(n) for n in node.meta["val"].shape]
        for d in merges:
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        sizes |= {d.name: n for d, n in zip(buffer.shape, shape, strict=True) if isinstance(d, Var)}
    sizes |= {
        name: region.example[d] for name, d in zip(region.passed, region.scalars, strict=True) if d in region.example
    }
    return sizes


def predicted(kernel: Kernel, sizes: Mapping[str, int]) -> float | None:
    """The microseconds that the cost model says of the variant for these sizes."""
    if not sizes.keys() >= set(sizes_of(kernel.executable.loops)):
        return None
    executable = kernel.executable
    artifact = (executable if executable.members is None else executable.members.of(sizes)).artifact
    prediction = subject_of(artifact, machine_for(parse_target(artifact.target))).predicted(sizes)
    return None if prediction is None else float(prediction.us)
