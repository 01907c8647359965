"""The layout of temporaries between kernels: which dimension of each is innermost, by an integer linear program.

    layouts(graph, {"m": 4096}, machine).orders  →  {"scores": ("row", "key")}

Booleans say which axis is innermost: of each temporary (one exactly), and of each tile in a kernel. Inputs and outputs
lie as the caller has them. What is paid is time as bytes from memory: a tile whose rows are short parts of a tensor's
rows takes longer by the factor of the cost model, and a tile that is read in another order than a tensor lies in, or
than another operand of a map does, is turned once through shared memory. Sixteen-bit operands of products are read in
either order by the matrix unit; others have the folded axis innermost, or are turned.

Needs scipy (`pip install scipy`). Source: Wu et al., "Mirage", §6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from neptune.errors import ScheduleError
from neptune.ir.dtypes import DTYPES
from neptune.ir.integers import evaluate_size
from neptune.mirage.ir import SPLIT, TILE, Graph, Kernel, Node, Type, writes
from neptune.mirage.ops import OPS
from neptune.mirage.order import SIDE
from neptune.mirage.types import graph_types, kernel_types
from neptune.tune.model.constants import FITTED
from neptune.tune.model.machine import Machine
from neptune.versions import install

HALF = 16
"""Bits of operands that the matrix unit reads in either order."""
COMPUTED = "float32"
"""What a kernel computes in, and stores where nothing says otherwise."""


@dataclass(frozen=True)
class Layouts:
    """The dimensions of each temporary in order, the innermost last; what that costs, in bytes from memory."""

    orders: Mapping[str, tuple[str, ...]]
    cost: float


@dataclass
class Problem:
    """`axes`: of each tensor and tile those that may be innermost; `fixed`: where the caller has decided. `own`: what
    an innermost axis costs by itself. `turned`: (a, b, cost) where b reads a: it is paid where the innermost axis of b
    is one of a's, and not a's innermost."""

    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    own: dict[tuple[str, str], float] = field(default_factory=dict)
    turned: list[tuple[str, str, float]] = field(default_factory=list)

    def choices(self, name: str) -> tuple[str, ...]:
        """The axes that may be innermost."""
        return (self.fixed[name],) if name in self.fixed else self.axes[name]

    def cost(self, chosen: Mapping[str, str]) -> float:
        """What a choice for everything costs."""
        own = sum(self.own.get((name, axis), 0.0) for name, axis in chosen.items())
        return own + sum(c for a, b, c in self.turned if chosen[b] in self.axes[a] and chosen[b] != chosen[a])


def available() -> bool:
    """True where scipy is installed; it is imported where a program is solved."""
    from importlib.util import find_spec

    return find_spec("scipy") is not None


def layouts(
    graph: Graph, sizes: Mapping[str, int], machine: Machine, tiles: Mapping[str, int] | None = None
) -> Layouts:
    """The cheapest layouts of the temporaries of a graph at some sizes, on a machine.

    `tiles`: extents of tiles by axis, as far as they are known. Raises ScheduleError where scipy is missing.
    """
    posed = problem(graph, sizes, machine, tiles or {})
    chosen = solve(posed)
    types, outer = graph_types(graph), list(graph.axes)
    orders = {
        name: (*sorted((a for a in types[name] if a != chosen[name]), key=outer.index), chosen[name])
        for name in temporaries(graph)
        if types[name]
    }
    return Layouts(orders, posed.cost(chosen))


def temporaries(graph: Graph) -> tuple[str, ...]:
    """The tensors between steps that are no results of the program, in order."""
    results = {o.value for o in graph.outputs}
    return tuple(n for s in graph.steps for n in writes(s) if n not in results)


def problem(graph: Graph, sizes: Mapping[str, int], machine: Machine, tiles: Mapping[str, int]) -> Problem:
    """What the layouts of a graph cost: tensors by their names, tiles as `kernel.value`."""
    return _Posed(graph, sizes, machine, tiles).problem


class _Posed:
    """Collects the problem of a graph."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], machine: Machine, tiles: Mapping[str, int]) -> None:
        self.problem = Problem()
        self.graph, self.tensors = graph, graph_types(graph)
        self.lengths = {a: evaluate_size(e, sizes) for a, e in graph.axes.items()}
        self.tiles = {a: min(n, tiles.get(a, SIDE)) for a, n in self.lengths.items()}
        self.dtypes = {t.name: t.dtype for t in graph.inputs} | {o.value: o.dtype for o in graph.outputs}
        # Bytes from memory in the time in which as many pass through shared memory, there and back.
        self.exchange = 2 * machine.memory / (machine.processors * machine.shared_rate * machine.clock)
        for name, t in self.tensors.items():
            if t:
                self.problem.axes[name] = tuple(t)
        given = [(t.name, t.axes) for t in graph.inputs] + [(o.value, o.axes) for o in graph.outputs]
        self.problem.fixed |= {name: axes[-1] for name, axes in given if axes}
        for step in graph.steps:
            if isinstance(step, Kernel):
                self.kernel(step)
            else:
                self.node(step, step.name, {o: o for o in step.operands}, self.tensors)

    def bits(self, tensor: str) -> int:
        return DTYPES[self.dtypes.get(tensor, COMPUTED)].bits

    def bytes(self, t: Type, bits: int) -> float:
        """The bytes of all tiles of this type together; of what a split has left, one element a tile."""
        return prod((self.parts(a) if TILE not in p else self.lengths[a]) for a, p in t.items()) * bits / 8

    def parts(self, axis: str) -> int:
        return -(-self.lengths[axis] // self.tiles[axis])

    def kernel(self, kernel: Kernel) -> None:
        typed = kernel_types(kernel, self.tensors)
        known = {name: f"{kernel.name}.{name}" for name in typed}
        for name, value in typed.items():
            axes = tuple(a for a, parts in value.type.items() if TILE in parts)
            if axes:
                self.problem.axes[known[name]] = axes
        own = {n: t.type for n, t in typed.items()}
        for load in kernel.loads:
            self.moved(load.tensor, own[load.name], known[load.name])
        for node in kernel.nodes:
            self.node(node, known[node.name], {o: known[o] for o in node.operands}, own)
        for save in kernel.saves:
            self.moved(save.name, own[save.value], known[save.value])

    def moved(self, tensor: str, t: Type, tile: str) -> None:
        """A tile of a tensor is loaded or stored: for longer where its rows are short parts of the tensor's rows."""
        bits, axes = self.bits(tensor), self.problem.axes
        moved = self.bytes(t, bits)
        for axis in axes.get(tensor, ()):
            cut = self.tensors[tensor][axis] == SPLIT or t[axis] - {TILE}
            part = 1 if self.tensors[tensor][axis] == SPLIT else self.tiles[axis]
            if cut and part < self.lengths[axis]:
                cost = moved * FITTED.narrow / (part * bits / 8)
                key = tensor, axis
                self.problem.own[key] = self.problem.own.get(key, 0.0) + cost
        if tensor in axes and tile in axes:
            self.problem.turned.append((tensor, tile, moved * self.exchange))

    def node(self, node: Node, name: str, operands: Mapping[str, str], types: Mapping[str, Type]) -> None:
        """An operator reads tiles: maps in one order, and products that are not of 16 bits along the folded axis."""
        p = self.problem
        for operand, tile in operands.items():
            if tile not in p.axes:
                continue
            cost = self.bytes(types[operand], DTYPES[COMPUTED].bits) * self.exchange
            if OPS[node.op].kind == "map" and name in p.axes:
                p.turned.append((tile, name, cost))
            elif node.op == "matmul" and operand in self.dtypes and self.bits(operand) != HALF:
                for axis in p.axes[tile]:
                    if axis != node.axis:
                        p.own[tile, axis] = p.own.get((tile, axis), 0.0) + cost


def solve(posed: Problem) -> dict[str, str]:
    """The innermost axis of every tensor and tile at the least cost, by HiGHS; ScheduleError without scipy."""
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ModuleNotFoundError as error:
        raise ScheduleError(
            "layouts of temporaries",
            f"the integer linear program needs {error.name}",
            hint=f"{install('mirage')}; without it temporaries keep the order of their axes",
        ) from None
    names = [(n, a) for n in posed.axes for a in posed.choices(n)]
    if not names:
        return {}
    number = {key: k for k, key in enumerate(names)}
    costs = [posed.own.get(key, 0.0) for key in names] + [c for *_, c in posed.turned]
    rows, low = [], []

    def row(entries: Mapping[int, float], least: float) -> None:
        rows.append([entries.get(k, 0.0) for k in range(len(costs))])
        low.append(least)

    for n in posed.axes:
        row({number[n, a]: 1.0 for a in posed.choices(n)}, 1.0)
    exactly = len(rows)
    for k, (a, b, _) in enumerate(posed.turned, len(names)):
        for axis in set(posed.choices(b)) & set(posed.axes[a]):
            # turned ≥ b's innermost is this axis − a's is.
            own = {number[a, axis]: 1.0} if (a, axis) in number else {}
            row({k: 1.0, number[b, axis]: -1.0} | own, 0.0)
    high = np.array([1.0] * exactly + [np.inf] * (len(rows) - exactly))
    within = LinearConstraint(np.array(rows), np.array(low), high)
    solution = milp(np.array(costs), integrality=np.ones(len(costs)), bounds=Bounds(0, 1), constraints=within)
    return {n: a for (n, a), k in number.items() if solution.x[k] > 0.5}
