"""The work of a TileProgram, in terms of the extents of its tiles: what the cost model multiplies with sizes.

One walk collects the statements of each loop or branch (a `Section`) as amounts: instructions by the axes that they
run over, products, loads and stores. Nothing here knows a machine, a size or a tile's length.

    for j0 in [0, n // B): x<i1 j1> = x[…]; s<i1> = s + reduce(exp2(x), sum, 'j1')
    →  Section(blocks=(j0,), work={("i1", "j1"): Cost(slots=2, special=1), …}, moves=(x,), folds=…)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Op, Select, variables, walk
from neptune.ir.nodes import children
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import assigns, products
from neptune.tile.ranges import Ranges
from neptune.tile.registers import Estimate, read_in_registers
from neptune.tune.model.constants import NARROW_CAST, ONE, OPERATORS, Cost
from neptune.tune.model.facts import moves_with

Axes = tuple[str, ...]
"""The axes that a tile runs over, without those of length one."""


@dataclass(frozen=True)
class Move:
    """A tile that is loaded or stored: its axes, what its index depends on, whether products alone read it. `inner` is
    the axis along the last dimension of the buffer, "1" where there is none. `along`: the dimension of the buffer that
    each of the axes runs along. `column`: a loop around goes along the last one, an element of each row at a time."""

    buffer: str
    axes: Axes
    bits: int
    depends: frozenset[str]
    operand: bool
    store: bool
    inner: str
    column: bool = False
    along: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Product:
    """A matrix product of rows × depth by depth × cols; `in_registers`: the left operand was computed."""

    rows: str
    cols: str
    depth: str
    dtype: str
    in_registers: bool


@dataclass(frozen=True)
class Section:
    """The statements directly in one loop or branch (`blocks`, the outermost first; none: of the program)."""

    blocks: tuple[Loop | Branch, ...]
    work: Mapping[Axes, Cost]
    products: tuple[Product, ...]
    moves: tuple[Move, ...]
    folds: tuple[tuple[Axes, str], ...]

    @cached_property
    def columns(self) -> tuple[Move, ...]:
        """What it reads by columns."""
        return tuple(m for m in self.moves if m.column)

    @property
    def loop(self) -> Loop | None:
        """The innermost loop around it."""
        return next((b for b in reversed(self.blocks) if isinstance(b, Loop)), None)


@dataclass(frozen=True)
class KernelWork:
    """The work of one kernel. `carried`: the tiles that its loops carry, `beside`: the others that loops with
    products hold in registers at some time, as (axes, bits)."""

    kernel: TileKernel
    sections: tuple[Section, ...]
    carried: tuple[tuple[Axes, int], ...]
    beside: tuple[tuple[Axes, int], ...]

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate of its registers, where no closed form is at hand."""
        return Estimate(self.kernel)


def work_of(kernel: TileKernel) -> KernelWork:
    """The work of a kernel."""
    collected = _Collected(kernel)
    sections = tuple(collected.sections(kernel.body, ()))
    return KernelWork(kernel, sections, *collected.held())


