"""Graphs whose loops are shared out among programs: a kernel for the parts of the sums, and one for what is behind.

    fused  grid (i, j) loop p:  gate = acc(x·w), up = acc(x·u), y = silu(gate)·up
        →  parts    grid (i, j, p) loop p:  gate, up            one of each for every program along p
           combine  grid (i, j):            Σ gate, Σ up, y

A search finds the graphs of fewest operators, and of few rows these leave a GPU idle. A sum that has no tile for each
program of the grid (Σ x² of a row, where the grid has columns) is computed in the kernel behind, in its own loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neptune.ir.names import fresh_name
from neptune.mirage.ir import GRID, NOTHING, SPLIT, Graph, Kernel, Load, Node, Save, Type, needed
from neptune.mirage.ops import OPS
from neptune.mirage.types import Typed, fault, graph_types, kernel_types

SUMS = ("acc", "acc_sum")
"""Accumulators whose parts are added up."""
AXES = 3
"""The axes of a grid at most."""


def splits(graph: Graph) -> Iterator[Graph]:
    """The graph with one of its kernels split along its loop, for each that can be. Types are checked."""
    tensors = graph_types(graph)
    for k, step in enumerate(graph.steps):
        pair = split(step, tensors) if isinstance(step, Kernel) else None
        if pair is None:
            continue
        halves = graph.with_steps(*graph.steps[:k], *pair, *graph.steps[k + 1 :])
        # Some are not valid: a sum of products with the tile of another loop, say.
        if fault(halves) is None:
            yield halves


def split(kernel: Kernel, tensors: Mapping[str, Type]) -> tuple[Kernel, Kernel] | None:
    """A kernel that folds parts of the loop's axis, and the one that adds them up; None where no sum can be exported.

    `tensors` are the types of all tensors of the graph, whose names the new ones do not take.
    """
    axis = kernel.loop
    if axis is None or axis in kernel.grid or len(kernel.grid) == AXES:
        return None
    typed = kernel_types(kernel, tensors)
    exported = [n for n in kernel.nodes if n.op in SUMS and _everywhere(kernel, typed[n.name])]
    if not exported:
        return None
    taken = {*tensors, *typed, kernel.name}
    parts, sums = dict[str, str](), dict[str, str]()
    for n in exported:
        parts[n.name] = fresh_name(taken, f"{n.name}_parts")
        sums[n.name] = fresh_name(taken | {parts[n.name]}, f"{n.name}_tile")
        taken |= {parts[n.name], sums[n.name]}
    first = _first(kernel, fresh_name(taken, f"{kernel.name}_parts"), axis, parts)
    further = [Node(s, "sum", (sums[s],), axis, SPLIT) for s in parts]
    wanted = needed(kernel.nodes, {s.value for s in kernel.saves}, parts)
    looped = any(OPS[n.op].kind == "accumulate" for n in kernel.nodes if n.name in wanted)
    nodes = [n for n in kernel.nodes if n.name in wanted]
    loads = [x for x in kernel.loads if x.name in wanted]
    second = Kernel(
        kernel.name,
        kernel.grid,
        axis if looped else None,
        (*loads, *(Load(sums[s], t) for s, t in parts.items())),
        (*further, *nodes),
        kernel.saves,
    )
    return first, second


def _everywhere(kernel: Kernel, value: Typed) -> bool:
    """True where each program of the grid has a sum of its own."""
    return not value.left and all(GRID in value.type.get(a, NOTHING) for a in kernel.grid)


def _first(kernel: Kernel, name: str, axis: str, parts: Mapping[str, str]) -> Kernel:
    """The kernel that folds the parts."""
    wanted = needed(kernel.nodes, parts)
    loads = tuple(x for x in kernel.loads if x.name in wanted)
    body = tuple(n for n in kernel.nodes if n.name in wanted)
    saves = tuple(Save(tensor, value) for value, tensor in parts.items())
    return Kernel(name, (*kernel.grid, axis), axis, loads, body, saves)
