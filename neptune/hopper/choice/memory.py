"""Shared memory and registers of an asynchronous form, and which forms fit.

Shared memory is counted exactly: tiles of rings in all stages, results with memory of their own, two barriers a stage.
Registers of a consumer are an estimate: accumulators, other results of products, and operands that are made of them
(least squares on 50 compiled kernels of attention, where operands were half of what they are made of), and tiles that
are read by pointers, or from copies once a group. Both follow from role bodies alone, for any tile sizes and any
levers, so that forms are compared before any is derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType

from neptune.errors import Unsupported
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.explain import LEVERS
from neptune.hopper.group_order import by_data, weight_of, width
from neptune.hopper.hardware import (
    COLUMNS,
    EXPONENTIALS,
    FLOPS,
    LANES_PER_ROW,
    LATENCY,
    ROWS,
    SHARED_LIMIT,
    THREADS,
)
from neptune.hopper.ir import Levers
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import OPS, Expr, Op, Var, walk
from neptune.ir.integers import known_size
from neptune.ir.program import Tunable
from neptune.tile.ir import (
    Assign,
    Dot,
    LoadTile,
    Local,
    Loop,
    StoreTile,
    TExpr,
    TileProgram,
    bare,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.operands import sums_of
from neptune.tile.passes.util import Block
from neptune.tune.model.constants import OPERATORS

CAPTURED = 512
"""Bytes for what roles are started with: parameters, and where their tiles are (320 to 344 in compiled attention)."""
HOLDING, SCANNING = 40, 48
"""Registers of a producer's thread that finds bounds in rows of integers (with 24 it spills), and of one that scans
those of keys (with 40 it spills)."""
BASE, PER_SUM, PER_SCORE, ERROR = 23.7, 1.05, 1.01, 4.1
"""Registers of a consumer's thread: alone, for each element of an accumulator and of another result that it holds; and
by how much the sum was off at most."""
PER_FUNCTION = 0.1
"""Registers for each element of a score that a function other than an exponential is taken of: the least by which three
consumers of depth 64 are left out under a soft cap, where they spilled 1104 bytes (and two none)."""
PER_COLUMN = 2
"""Registers for each number that a lane holds of columns (document masks on 128 columns spill at any depth)."""
SWIZZLED = 128
"""Bytes of a row of a tile that lie together in shared memory."""
CHEAP = ("exp", "exp2", "abs", "neg", "sqrt", "rsqrt")
NOTHING: Mapping[str, int] = MappingProxyType({})
APART = 3
"""Stages of loops where they are (depth 64, three consumers: 1 to 4 % ahead of two stages on an H200)."""
MEMORY = ((True, True), (True, False), (False, False))
"""Choices that are tried of results and of tiles that are loaded once a group: memory of their own, and two stages. A
result lies over a tile of one stage alone."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources of a form: bytes of shared memory, registers of a consumer's thread, and the cycles that the
    products of one iteration, and its special functions, keep a multiprocessor busy."""

    shared: int
    registers: float
    products: float
    exponentials: float


@dataclass(frozen=True)
class _Tile:
    """A tile of a ring or a result: `own`, one for each consumer; `looped`, loaded by a loop; `always` written."""

    dims: tuple[str, ...]
    dtype: str
    own: bool = True
    looped: bool = False
    always: bool = True


class Counts:
    """Counts of what role bodies hold: the tiles of its rings and results, and its products."""

    def __init__(self, bodies: RoleBodies) -> None:
        kernel = bodies.symbolic or bodies.kernel
        body = list(walk_stmts(kernel.body))
        loops = [s for s in body if isinstance(s, Loop)]
        inner = [s for loop in loops for s in loop.body]
        loads, looped, staged = bodies.loads, bodies.looped, {name for name, _ in bodies.staged}
        self.extents: Mapping[str, Expr] = dict(kernel.axes)
        self.products = {s.name: s.value for s in body if isinstance(s, Assign) and isinstance(s.value, Dot)}
        self.rows = next(dot.dims[0] for dot in self.products.values())
        self.extent_of_rows = self.extents[self.rows]
        self.rings = [_Tile(loads[n].dims, loads[n].dtype, own, n in looped) for n, own in bodies.staged]
        self.once = any(not t.looped for t in self.rings)
        sent = dict(bodies.sent)
        stores = [s for s in body if isinstance(s, StoreTile) and s.buffer in sent]
        self.outs = [_Tile(s.dims, s.value.dtype, always=sent[s.buffer]) for s in stores]
        sources = {x for d in self.products.values() if not isinstance(x := bare(d.a), Local) or x.name not in staged}
        self.operands = [(x.dims, x.dtype) for x in sources]
        self.read = _read(tuple(inner), staged)
        self.read_once = _read(kernel.body, staged) - self.read
        self.copied = [loads[n] for n in bodies.read if n not in looped]
        self.functions = {e.dims for s in inner for whole in stmt_exprs(s) for e in walk(whole) if _is_slow(e)}
        self.special = max((_special(s.body) for s in loops), default=0.0)
        self.inner = max((_dots(s.body) for s in loops), key=len, default=[])
        self.late = bool(bodies.late)
        self.kept = any(sums_of(s.body, staged) for s in loops)
        axes = {n for d in self.products.values() for n in (*d.dims, *d.a.dims)} - {self.rows}
        self.columns = [_columns(s.body, axes) for s in loops]
        self.producer = producer_registers(bodies)

    def size(self, tiles: Mapping[str, int]) -> dict[str, int]:
        """The extents of axes."""
        return {axis: int(known_size(e, tiles)) for axis, e in self.extents.items()} | {self.rows: ROWS}

    def needs(self, levers: Levers) -> Needs:
        """The resources that a form needs, with tile sizes in `levers.tiles`."""
        size = self.size(levers.tiles)

        def elements(dims: tuple[str, ...]) -> int:
            return math.prod(size[d] for d in dims)

        def held(tile: _Tile) -> int:
            return elements(tile.dims) * DTYPES[tile.dtype].bits // 8 * (levers.consumers if tile.own else 1)

        stages = [levers.stages_of(t.looped) for t in self.rings]
        shared = CAPTURED + sum(n * (held(t) + 16) for t, n in zip(self.rings, stages, strict=True))
        kept = [held(t) for t in self.rings if t.own and not t.looped]
        for out in self.outs:
            if not levers.own_out and out.always and held(out) in kept:
                kept.remove(held(out))
            else:
                shared += held(out)
        sums = sum(PER_SUM * elements(d.dims) for d in self.products.values() if d.acc is not None)
        looped = sum(PER_SCORE * elements(d.dims) for d in self.products.values() if d.acc is None)
        looped += sum(elements(dims) * DTYPES[dtype].bits / 32 for dims, dtype in self.operands)
        looped += sum(PER_FUNCTION * elements(dims) for dims in self.functions)
        # Each of the four lanes of a row holds its columns of what is known of columns.
        looped += max(
            (PER_COLUMN * sum(map(elements, tiles)) * THREADS / LANES_PER_ROW for tiles in self.columns), default=0
        )
        # Two elements lie side by side in a thread, and have an address of 64 bits.
        by_pointers = [
            sum(elements(e.dims) * (DTYPES[e.dtype].bits / 32 + 1) for e in tiles)
            for tiles in (self.read, self.read_once)
        ]
        by_pointers[1] += sum(elements(e.dims) * DTYPES[e.dtype].bits / 32 for e in self.copied)
        registers = BASE + (sums + max(looped + by_pointers[0], by_pointers[1])) / THREADS
        flops = sum(2 * elements((*dot.dims, dot.a.dims[1])) for dot in self.inner)
        scores = sum(elements(dot.dims) for dot in self.inner if dot.acc is None)
        many = levers.consumers
        return Needs(shared, registers, many * flops / FLOPS, many * scores * max(1.0, self.special) / EXPONENTIALS)


@lru_cache(maxsize=32)
def counts_of(bodies: RoleBodies) -> Counts:
    """The counts of role bodies, made once."""
    return Counts(bodies)


def _read(body: Block, staged: set[str]) -> set[LoadTile]:
    """The tiles of two dims that are read by pointers."""
    exprs = [e for s in walk_stmts(body) if not (isinstance(s, Assign) and s.name in staged) for e in stmt_exprs(s)]
    return {n for e in exprs for n in walk(e) if isinstance(n, LoadTile) and "1" not in n.dims and len(n.dims) == 2}


def _columns(body: Block, axes: set[str]) -> list[tuple[str, ...]]:
    """The dims of each tile of numbers, one for each column of a product, that a loop reads by pointers."""
    loads = [s.value for s in body if isinstance(s, Assign) and isinstance(s.value, LoadTile)]
    return [e.dims for e in loads if len(e.dims) == 1 and e.dims[0] in axes]


def producer_registers(bodies: RoleBodies) -> int:
    """Registers of the producer's threads: more where it holds rows of integers, or steps of keys in a loop."""
    staged, loops = dict(bodies.staged), [s for s in walk_stmts(bodies.producer) if isinstance(s, Loop)]

    def holds(body: Block) -> bool:
        return any(isinstance(s, Assign) and s.value.dims and s.name not in staged for s in walk_stmts(body))

    if any(holds(s.body) for s in loops):
        return SCANNING
    return HOLDING if holds(bodies.producer) else Levers.producer


