"""Reads and writes through host tensor descriptors, as Triton text: those accesses that are boxes."""

from __future__ import annotations

from neptune.codegen.triton_access import scalar_sum
from neptune.codegen.triton_scope import Context
from neptune.codegen.triton_text import ATOM, Text
from neptune.tile.boxes import Box


def descriptor_name(ctx: Context, buffer: str, box: Box) -> str:
    """The kernel parameter for this buffer and box, requested from the launch function."""
    key = (buffer, box.axes)
    if key not in ctx.boxes:
        same = sum(1 for b, _ in ctx.boxes if b == buffer)
        ctx.boxes[key] = f"{buffer}_desc" + (f"_{same}" if same else "")
    return ctx.boxes[key]


def coordinates(ctx: Context, box: Box) -> str:
    """The first element of the box, as a list."""
    return f"[{', '.join(str(scalar_sum(ctx, s)) for s in box.starts)}]"


def descriptor_load(ctx: Context, buffer: str, box: Box, dims: tuple[str, ...]) -> Text:
    """The read through a descriptor, of a tile over `dims`."""
    order = [a for a in box.axes if a is not None]
    text = f"{descriptor_name(ctx, buffer, box)}.load({coordinates(ctx, box)})"
    if len(order) < len(box.axes):
        text += f".reshape({', '.join(str(ctx.scalar(ctx.extents[a])) for a in order)})"
    if order == list(dims):
        return Text(text)
    if len(order) == 2:
        return Text(f"{text}.T")
    return Text(f"tl.permute({text}, {[order.index(d) for d in dims]})")


def descriptor_store(ctx: Context, buffer: str, box: Box, value: Text) -> str:
    """The write through a descriptor."""
    if None in box.axes:
        shape = ", ".join("1" if a is None else str(ctx.scalar(ctx.extents[a])) for a in box.axes)
        value = Text(f"{value.at(ATOM)}.reshape({shape})")
    return f"{descriptor_name(ctx, buffer, box)}.store({coordinates(ctx, box)}, {value})"
