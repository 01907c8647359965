"""Reads and writes through host tensor descriptors, as Triton text: those accesses that are boxes."""

from __future__ import annotations

import math

from neptune.codegen.triton_scope import Context
from neptune.codegen.triton_text import ATOM, Text
from neptune.tile.boxes import Box, box_of, inside
from neptune.tile.ir import LoadTile, StoreTile


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
