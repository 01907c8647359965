"""The order in which groups of rows come to programs: in bands, by which operands are found in the cache, and by their
weights.

Programs that run beside each other have tiles with neighbouring numbers. Numbered column by column, tiles of one column
read all rows; numbered in bands of `W` groups of rows, column by column inside of a band, as many tiles read fewer rows
and a few columns more:

    W = 2       groups 0: 0 2 4    groups 2: 6 8 10    groups 4: 12 13 14
                       1: 1 3 5           3: 7 9 11

This is for grids in which another variable than the rows' says which shared tiles are read, and not which of the rows',
so that both are read again. Groups that differ in work are shared out by the host instead, which balances programs by
their weight: the iterations of the walk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.hardware import PROGRAMS
from neptune.hopper.ir import AsyncKernel, Fill, walk_async
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Load, loads, maximum, op, rewrite, variables
from neptune.tile.ir import Assign, Branch, GridAxis, LoadTile, Loop, Scalar, walk_stmts
from neptune.tile.passes.util import Block, assigns, scalar_names

Loads: TypeAlias = Iterable[tuple[bool, LoadTile]]
"""Tiles that are loaded, with whether each consumer has its own."""


def across(grid: tuple[GridAxis, ...], group: Collection[str], loads: Loads) -> str | None:
    """The grid variable along which shared tiles differ and a tile of rows does not, if there is one; `group` are the
    variables of rows."""
    read = [(own, scalar_names(load)) for own, load in loads]
    for g in grid:
        own = [g.var in names for is_own, names in read if is_own]
        shared = [g.var in names for is_own, names in read if not is_own]
        if g.var not in group and not all(own) and any(shared):
            return g.var
    return None


def across_of(kernel: AsyncKernel) -> str | None:
    """The grid variable along which shared tiles of an asynchronous kernel differ, as `across` says."""
    own = {r.name: r.own for r in kernel.rings}
    fills = ((own[s.ring], s.load) for s in walk_async(kernel.producer) if isinstance(s, Fill))
    return across(kernel.grid, {kernel.group, kernel.rows}, fills)


def width(bodies: RoleBodies, size: Mapping[str, int]) -> int:
    """Groups in a band, by which all programs at once read as much of rows as of columns: the least in all. A power of
    two, as sizes mostly are; 0 where order does not matter. `size` has the extents of axes."""
    own = dict(bodies.staged)
    body = walk_stmts(bodies.producer)
    assigned = (s for s in body if isinstance(s, Assign) and s.name in own)
    loads = [(own[s.name], s.value) for s in assigned if isinstance(s.value, LoadTile)]
    variable = across(bodies.kernel.grid, {bodies.rows, bodies.group}, loads)
    if variable is None:
        return 0

    def bytes_of(e: LoadTile) -> int:
        return math.prod(size[d] for d in e.dims) * DTYPES[e.dtype].bits // 8

    rows = bodies.consumers * sum(bytes_of(e) for is_own, e in loads if is_own and variable not in scalar_names(e))
    columns = sum(bytes_of(e) for is_own, e in loads if not is_own and variable in scalar_names(e))
    return 1 << max(0, round(math.log2(math.sqrt(PROGRAMS * columns / rows))))


# --- weights --------------------------------------------------------------------------------------


def weight_of(bodies: RoleBodies) -> Expr | None:
    """The iterations of the producer's loops and one more, an int32 expression over the grid's variables and sizes.

    None where no bound reads a variable of the grid (all groups are equal), or one reads a tensor.
    """
    total = _total(bodies)
    grid = {g.var for g in bodies.kernel.grid} | {bodies.group}
    around = {s.var for s in walk_stmts(bodies.producer) if isinstance(s, Loop)}
    known = not loads(total) and not variables(total) & around
    return total if known and variables(total) & grid else None


def by_data(bodies: RoleBodies) -> bool:
    """True where a tensor says how much work a group is: the host does not know it."""
    return bool(loads(_total(bodies)))


def _total(bodies: RoleBodies) -> Expr:
    return op("add", _iterations(bodies.producer, {}), 1)


def _iterations(body: Block, known: Mapping[str, Expr]) -> Expr:
    """The iterations of the innermost loops of a block that load something."""
    total: Expr = Const(0, "int32")
    known = dict(known)
    for s in body:
        match s:
            case Loop(_, lo, hi, inner, _) if _loads(inner):
                trips = maximum(op("sub", _inlined(hi, known), _inlined(lo, known)), 0)
                nested = any(isinstance(x, Loop) for x in walk_stmts(inner))
                total = op("add", total, op("mul", trips, _iterations(inner, known)) if nested else trips)
            case Branch(_, inner):
                total = op("add", total, _iterations(inner, known))
            case _:
                pass
        scalar = _inlined(s.value.expr, known) if isinstance(s, Assign) and isinstance(s.value, Scalar) else None
        # From here on, what is assigned in there is something else.
        known = {name: e for name, e in known.items() if name not in assigns(s)}
        if scalar is not None and isinstance(s, Assign):
            known[s.name] = scalar
    return total


def _loads(body: Block) -> bool:
    return any(isinstance(s, Assign) and isinstance(s.value, LoadTile) for s in walk_stmts(body))


def _inlined(e: Expr, known: Mapping[str, Expr]) -> Expr:
    """The expression with the scalar locals that it reads in full."""

    def fn(x: Expr) -> Expr | None:
        return known.get(x.buffer) if isinstance(x, Load) and not x.index else None

    return rewrite(e, fn)
