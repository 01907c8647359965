"""The time that a TileProgram takes, predicted from its work, its parameters, sizes and a machine.

A kernel's programs run in waves, as many on a processor as registers, shared memory and threads allow. One program is
a chain: products, then what is elementwise, since plain Triton does not overlap them within a program, then what loads
leave exposed. Programs of one processor fill each other's gaps until a unit is busy all the time: the matrix unit,
special functions, issue slots, shared memory, the port to L2. A kernel takes at least what its bytes take through
memory, where a tile is read again once the programs that share it do not run at one time.

    model.predict({"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 3}, {"s_q": 4096, …}, DEVICES["H200"]).us  →  612.0

Everything is computed for many points at once, each a choice of parameters at some sizes: numbers are arrays with an
element a point, those of programs in a kernel with a row for each class of programs before that. Constants are in
`tune/constants.py`, in cycles; `bench.cost` judges them on measured kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from neptune.ir.dtypes import DTYPES, FLOAT8
from neptune.ir.expr import Expr, Op, loads, variables
from neptune.ir.integers import known_size
from neptune.runtime.artifact import launch_name
from neptune.tile.ir import Assign, Branch, Loop, TileProgram, walk_stmts
from neptune.tune import accesses
from neptune.tune.constants import FITTED, Constants
from neptune.tune.facts import read_facts
from neptune.tune.machine import Machine
from neptune.tune.numbers import Array, Number, Numbers
from neptune.tune.occupancy import Resources, most_registers, resident, resources
from neptune.tune.prediction import BOUNDS, UNITS, Prediction, Predictions, Times
from neptune.tune.work import Axes, KernelWork, Move, Product, Section, work_of

Values = Mapping[str, int]
Columns = Mapping[str, Array]
SAMPLES = 9
"""Values of a grid variable at which loops that depend on it are looked at."""
LEAST_ROWS, LEAST_COLS = 16, 8
"""The least that a matrix unit takes."""
GROUP = 4
"""Warps that give one product to the matrix unit."""


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
            self._numbers[e] = Numbers(self._least).of(e)
        return self._numbers[e]

    @cached_property
    def _least(self) -> frozenset[str]:
        """The scalars that are the least of what tensors hold, such as where the first range of a tile begins."""
        every = (s for k in self.program.kernels for s in walk_stmts(k.body) if isinstance(s, Assign))
        return frozenset(
            s.name for s in every if isinstance(s.value, Op) and s.value.name == "min" and not s.value.dims
        )

    def needs(self, work: KernelWork, known: Values, machine: Machine) -> Resources:
        """The resources of one kernel: they follow from its parameters, not from sizes."""
        key = (work.kernel.name, machine.name, *sorted(known.items()))
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
        return self.predict_all({n: (v,) for n, v in {**sizes, **params}.items()}, machine, constants).at(0)

    def predict_all(self, columns: Columns, machine: Machine, constants: Constants = FITTED) -> Predictions:
        """The times at many points; `columns` has the values of every name, one for each point."""
        kernels = tuple(self.times(work, columns, machine, constants) for work in self.works)
        return Predictions(self.launches(constants) + sum(k.us for k in kernels), kernels)

    def launches(self, constants: Constants = FITTED) -> float:
        """The time of the launches, which the times of the kernels are added to."""
        return constants.first + constants.further * (len(self.works) - 1)

    def times(self, work: KernelWork, columns: Columns, machine: Machine, constants: Constants = FITTED) -> Times:
        """The times of one kernel at many points."""
        with np.errstate(all="ignore"):
            known = {n: np.asarray(v, dtype=np.float64) for n, v in columns.items()}
            plain = {n: v for n, v in known.items() if "." not in n}
            own = {**plain, **_of_kernel(known, launch_name(self.program.name, work.kernel.name))}
            return KernelAt(self, work, own, machine, constants).times()

    def reads(self, work: KernelWork) -> frozenset[str]:
        """The names that the time of a kernel follows from; of those that are given for it alone, the plain ones."""
        bounds = (e for s in work.sections for b in s.blocks for e in _bounds(b))
        moved = {m.buffer for s in work.sections for m in s.moves}
        shapes = (e for b in self.program.globals.values() if b.name in moved for e in b.shape)
        sizes = (*(e for _, e in work.kernel.axes), *(g.extent for g in work.kernel.grid), *bounds, *shapes)
        return frozenset({"num_warps", "num_stages"}).union(*map(variables, sizes))


def _of_kernel(params: Columns, name: str) -> dict[str, Array]:
    """The parameters that are given for one kernel alone: {"o_combine.num_warps": 1}."""
    found: dict[str, Array] = {}
    for key, value in params.items():
        kernel, dot, plain = key.rpartition(".")
        if dot and kernel == name:
            found[plain] = value
    return found


@dataclass(frozen=True)
class Busy:
    """Cycles for which one program keeps the units of a processor busy."""

    matrix: Array = 0.0
    special: Array = 0.0
    issue: Array = 0.0
    shared: Array = 0.0
    port: Array = 0.0

    def plus(self, other: Busy, times: Array) -> Busy:
        mine, theirs = vars(self), vars(other)
        # A unit that a section does not use is a plain 0.
        used = (k for k in mine if not isinstance(theirs[k], int | float) or theirs[k])
        return replace(self, **{k: mine[k] + times * theirs[k] for k in used})

    @property
    def units(self) -> Array:
        """In the order of UNITS."""
        return np.stack(np.broadcast_arrays(*(vars(self)[k] for k in UNITS)))


class KernelAt:
    """One kernel with numbers for everything."""

    def __init__(self, model: Model, work: KernelWork, known: Columns, machine: Machine, constants: Constants) -> None:
        self.model, self.work, self.known, self.machine, self.constants = model, work, known, machine, constants
        self.warps, self.stages = known["num_warps"], known["num_stages"]
        self.extents: dict[str, Array] = {axis: known_size(e, known) for axis, e in work.kernel.axes}
        # What a matrix unit makes is held as it makes it: a tile of one row has copies.
        self.held = dict(self.extents)
        for p in (p for s in work.sections for p in s.products):
            self.held[p.rows] = np.maximum(self.extents.get(p.rows, 1), LEAST_ROWS)
            self.held[p.cols] = np.maximum(self.extents.get(p.cols, 1), LEAST_COLS)
        self.grid = [(g.var, np.maximum(0.0, model.number(g.extent)(known))) for g in work.kernel.grid]
        self.programs = prod((n for _, n in self.grid), start=np.ones(self.warps.shape))
        self.slots: Array = 1.0
        self.has_products = any(s.products for s in work.sections)

    def size(self, axes: Axes) -> Array:
        return prod(self.extents.get(a, 1) for a in axes)

    # --- how often ----------------------------------------------------------------------------

    def classes(self) -> tuple[Array, list[Array]]:
        """Programs by what their loops depend on, sampled where that has many values: the share of each class, and how
        often each section runs in one of its programs."""
        read = {v for s in self.work.sections for b in s.blocks for e in _bounds(b) for v in variables(e)}
        at = {**self.known, **{v: 0.0 for v, _ in self.grid}}
        share = np.ones((1, *self.warps.shape))
        for v, n in self.grid:
            if v in read:
                where, part = _samples(np.broadcast_to(n, self.warps.shape))
                # Every class so far, with every sample of this variable.
                at = {m: _again(x, len(where)) for m, x in at.items()}
                at[v] = np.repeat(where, len(share), axis=0)
                share = _again(share, len(where)) * np.repeat(part, len(share), axis=0)
        return share, [np.broadcast_to(self._trips(s, at), share.shape) for s in self.work.sections]

    def without_idle(self, share: Array, trips: list[Array]) -> tuple[Array, list[Array]]:
        """The classes of programs that move anything: others, of which a group of tiles has too many, end at once."""
        moving = np.zeros(share.shape, dtype=bool)
        for n, s in zip(trips, self.work.sections, strict=True):
            moving |= (n > 0) & bool(s.moves)
        busy = (share * moving).sum(axis=0)
        some = busy > 0
        self.slots = np.where(some, 1 / np.where(some, busy, 1.0), 1.0)
        self.programs = np.where(some, np.round(self.programs * busy), self.programs)
        return np.where(some, share * moving / np.where(some, busy, 1.0), share), trips

    def _trips(self, section: Section, at: Columns) -> Array:
        total, inside = 1.0, dict(at)
        for block in section.blocks:
            if isinstance(block, Branch):
                total = total * np.not_equal(self.model.number(block.pred)(inside), 0)
            else:
                lo, hi = self.model.number(block.lo)(inside), self.model.number(block.hi)(inside)
                # A mask of data is there for what it hides: documents, sequences in one batch.
                share = self.constants.seen if loads(block.lo) else 1.0
                count = np.maximum(0.0, (hi - lo) * share)
                total = total * count
                inside[block.var] = lo + count // 2
        return total

    # --- one program --------------------------------------------------------------------------

    def busy(self, s: Section) -> Busy:
        """What one run of a section keeps busy."""
        machine = self.machine
        slots = self.instructions(s)
        special = sum(w.special * prod(self.held.get(a, 1) for a in axes) for axes, w in s.work.items())
        matrix = sum(self.matrix(p) for p in s.products)
        moved = self.moved(s)
        staged = sum(self.bytes(m) for m in s.moves if m.operand)
        shared = staged + sum(self._operands(p) for p in s.products)
        shared = shared + machine.shared_rate * accesses.column_cycles(s, self.size, self.warps, machine)
        return Busy(
            matrix,
            special / machine.special,
            slots * self.warps * machine.warp / machine.lanes,
            shared / machine.shared_rate,
            moved / machine.port + self._zeros(s),
        )

    def instructions(self, s: Section) -> Array:
        """Instructions of each warp in one run of a section."""
        c, lanes = self.constants, self.machine.warp * self.warps
        elementwise = sum(w.slots * self._held(axes) for axes, w in s.work.items()) / lanes
        hmma = sum(self._hmma(p) for p in s.products)
        elementwise = elementwise + sum(self._promoted(p) for p in s.products) / lanes
        if not self.has_products:
            return elementwise * c.without_products + c.plain_loop
        if not s.products:
            return elementwise
        return elementwise + c.product_loop + c.per_hmma * hmma

    def _held(self, axes: Axes) -> Array:
        """The elements of a tile that threads hold, copies included: of a vector beside tiles several hold each."""
        n = prod(self.held.get(a, 1) for a in axes)
        long = sum(np.greater(self.extents.get(a, 1), 1).astype(int) for a in axes)
        if not self.has_products:
            return n
        return np.where(long == 1, n * 4 * np.maximum(1, self.warps // GROUP), n)

    def asynchronous(self, p: Product) -> Array:
        """True for a product that Hopper's unit takes from shared memory."""
        enough = np.greater_equal(self.extents.get(p.rows, 1), 64) & (self.warps >= GROUP)
        return enough & (self.machine.asynchronous and DTYPES[p.dtype].bits <= 16)

    def matrix(self, p: Product) -> Array:
        """Cycles of the matrix unit, or of the lanes where there is none for a dtype."""
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        rate = self.machine.matrix.get(p.dtype)
        if rate is None:
            return 2 * rows * cols * depth / (2 * self.machine.lanes)
        most, wide = np.maximum(rows, LEAST_ROWS), np.maximum(cols, LEAST_COLS)
        plain = 2 * most * wide * depth / (rate * self.constants.hmma)
        return np.where(self.asynchronous(p), 2 * rows * wide * depth / rate, plain)

    def _hmma(self, p: Product) -> Array:
        """Instructions of a warp for a product that threads hold the operands of."""
        if p.dtype not in self.machine.matrix:
            return 0.0
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        whole = np.maximum(rows, LEAST_ROWS) * np.maximum(cols, LEAST_COLS) * depth
        step = 256 // min(DTYPES[p.dtype].bits, 16)
        return np.where(self.asynchronous(p), 0.0, whole / (LEAST_ROWS * LEAST_COLS * step * self.warps))

    def _promoted(self, p: Product) -> Array:
        """Sums of 8-bit products that are added in float32, 32 products each (`neptune.codegen.triton_float8`)."""
        own = p.dtype in FLOAT8 and self.machine.matrix[p.dtype] > self.machine.matrix["float16"]
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        return rows * cols * depth / 32 if own else 0.0

    def _operands(self, p: Product) -> Array:
        """Bytes of shared memory that a product reads: the right operand once for every 64 rows."""
        rows, cols, depth = (self.extents.get(a, 1) for a in (p.rows, p.cols, p.depth))
        right = cols * depth * np.ceil(rows / 64)
        return (right + (0 if p.in_registers else rows * depth)) * DTYPES[p.dtype].bits / 8

    def bytes(self, m: Move) -> Array:
        return self.size(m.axes) * m.bits / 8

    def _zeros(self, s: Section) -> Array:
        """Cycles for what is copied from beyond the ends of tensors, at a rate of all processors together."""
        working = np.minimum(1.0, self.programs / self.machine.processors)
        return accesses.zeros_beyond(s, self.size, self._length) / self.constants.zeros * working

    def _length(self, buffer: str, dimension: int) -> Array:
        return self.model.number(self.model.program.globals[buffer].shape[dimension])(self.known)

    def moved(self, s: Section) -> Array:
        """Bytes that come from L2 or go there in one run of a section."""
        return sum(self.bytes(m) for m in s.moves) + accesses.sector_bytes(s, self.size)

    def chain(self, s: Section, busy: Busy, cold: Array) -> Array:
        """Cycles from the begin to the end of one run of a section, in a program alone on its processor; of what it
        loads the share `cold` comes from memory, the rest from L2."""
        c = self.constants
        groups = np.maximum(1, self.warps // GROUP)
        turns = 1 + c.turns * (groups - 1)
        special = busy.special * self.machine.special / (self.machine.warp * self.warps)
        elementwise = (self.instructions(s) * c.issue + special * c.special) * turns
        own = busy.matrix * (1 - c.overlap_groups * (1 - 1 / groups)) + elementwise
        own = own + sum(self.fold(axes, axis) for axes, axis in s.folds)
        # Groups that share rows exchange an operand that threads have computed, through shared memory.
        shared = [self.extents.get(p.rows, 1) < 64 * groups for p in s.products if p.in_registers]
        own = own + sum(c.exchange * (where & (groups > 1)) for where in shared)
        moved = [self.bytes(m) for m in s.moves if not m.store]
        exposed = c.latency + c.far * cold + sum(moved) / self.machine.port if moved else 0.0
        if s.columns and len(s.columns) == len(s.moves):
            exposed = np.where(accesses.columns_stay_near(s, self.size), accesses.NEAR, exposed)
        if s.loop is None:
            return own + exposed
        own = own + c.iteration
        if not s.products:
            return own + exposed
        ahead = np.maximum(1, self.stages - 1)
        computed = any(p.in_registers for p in s.products)
        if not (s.folds and computed):
            # A buffer is loaded again once its product has ended: so many steps take a load and a product, at least.
            # Operands that threads compute are waited for; a fold beside products of loaded operands is not.
            share = c.hidden_synchronous if computed else 1.0
            return np.where(self.stages > 1, norm(c.norm_plain, own, (own + exposed) / ahead**share), own + exposed)
        synchronous = np.logical_or.reduce([~self.asynchronous(p) for p in s.products])
        hidden = exposed / ahead ** np.where(synchronous, c.hidden_synchronous, c.hidden)
        return np.where(self.stages > 1, norm(c.norm, own, hidden), own + exposed)

    def fold(self, axes: Axes, axis: str) -> Array:
        """A reduction; across warps where there are not rows enough for each."""
        rows = self.size(axes) // np.maximum(1, self.extents.get(axis, 1))
        across = rows < (16 if self.has_products else 1) * self.warps
        return self.constants.fold + np.where(across, self.constants.fold_across, 0.0)

    # --- all of them --------------------------------------------------------------------------

    def times(self) -> Times:
        machine, c = self.machine, self.constants
        needs, which = self._needs()
        here = np.array([resident(n, w, machine) for n, w in needs])[which]
        large = np.array([n.too_large(w, machine) for n, w in needs])[which]
        share, trips = self.without_idle(*self.classes())
        once = [self.busy(s) for s in self.work.sections]
        count = np.maximum(1, np.minimum(here, np.ceil(self.programs / machine.processors)))
        from_memory = self.memory(share, trips, count)
        moved = sum((share * n).sum(axis=0) * self.moved(s) for n, s in zip(trips, self.work.sections, strict=True))
        cold = np.minimum(1.0, from_memory / np.maximum(1.0, moved * self.programs))
        busy, chains = Busy(), np.full(share.shape, c.program)
        for n, s, b in zip(trips, self.work.sections, once, strict=True):
            busy, chains = busy.plus(b, n), chains + n * self.chain(s, b, cold)
        largest = np.broadcast_to(busy.units.max(axis=0), share.shape)

        # Loops of products alone wait for memory, not for each other: they fill each other's gaps.
        plain = self.has_products and not any(s.products and s.folds for s in self.work.sections)
        several = c.norm_products if plain else c.norm

        def together(chain: Array, most: Array, count: Array) -> Array:
            """Cycles that `count` programs of a class take on one processor."""
            p = np.where(count > 1, several, c.alone)
            return norm(p, chain, count * most)

        waves = self.programs / (count * machine.processors)
        mean = (share * together(chains, largest, count)).sum(axis=0)
        last = np.where(share > 0, chains, -inf).argmax(axis=0)[None]
        long, most = (np.take_along_axis(x, last, axis=0)[0] for x in (chains, largest))
        first = share.argmax(axis=0)[None]
        alike = [np.take_along_axis(n, first, axis=0) for n in trips]
        differ = np.logical_or.reduce([((n != a) & (share > 0)).any(axis=0) for n, a in zip(trips, alike, strict=True)])
        full = np.floor(waves)
        rest = np.ceil((self.programs - full * count * machine.processors) / machine.processors)
        even = full * mean + np.where(rest > 0, together(long, most, rest), 0.0)
        uneven = np.maximum(
            waves * mean + 0.5 * together(long, most, count) * np.minimum(1.0, waves),
            together(long, most, np.float64(1)),
        )
        cycles = np.where(differ, uneven, np.where(waves >= 4, waves * mean, even))
        cycles = cycles * np.where(large, self._spilled(needs)[which], 1.0)
        cycles = cycles + c.idle * (self.slots - 1) * self.programs / (count * machine.processors)
        compute = cycles / machine.clock / 1e3
        memory = from_memory / (c.memory * machine.memory * 1e3)
        us = norm(c.memory_norm, compute, memory)
        total = (share * np.broadcast_to(busy.units, (len(UNITS), *share.shape))).sum(axis=1)
        scale = self.programs / machine.processors / machine.clock / 1e3
        alone = (share * chains).sum(axis=0) * scale / count
        spent = np.stack(np.broadcast_arrays(*(total * scale), memory, alone))
        shares = spent[:-1] / us
        bound, part = shares.argmax(axis=0), shares.max(axis=0)
        bound = np.where(part >= 0.6, bound, BOUNDS.index("latency"))
        # What does not fit, and what has nothing to do.
        runs = (self.programs > 0) & (here > 0)
        us = np.where(runs, us, np.where(self.programs == 0, 0.0, inf))
        bound, part = np.where(runs, bound, BOUNDS.index("shared memory")), np.where(runs, part, 1.0)
        waves, count = np.where(runs, waves, 0.0), np.where(runs, count, 0)
        name = self.work.kernel.name
        return Times(name, us, bound, part, self.programs, waves, count, [n for n, _ in needs], which, spent)

    def _needs(self) -> tuple[list[tuple[Resources, int]], Array]:
        """The resources and warps of every choice of parameters, and which of them each point has."""
        tiles = sorted({v for _, e in self.work.kernel.axes for v in variables(e)} & set(self.known))
        names = [*tiles, "num_stages", "num_warps"]
        rows = list(zip(*(np.broadcast_to(self.known[n], self.warps.shape).tolist() for n in names), strict=True))
        number = {row: k for k, row in enumerate(dict.fromkeys(rows))}
        choices = [dict(zip(names, map(int, row), strict=True)) for row in number]
        found = [(self.model.needs(self.work, x, self.machine), x["num_warps"]) for x in choices]
        return found, np.array([number[row] for row in rows])

    def _spilled(self, needs: Sequence[tuple[Resources, int]]) -> Array:
        """How much longer each choice of parameters takes where registers are spilled: a loop comes back to them in
        every iteration, code without one writes and reads those that there are too many of."""
        c = self.constants
        if any(s.loop is not None for s in self.work.sections):
            return np.full(len(needs), c.spilled)
        over = np.array([max(0.0, n.registers / most_registers(w, self.machine) - 1) for n, w in needs])
        return np.minimum(c.spilled, 1 + c.spilled_once * over)

    def memory(self, share: Array, trips: Sequence[Array], count: Array) -> Array:
        """Bytes that come from or go to memory."""
        wave = np.maximum(1, np.minimum(self.programs, count * self.machine.processors))
        asked: dict[tuple[str, bool], tuple[Array, Array, Array]] = {}
        narrow: dict[tuple[str, bool], Array] = {}
        for n, s in zip(trips, self.work.sections, strict=True):
            runs = (share * n).sum(axis=0)
            for m in s.moves:
                once = runs if s.loop is None or _moves_with(m, s) else np.minimum(runs, 1.0)
                own = once * self.bytes(m)
                whole = own * self._distinct(m, self.programs)
                at_once = own * self._distinct(m, wave)
                before = asked.get((m.buffer, m.store), (0.0, 0.0, 0.0))
                own_sums = (whole, at_once * self.programs / wave, at_once)
                asked[m.buffer, m.store] = tuple(a + b for a, b in zip(before, own_sums, strict=True))
                narrow[m.buffer, m.store] = np.maximum(narrow.get((m.buffer, m.store), 1.0), self._narrow(m))
        through = {key: self._through(key, *bytes_) for key, bytes_ in asked.items()}
        read = sum(bytes_ for (_, store), bytes_ in through.items() if not store)
        # What is read takes the place of what ran before has written, and that goes to memory first.
        back = self.constants.written_back * np.minimum(read, self.machine.l2)
        return back + sum(narrow[key] * bytes_ for key, bytes_ in through.items())

    def _narrow(self, m: Move) -> Array:
        """How much longer memory takes for rows of a tile that are short parts of the buffer's rows."""
        declared = self.model.program.globals.get(m.buffer)
        if declared is None or not declared.shape:
            return 1.0
        own = self.extents.get(m.inner, 1)
        row = self.model.number(declared.shape[-1])(self.known)
        return np.where(own < row, 1 + self.constants.narrow / (own * m.bits / 8), 1.0)

    def _through(self, key: tuple[str, bool], whole: Array, by_wave: Array, at_once: Array) -> Array:
        """Bytes of one buffer: once if L2 keeps it, else again with every wave. What a program reads a second time is
        still there where L2 has room for what all programs of a wave read `at_once`."""
        buffer, store = key
        declared = self.model.program.globals.get(buffer)
        length: Array = inf
        if declared is not None:
            length = prod(self.model.number(e)(self.known) for e in declared.shape) * DTYPES[declared.dtype].bits / 8
        once = np.minimum(length, whole)
        if store:
            return once
        passes = max(1.0, min(self.model.passes.get(buffer, 1), 8))
        again = np.where(whole <= length * passes * 1.5, np.minimum(by_wave, passes * length), by_wave)
        sweeps = np.maximum(1.0, whole / np.maximum(length, 1.0))
        room = (self.constants.gone * self.machine.l2 - at_once / sweeps) / (self.constants.gone - self.constants.kept)
        held = np.clip(room / self.machine.l2, 0.0, 1.0) * (sweeps > 1.5)
        again = again - held * np.maximum(again - once, 0.0)
        return np.where(np.minimum(length, by_wave) <= self.machine.l2 / 2, once, np.maximum(once, again))

    def _distinct(self, m: Move, programs: Array) -> Array:
        """How many different shares of a tile's buffer so many programs with consecutive numbers have, beside those
        that have nothing to do."""
        different: Array = 1.0
        numbers = programs * self.slots
        stride: Array = 1
        for v, n in self.grid:
            if v in m.depends:
                different = different * np.minimum(n, np.maximum(1.0, numbers / stride))
            stride = stride * np.maximum(1, n)
        return np.minimum(different, programs)


def norm(p: Array, a: Array, b: Array) -> Array:
    return (a**p + b**p) ** (1 / p)


def _moves_with(m: Move, s: Section) -> bool:
    return any(isinstance(b, Loop) and b.var in m.depends for b in s.blocks)


def _bounds(b: Loop | Branch) -> tuple[Expr, ...]:
    return (b.lo, b.hi) if isinstance(b, Loop) else (b.pred,)


def _samples(n: Array) -> tuple[Array, Array]:
    """Values below n, all of them or so many that lie evenly, and the share of each: a row for every sample."""
    count = int(min(SAMPLES, max(1, n.max(initial=1))))
    i = np.arange(count)[:, None]
    few = n <= SAMPLES
    where = np.where(few, i, np.round(i * (n - 1) / (SAMPLES - 1)))
    return where, np.where(few, (i < np.maximum(1, n)) / np.maximum(1, n), 1 / SAMPLES)


def _again(x: Array, times: int) -> Array:
    """The classes of a value so many times; what is the same in all of them stays so."""
    return np.tile(x, (times, 1)) if np.ndim(x) > 1 else x