def _is_slow(e: TExpr) -> bool:
    """True for a function of a tile of two dims that takes more than an exponential."""
    return isinstance(e, Op) and OPS[e.name].kind == "math" and e.name not in CHEAP and len(e.dims) == 2


def _special(body: Block) -> float:
    """The number of special functions that a body takes of each score."""
    operators = (
        x for s in body if isinstance(s, Assign) for x in walk(s.value) if isinstance(x, Op) and len(x.dims) == 2
    )
    return sum(OPERATORS[x.name].special for x in operators if x.name in OPERATORS)


def _dots(body: Block) -> list[Dot]:
    """The products among some statements, without those of loops inside."""
    return [s.value for s in body if isinstance(s, Assign) and isinstance(s.value, Dot)]


# --- forms -------------------------------------------------------------------------------------


def wrong_with(needs: Needs, levers: Levers) -> str | None:
    """Why a form does not fit."""
    if needs.shared > SHARED_LIMIT:
        return f"takes {needs.shared} bytes of shared memory, and a program can have {SHARED_LIMIT}"
    most, _ = levers.registers
    if needs.registers + ERROR > most:
        about = f"about {needs.registers:.0f} registers of each thread"
        return f"takes {about}, and {levers.consumers} consumers have {most}"
    return None


def forms(bodies: RoleBodies, program: TileProgram, given: Mapping[str, int] = NOTHING) -> list[Levers]:
    """The levers that fit, by counts the best first; `given` are tile sizes that are settled.

    Tiles of 128 columns go before others; more consumers before fewer, as they share more; results in memory of their
    own; as many stages as keep products busy while a tile comes; and tiles of the next group that come ahead.
    Programs take several groups each, by a balanced table where groups differ, else in bands; one each where data says
    how much work a group is, so that the next one goes to the processor that is free first. Where sizes are known,
    `neptune.hopper.choice.predict.fastest` knows better.
    """
    counts = counts_of(bodies)
    weight = weight_of(bodies)
    persistent = "table" if weight is not None else "once" if by_data(bodies) else "stride"
    ranked: list[tuple[tuple[float, ...], Levers]] = []
    for tiles in _tiles(bodies, program, given):
        for consumers, stages, (own_out, ahead) in product(LEVERS["consumers"], LEVERS["stages"], MEMORY):
            levers = Levers(consumers, stages, persistent, own_out, False, tiles, 0, counts.producer, ahead)
            needs = counts.needs(levers)
            saved = own_out or counts.needs(replace(levers, own_out=True)).shared > needs.shared
            if wrong_with(needs, levers) is not None or not saved:
                continue
            if ahead and (not counts.once or persistent == "once"):
                continue
            levers = replace(levers, pin=counts.late and needs.exponentials > 0.75 * needs.products)
            if weight is None:
                levers = replace(levers, band=width(bodies, counts.size(tiles)))
            # A product that stays in flight keeps its stage until the next one is issued.
            wanted = 1 + math.ceil(LATENCY / max(1.0, needs.products)) + counts.kept
            # Consumers that do not wait for each other between groups are a tile apart.
            wanted = max(wanted, APART * ahead)
            # A tile that the epilogue reads is not waited for where its memory is taken.
            late = not own_out and not counts.copied
            order = (-consumers, late, not ahead, abs(stages - wanted), not own_out)
            ranked.append(((*_preferred(counts, tiles), *order), levers))
    return [levers for _, levers in sorted(ranked, key=lambda x: x[0])]


