"""consumers of 64 rows, neighbours along one grid variable, instead of programs of any number of rows.

grid(j0, i0 < cdiv(m, BLOCK_M))               →  BLOCK_M is 64, `rows` is i0
grid(i01 < G, j0, i00 < cdiv(cdiv(m, BM), G))  →  grid(i0 < cdiv(m, 64), j0): groups of rows are the launch's business
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.errors import Unsupported
from neptune.hopper.hardware import ROWS
from neptune.ir.expr import Const, Expr, Op, Var, binary, variables, walk
from neptune.ir.indices.affine import linear, poly
from neptune.ir.program import Tunable
from neptune.tile.ir import (
    Assign,
    Branch,
    GridAxis,
    Iota,
    Scalar,
    TileKernel,
    TileProgram,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import free_name, names_in, products
from neptune.tile.scalars import in_kernel, is_less, reads_var, replaced, var, with_values


@dataclass(frozen=True)
class ConsumerKernel:
    """A kernel whose rows follow one grid variable: along `axis`, `block` of them from `rows * block` on. `values` has
    a number for every tunable, ROWS for `block`; in `kernel` they are still tunables, so that it can be checked with
    small ones."""

    kernel: TileKernel
    rows: str
    axis: str
    block: str
    values: Mapping[str, int]


def consumer_kernel(program: TileProgram, kernel: TileKernel, tiles: Mapping[str, int]) -> ConsumerKernel:
    """The kernel by single consumers; `tiles` gives tunables values, others have their first candidate.

    Raises Unsupported.
    """
    dots = [dot for _, dot in products(kernel.body)]
    if not dots:
        raise Unsupported(
            "it has no product of matrices",
            fits="a kernel with products (a sum of squares of differences is none: expanded, it is two)",
        )
    axes = sorted({dot.dims[0] for dot in dots})
    if len(axes) > 1:
        why = f"its products have different rows, {' and '.join(axes)}"
        raise Unsupported(why, fits="rows that all products share")
    (axis,) = axes
    extent = dict(kernel.axes)[axis]
    if not isinstance(extent, Var):
        raise Unsupported("the number of its rows is fixed", axis, "a tile size")
    position = _position(kernel, axis, extent)
    if position is None:
        raise Unsupported("its rows are no tile along a grid variable", axis, "rows that programs share out")
    grouped, rows = _single(kernel, position)
    values = _values(program, grouped, tiles, extent.name)
    groups = next(g.extent for g in with_values(grouped, values).grid if g.var == rows)
    if isinstance(groups, Const) and groups.value <= 1:
        raise Unsupported(f"it never has more than {ROWS} rows", axis, "several times as many rows, a size at best")
    return ConsumerKernel(grouped, rows, axis, extent.name, values)


def _position(kernel: TileKernel, axis: str, block: Var) -> Expr | None:
    """The tile of rows that a program has: `r` where positions are `r * block + iota(axis)`, always the same one."""
    starts: set[Expr] = set()
    for s in walk_stmts(kernel.body):
        for e in stmt_exprs(s):
            for x in walk(e):
                if isinstance(x, Op) and x.name == "add" and x.args[1] == Iota(axis) and isinstance(x.args[0], Scalar):
                    starts.add(x.args[0].expr)
    if len(starts) != 1:
        return None
    (start,) = starts
    match start:
        case Op("mul", (r, b), _) if b == block:
            return r
    return None


def _single(kernel: TileKernel, r: Expr) -> tuple[TileKernel, str]:
    """The kernel with one grid variable for the tile of rows, and its name."""
    grid = {g.var: g for g in kernel.grid}
    if isinstance(r, Var) and r.name in grid:
        return kernel, r.name
    parts = [grid[v] for v in sorted(variables(r)) if v in grid]
    if not _counts(r, parts):
        why = "the tile of its rows is no count of programs"
        raise Unsupported(why, fits="one grid variable, or two that count it")
    name = free_name("i0", names_in(kernel))
    grouped = in_kernel(kernel, replaced(r, var(name)))
    if any(reads_var(s, g.var) for s in grouped.body for g in parts):
        raise Unsupported("programs know more of their rows than which tile they are", fits="one grid variable of rows")
    end = binary("mul", parts[0].extent, parts[1].extent)
    *front, last = grouped.body
    ends = is_less(last.pred) if isinstance(last, Branch) else None
    if isinstance(last, Branch) and ends and ends[0] == var(name) and all(isinstance(s, Assign) for s in front):
        # Which programs there are says what the condition did.
        end, grouped = ends[1], replace(grouped, body=(*front, *last.body))
    first = next(g for g in kernel.grid if g in parts)
    kept = [GridAxis(name, end, g.axis) if g == first else g for g in kernel.grid if g == first or g not in parts]
    return replace(grouped, grid=tuple(kept)), name


def _counts(r: Expr, parts: list[GridAxis]) -> bool:
    """True where `r` is `outer * width + inner` of two grid variables, `inner` below the width: every number once."""
    if len(parts) != 2:
        return False
    for outer, inner in (parts, parts[::-1]):
        split = linear(poly(r), outer.var)
        if split is not None and split == (poly(inner.extent), poly(var(inner.var))):
            return True
    return False


def _values(program: TileProgram, kernel: TileKernel, tiles: Mapping[str, int], rows: str) -> dict[str, int]:
    """A number for every tunable that the kernel reads."""
    values: dict[str, int] = {}
    used = names_in(kernel)
    for t in program.tunables:
        if t.name not in used:
            continue
        value = ROWS if t.name == rows else _value(t, tiles)
        if value is None:
            raise Unsupported("a tile covers a whole length, which is not known", t.name, "a value in `tiles`")
        values[t.name] = value
    return values


def _value(t: Tunable, tiles: Mapping[str, int]) -> int | None:
    """The value of a tunable: as given, else its first candidate."""
    return tiles.get(t.name) or (t.candidates[0] if t.candidates and t.covers is None else None)
