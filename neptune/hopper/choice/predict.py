"""The time that an asynchronous form takes, predicted from the work of the kernel on tiles that it is a form of.

The consumers of a group share the units of a processor, and each is a chain of its own: products of loaded tiles, then
what is computed of them, under which the late product runs. A group of rows takes

    (unitsᵠ + chainᵠ + copiesᵠ)^(1/q) + ends,    units = (matrixᵃ + specialᵃ + instructionsᵃ + portᵃ)^(1/a)

where `units` is of all consumers, `chain` of one, and `copies` what the producer's stages allow. Its ends are exposed:
consumers that share the stages of a ring come to them together. Groups come to programs, one a processor, as a lever
says. Products of loaded tiles that stay in flight until the next are issued wait for nothing: their chain is the
products alone, and copies come beside them. How often loops run, what statements cost and bytes through memory are
those of `neptune.tune.model.cost`; constants here are few, and `python -m bench.hopper_cost` judges them. Where
launches choose in how many parts an axis is folded, they choose it for the groups of this form.

    Predictor(model, {"s_q": 4096, …}, DEVICES["H200"]).of(Levers(2, 2, "table", tiles={"BLOCK_N": 128})).us  →  1780.0
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

import numpy as np

from neptune.hopper.hardware import LATENCY, ROWS, WARPS
from neptune.hopper.ir import Levers
from neptune.ir.expr import Var, variables
from neptune.tile.ir import TileProgram
from neptune.tune.model.columns import Points, columns_of
from neptune.tune.model.constants import FITTED
from neptune.tune.model.cost import KernelAt, Model
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.model.work import KernelWork, Move, Section

EXACT = 4096
"""Groups that are shared out one by one; of more, what is uneven at the end is little."""
UNITS = ("matrix", "special", "issue", "port")


CLOSE = 1.05
"""Predictions that differ by less say nothing."""
IDLE = 1 / 16
"""The share of consumers without rows that decides between close ones (512 queries at depth 64: 386 with two consumers
on an H200, 373 with three, where one of nine has none)."""
BEHIND = 1.35
"""By how much a form must be predicted to be slower than the Triton form to be left out: of that, the model promises up
to 30 % too much at depth 64 (512 causal queries: 1.32 times by prediction, and as fast on an H200)."""


@dataclass(frozen=True)
class Overlap:
    """The constants: shares, exponents, cycles.

    Measured: `clock` of these kernels relative to others (1.63 and 1.75 GHz); `stride`, the rate where programs take
    every so many groups of different length, relative to the table's (488 / 558 and 528 / 604 TFLOP/s). `start`, of a
    program, and `latency`, of a tile, are those of kernels on tiles and of the hardware; `ahead` is the part
    of a step that a stage is in use, `held` what it is in use longer by a product in flight, whose tiles come as late
    as those of kernels on tiles. Fitted on 86 times of attention, the hand-written form's and those of its levers:
    the share of the datasheet's rate of products, the exponents `among` units and `beside` chains, cycles of a chain
    for each step, and of the ends of a group for each consumer but one; fitted on 120 of generated forms: the latter
    where tiles of the next group come `ahead`. Fitted on products: `flying`, the share of the
    rate of those that stay in flight.
    """

    clock: float = 1.63 / 1.75
    stride: float = 0.875
    start: float = FITTED.program
    latency: float = float(LATENCY)
    ahead: float = 0.5
    held: float = 0.5
    matrix: float = 0.82
    flying: float = 0.89
    among: float = 2.5
    beside: float = 7.0
    step: float = 370.0
    ends: float = 2300.0
    ends_ahead: float = 1200.0


HOPPER = Overlap()


@dataclass(frozen=True)
class FormTime:
    """A prediction: `us` without the launch, the groups of rows, and for what share of the time each unit, or memory,
    is busy."""

    us: float
    groups: int
    busy: Mapping[str, float]


@dataclass
class Predictor:
    """A kernel of a program at given sizes, which predicts times of many levers. `name`: of the kernel, by
    default of the first.

    `late`: products of what is computed are issued one tile late. `carried`: those of loaded tiles alone stay in flight
    from one iteration of a loop to the next. `near`: a table keeps groups together that read the
    same tiles. `tiles`: the model of the kernel on tiles, where this one has shorter functions.
    """

    model: Model
    sizes: Mapping[str, int]
    machine: Machine
    late: bool = True
    carried: bool = False
    near: bool = True
    constants: Overlap = HOPPER
    name: str = ""
    tiles: Model | None = None

    @property
    def work(self) -> KernelWork:
        """The work of the kernel."""
        return self._of(self.model)

    def _of(self, model: Model) -> KernelWork:
        return next(w for w in model.works if self.name in ("", w.kernel.name))

    def on_tiles(self, params: Mapping[str, int]) -> float:
        """Microseconds of the kernel on tiles, in the Triton form, by `neptune.tune.model.cost`."""
        model = self.tiles or self.model
        known = columns_of(model.program, Points.at([params], self.sizes), self.machine)
        return float(model.times(self._of(model), known, self.machine).us[0])

    def of(self, levers: Levers) -> FormTime:
        """The time of a form. `levers.tiles` has the tunables that it chooses; that of the rows does not matter."""
        group, c = self._group(levers), self.constants
        share, full = group.share, group.cycles(levers, levers.consumers)
        cycles = full
        if group.last is not None:
            # The group behind which there are no more rows has fewer consumers.
            left, part = group.last
            cycles = np.append(full, group.cycles(levers, left)[group.chain.argmax()])
            share = np.append(share * (1 - part), part)
        rate = self.machine.clock * c.clock * 1e3
        compute = group.spread(levers.persistent, share, cycles) / rate
        apart = levers.persistent == "table" and not group.alike and not self.near
        memory = (group.far if apart else group.bytes) / (FITTED.memory * self.machine.memory * 1e3)
        us = float((compute**FITTED.memory_norm + memory**FITTED.memory_norm) ** (1 / FITTED.memory_norm))
        spent = group.share @ group.units * levers.consumers * group.groups / (us * rate * self.machine.processors)
        busy = dict(zip(UNITS, spent.tolist(), strict=True)) | {"memory": memory / us}
        return FormTime(us, group.groups, busy)

    def idle(self, levers: Levers) -> float:
        """The share of consumers that have no rows; 0 where the kernel on tiles shares rows out to two grid variables,
        which are one of groups."""
        tunables = {t.name for t in self.model.program.tunables}
        alone = any(variables(g.extent) & tunables == {_rows(self.work)} for g in self.work.kernel.grid)
        left, part = self._group(levers).last or (levers.consumers, 0.0)
        part *= alone
        return part * (levers.consumers - left) / levers.consumers

    def parts(self, levers: Levers) -> dict[str, int]:
        """The numbers of parts that launches of a form choose."""
        every = self._group(levers).every.known
        return {n: int(_number(every[n])) for n in self._chosen}

    def behind(self, on_tiles: Mapping[str, int], parts: Mapping[str, int]) -> float:
        """Microseconds of the other kernels whose work follows from numbers of parts, with these values; where numbers
        are not given, they are those of the kernel on tiles. Few choices of levers differ in these."""
        if not self._behind:
            return 0.0
        params = {**on_tiles, **parts}
        key = tuple(sorted(params.items()))
        if key not in self._us_behind:
            known = columns_of(self.model.program, Points.at([params], self.sizes), self.machine)
            self._us_behind[key] = sum(float(self.model.times(w, known, self.machine).us[0]) for w in self._behind)
        return self._us_behind[key]

    def beside(self, levers: Levers, on_tiles: Mapping[str, int]) -> float:
        """The microseconds that these kernels take longer for the parts of a form."""
        return self.behind(on_tiles, self.parts(levers)) - self.behind(on_tiles, {})

    @cached_property
    def _us_behind(self) -> dict[tuple[tuple[str, int], ...], float]:
        return {}

    @cached_property
    def _behind(self) -> list[KernelWork]:
        return [w for w in self.model.works if w is not self.work and self._chosen & self.model.reads(w)]

    @cached_property
    def _chosen(self) -> frozenset[str]:
        return frozenset(self.model.program.chosen)

    def _group(self, levers: Levers) -> _ConsumerGroup:
        """The group of consumers, which does not depend on stages and on how groups come to programs."""
        key = (levers.consumers, *sorted(levers.tiles.items()))
        if key not in self._groups:
            every = self._at(levers.tiles, levers.consumers, {})
            parts = {n: int(_number(every.known[n])) for n in self._chosen}
            one = self._at(levers.tiles, 1, parts)
            self._groups[key] = _ConsumerGroup(one, every, levers.consumers, self)
        return self._groups[key]

    @cached_property
    def _groups(self) -> dict[tuple[object, ...], _ConsumerGroup]:
        return {}

    def _at(self, tiles: Mapping[str, int], consumers: int, parts: Mapping[str, int]) -> KernelAt:
        """The kernel on tiles with the rows of so many consumers, in so many parts where these are settled."""
        first = {t.name: t.candidates[0] for t in self.model.program.tunables if t.covers is None}
        params = {**first, **tiles, _rows(self.work): ROWS * consumers, "num_warps": WARPS * consumers, "num_stages": 2}
        params |= parts
        known = columns_of(self.model.program, Points.at([params], self.sizes), self.machine)
        return KernelAt(self.model, self.work, known, self.machine, FITTED)


def with_parts(sizes: Mapping[str, int], program: TileProgram, params: Mapping[str, int]) -> dict[str, int]:
    """Sizes with the numbers of parts that a caller has settled for all launches."""
    return {**sizes, **{name: params[name] for name in program.chosen if name in params}}


def fastest(candidates: Sequence[Levers], predictor: Predictor, on_tiles: Mapping[str, int]) -> list[Levers]:
    """Levers by predicted times, with those of kernels that combine parts, whose values are `on_tiles`; what is close
    to the best stays in its order, but for what leaves many consumers without rows."""
    us = [predictor.of(x).us + predictor.behind(on_tiles, predictor.parts(x)) for x in candidates]
    close = [x for x, t in zip(candidates, us, strict=True) if t <= CLOSE * min(us)]
    close.sort(key=lambda x: predictor.idle(x) >= IDLE)
    order = sorted(range(len(candidates)), key=lambda k: us[k])
    return [*close, *(candidates[k] for k in order if us[k] > CLOSE * us[order[0]])]


class _ConsumerGroup:
    """So many consumers with tiles of some sizes: `share` of each class of groups, by how often loops run in them,
    `units`, cycles for which one of its consumers keeps each unit busy, and the `chain` of one."""

    def __init__(self, one: KernelAt, every: KernelAt, consumers: int, kernel: Predictor) -> None:
        self.one, self.every, self.consumers = one, every, consumers
        self.late, self.carried, self.c = kernel.late, kernel.carried, kernel.constants
        self.sections = one.work.sections
        share, trips = one.without_idle(*one.classes())
        self._every = every.without_idle(*every.classes())
        self.share, self.counts = share[:, 0] / share.sum(), [n[:, 0] for n in trips]
        self.groups = max(1, int(every.programs[0]))
        self.units = sum((np.outer(n, self._busy(s)) for n, s in self._runs()), np.zeros((1, len(UNITS))))
        self.chain = sum((n * self._step(s) for n, s in self._runs()), np.zeros(1)) + self._last_late()
        self.waits = sum((n * self._comes(s) for n, s in self._runs() if not self._flies(s)), np.zeros(1))
        self.port = sum((n * self._through(s) for n, s in self._runs() if self._flies(s)), np.zeros(1))
        self.streams = sum((n * self._comes(s) for n, s in self._runs() if self._flies(s)), np.zeros(1))

    def cycles(self, levers: Levers, working: int) -> Array:
        """Cycles of a group of each class with so many consumers that have rows."""
        c = self.c
        chain = self.chain + c.start * levers.once
        copies = self.waits / (levers.stages - c.ahead) + self.streams / (levers.stages - c.ahead - c.held)
        units = ((self.units * working) ** c.among).sum(axis=1) ** (1 / c.among)
        # However many stages, no more comes at a time than the port lets through.
        copies = np.maximum(copies, self.port)
        together = (units**c.beside + chain**c.beside + copies**c.beside) ** (1 / c.beside)
        return together + (c.ends_ahead if levers.ahead else c.ends) * (self.consumers - 1)

    @property
    def alike(self) -> bool:
        """True where the host takes all groups to be of one length."""
        return float(np.ptp(self.chain)) < 1e-6 * float(self.chain.max())

    def spread(self, persistent: str, share: Array, cycles: Array) -> float:
        """Cycles until all programs are through, with the share of groups that take each number of cycles."""
        programs = min(self.one.machine.processors, self.groups)
        mean, most, rounds = float(share @ cycles), float(cycles.max()), self.groups / programs
        if self.alike:
            return ceil(rounds) * mean
        match persistent:
            case "table":
                return _balanced(share, cycles, self.groups, programs)
            case "stride":
                return max(rounds * mean / self.c.stride, most)
            case "reverse":
                # Groups become longer with their number: those that end last are short.
                return max(rounds * mean + float(cycles.min()) / 2, most)
            case _:
                return max(rounds * mean + most / 2, most)

    @property
    def last(self) -> tuple[int, float] | None:
        """The consumers with rows in the last group of rows, and the share of such groups; None where it is full."""
        pairs = zip(self.one.grid, self.every.grid, strict=True)
        along = [(_number(n), _number(g)) for (_, n), (_, g) in pairs if _number(n) != _number(g)]
        if len(along) != 1 or _number(self.one.slots) > 1:
            return None
        ((single, groups),) = along
        left = int(single - (groups - 1) * self.consumers)
        return (left, 1 / groups) if 0 < left < self.consumers else None

    @cached_property
    def bytes(self) -> float:
        """Bytes through memory where programs that run at one time read the same tiles."""
        return _number(self.every.memory(*self._every, np.ones(1)))

    @cached_property
    def far(self) -> float:
        """Bytes through memory where the longest groups go first, wherever their tiles lie."""
        together = min(self.one.machine.processors, self.groups)
        total = 0.0
        for n, s in self._runs():
            for m in s.moves:
                own = _number(self.every.bytes(m)) * self.groups
                total += own * float(self.share @ n) / max(1.0, together / self._apart(m)) if s.loop else own
        return total

    def _apart(self, m: Move) -> float:
        """The number of different tiles that the groups of the same rows read."""
        rows = _rows(self.one.work)
        along = {g.var for g in self.one.work.kernel.grid if rows in variables(g.extent)}
        return prod(_number(n) for v, n in self.every.grid if v in m.depends and v not in along)

    def _runs(self) -> zip[tuple[Array, Section]]:
        return zip(self.counts, self.sections, strict=True)

    def _busy(self, s: Section) -> list[float]:
        """Cycles for which one run of a section of one consumer keeps each unit busy."""
        busy = self.every.busy(s)
        port = 0.0 if self._flies(s) else busy.port
        units = busy.matrix / self._rate(s), busy.special, busy.issue, port
        return [_number(x) / self.consumers for x in units]

    def _step(self, s: Section) -> float:
        """Cycles of one run of a section in one consumer alone."""
        f, one = FITTED, self.one
        special = _number(one.busy(s).special) * one.machine.special / (one.machine.warp * WARPS)
        computed = _number(one.instructions(s)) * f.issue + special * f.special + f.fold * len(s.folds)
        first, later = self._products(s, computed=False), self._products(s, computed=True)
        if s.loop is None:
            return first + computed + later
        if self._flies(s):
            return max(first, computed)
        return first + (max(computed, later) if self.late else computed + later) + self.c.step

    def _flies(self, s: Section) -> bool:
        """Whether the products of a loop are in flight from one iteration to the next: nobody waits for its tiles."""
        return self.carried and s.loop is not None and bool(s.products) and not any(p.in_registers for p in s.products)

    def _last_late(self) -> Array:
        """Cycles of the late product of the last tile, under which nothing runs."""
        late = [self._products(s, computed=True) * (n > 0) for n, s in self._runs() if self.late and s.loop]
        return np.max(late, axis=0) if late else np.zeros(1)

    def _products(self, s: Section, computed: bool) -> float:
        """Cycles of the products of one consumer whose left operand is computed, or of the others."""
        cycles = (self.one.matrix(p) for p in s.products if p.in_registers == computed)
        return sum(map(_number, cycles)) / self._rate(s)

    def _rate(self, s: Section) -> float:
        """The share of the datasheet's rate of products."""
        return self.c.flying if self._flies(s) else self.c.matrix

    def _comes(self, s: Section) -> float:
        """Cycles until the operands of one run of a loop are there, from when they are asked for."""
        if not _loads(s):
            return 0.0
        latency = FITTED.latency + FITTED.far * self._cold if self._flies(s) else self.c.latency
        return latency + self._through(s)

    def _through(self, s: Section) -> float:
        """Cycles for which the operands of one run of a loop keep the port busy."""
        return _number(self.every.moved(s)) / self.one.machine.port if _loads(s) else 0.0

    @cached_property
    def _cold(self) -> float:
        """The share of what is moved that comes from memory."""
        moved = sum(float(self.share @ n) * _number(self.every.moved(s)) for n, s in self._runs()) * self.groups
        return min(1.0, self.bytes / max(1.0, moved))


def _loads(s: Section) -> bool:
    return s.loop is not None and any(m.operand for m in s.moves)


def _balanced(share: Array, cycles: Array, groups: int, programs: int) -> float:
    """The longest group that is left to the program that is free first."""
    if groups > EXACT:
        return float(groups / programs * (share @ cycles) + cycles.min() / 2)
    order = np.argsort(-cycles)
    ends = np.round(np.cumsum(share[order]) * groups).astype(int)
    free = [0.0] * programs
    for k, count in zip(order.tolist(), np.diff(ends, prepend=0).tolist(), strict=True):
        for _ in range(count):
            heapq.heapreplace(free, free[0] + float(cycles[k]))
    return max(free)


def _number(x: Array) -> float:
    """The only element of an array."""
    return float(np.ravel(x)[0])


def _rows(work: KernelWork) -> str:
    """The tunable that the rows of products are."""
    product = next(p for s in work.sections for p in s.products)
    extent = dict(work.kernel.axes)[product.rows]
    assert isinstance(extent, Var)
    return extent.name
