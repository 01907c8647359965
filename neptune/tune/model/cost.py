"""The time that a TileProgram takes, predicted from its work, its parameters, sizes and a machine.

A kernel's programs run in waves, as many on a processor as registers, shared memory and threads allow. One program is
a chain: products, then what is elementwise, since plain Triton does not overlap them within a program, then what loads
leave exposed. Programs of one processor fill each other's gaps until a unit is busy all the time: the matrix unit,
special functions, issue slots, shared memory, the port to L2. A kernel takes at least what its bytes take through
memory, where a tile is read again once the programs that share it do not run at one time.

    model.predict({"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 3}, {"s_q": 4096, …}, DEVICES["H200"]).us  →  612.0

Everything is computed for many points at once, each a choice of parameters at some sizes: numbers are arrays with an
element a point, those of programs in a kernel with a row for each class of programs before that. Constants are in
`tune/model/constants.py`, in cycles; `bench.cost` judges them on measured kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import numpy as np

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Expr, Op, loads, variables
from neptune.runtime.artifact import launch_name
from neptune.tile.ir import Assign, Branch, Loop, TileProgram, walk_stmts
from neptune.tune.model.constants import FITTED, Constants
from neptune.tune.model.facts import read_facts
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array, Number, Numbers
from neptune.tune.model.occupancy import Resources, most_registers, resident, resources
from neptune.tune.model.prediction import BOUNDS, UNITS, Prediction, Predictions, Times
from neptune.tune.model.program import Busy, Columns, ProgramAt, norm
from neptune.tune.model.work import KernelWork, Move, Section, work_of

Values = Mapping[str, int]
SAMPLES = 9
"""Values of a grid variable at which loops that depend on it are looked at."""


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
    own: dict[str, Array] = {}
    for key, value in params.items():
        kernel, dot, plain = key.rpartition(".")
        if dot and kernel == name:
            own[plain] = value
    return own


@dataclass(frozen=True)
class Classes:
    """Programs of a kernel by what their loops depend on: the share of each class, the cycles of its chain, and those
    for which its busiest unit is busy."""

    share: Array
    chain: Array
    busiest: Array


class KernelAt(ProgramAt):
    """One kernel with numbers for everything."""

    model: Model

    # --- how often ----------------------------------------------------------------------------

    def classes(self) -> tuple[Array, list[Array]]:
        """Programs by what their loops depend on, sampled where that has many values: the share of each class, and how
        often each section runs in one of its programs."""
        read = {v for s in self.work.sections for b in s.blocks for e in _bounds(b) for v in variables(e)}
        values = {**self.known, **{v: 0.0 for v, _ in self.grid}}
        share = np.ones((1, *self.warps.shape))
        for v, n in self.grid:
            if v in read:
                where, part = _samples(np.broadcast_to(n, self.warps.shape))
                # Every class so far, with every sample of this variable.
                values = {m: _again(x, len(where)) for m, x in values.items()}
                values[v] = np.repeat(where, len(share), axis=0)
                share = _again(share, len(where)) * np.repeat(part, len(share), axis=0)
        return share, [np.broadcast_to(self._trips(s, values), share.shape) for s in self.work.sections]

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

    def _trips(self, section: Section, values: Columns) -> Array:
        total, inside = 1.0, dict(values)
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

    # --- all of them --------------------------------------------------------------------------

    def times(self) -> Times:
        machine, c = self.machine, self.constants
        needs, which = self._needs()
        here = np.array([resident(n, w, machine) for n, w in needs])[which]
        large = np.array([n.too_large(w, machine) for n, w in needs])[which]
        share, trips = self.without_idle(*self.classes())
        count = np.maximum(1, np.minimum(here, np.ceil(self.programs / machine.processors)))
        from_memory = self.memory(share, trips, count)
        moved = sum((share * n).sum(axis=0) * self.moved(s) for n, s in zip(trips, self.work.sections, strict=True))
        cold = np.minimum(1.0, from_memory / np.maximum(1.0, moved * self.programs))
        busy, chain = Busy(), np.full(share.shape, c.program)
        for n, s in zip(trips, self.work.sections, strict=True):
            once = self.busy(s)
            busy, chain = busy.plus(once, n), chain + n * self.chain(s, once, cold)
        waves = self.programs / (count * machine.processors)
        classes = Classes(share, chain, np.broadcast_to(busy.units.max(axis=0), share.shape))
        cycles = self._cycles(classes, _differ(share, trips), waves, count)
        cycles = cycles * np.where(large, self._spilled(needs)[which], 1.0)
        cycles = cycles + c.idle * (self.slots - 1) * self.programs / (count * machine.processors)
        compute = cycles / machine.clock / 1e3
        memory = from_memory / (c.memory * machine.memory * 1e3)
        us = norm(c.memory_norm, compute, memory)
        total = (share * np.broadcast_to(busy.units, (len(UNITS), *share.shape))).sum(axis=1)
        scale = self.programs / machine.processors / machine.clock / 1e3
        alone = (share * chain).sum(axis=0) * scale / count
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

    def _cycles(self, classes: Classes, differ: Array, waves: Array, count: Array) -> Array:
        """Cycles of all programs, `count` at a time on each processor in so many waves; whether classes differ in what
        they run decides how even the end is."""
        mean = (classes.share * self._together(classes.chain, classes.busiest, count)).sum(axis=0)
        last = np.where(classes.share > 0, classes.chain, -inf).argmax(axis=0)[None]
        long, most = (np.take_along_axis(x, last, axis=0)[0] for x in (classes.chain, classes.busiest))
        full = np.floor(waves)
        rest = np.ceil((self.programs - full * count * self.machine.processors) / self.machine.processors)
        even = full * mean + np.where(rest > 0, self._together(long, most, rest), 0.0)
        uneven = np.maximum(
            waves * mean + 0.5 * self._together(long, most, count) * np.minimum(1.0, waves),
            self._together(long, most, np.float64(1)),
        )
        return np.where(differ, uneven, np.where(waves >= 4, waves * mean, even))

    def _together(self, chain: Array, most: Array, count: Array) -> Array:
        """Cycles that `count` programs of a class take on one processor."""
        # Loops of products alone wait for memory, not for each other: they fill each other's gaps.
        plain = self.has_products and not any(s.products and s.folds for s in self.work.sections)
        several = self.constants.norm_products if plain else self.constants.norm
        return norm(np.where(count > 1, several, self.constants.alone), chain, count * most)

    def _needs(self) -> tuple[list[tuple[Resources, int]], Array]:
        """The resources and warps of every choice of parameters, and which of them each point has."""
        tiles = sorted({v for _, e in self.work.kernel.axes for v in variables(e)} & set(self.known))
        names = [*tiles, "num_stages", "num_warps"]
        rows = list(zip(*(np.broadcast_to(self.known[n], self.warps.shape).tolist() for n in names), strict=True))
        number = {row: k for k, row in enumerate(dict.fromkeys(rows))}
        choices = [dict(zip(names, map(int, row), strict=True)) for row in number]
        needs = [(self.model.needs(self.work, x, self.machine), x["num_warps"]) for x in choices]
        return needs, np.array([number[row] for row in rows])

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
        requested: dict[tuple[str, bool], tuple[Array, Array, Array]] = {}
        narrow: dict[tuple[str, bool], Array] = {}
        for n, s in zip(trips, self.work.sections, strict=True):
            runs = (share * n).sum(axis=0)
            for m in s.moves:
                once = runs if s.loop is None or _moves_with(m, s) else np.minimum(runs, 1.0)
                own = once * self.bytes(m)
                all_programs = own * self._distinct(m, self.programs)
                at_once = own * self._distinct(m, wave)
                before = requested.get((m.buffer, m.store), (0.0, 0.0, 0.0))
                own_sums = (all_programs, at_once * self.programs / wave, at_once)
                requested[m.buffer, m.store] = tuple(a + b for a, b in zip(before, own_sums, strict=True))
                narrow[m.buffer, m.store] = np.maximum(narrow.get((m.buffer, m.store), 1.0), self._narrow(m))
        through = {key: self._through(key, *bytes_) for key, bytes_ in requested.items()}
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

    def _through(self, key: tuple[str, bool], requested: Array, by_wave: Array, at_once: Array) -> Array:
        """Bytes of one buffer: once if L2 keeps it, else again with every wave. What a program reads a second time is
        still there where L2 has room for what all programs of a wave read `at_once`."""
        buffer, store = key
        declared = self.model.program.globals.get(buffer)
        length: Array = inf
        if declared is not None:
            length = prod(self.model.number(e)(self.known) for e in declared.shape) * DTYPES[declared.dtype].bits / 8
        once = np.minimum(length, requested)
        if store:
            return once
        passes = max(1.0, min(self.model.passes.get(buffer, 1), 8))
        again = np.where(requested <= length * passes * 1.5, np.minimum(by_wave, passes * length), by_wave)
        sweeps = np.maximum(1.0, requested / np.maximum(length, 1.0))
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


def _differ(share: Array, trips: Sequence[Array]) -> Array:
    """True at points where classes of programs differ in how often they run a section."""
    first = share.argmax(axis=0)[None]
    alike = [np.take_along_axis(n, first, axis=0) for n in trips]
    return np.logical_or.reduce([((n != a) & (share > 0)).any(axis=0) for n, a in zip(trips, alike, strict=True)])


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
