"""The time that a TileProgram takes, predicted from its work, its parameters, sizes and a machine.

A kernel's programs run in waves, as many on a processor as registers, shared memory and threads allow. One program is
a chain: products, then what is elementwise, since plain Triton does not overlap them within a program, then what loads
leave exposed. Programs of one processor fill each other's gaps until a unit is busy all the time: the matrix unit,
special functions, issue slots, shared memory, the port to L2. A kernel takes at least what its bytes take through
memory, where a tile is read again once the programs that share it do not run at one time.

    model.predict({"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 3}, {"s_q": 4096, …}, DEVICES["H200"]).us  →  612.0

Constants are in `tune/constants.py`, in cycles; `bench.cost` judges them on measured kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as every
from math import ceil, inf, prod

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Expr, variables
from neptune.ir.integers import known_size
from neptune.runtime.artifact import launch_name
from neptune.tile.ir import Branch, Loop, TileProgram
from neptune.tune.constants import FITTED, Constants
from neptune.tune.facts import read_facts
from neptune.tune.machine import Machine
from neptune.tune.numbers import Number, Numbers
from neptune.tune.occupancy import Resources, resident, resources
from neptune.tune.work import Axes, KernelWork, Move, Product, Section, work_of

Values = Mapping[str, int]
SAMPLES = 9
"""Values of a grid variable at which loops that depend on it are looked at."""
LEAST_ROWS, LEAST_COLS = 16, 8
"""The least that a matrix unit takes."""
GROUP = 4
"""Warps that give one product to the matrix unit."""


@dataclass(frozen=True)
class KernelTime:
    """The prediction for one kernel. `us`: microseconds; `bound`: what limits it; `share`: how much of that limit is
    used; `waves`: of programs; `resident`: programs on a processor at one time."""

    name: str
    us: float
    bound: str
    share: float
    programs: int
    waves: float
    resident: int
    needs: Resources


@dataclass(frozen=True)
class Prediction:
    """The prediction for a TileProgram, launches included."""

    us: float
    kernels: tuple[KernelTime, ...]


@dataclass(frozen=True)
class Model:
    """A TileProgram whose work has been collected once, to be asked for many parameters and sizes."""

    program: TileProgram

    @cached_property
    def works(self) -> tuple[KernelWork, ...]:
        return tuple(work_of(k) for k in self.program.kernels)

    def number(self, e: Expr) -> Number:
        """The function that computes a bound or a condition of this program."""
        if e not in self._numbers:
            self._numbers[e] = Numbers().of(e)
        return self._numbers[e]

    def needs(self, work: KernelWork, known: Values, machine: Machine) -> Resources:
        """The resources of one kernel: they follow from its parameters, not from sizes."""
        tiles = {v for _, e in work.kernel.axes for v in variables(e)} | {"num_warps", "num_stages"}
        key = (work.kernel.name, machine.name, *sorted((n, known[n]) for n in tiles if n in known))
        if key not in self._needs:
            self._needs[key] = resources(work, known, machine)
        return self._needs[key]

    @cached_property
    def _needs(self) -> dict[tuple[object, ...], Resources]:
        return {}

    @cached_property
    def _numbers(self) -> dict[Expr, Number]:
        return {}

    @cached_property
    def passes(self) -> Mapping[str, float]:
        return read_facts(self.program).traversals

    def predict(self, params: Values, sizes: Values, machine: Machine, constants: Constants = FITTED) -> Prediction:
        """The time, with a value for every tunable, num_warps, num_stages and size."""
        known = {**sizes, **params}
        kernels: list[KernelTime] = []
        for work in self.works:
            own = {**known, **_of_kernel(params, launch_name(self.program.name, work.kernel.name))}
            kernels.append(_Kernel(self, work, own, machine, constants).time())
        launches = constants.first + constants.further * (len(kernels) - 1)
        return Prediction(launches + sum(k.us for k in kernels), tuple(kernels))


def _of_kernel(params: Values, name: str) -> dict[str, int]:
    """The parameters that are given for one kernel alone: {"o_combine.num_warps": 1}."""
    found: dict[str, int] = {}
    for key, value in params.items():
        kernel, dot, plain = key.rpartition(".")
        if dot and kernel == name:
            found[plain] = value
    return found


@dataclass(frozen=True)
class _Class:
    """Programs of one kind: their share, and how often each section runs in one of them."""

    share: float
    trips: tuple[float, ...]


@dataclass(frozen=True)
class _Busy:
    """Cycles for which one program keeps the units of a processor busy."""

    matrix: float = 0.0
    special: float = 0.0
    issue: float = 0.0
    shared: float = 0.0
    port: float = 0.0

    def plus(self, other: _Busy, times: float) -> _Busy:
        mine, theirs = vars(self), vars(other)
        return _Busy(**{k: mine[k] + times * theirs[k] for k in mine})

    @property
    def largest(self) -> tuple[float, str]:
        return max((v, k) for k, v in vars(self).items())


class _Kernel:
    """One kernel with numbers for everything."""

    def __init__(self, model: Model, work: KernelWork, known: Values, machine: Machine, constants: Constants) -> None:
        self.model, self.work, self.known, self.machine, self.constants = model, work, known, machine, constants
        self.warps, self.stages = known["num_warps"], known["num_stages"]
        self.extents = {axis: known_size(e, known) for axis, e in work.kernel.axes}
        # What a matrix unit makes is held as it makes it: a tile of one row has copies.
        self.held = dict(self.extents)
        for p in (p for s in work.sections for p in s.products):
            self.held[p.rows] = max(self.extents.get(p.rows, 1), LEAST_ROWS)
            self.held[p.cols] = max(self.extents.get(p.cols, 1), LEAST_COLS)
        self.grid = [(g.var, max(0, model.number(g.extent)(known))) for g in work.kernel.grid]
        self.programs = prod(n for _, n in self.grid)
        self.has_products = any(s.products for s in work.sections)

    def size(self, axes: Axes) -> int:
        return prod(self.extents.get(a, 1) for a in axes)

    # --- how often ----------------------------------------------------------------------------

    def classes(self) -> list[_Class]:
        """Programs by what their loops depend on: sampled where that has many values."""
        read = {v for s in self.work.sections for b in s.blocks for e in _bounds(b) for v in variables(e)}
        moving = [(v, n) for v, n in self.grid if v in read]
        samples = [_samples(n) for _, n in moving]
        found: dict[tuple[float, ...], float] = {}
        points = list(every(*samples))
        for point in points:
            at = (
                dict(self.known)
                | {v: 0 for v, _ in self.grid}
                | {v: x for (v, _), x in zip(moving, point, strict=True)}
            )
            trips = tuple(self._trips(s, at) for s in self.work.sections)
            found[trips] = found.get(trips, 0.0) + 1 / len(points)
        return [_Class(share, trips) for trips, share in found.items()]

    def _trips(self, section: Section, at: Mapping[str, int]) -> float:
        total, inside = 1.0, dict(at)
        for block in section.blocks:
            if isinstance(block, Branch):
                total *= bool(self.model.number(block.pred)(inside))
            else:
                lo, hi = self.model.number(block.lo)(inside), self.model.number(block.hi)(inside)
                total *= max(0, hi - lo)
                inside[block.var] = lo + max(0, hi - lo) // 2
            if not total:
                return 0.0
        return total

    # --- one program --------------------------------------------------------------------------

    def busy(self, s: Section) -> _Busy:
        """What one run of a section keeps busy."""
        machine = self.machine
        slots = self._instructions(s)
        special = sum(w.special * prod(self.held.get(a, 1) for a in axes) for axes, w in s.work.items())
        matrix = sum(self._matrix(p) for p in s.products)
        moved = sum(self._bytes(m) for m in s.moves)
        staged = sum(self._bytes(m) for m in s.moves if m.operand)
        shared = staged + sum(self._operands(p) for p in s.products)
        return _Busy(
            matrix,
            special / machine.special,
            slots * self.warps * machine.warp / machine.lanes,
            shared / machine.shared_rate,
            moved / machine.port,
        )

    def _instructions(self, s: Section) -> float:
        """Instructions of each warp in one run of a section."""
        c, lanes = self.constants, self.machine.warp * self.warps
        elementwise = sum(w.slots * self._held(axes) for axes, w in s.work.items()) / lanes
        hmma = sum(self._hmma(p) for p in s.products)
        if not self.has_products:
            return elementwise * c.without_products + c.plain_loop
        if not s.products:
            return elementwise
        return elementwise + c.product_loop + c.per_hmma * hmma

    def _held(self, axes: Axes) -> float:
        """The elements of a tile that threads hold, copies included: of a vector beside tiles several hold each."""
        n = prod(self.held.get(a, 1) for a in axes)
        if len([a for a in axes if self.extents.get(a, 1) > 1]) != 1 or not self.has_products:
            return n
        return n * 4 * max(1, self.warps // GROUP)

    def asynchronous(self, p: Product) -> bool:
        """True for a product that Hopper's unit takes from shared memory."""
        enough = self.extents.get(p.rows, 1) >= 64 and self.warps >= GROUP
        return self.machine.asynchronous and enough and DTYPES[p.dtype].bits <= 16

    def _matrix(self, p: Product) -> float:
        """Cycles of the matrix unit, or of the lanes where there is none for a dtype."""
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        rate = self.machine.matrix.get(p.dtype)
        if rate is None:
            return 2 * rows * cols * depth / (2 * self.machine.lanes)
        if self.asynchronous(p):
            return 2 * rows * max(cols, LEAST_COLS) * depth / rate
        return 2 * max(rows, LEAST_ROWS) * max(cols, LEAST_COLS) * depth / (rate * self.constants.hmma)

    def _hmma(self, p: Product) -> float:
        """Instructions of a warp for a product that threads hold the operands of."""
        if self.asynchronous(p) or p.dtype not in self.machine.matrix:
            return 0.0
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        return max(rows, LEAST_ROWS) * max(cols, LEAST_COLS) * depth / (LEAST_ROWS * LEAST_COLS * 16 * self.warps)

    def _operands(self, p: Product) -> float:
        """Bytes of shared memory that a product reads: the right operand once for every 64 rows."""
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        right = cols * depth * ceil(rows / 64)
        return (right + (0 if p.in_registers else rows * depth)) * DTYPES[p.dtype].bits / 8

    def _bytes(self, m: Move) -> float:
        return self.size(m.axes) * m.bits / 8

    def chain(self, s: Section, busy: _Busy) -> float:
        """Cycles from the begin to the end of one run of a section, in a program alone on its processor."""
        c = self.constants
        groups = max(1, self.warps // GROUP)
        turns = 1 + c.turns * (groups - 1)
        special = busy.special * self.machine.special / (self.machine.warp * self.warps)
        elementwise = (self._instructions(s) * c.issue + special * c.special) * turns
        own = busy.matrix * (1 - c.overlap_groups * (1 - 1 / groups)) + elementwise
        own += sum(self._fold(axes, axis) for axes, axis in s.folds)
        loads = sum(self._bytes(m) for m in s.moves if not m.store)
        exposed = c.latency + loads / self.machine.port if loads else 0.0
        if s.loop is not None:
            own += c.iteration
            if s.products and self.stages > 1:
                return float((own**c.norm + (exposed / (self.stages - 1) ** c.hidden) ** c.norm) ** (1 / c.norm))
        return own + exposed

    def _fold(self, axes: Axes, axis: str) -> float:
        """A reduction; across warps where there are not rows enough for each."""
        rows = self.size(axes) // max(1, self.extents.get(axis, 1))
        across = rows < (16 if self.has_products else 1) * self.warps
        return self.constants.fold + (self.constants.fold_across if across else 0.0)

    # --- all of them --------------------------------------------------------------------------

    def time(self) -> KernelTime:
        machine, c = self.machine, self.constants
        needs = self.model.needs(self.work, self.known, machine)
        here = resident(needs, self.warps, machine)
        classes = self.classes()
        once = [self.busy(s) for s in self.work.sections]
        steps = [self.chain(s, b) for s, b in zip(self.work.sections, once, strict=True)]
        chains = [c.program + sum(n * step for n, step in zip(k.trips, steps, strict=True)) for k in classes]
        busy = [_total(k.trips, once) for k in classes]
        if not self.programs or not here:
            return KernelTime(
                self.work.kernel.name, inf if self.programs else 0.0, "shared memory", 1.0, self.programs, 0.0, 0, needs
            )

        def together(k: int, count: int) -> float:
            """Cycles that `count` programs of class k take on one processor."""
            p = c.norm if count > 1 else c.alone
            return float((chains[k] ** p + (count * busy[k].largest[0]) ** p) ** (1 / p))

        count = min(here, max(1, ceil(self.programs / machine.processors)))
        waves = self.programs / (count * machine.processors)
        mean = sum(k.share * together(i, count) for i, k in enumerate(classes))
        longest = max(range(len(classes)), key=lambda i: chains[i])
        if len(classes) > 1:
            cycles = max(waves * mean + 0.5 * together(longest, count) * min(1.0, waves), together(longest, 1))
        elif waves >= 4:
            cycles = waves * mean
        else:
            full = int(waves)
            rest = self.programs - full * count * machine.processors
            cycles = full * mean + (together(longest, ceil(rest / machine.processors)) if rest else 0.0)
        if needs.too_large(machine):
            cycles *= c.spilled
        compute = cycles / machine.clock / 1e3
        memory = self._memory(classes, count) / (c.memory * machine.memory * 1e3)
        us = (compute**c.memory_norm + memory**c.memory_norm) ** (1 / c.memory_norm)
        total = _Busy()
        for k, b in zip(classes, busy, strict=True):
            total = total.plus(b, k.share * self.programs / machine.processors)
        most, unit = total.largest
        share = most / machine.clock / 1e3 / us
        bound = max((memory / us, "memory"), (share, unit))
        name = bound[1] if bound[0] >= 0.6 else "latency"
        return KernelTime(self.work.kernel.name, us, name, bound[0], self.programs, waves, count, needs)

    def _memory(self, classes: Sequence[_Class], count: int) -> float:
        """Bytes that come from or go to memory."""
        wave = min(self.programs, count * self.machine.processors)
        asked: dict[tuple[str, bool], tuple[float, float]] = {}
        for i, s in enumerate(self.work.sections):
            runs = sum(k.share * k.trips[i] for k in classes)
            for m in s.moves if runs else ():
                once = runs if s.loop is None or _moves_with(m, s) else min(runs, 1.0)
                own = once * self._bytes(m)
                whole = own * self._distinct(m, self.programs)
                by_wave = own * self._distinct(m, wave) * self.programs / wave
                before = asked.get((m.buffer, m.store), (0.0, 0.0))
                asked[m.buffer, m.store] = (before[0] + whole, before[1] + by_wave)
        return sum(self._through(b, store, *bytes_) for (b, store), bytes_ in asked.items())

    def _through(self, buffer: str, store: bool, whole: float, by_wave: float) -> float:
        """Bytes of one buffer: once if L2 keeps it, else again with every wave."""
        declared = self.model.program.globals.get(buffer)
        length = inf
        if declared is not None:
            length = prod(self.model.number(e)(self.known) for e in declared.shape) * DTYPES[declared.dtype].bits / 8
        passes = 1.0 if store else max(1.0, min(self.model.passes.get(buffer, 1), 8))
        once = min(length, whole)
        if store or min(length, by_wave) <= self.machine.l2 / 2:
            return once
        return max(once, min(by_wave, passes * length if whole <= length * passes * 1.5 else by_wave))

    def _distinct(self, m: Move, programs: int) -> float:
        """How many different shares of a tile's buffer so many programs with consecutive numbers have."""
        different, stride = 1.0, 1
        for v, n in self.grid:
            if v in m.depends:
                different *= min(n, max(1.0, programs / stride))
            stride *= max(1, n)
        return min(different, float(programs))


def _total(trips: Sequence[float], once: Sequence[_Busy]) -> _Busy:
    """What one program keeps busy, where each section runs so many times."""
    total = _Busy()
    for n, busy in zip(trips, once, strict=True):
        total = total.plus(busy, n)
    return total


def _moves_with(m: Move, s: Section) -> bool:
    return any(isinstance(b, Loop) and b.var in m.depends for b in s.blocks)


def _bounds(b: Loop | Branch) -> tuple[Expr, ...]:
    return (b.lo, b.hi) if isinstance(b, Loop) else (b.pred,)


def _samples(n: int) -> list[int]:
    return list(range(n)) if n <= SAMPLES else [round(i * (n - 1) / (SAMPLES - 1)) for i in range(SAMPLES)]
