"""How long a graph takes: an estimate of the graph itself, by which a search ranks what it finds.

    estimate(rms_norm_linear, {"m": 16, "k": 4096, "n": 6144}, machine).us  →  18.4

For each kernel tiles are tried, and of each choice the bytes through memory and through L2, matrix work, elementwise
work, waves of programs and the latency of the loop are laid side by side, with the figures of `tune/model/machine.py`
and the constants of the cost model (`tune/model/constants.py`). It orders graphs for which nothing is compiled yet;
what is compiled is predicted by the cost model itself, and that number decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

import numpy as np

from neptune.ir.dtypes import DTYPES
from neptune.ir.integers import evaluate_size
from neptune.mirage.ir import GRID, LOOP, SPLIT, TILE, Graph, Kernel, Load, Node, Type
from neptune.mirage.ops import OPS
from neptune.mirage.order import COMPUTED, lives, on_chip
from neptune.mirage.types import Typed, graph_types, kernel_types
from neptune.runtime.calls.offsets import Plan
from neptune.tune.model.constants import FITTED
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.model.program import LEAST_COLS, LEAST_ROWS

TILES = (16, 64, 128)
"""Extents of tiles that are tried, for every axis that is cut; a batch has one element a program."""
PARTS = (1, 4, 16, 64)
"""Numbers of parts of a loop that is cut over programs as well."""
STAGES = 3
"""How often a pipeline has what a loop loads."""
SPECIAL = frozenset({"exp", "sqrt", "rsqrt", "silu", "sigmoid", "power", "acc_rescaled"})
"""Operators of the unit for special functions."""


@dataclass(frozen=True)
class KernelCost:
    """One kernel of a graph: microseconds without the launch, bytes through memory, floating-point operations of
    products, programs, tiles by axis, and what a program holds on chip."""

    name: str
    us: float
    bytes: float
    flops: float
    programs: int
    tiles: Mapping[str, int]
    held: Plan | None


@dataclass(frozen=True)
class Cost:
    """What a graph takes: microseconds with the launches, and its kernels."""

    us: float
    kernels: tuple[KernelCost, ...]

    @property
    def bytes(self) -> float:
        """Bytes through memory."""
        return sum(k.bytes for k in self.kernels)


def estimate(graph: Graph, sizes: Mapping[str, int], machine: Machine) -> Cost:
    """The estimate of a graph at some sizes (a value for each symbolic size and scalar in its axes)."""
    estimator = _Estimate(graph, sizes, machine)
    kernels = tuple(estimator.kernel(s) if isinstance(s, Kernel) else estimator.node(s) for s in graph.steps)
    launches = FITTED.first + FITTED.further * (len(kernels) - 1)
    return Cost(launches + sum(k.us for k in kernels), kernels)


class _Estimate:
    """The estimate of one graph; `parts`: elements of the dimensions that splits have left."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], machine: Machine) -> None:
        self.machine, self.tensors = machine, graph_types(graph)
        self.lengths = {a: evaluate_size(e, sizes) for a, e in graph.axes.items()}
        self.dtypes = {t.name: t.dtype for t in graph.inputs} | {o.value: o.dtype for o in graph.outputs}
        self.narrow = min((t.dtype for t in graph.inputs), key=lambda d: DTYPES[d].bits, default="float32")
        self.rows = {t.name: t.axes[-1] for t in graph.inputs if t.axes}
        self.parts: dict[tuple[str, str], int] = {}

    def bytes(self, tensor: str) -> float:
        """Of a whole tensor."""
        parts = self.tensors[tensor].items()
        count = prod(self.parts.get((tensor, a), 1) if p == SPLIT else self.lengths[a] for a, p in parts)
        return count * self.width(tensor)

    def width(self, tensor: str) -> float:
        return DTYPES[self.dtypes[tensor]].bits / 8 if tensor in self.dtypes else COMPUTED

    def node(self, node: Node) -> KernelCost:
        """A library operator: a kernel of its own, that reads its operands and writes its result once."""
        moved = sum(map(self.bytes, dict.fromkeys(node.operands))) + self.bytes(node.name)
        flops = 0.0
        if node.op == "matmul":
            flops = 2.0 * self.lengths[node.axis] * prod(self.lengths[a] for a in self.tensors[node.name])
        m = self.machine
        memory = moved / (FITTED.memory * m.memory * 1e3)
        work = flops / self.rate / (m.processors * m.clock * 1e3)
        return KernelCost(node.name, max(memory, work) + self._start(), moved, flops, m.processors, {}, None)

    @property
    def rate(self) -> float:
        """Floating-point operations a cycle of products."""
        return self.machine.matrix.get(self.narrow, 2.0 * self.machine.lanes)

    def _start(self) -> float:
        return (FITTED.program + FITTED.latency) / self.machine.clock / 1e3

    def kernel(self, kernel: Kernel) -> KernelCost:
        """A kernel of the graph's own, with the best of the tiles that are tried and fit; where none does, for ever."""
        typed = kernel_types(kernel, self.tensors)
        names, choices = self._choices(kernel, typed)
        tried = _Choices(self, kernel, typed, {n: np.array(c, float) for n, c in zip(names, choices, strict=True)})
        us = tried.us()
        order = np.argsort(us, kind="stable")
        room, least = 4 * self.machine.registers + self.machine.shared_limit, inf
        for k in order:
            tiles = {a: int(tried.tile(a)[k]) for a in self.lengths}
            held = on_chip(kernel, self.tensors, self._all_dtypes(), tiles)
            if held.size <= room:
                least = float(us[k])
                break
        for save in kernel.saves:
            for axis, parts in typed[save.value].type.items():
                if TILE not in parts:
                    self.parts[save.name, axis] = int(tried.along(axis)[k])
        moved = sum(map(self.bytes, {x.tensor for x in kernel.loads})) + sum(self.bytes(s.name) for s in kernel.saves)
        programs = int(tried.programs[k])
        return KernelCost(kernel.name, least, moved, float(tried.flops[k]) * programs, programs, tiles, held)

    def _all_dtypes(self) -> dict[str, str]:
        return {t: self.dtypes.get(t, "float32") for t in self.tensors}

    def _choices(self, kernel: Kernel, typed: Mapping[str, Typed]) -> tuple[list[str], list[Sequence[int]]]:
        """The axes with tiles, and `parts` of the loop, with the values of each for every combination."""
        apart = batches(kernel, typed)
        axes = list(dict.fromkeys([*kernel.grid, *([kernel.loop] if kernel.loop else [])]))
        space: dict[str, Sequence[int]] = {}
        for a in axes:
            longest = self.lengths[a]
            # Twice as large as the axis is as good as twice as large as that.
            space[a] = (1,) if a in apart else [t for t in TILES if t < 2 * longest] or TILES[:1]
        split = kernel.loop is not None and kernel.loop in kernel.grid
        space["parts"] = PARTS if split else (1,)
        return list(space), list(zip(*product(*space.values()), strict=True))