def _preferred(counts: Counts, tiles: Mapping[str, int]) -> tuple[float, ...]:
    """The order of tile sizes: scores of 128 columns, or else as many columns of sums as can be, of rows that lie
    together."""
    size = counts.size(tiles)
    scores = [size[d.dims[1]] for d in counts.products.values() if d.acc is None]
    if scores:
        return (abs(math.log2(max(scores) / 128)),)
    deep = [size[d.a.dims[1]] * DTYPES[d.a.dtype].bits / 8 / SWIZZLED for d in counts.products.values()]
    return (-max(size[d.dims[1]] for d in counts.products.values()), max(abs(math.log2(x)) for x in deep))


def free_tiles(bodies: RoleBodies, program: TileProgram) -> list[Tunable]:
    """The tunables of role bodies that have several values: all but the rows of a consumer."""
    counts = counts_of(bodies)
    axes = {e.name for e in counts.extents.values() if isinstance(e, Var) and e != counts.extent_of_rows}
    return [t for t in program.tunables if t.name in axes and t.candidates]


def _tiles(bodies: RoleBodies, program: TileProgram, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Values for the tunables of role bodies: the consumer's rows are fixed."""
    counts = counts_of(bodies)
    rows, columns = counts.extent_of_rows, {d.dims[1] for d in counts.products.values()}
    free = free_tiles(bodies, program)
    fixed = {n: v for n, v in bodies.values.items() if n not in {t.name for t in free}}
    fixed |= {rows.name: ROWS} if isinstance(rows, Var) else {}
    wide = {e.name for axis, e in counts.extents.items() if axis in columns and isinstance(e, Var)}
    candidates = {t.name: _with_wider(t.candidates) if t.name in wide else t.candidates for t in free}
    for values in product(*((given[t.name],) if t.name in given else candidates[t.name] for t in free)):
        yield {**fixed, **dict(zip((t.name for t in free), values, strict=True))}


def _with_wider(candidates: tuple[int, ...]) -> tuple[int, ...]:
    """The columns of a product: those of the template, and twice the most, since a consumer's rows are fewer than those
    of a program on tiles."""
    return tuple(dict.fromkeys((*candidates, min(2 * max(candidates), COLUMNS))))


def misfit(bodies: RoleBodies, program: TileProgram, levers: Levers) -> Unsupported | None:
    """Why a form does not fit, with the nearest that do; None of one that does."""
    counts = counts_of(bodies)
    tiles = {**bodies.values, **levers.tiles}
    wrong = wrong_with(counts.needs(replace(levers, tiles=tiles)), levers)
    if wrong is None:
        return None
    shown = {e.name for e in counts.extents.values() if isinstance(e, Var) and e != counts.extent_of_rows}

    def listed(x: Levers) -> tuple[str, ...]:
        chosen = [f"{n} {v}" for n, v in x.tiles.items() if n in shown]
        return (f"consumers {x.consumers}", f"stages {x.stages}", *sorted(chosen))

    wanted = listed(replace(levers, tiles=tiles))
    fit = map(listed, forms(bodies, program))
    near = sorted(fit, key=lambda x: sum(a != b for a, b in zip(x, wanted, strict=False)))
    return Unsupported(
        f"the form of {', '.join(wanted)} {wrong}",
        bodies.kernel.name,
        legal=[", ".join(x) for x in dict.fromkeys(near) if x != wanted][:4],
    )
