"""Whether a region is Neptune's: its kernel's predicted time against the bound for Inductor's.

The bound is one below the time of Inductor's kernels for a group of nodes, in microseconds. Inductor gives every
product of matrices a kernel of its own, and fuses what lies between them. So at least these move:

- what each product reads and writes, and what its multiplications take on the matrix unit, whichever is longer;
- what the maps and reductions between products read from and write to memory, once, a kernel for each connected group;
- a launch for each kernel, as the cost model counts those of Neptune's own.

What is made and read inside, and fits in L2, moves at the rate of L2. Kernels do not reach these rates, so that one of
Neptune's that is predicted to take less is worth taking; a region that is left by this bound may have been one that was
worth it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal, TypeAlias

import torch
from torch.fx import Node

from neptune.driver import tiers
from neptune.driver.device import machine_for
from neptune.driver.pipeline import kernel_or_why
from neptune.errors import NeptuneError, NeptunePerformanceWarning, Unsupported, answered
from neptune.graph.aten_attention import ATTENTION, options
from neptune.graph.axes import PRODUCTS
from neptune.graph.importer import VIEWS, Imported, imported, tensor_of
from neptune.graph.imports import NAMES
from neptune.graph.regions import Region
from neptune.graph.sizes import hint
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime.launching.launch import parse_target
from neptune.tune.model.constants import FITTED
from neptune.tune.model.machine import Machine
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


# --- the bound for Inductor's kernels ---------------------------------------------------------------

EXTERN = PRODUCTS | ATTENTION
"""What has a kernel of its own."""
L2_SHARE = 0.63
"""Of the port, what L2 gives where all processors read: 40.6 of 64 bytes a cycle, by `neptune calibrate` on an H200."""


@dataclass(frozen=True)
class Bound:
    """`us` in all; `products`, `others`: of the kernels of either kind, without launches; `launches`: their number."""

    us: float
    products: float
    others: float
    launches: int


def bound_of(nodes: Iterable[Node], machine: Machine) -> Bound:
    """The bound for nodes of a graph, at the sizes of the example."""
    inside = set(nodes)
    extern = [n for n in inside if n.target in EXTERN]
    groups = _groups(inside)
    traffic = _Traffic(inside, machine)
    products = sum(max(_multiplied(n, machine), traffic.us([*_operands(n), n])) for n in extern)
    others = sum(traffic.us(_moved(g)) for g in groups)
    launches = len(extern) + len(groups)
    us = products + others + (FITTED.first + FITTED.further * (launches - 1) if launches else 0.0)
    return Bound(us, products, others, launches)


class _Traffic:
    """What kernels move, one after the other: what was made or read inside before may stand in L2, if it fits."""

    def __init__(self, inside: set[Node], machine: Machine) -> None:
        self._machine = machine
        self._near = {n for n in inside if n.users and all(u in inside for u in n.users)}

    def us(self, tensors: Iterable[Node]) -> float:
        """Microseconds to move each of these once."""
        return sum(map(self._one, tensors))

    def _one(self, n: Node) -> float:
        t, m = n.meta["val"], self._machine
        if not isinstance(t, torch.Tensor):
            t = t[0]
        assert isinstance(t, torch.Tensor)
        size = elements(t) * t.element_size()
        rate = L2_SHARE * m.port * m.processors * m.clock if n in self._near and size <= m.l2 else m.memory
        self._near.add(n)
        return size / rate * 1e-3


def elements(t: torch.Tensor) -> int:
    """How many elements a tensor of the example has."""
    return prod(map(hint, t.shape))


def _operands(n: Node) -> list[Node]:
    """The tensors in memory that a product, or torch's kernel for attention, reads."""
    if n.target in ATTENTION:
        o = options(n)
        return [_source(o[x]) for x in ("query", "key", "value")]
    last_two: Any = n.args[-2:]
    return [_source(x) for x in last_two]


def _multiplied(n: Node, machine: Machine) -> float:
    """Microseconds of the matrix unit."""
    args: Any = n.args
    if n.target in ATTENTION:
        o = options(n)
        q, k = (o[x].meta["val"] for x in ("query", "key"))
        flops = 4.0 * elements(q) * hint(k.shape[-2]) * (0.5 if o.get("is_causal") else 1.0)
    else:
        q = n.meta["val"]
        flops = 2.0 * elements(q) * hint(args[-2].meta["val"].shape[-1])
    rate = machine.matrix.get(NAMES[q.dtype]) or machine.matrix.get("tf32") or 2.0 * machine.lanes
    return flops / (rate * machine.processors * machine.clock) * 1e-3


def _source(x: Node) -> Node:
    """The tensor in memory that a view shows."""
    while x.target in VIEWS and x.all_input_nodes and tensor_of(x.all_input_nodes[0]) is not None:
        x = x.all_input_nodes[0]
    return x


def _groups(inside: set[Node]) -> list[set[Node]]:
    """Connected groups of what is neither a product nor a view nor made of nothing."""
    left = {n for n in inside if n.target not in EXTERN and n.target not in VIEWS and _reads(n)}
    groups = []
    while left:
        group, todo = set[Node](), [next(iter(left))]
        while todo:
            n = todo.pop()
            if n in group or n not in inside or n.target in EXTERN:
                continue
            group.add(n)
            todo += [*n.all_input_nodes, *n.users]
        if group & left:
            groups.append(group & left)
        left -= group
    return groups


def _reads(n: Node) -> bool:
    """True where a tensor in memory is read, and not only indices and constants."""
    tensors = [a for a in n.all_input_nodes if tensor_of(a) is not None]
    return any(a.op != "call_function" or _reads(a) for a in tensors)


def _moved(group: set[Node]) -> list[Node]:
    """The tensors that a kernel for a group reads and writes."""
    reads = {_source(a) for n in group for a in n.all_input_nodes if tensor_of(a) is not None} - group
    reads = {a for a in reads if a.op != "call_function" or a.target in EXTERN or _reads(a)}
    writes = {n for n in group if any(u not in group and u.target not in VIEWS for u in _users(n))}
    return [n for n in (*reads, *writes) if tensor_of(n) is not None]


def _users(n: Node) -> list[Node]:
    """Who reads a node, views looked through."""
    return [x for u in n.users for x in (_users(u) if u.target in VIEWS else [u])]
