"""Reads and writes through host tensor descriptors (TMA on Hopper).

An access qualifies where every index is `scalar` or `scalar + iota` of an axis of its own, the last
one along an axis, and its mask says no more than "inside the buffer": the hardware fills with zero and
clips there.  The descriptor's box has one element along every scalar dimension.

The hardware takes strides (but for the last) and addresses that are multiples of 16 bytes. Dense buffers whose
last dimension is a constant of whole 16 bytes have them; where it is a size, tiles of two dimensions qualify, which
are what is loaded in bulk. Whether a call's tensors comply is for the caller to see (`descriptor_alignment`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from neptune.codegen.triton_index import Term, linear
from neptune.codegen.triton_scope import Context
from neptune.codegen.triton_text import ATOM, Text
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Op, Var
from neptune.ir.program import Buffer
from neptune.tile.ir import Iota, LoadTile, Rearrange, Scalar, StoreTile, TExpr, TileProgram

MAX_RANK = 5
MAX_BOX = 256
ALIGNMENT = 16


class Shapes(Protocol):
    """What is asked of a kernel here: its program, and the extents of its tile axes."""

    @property
    def program(self) -> TileProgram: ...

    @property
    def extents(self) -> Mapping[str, Expr]: ...


@dataclass(frozen=True, slots=True)
class Box:
    """A descriptor access: the axis of each dimension (None: one element) and the first coordinate."""

    axes: tuple[str | None, ...]
    starts: tuple[tuple[Term, ...], ...]


def box_of(ctx: Shapes, buffer: str, index: tuple[TExpr, ...], dims: tuple[str, ...]) -> Box | None:
    """The box of an access, or None where it is not one."""
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
    # A call's tensors are looked at; the rows of a temporary are as long as they are.
    checked = b in (*ctx.program.inputs, *ctx.program.outputs) and not isinstance(b.shape[-1], Const)
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


def descriptor_name(ctx: Context, buffer: str, box: Box) -> str:
    """The kernel parameter for this buffer and box, requested from the launch function."""
    key = (buffer, box.axes)
    if key not in ctx.boxes:
        same = sum(1 for b, _ in ctx.boxes if b == buffer)
        ctx.boxes[key] = f"{buffer}_desc" + (f"_{same}" if same else "")
    return ctx.boxes[key]


def coordinates(ctx: Context, box: Box) -> str:
    """The first element of the box, as a list."""
    from neptune.codegen.triton_access import scalar_sum

    return f"[{', '.join(str(scalar_sum(ctx, None, list(s))) if s else '0' for s in box.starts)}]"


def descriptor_load(ctx: Context, e: LoadTile) -> Text | None:
    """The read through a descriptor, or None where only pointers will do."""
    box = box_of(ctx, e.buffer, e.index, e.dims)
    zero_filled = e.mask is None or (e.other == 0 and math.copysign(1, e.other) > 0)
    if box is None or not zero_filled or not inside(ctx, e.buffer, e.index, e.mask):
        return None
    order = [a for a in box.axes if a is not None]
    text = f"{descriptor_name(ctx, e.buffer, box)}.load({coordinates(ctx, box)})"
    if len(order) < len(box.axes):
        text += f".reshape({', '.join(str(ctx.scalar(ctx.extents[a])) for a in order)})"
    if order == list(e.dims):
        return Text(text)
    if len(order) == 2:
        return Text(f"{text}.T")
    return Text(f"tl.permute({text}, {[order.index(d) for d in e.dims]})")


def descriptor_store(ctx: Context, s: StoreTile, value: Text) -> str | None:
    """The write through a descriptor, or None where only pointers will do."""
    box = box_of(ctx, s.buffer, s.index, s.dims)
    if box is None or not inside(ctx, s.buffer, s.index, s.mask):
        return None
    if [a for a in box.axes if a is not None] != list(s.dims) or s.value.dims != s.dims:
        return None
    text = value
    if len(s.dims) < len(box.axes):
        shape = ", ".join("1" if a is None else str(ctx.scalar(ctx.extents[a])) for a in box.axes)
        text = Text(f"{value.at(ATOM)}.reshape({shape})")
    return f"{descriptor_name(ctx, s.buffer, box)}.store({coordinates(ctx, box)}, {text})"