class _Collected:
    """What the walk over one kernel needs to know of its locals."""

    def __init__(self, kernel: TileKernel) -> None:
        self.kernel = kernel
        assigned = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign)]
        self.loaded = {s.name for s in assigned if isinstance(s.value, LoadTile)}
        read = {n for s in walk_stmts(kernel.body) for e in stmt_exprs(s) for n in read_in_registers(e)}
        self.operands = self.loaded - read
        self.known = Ranges(kernel)

    def sections(self, body: tuple[TStmt, ...], blocks: tuple[Loop | Branch, ...]) -> Iterator[Section]:
        own = [s for s in body if isinstance(s, Assign | StoreTile)]
        if own or not blocks:
            yield self._section(own, blocks)
        for s in body:
            if isinstance(s, Loop | Branch):
                yield from self.sections(s.body, (*blocks, s))

    def _section(self, own: list[Assign | StoreTile], blocks: tuple[Loop | Branch, ...]) -> Section:
        work: dict[Axes, Cost] = defaultdict(Cost)
        products: list[Product] = []
        moves: list[Move] = []
        folds: list[tuple[Axes, str]] = []
        for s in own:
            for e in _evaluated(s.value):
                if isinstance(e, Dot):
                    products.append(self._product(e))
                elif isinstance(e, LoadTile):
                    moves.append(self._move(e, blocks, isinstance(s, Assign) and s.name in self.operands, store=False))
                elif isinstance(e, Reduce):
                    folds.append((_axes(e.arg.dims), e.axis))
                    work[_axes(e.arg.dims)] += ONE
                else:
                    work[_axes(e.dims)] += _amount(e)
            if isinstance(s, StoreTile):
                moves.append(self._move(s, blocks, operand=False, store=True))
        return Section(blocks, dict(work), tuple(products), tuple(moves), tuple(folds))

    def _product(self, e: Dot) -> Product:
        left = _plain(e.a)
        in_registers = not (isinstance(left, Local) and left.name in self.loaded)
        return Product(e.dims[0], e.dims[1], e.a.dims[1], e.a.dtype, in_registers)

    def _move(self, e: LoadTile | StoreTile, blocks: tuple[Loop | Branch, ...], operand: bool, store: bool) -> Move:
        depends = frozenset[str]().union(*(moves_with(i, self.known) for i in e.index))
        for b in reversed(blocks):
            # Loops that begin elsewhere read other elements; those that only end elsewhere share what they read.
            if isinstance(b, Loop) and b.var in depends:
                depends |= variables(b.lo)
        dtype = e.value.dtype if isinstance(e, StoreTile) else e.dtype
        inner = e.dims[-1] if e.dims else "1"
        last = e.index[-1] if e.dims and e.index else None
        along = set[str]() if last is None or last.dims else {b.var for b in blocks if isinstance(b, Loop)}
        column = last is not None and bool(along & moves_with(last, self.known))
        axes = _axes(e.dims)
        dimensions = tuple(next((k for k, i in enumerate(e.index) if a in i.dims), None) for a in axes)
        return Move(e.buffer, axes, DTYPES[dtype].bits, depends, operand, store, inner, column, dimensions)

    def held(self) -> tuple[tuple[tuple[Axes, int], ...], tuple[tuple[Axes, int], ...]]:
        """The tiles that loops carry, and the others, products' operands apart."""
        carried: dict[str, tuple[Axes, int]] = {}
        others: dict[str, tuple[Axes, int]] = {}
        loops = [s for s in walk_stmts(self.kernel.body) if isinstance(s, Loop)]
        for loop in loops:
            before, inside = set[str](), assigns(loop)
            for s in walk_stmts(loop.body):
                for e in stmt_exprs(s):
                    for n in walk(e):
                        if isinstance(n, Local) and n.name not in before and n.name in inside:
                            carried[n.name] = (_axes(n.dims), DTYPES[n.dtype].bits)
                if isinstance(s, Assign):
                    before.add(s.name)
            if any(True for _ in products(loop.body)):
                own = (s for s in walk_stmts(loop.body) if isinstance(s, Assign) and s.name not in self.operands)
                others |= {s.name: (_axes(s.value.dims), DTYPES[s.value.dtype].bits) for s in own}
        others = {n: tile for n, tile in others.items() if n not in carried}
        return tuple(carried.values()), tuple(others.values())


def _axes(dims: tuple[str, ...]) -> Axes:
    return tuple(d for d in dims if d != "1")


def _plain(e: TExpr) -> TExpr:
    """An expression without casts and rearrangements."""
    return _plain(e.parts[0]) if isinstance(e, Rearrange | Cast) else e


def _evaluated(e: TExpr) -> Iterator[TExpr]:
    """The nodes of an expression that cost something; of loads nothing below: addresses and masks are of one axis."""
    if isinstance(e, Dot | LoadTile | Reduce | Op | Cast | Select):
        yield e
    if not isinstance(e, LoadTile):
        for child in children(e):
            yield from _evaluated(child)


def _amount(e: TExpr) -> Cost:
    """What one element of an operator, a cast or a choice costs."""
    if isinstance(e, Cast):
        return NARROW_CAST if DTYPES[e.dtype].bits <= 16 else ONE
    if isinstance(e, Op):
        if e.name in ("add", "sub") and any(_is_product(a) for a in e.args):
            return Cost()
        return OPERATORS.get(e.name, ONE)
    return ONE


def _is_product(e: TExpr) -> bool:
    """True for what an addition absorbs: a product of matrices or of elements."""
    plain = _plain(e)
    return isinstance(plain, Dot) or (isinstance(plain, Op) and plain.name == "mul")
