"""staged: the tiles that go through shared memory, which a producer can copy by descriptors.

An operand of a product on wgmma is a tile in shared memory; the left one may be in registers. So a tile that is loaded
for products alone is staged where the copy is a box of two axes, zero outside of its tensor. And so is a tile that is
loaded once a group, of the form of a product's result, such as a residual: by pointers, each two elements would have an
address of 64 bits beside the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neptune.errors import Unsupported
from neptune.hopper.bodies.consumers import ConsumerKernel
from neptune.hopper.hardware import COLUMNS
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Select, walk
from neptune.tile.boxes import ALIGNMENT, MAX_BOX, GivenShapes, aligned_rows, box_of, inside
from neptune.tile.ir import (
    Assign,
    Dot,
    LoadTile,
    Local,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    bare,
    reread,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.operands import multiplied
from neptune.tile.passes.util import products, scalar_names
from neptune.tile.scalars import with_values

LEAST = 16
"""The least extent of an operand: the depth of one instruction for 16 bits."""
OPERANDS = ("float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Staging:
    """Tiles by name in the order of their first load, with whether each consumer has one of its own; `read` are those
    that are read into registers as well."""

    tiles: tuple[tuple[str, bool], ...]
    read: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.tiles)


def stage(program: TileProgram, single: ConsumerKernel) -> Staging:
    """The tiles of a kernel by consumers that are staged. Raises Unsupported."""
    kernel = with_values(single.kernel, single.values)
    if again := reread(kernel.body):
        raise Unsupported("the kernel reads what it writes", again[0], "a kernel that writes only results")
    for s, dot in products(kernel.body):
        _check_product(kernel, s, dot)
    assigned: dict[str, list[Assign]] = {}
    for s in walk_stmts(kernel.body):
        if isinstance(s, Assign):
            assigned.setdefault(s.name, []).append(s)
    ctx = GivenShapes(program, dict(kernel.axes))
    kept: dict[str, str | None] = {}
    for s, dot in products(kernel.body):
        for side, operand in (("left", dot.a), ("right", dot.b)):
            source = bare(operand)
            where = s.name if isinstance(s, Assign) else "a product"
            if not isinstance(source, Local):
                what = "masked, as no row may see all of it," if isinstance(source, Select) else "computed"
                why: str | None = f"is {what} where it is multiplied"
            else:
                loads = [s.value for s in assigned[source.name]]
                why = next((w for e in loads if (w := _uncopied(ctx, e) or _across(e, dot)) is not None), None)
                if why is None:
                    kept[source.name] = None
                    continue
            if side == "right":
                name = source.name if isinstance(source, Local) else "its right operand"
                raise Unsupported(
                    f"{name} {why}", where, "a right operand that is a tile of a tensor, with rows of whole 16 bytes"
                )
    kept |= dict.fromkeys(_once(kernel, ctx, assigned))
    order = [s.name for s in walk_stmts(kernel.body) if isinstance(s, Assign) and s.name in kept]
    tiles = tuple((n, any(_reads(s, single.rows) for s in assigned[n])) for n in dict.fromkeys(order))
    return Staging(tiles, tuple(n for n, _ in tiles if _elsewhere(kernel, n)))


def _once(kernel: TileKernel, ctx: GivenShapes, assigned: Mapping[str, list[Assign]]) -> Iterator[str]:
    """The locals that are loaded outside of loops, in the form of a product's result."""
    results = {dot.dims for _, dot in products(kernel.body)}
    for s in kernel.body:
        if not isinstance(s, Assign) or assigned[s.name] != [s] or s.value.dims not in results:
            continue
        if _uncopied(ctx, s.value) is None:
            yield s.name


def _check_product(kernel: TileKernel, s: TStmt, dot: Dot) -> None:
    """Raise Unsupported for a product that no warpgroup computes."""
    where = s.name if isinstance(s, Assign) else "a product"
    if multiplied(s) is None:
        raise Unsupported("it adds to another product than its own", where)
    if dot.a.dtype not in OPERANDS and not (dot.a.dtype == "float32" and dot.allow_tf32):
        raise Unsupported(
            f"it multiplies {dot.a.dtype}", where, 'operands of 16 or 8 bits, or float32 with input_precision="tf32"'
        )
    extents = {name: int(e.value) for name, e in kernel.axes if isinstance(e, Const)}
    (_, depth), (_, columns) = dot.a.dims, dot.b.dims
    for axis in (depth, columns):
        if not LEAST <= extents[axis] <= COLUMNS:
            raise Unsupported(
                f"axis {axis} of its product has {extents[axis]} elements", where, f"{LEAST} to {COLUMNS}"
            )


def _uncopied(ctx: GivenShapes, e: TExpr) -> str | None:
    """Why a value is not copied as a box of a tensor, None where it is."""
    if not isinstance(e, LoadTile):
        return "is computed"
    if len(e.dims) != 2:
        return "is no tile of two axes"
    if not inside(ctx, e.buffer, e.index, e.mask) or (e.mask is not None and str(e.other) != "0.0" and e.other != 0):
        return f"is masked by more than the ends of {e.buffer}"
    box = box_of(ctx, e.buffer, e.index, e.dims, temporaries=True)
    if box is None:
        last = ctx.program.globals[e.buffer].shape[-1]
        if isinstance(last, Const) and not aligned_rows(ctx.program.globals[e.buffer]):
            return f"has rows of {last.value} {e.dtype}, no multiple of {ALIGNMENT} bytes"
        return f"is gathered from {e.buffer}, or strided in it"
    if tuple(a for a in box.axes if a is not None) != e.dims:
        return f"is transposed as it is loaded from {e.buffer}"
    widths = [int(x.value) for a in e.dims if isinstance(x := ctx.extents[a], Const)]
    if len(widths) < 2 or max(widths) > MAX_BOX or widths[-1] * DTYPES[e.dtype].bits // 8 < ALIGNMENT:
        return f"is a box of {' by '.join(map(str, widths))} elements"
    return None


def _across(e: TExpr, dot: Dot) -> str | None:
    """Why an operand cannot be read as it lies: but for 16 bits, an instruction reads rows along the depth."""
    depth = dot.a.dims[1]
    if DTYPES[e.dtype].bits == 16 or e.dims[-1] == depth:
        return None
    return f"has rows of {e.dtype} across the depth of the product"


def _reads(s: Assign, rows: str) -> bool:
    """True if a load is another one for every consumer."""
    return rows in scalar_names(s.value)


def _elsewhere(kernel: TileKernel, name: str) -> bool:
    """True if a tile is read by more than products."""
    for s in walk_stmts(kernel.body):
        for e in stmt_exprs(s):
            every = sum(1 for x in walk(e) if isinstance(x, Local) and x.name == name)
            operands = [y for x in walk(e) if isinstance(x, Dot) for y in (x.a, x.b)]
            used = sum(1 for y in operands if isinstance(b := bare(y), Local) and b.name == name)
            if every > used:
                return True
    return False
