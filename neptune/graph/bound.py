"""A lower bound on the time of Inductor's kernels for a group of nodes, in microseconds.

Inductor gives every product of matrices a kernel of its own, and fuses what lies between them. So at least these move:

- what each product reads and writes, and what its multiplications take on the matrix unit, whichever is longer;
- what the maps and reductions between products read from and write to memory, once, a kernel for each connected group;
- a launch for each kernel, as the cost model counts those of Neptune's own.

What fits in L2 moves at the rate of L2. Kernels do not reach these rates, so that a kernel of Neptune's that is
predicted to take less is worth taking; a region that is left by this bound may have been one that was worth it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from neptune.graph.axes import PRODUCTS
from neptune.graph.importer import VIEWS, tensor_of
from neptune.graph.imports import NAMES
from neptune.graph.sizes import hint
from neptune.tune.constants import FITTED
from neptune.tune.machine import Machine


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
    products = [n for n in inside if n.target in PRODUCTS]
    multiplied = sum(_product(n, machine) for n in products)
    groups = _groups(inside)
    moved = sum(sum(_time(t, machine) for t in _moved(g, inside)) for g in groups)
    launches = len(products) + len(groups)
    us = multiplied + moved + (FITTED.first + FITTED.further * (launches - 1) if launches else 0.0)
    return Bound(us, multiplied, moved, launches)


def elements(t: torch.Tensor) -> int:
    """How many elements a tensor of the example has."""
    return prod(map(hint, t.shape))


def _bytes(t: torch.Tensor) -> int:
    return elements(t) * t.element_size()


def _time(t: torch.Tensor, machine: Machine) -> float:
    """Microseconds to move a tensor once."""
    n = _bytes(t)
    rate = machine.memory if n > machine.l2 else machine.port * machine.processors * machine.clock
    return n / rate * 1e-3


def _product(n: Node, machine: Machine) -> float:
    a, b = (_source(x).meta["val"] for x in n.args[-2:])  # type: ignore[arg-type]
    out = n.meta["val"]
    depth = hint(n.args[-2].meta["val"].shape[-1])  # type: ignore[union-attr]
    dtype = NAMES[out.dtype]
    per_cycle = machine.matrix.get(dtype) or machine.matrix.get("tf32") or 2.0 * machine.lanes
    cycles = 2.0 * elements(out) * depth / (per_cycle * machine.processors)
    return max(cycles / machine.clock * 1e-3, sum(_time(t, machine) for t in (a, b, out)))


def _source(x: Node) -> Node:
    """The tensor in memory that a view shows."""
    while x.target in VIEWS and x.all_input_nodes and tensor_of(x.all_input_nodes[0]) is not None:
        x = x.all_input_nodes[0]
    return x


def _groups(inside: set[Node]) -> list[set[Node]]:
    """Connected groups of what is neither a product nor a view nor made of nothing."""
    left = {n for n in inside if n.target not in PRODUCTS and n.target not in VIEWS and _reads(n)}
    found = []
    while left:
        group, todo = set[Node](), [next(iter(left))]
        while todo:
            n = todo.pop()
            if n in group or n not in inside or n.target in PRODUCTS:
                continue
            group.add(n)
            todo += [*n.all_input_nodes, *n.users]
        if group & left:
            found.append(group & left)
        left -= group
    return found


def _reads(n: Node) -> bool:
    """True where a tensor in memory is read, and not only indices and constants."""
    tensors = [a for a in n.all_input_nodes if tensor_of(a) is not None]
    return any(a.op != "call_function" or _reads(a) for a in tensors)


def _moved(group: set[Node], inside: set[Node]) -> list[torch.Tensor]:
    """The tensors that a kernel for a group reads and writes."""
    reads = {_source(a) for n in group for a in n.all_input_nodes if tensor_of(a) is not None} - group
    reads = {a for a in reads if a.op != "call_function" or _reads(a) or a.target in PRODUCTS}
    writes = {n for n in group if any(u not in group and u.target not in VIEWS for u in _users(n))}
    found = [tensor_of(n) for n in reads | writes]
    return [t for t in found if t is not None]


def _users(n: Node) -> list[Node]:
    """Who reads a node, views looked through."""
    return [x for u in n.users for x in (_users(u) if u.target in VIEWS else [u])]