def batches(kernel: Kernel, typed: Mapping[str, Typed]) -> frozenset[str]:
    """Axes of the grid that go side by side through both operands of every product: of those a program has one."""
    products = [n for n in kernel.nodes if n.op == "matmul"]
    if not products:
        return frozenset()
    shared = [typed[n.operands[0]].type.keys() & typed[n.operands[1]].type.keys() - {n.axis} for n in products]
    return frozenset(kernel.grid).intersection(*shared) - {kernel.loop or ""}


class _Choices:
    """One kernel with many choices of tiles at once: every number is an array, one element a choice."""

    def __init__(
        self, estimate: _Estimate, kernel: Kernel, typed: Mapping[str, Typed], chosen: Mapping[str, Array]
    ) -> None:
        self.of, self.kernel, self.typed, self.chosen = estimate, kernel, typed, chosen
        self.programs = prod((self.along(a) for a in kernel.grid), start=np.ones_like(chosen["parts"]))
        loop = kernel.loop
        self.trips: Array = 1.0
        if loop is not None:
            per_program = np.ceil(estimate.lengths[loop] / (self.along(loop) if loop in kernel.grid else 1))
            self.trips = np.ceil(per_program / self.tile(loop))
        self.flops: Array = sum((self.work(n) * self.runs(n.name) for n in kernel.nodes), np.zeros_like(self.programs))

    def tile(self, axis: str) -> Array:
        """The extent of an axis' tile."""
        return np.minimum(self.chosen.get(axis, np.inf), self.of.lengths[axis]) * np.ones_like(self.chosen["parts"])

    def along(self, axis: str) -> Array:
        """How many programs there are along an axis of the grid."""
        if axis == self.kernel.loop:
            return np.minimum(self.chosen["parts"], np.ceil(self.of.lengths[axis] / self.tile(axis)))
        return np.ceil(self.of.lengths[axis] / self.tile(axis))

    def elements(self, t: Type) -> Array:
        """Of a tile of this type."""
        return prod((self.tile(a) for a, p in t.items() if TILE in p), start=1.0)

    def runs(self, name: str) -> Array:
        """How often a program computes or loads a value."""
        node = next((n for n in self.kernel.nodes if n.name == name), None)
        in_loop = self.typed[name].body or (node is not None and OPS[node.op].kind == "accumulate")
        return self.trips if in_loop else 1.0

    def work(self, node: Node) -> Array:
        """Floating-point operations of a product, with the rows and columns that a matrix unit takes at least."""
        if node.op != "matmul":
            return np.zeros_like(self.programs)
        sides = sorted(
            (self.tile(a) for a, p in self.typed[node.name].type.items() if TILE in p), key=lambda s: s.max()
        )
        least = (LEAST_COLS, LEAST_ROWS) if len(sides) > 1 else (1,)
        padded = [np.maximum(side, n) for side, n in zip(sides, least, strict=False)]
        return 2.0 * prod(padded, start=1.0) * prod(sides[len(padded) :], start=1.0) * self.tile(node.axis)

    def us(self) -> Array:
        """Microseconds of the kernel, without its launch."""
        m, norm = self.of.machine, FITTED.memory_norm
        compute, memory = self.cycles() / m.clock / 1e3, self.moved() / (FITTED.memory * m.memory * 1e3)
        return (compute**norm + memory**norm) ** (1 / norm)

    def cycles(self) -> Array:
        """Until the last program has ended: programs of a processor share its units, and wait for loads alone."""
        m, busy = self.of.machine, self.busy()
        has_products = any(n.op == "matmul" for n in self.kernel.nodes)
        step = FITTED.product_loop if has_products else FITTED.plain_loop
        alone = busy + self.trips * step + FITTED.program + FITTED.latency
        resident = np.maximum(1, np.minimum(m.programs, (4 * m.registers + m.shared) // self.held()))
        shared = np.ceil(self.programs / m.processors) * busy + FITTED.program
        return np.maximum(shared, np.ceil(self.programs / (m.processors * resident)) * alone)

    def busy(self) -> Array:
        """Cycles for which one program keeps its busiest unit busy."""
        m, others = self.of.machine, [n for n in self.kernel.nodes if n.op != "matmul"]
        issued = sum((self.elements(self._larger(n)) * self.runs(n.name) for n in others), start=0.0)
        special = sum(
            (self.elements(self._larger(n)) * self.runs(n.name) for n in others if n.op in SPECIAL), start=0.0
        )
        loads = sum((self._tile_bytes(x.name, x.tensor) * self.runs(x.name) for x in self.kernel.loads), start=0.0)
        saves = sum((self._tile_bytes(s.value, s.name) for s in self.kernel.saves), start=0.0)
        units = (self.flops / self.of.rate, special / m.special, issued * FITTED.issue / m.lanes, saves / m.port)
        # What a loop loads comes while it computes; without one it is waited for.
        together = [*units, loads / m.port] if self.kernel.loop else [u + loads / m.port for u in units]
        return np.maximum.reduce(np.broadcast_arrays(self.programs * 0.0, *together))

    def moved(self) -> Array:
        """Bytes through memory: each tensor once; rows of a tile that are short parts of the tensor's take longer."""
        tensors = {x.tensor: x for x in self.kernel.loads}
        read = sum((self.of.bytes(t) * self._narrow(x) for t, x in tensors.items()), start=0.0)
        return read + sum((self._whole(s.value) * self.of.width(s.name) for s in self.kernel.saves), start=0.0)

    def _narrow(self, load: Load) -> Array:
        """How much longer memory takes for the tiles of an input."""
        row = self.of.rows.get(load.tensor, "")
        if not self.typed[load.name].type.get(row, frozenset()) & {GRID, LOOP}:
            return 1.0
        own, length = self.tile(row), self.of.lengths[row]
        return np.where(own < length, 1 + FITTED.narrow / (own * self.of.width(load.tensor)), 1.0)

    def _tile_bytes(self, value: str, tensor: str) -> Array:
        return self.elements(self.typed[value].type) * self.of.width(tensor)

    def _whole(self, value: str) -> Array:
        """Elements of all tiles of a saved value together."""
        return prod((self._dimension(a, p) for a, p in self.typed[value].type.items()), start=1.0)

    def _dimension(self, axis: str, parts: frozenset[str]) -> Array:
        return self.of.lengths[axis] if TILE in parts else self.along(axis)

    def _larger(self, node: Node) -> Type:
        """The type of the tile that an operator goes through: a fold goes through its operand."""
        if OPS[node.op].kind == "map":
            return self.typed[node.name].type
        return self.typed[node.operands[0]].type

    def held(self) -> Array:
        """The most bytes that a program holds at one time."""
        width = {x.name: self.of.width(x.tensor) for x in self.kernel.loads}
        spans = lives(self.kernel)
        size = {x.name: self.elements(self.typed[x.name].type) * width.get(x.name, COMPUTED) for x in spans}
        size |= {n: size[n] * STAGES for n in width if n in size and self.typed[n].body}
        live = (sum(size[x.name] for x in spans if x.first <= k <= x.last) for k in range(len(self.kernel.body)))
        return np.maximum.reduce(np.broadcast_arrays(self.programs * 0.0 + 1.0, *live))
