"""What one program of a kernel keeps busy of a processor, and how long its chain is, from begin to end.

A program is a chain: products, then what is elementwise, since plain Triton does not overlap them within a program,
then what loads leave exposed. What it keeps busy, in cycles of each unit, others of the same processor wait for.

Accesses cost more than the bytes of their elements where tiles reach beyond a tensor, and where they are columns of
rows.

    x: f16[16, 4096], tiles of 64 × 128    →    48 × 128 zeros in every iteration
    for d: far += (x[:, d] - y[:, d])²     →    an element of each row an iteration (`neptune.tile.translate`)

A loop with products copies its tiles to shared memory, and a masked element is a copy without a source. These are
slower than copies of elements, and all processors share how fast they are: found on measured products of 1 to 64 rows.
With tiles of 64 to 256 rows these take up to three times as long, the longer the narrower their columns are, since the
rows are copied once for each tile of columns; tiles of 16 rows do not.

Each element of a column lies on a line of its own. While the lines of all rows stay in the nearest cache, the next
column is there; else each element is a sector of L2, whatever its width. Measured on an H200 (kernel density, distance
attention and a mixture's E-step of 4096 rows, 64 columns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, TypeAlias

import numpy as np

from neptune.ir.dtypes import DTYPES, FLOAT8
from neptune.ir.expr import Expr
from neptune.ir.integers import known_size
from neptune.tile.ir import TileProgram
from neptune.tune.model.constants import Constants
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array, Number
from neptune.tune.model.prediction import UNITS
from neptune.tune.model.work import Axes, KernelWork, Move, Product, Section

Columns: TypeAlias = Mapping[str, Array]
LEAST_ROWS, LEAST_COLS = 16, 8
"""The least that a matrix unit takes."""
GROUP = 4
"""Warps that give one product to the matrix unit."""


class SymbolicProgram(Protocol):
    """A program whose bounds are computed for many points at once."""

    @property
    def program(self) -> TileProgram: ...

    def number(self, e: Expr) -> Number:
        """The function that computes a bound or a condition."""


@dataclass(frozen=True)
class Busy:
    """Cycles for which one program keeps the units of a processor busy."""

    matrix: Array = 0.0
    special: Array = 0.0
    issue: Array = 0.0
    shared: Array = 0.0
    port: Array = 0.0

    def plus(self, other: Busy, times: Array) -> Busy:
        own, others = vars(self), vars(other)
        # A unit that a section does not use is a plain 0.
        used = (k for k in own if not isinstance(others[k], int | float) or others[k])
        return replace(self, **{k: own[k] + times * others[k] for k in used})

    @property
    def units(self) -> Array:
        """In the order of UNITS."""
        return np.stack(np.broadcast_arrays(*(vars(self)[k] for k in UNITS)))


class ProgramAt:
    """The programs of one kernel with numbers for everything."""

    def __init__(
        self, model: SymbolicProgram, work: KernelWork, known: Columns, machine: Machine, constants: Constants
    ) -> None:
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

    def busy(self, s: Section) -> Busy:
        """What one run of a section keeps busy."""
        machine = self.machine
        slots = self.instructions(s)
        special = sum(w.special * prod(self.held.get(a, 1) for a in axes) for axes, w in s.work.items())
        matrix = sum(self.matrix(p) for p in s.products)
        moved = self.moved(s)
        staged = sum(self.bytes(m) for m in s.moves if m.operand)
        shared = staged + sum(self._operands(p) for p in s.products)
        shared = shared + machine.shared_rate * column_cycles(s, self.size, self.warps, machine)
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
        covered = np.maximum(rows, LEAST_ROWS) * np.maximum(cols, LEAST_COLS) * depth
        step = 256 // min(DTYPES[p.dtype].bits, 16)
        return np.where(self.asynchronous(p), 0.0, covered / (LEAST_ROWS * LEAST_COLS * step * self.warps))

    def _promoted(self, p: Product) -> Array:
        """Sums of 8-bit products that are added in float32, 32 products each (`neptune.codegen.triton.expr`)."""
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
        return zeros_beyond(s, self.size, self._length) / self.constants.zeros * working

    def _length(self, buffer: str, dimension: int) -> Array:
        return self.model.number(self.model.program.globals[buffer].shape[dimension])(self.known)

    def moved(self, s: Section) -> Array:
        """Bytes that come from L2 or go there in one run of a section."""
        return sum(self.bytes(m) for m in s.moves) + sector_bytes(s, self.size)

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
            exposed = np.where(columns_stay_near(s, self.size), NEAR, exposed)
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


def norm(p: Array, a: Array, b: Array) -> Array:
    """The p-norm of two times: their maximum, softened where they are close."""
    return (a**p + b**p) ** (1 / p)


# --- what accesses cost beside bytes ----------------------------------------------------------------

SECTOR, LINE, NEAREST = 32, 128, 128 << 10
"""Bytes that L2 gives at once, and of a line of the nearest cache; bytes of its lines that stay in it."""
NEAR = 400
"""Cycles until an element of a near line is where all threads that need it have it."""
QUAD, EACH = 4, 8
"""Neighbours in a row of a tile that one thread holds; cycles of a load that a warp makes of a single element."""
Size = Callable[[Axes], Array]
"""The elements of a tile over some axes."""
Length = Callable[[str, int], Array]
"""The length of a buffer along a dimension."""


def zeros_beyond(s: Section, size: Size, length: Length) -> Array:
    """Bytes of zeros that one run of a section copies."""
    if not s.products:
        return 0.0
    return sum((size(m.axes) * m.bits / 8 * (1 - _within(m, size, length)) for m in s.moves if not m.store), start=0.0)


def _within(m: Move, size: Size, length: Length) -> Array:
    """The share of a tile that a buffer has at most, wherever the tile lies."""
    share: Array = 1.0
    for axis, dimension in zip(m.axes, m.along, strict=True):
        if dimension is not None:
            share = share * np.minimum(1.0, length(m.buffer, dimension) / size((axis,)))
    return share


def columns_stay_near(s: Section, size: Size) -> Array:
    """True where the lines that a section reads columns of stay in the nearest cache."""
    return np.less_equal(sum(size(m.axes) * LINE for m in s.columns), NEAREST)


def sector_bytes(s: Section, size: Size) -> Array:
    """Bytes that L2 gives beside the elements: of each its sector, where lines are gone before the next column."""
    if not s.columns:
        return 0.0
    beside = sum(size(m.axes) * (SECTOR - m.bits / 8) for m in s.columns)
    return np.where(columns_stay_near(s, size), 0.0, beside)


def column_cycles(s: Section, size: Size, warps: Array, machine: Machine) -> Array:
    """Cycles of the nearest cache in one run of a section: it looks up a line each.

    Of a column of rows that has fewer elements than there are threads, Triton lets each thread load all that it needs;
    of a longer one each element is loaded once, and threads exchange them.
    """
    if not s.columns:
        return 0.0
    tile = max(s.work, key=len, default=())
    threads = machine.warp * warps
    loads = size(tile) / (QUAD * threads)
    rows = [size(m.axes) for m in s.columns if len(tile) > 1 and m.axes[:1] == tile[:1]]
    own = (np.where(n < threads, EACH * warps * np.minimum(loads, n), 0.0) for n in rows)
    return sum(size(m.axes) for m in s.columns) + sum(own, start=0.0)
