"""Accesses that are boxes: what host tensor descriptors can copy (TMA on Hopper).

An access is a box where every index is `scalar` or `scalar + iota` of an axis of its own, the last
one along an axis, and its mask says no more than "inside the buffer": the hardware fills with zero and
clips there.  The descriptor's box has one element along every scalar dimension.

The hardware takes strides (but for the last) and addresses that are multiples of 16 bytes. Dense buffers whose
last dimension is a constant of whole 16 bytes have them; where it is a size, tiles of two dimensions qualify, which
are what is loaded in bulk. Whether a call's tensors comply is for the caller to see (`descriptor_alignment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Op, Var
from neptune.ir.program import Buffer
from neptune.tile.index import Term, linear
from neptune.tile.ir import Iota, Rearrange, Scalar, StoreTile, TExpr, TileProgram, TStmt, walk_stmts

MAX_RANK = 5
MAX_BOX = 256
ALIGNMENT = 16


class Shapes(Protocol):
    """What is asked of a kernel here: its program, and the extents of its tile axes."""

    @property
    def program(self) -> TileProgram: ...

    @property
    def extents(self) -> Mapping[str, Expr]: ...


@dataclass(frozen=True)
class GivenShapes:
    """These two by themselves, where the extents are numbers."""

    program: TileProgram
    extents: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class Box:
    """A descriptor access: the axis of each dimension (None: one element) and the first coordinate."""

    axes: tuple[str | None, ...]
    starts: tuple[tuple[Term, ...], ...]


def box_of(
    ctx: Shapes, buffer: str, index: tuple[TExpr, ...], dims: tuple[str, ...], *, temporaries: bool = False
) -> Box | None:
    """The box of an access, or None where it is not one; with `temporaries`, a call looks at their rows as well."""
    b = ctx.program.globals[buffer]
    axes: list[str | None] = []
    starts: list[tuple[Term, ...]] = []
    for e in index:
        terms = linear(e)
        tiles = [t for t in terms if t.tile is not None]
        if len(tiles) > 1 or any(t.negative or t.factors or not isinstance(t.tile, Iota) for t in tiles):
            return None
        axes.append(tiles[0].tile.axis if tiles and isinstance(tiles[0].tile, Iota) else None)
        starts.append(tuple(t for t in terms if t.tile is None))
    used = [a for a in axes if a is not None]
    if not b.shape or len(b.shape) > MAX_RANK or sorted(used) != sorted(dims) or axes[-1] is None:
        return None
    lengths = _lengths(ctx, ctx.extents[axes[-1]])
    seen = (*ctx.program.inputs, *ctx.program.outputs, *(ctx.program.temporaries if temporaries else ()))
    checked = b in seen and not isinstance(b.shape[-1], Const)
    in_bulk = checked and len(dims) > 1 and max(lengths, default=MAX_BOX + 1) <= MAX_BOX
    if not (aligned_rows(b) or in_bulk) or any(_bytes(b, n) < ALIGNMENT for n in lengths):
        return None
    return Box(tuple(axes), tuple(starts))


def aligned_rows(b: Buffer) -> bool:
    """True where the rows of any dense tensor of this shape start at multiples of 16 bytes."""
    last = b.shape[-1] if b.shape else None
    return isinstance(last, Const) and _bytes(b, int(last.value)) % ALIGNMENT == 0


def _lengths(ctx: Shapes, extent: Expr) -> list[int]:
    """Return the lengths in elements that a tile axis may have; [] if it follows a size."""
    if isinstance(extent, Const):
        return [int(extent.value)]
    tunable = next((t for t in ctx.program.tunables if extent == Var(t.name) and t.covers is None), None)
    return [] if tunable is None else list(tunable.candidates)


def _bytes(b: Buffer, count: int) -> int:
    return count * DTYPES[b.dtype].bits // 8


def inside(ctx: Shapes, buffer: str, index: tuple[TExpr, ...], mask: TExpr | None) -> bool:
    """True where `mask` is a conjunction of `index[k] < size of dimension k` and `index[k] >= 0`."""
    if mask is None:
        return True
    if isinstance(mask, Op) and mask.name == "and":
        return all(inside(ctx, buffer, index, a) for a in mask.args)
    if isinstance(mask, Rearrange):
        return inside(ctx, buffer, index, mask.arg)
    if not (isinstance(mask, Op) and mask.name in ("lt", "ge") and isinstance(mask.args[1], Scalar)):
        return False
    if mask.name == "ge":
        first = _unordered(linear(mask.args[0]))
        return mask.args[1].expr == Const(0, "int32") and any(first == _unordered(linear(i)) for i in index)
    shape = ctx.program.globals[buffer].shape
    bound = (_unordered(linear(mask.args[0])), mask.args[1].expr)
    return any(bound == (_unordered(linear(i)), size) for i, size in zip(index, shape, strict=True))


def _unordered(terms: tuple[Term, ...]) -> frozenset[tuple[bool, tuple[Expr, ...], str]]:
    return frozenset((t.negative, t.factors, t.tile.axis if isinstance(t.tile, Iota) else str(t.tile)) for t in terms)


def sent(body: tuple[TStmt, ...], numbers: Shapes) -> list[StoreTile]:
    """The stores of a body that may leave as boxes, under a mask that says no more than "inside of the tensor". What is
    stored twice, in one dimension, or under another mask keeps its pointers. `numbers` has the extents of axes."""
    stores = [s for s in walk_stmts(body) if isinstance(s, StoreTile)]
    once = [s for s in stores if [x.buffer for x in stores].count(s.buffer) == 1]
    return [s for s in once if _is_box(s, numbers)]


def _is_box(s: StoreTile, numbers: Shapes) -> bool:
    box = box_of(numbers, s.buffer, s.index, s.dims, temporaries=True)
    if box is None or len(s.dims) != 2 or not inside(numbers, s.buffer, s.index, s.mask):
        return False
    return s.value.dims == s.dims and tuple(a for a in box.axes if a is not None) == s.dims
