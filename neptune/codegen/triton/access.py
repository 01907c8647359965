"""Accesses as Triton text: addresses, reads and writes through descriptors, tiles brought to other dims.

Addresses are what `neptune.tile.address` says, with names for what is computed once.

Scalar parts of an outer scope are a pointer there (`q_base`), and so are tiles of offsets (`q_offs`).

Accesses that are boxes go through host tensor descriptors. Tiles come to other dims by subscripts (unit dimensions) and
by `tl.trans` (permutations).
"""

from __future__ import annotations

from neptune.codegen.triton.scope import Context
from neptune.codegen.triton.text import ATOM, Text, call, infix
from neptune.errors import InternalError
from neptune.ir.expr import Expr
from neptune.tile.address import Part, Pointers, Sum, bare_axis
from neptune.tile.boxes import Box
from neptune.tile.index import Term
from neptune.tile.ir import Iota


def add(total: Text | None, part: Text, negative: bool = False) -> Text:
    """A running sum."""
    if total is None:
        return Text(f"-{part.at(ATOM)}", ATOM - 1) if negative else part
    return infix("sub" if negative else "add", total, part)


def product(ctx: Context, factors: tuple[Expr, ...], first: Text | None = None) -> Text:
    """The product of scalars, after `first`."""
    total = first
    for f in factors:
        text = ctx.scalar(f)
        total = text if total is None else infix("mul", total, text)
    return Text("1") if total is None else total


def scalar_sum(ctx: Context, terms: tuple[Term, ...]) -> Text:
    """Σ terms, which have no tile."""
    total: Text | None = None
    for t in sorted(terms, key=lambda t: t.negative):
        total = add(total, product(ctx, t.factors), t.negative)
    return Text("0") if total is None else total


def base(ctx: Context, buffer: str, pointers: Pointers) -> Text:
    """The pointer with every scalar part; parts of outer scopes are named there."""
    pointer = Text(ctx.pointer(buffer))
    for b in pointers.bases:
        for p in b.parts:
            pointer = infix("add", pointer, ctx.strided(buffer, p, scalar_sum(ctx, p.terms)))
        if b.scope < ctx.depth or b.scope == 0:
            pointer = Text(ctx.define(("base", str(pointer)), f"{buffer}_base", pointer, b.scope))
    return pointer


def iota(ctx: Context, axis: str) -> str:
    """`offs_<axis>`: 0, 1, … along a tile axis."""
    layout = ctx.layout((axis,))
    text = call("tl.arange", "0", ctx.scalar(ctx.extents[axis]), *(f"layout={x}" for x in layout))
    return ctx.define(("iota", axis, layout), f"offs_{ctx.labels[axis]}", text, 0, first=True)


def offsets(ctx: Context, buffer: str, sums: Sum, dims: tuple[str, ...]) -> Text:
    """The tile of offsets along axes, named unless it is one axis as it stands."""
    total: Text | None = None
    for p in sums.parts:
        (t,) = p.terms
        assert isinstance(t.tile, Iota)
        name = iota(ctx, t.tile.axis) + (".to(tl.int64)" if p.cast else "")
        total = add(total, scaled(ctx, buffer, p, Text(place(name, t.tile.dims, dims))), t.negative)
    assert total is not None
    if bare_axis(sums):
        return total
    return Text(ctx.define(("offs", str(total)), f"{buffer}_offs", total, sums.scope))


def scaled(ctx: Context, buffer: str, p: Part, tile: Text) -> Text:
    """A tile times the factors of its term, and the stride."""
    text = product(ctx, p.terms[0].factors, tile)
    return infix("mul", text, Text(ctx.stride(buffer, p.dim))) if p.strided else text


def shape(ctx: Context, dims: tuple[str, ...]) -> str:
    """The shape of a tile as a list."""
    return f"[{', '.join('1' if d == '1' else str(ctx.scalar(ctx.extents[d])) for d in dims)}]"


# --- descriptors ------------------------------------------------------------------------------------


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


# --- tiles brought to other dims --------------------------------------------------------------------


def subscript(source: tuple[str, ...], target: tuple[str, ...]) -> str | None:
    """`[:, None]` and the like that lifts dims `source` into `target` by inserting units, or None.

    >>> subscript(("m",), ("m", "1")), subscript(("n",), ("m", "n")), subscript(("m",), ("m",))
    ('[:, None]', '[None, :]', '')
    """
    left = list(source)
    marks = []
    for d in target:
        if left and left[0] == d:
            left.pop(0)
            marks.append(":")
        else:
            marks.append("None")
    if left:
        return None
    return f"[{', '.join(marks)}]" if "None" in marks else ""


def permutation(source: tuple[str, ...], target: tuple[str, ...]) -> list[int] | None:
    """The order of `source` dims that matches `target`, in which "1" stands for any dim."""
    if len(source) != len(target):
        return None
    free = [k for k, d in enumerate(source) if d == "1"]
    order = []
    for d in target:
        if d != "1" and d in source:
            order.append(source.index(d))
        elif free:
            order.append(free.pop(0))
        else:
            return None
    return order


def place(text: str, source: tuple[str, ...], target: tuple[str, ...]) -> str:
    """Text of a tile with dims `source`, lifted and permuted so that it broadcasts to `target`."""
    if not source:
        return text
    order = permutation(source, target)
    if order is not None:
        if order == list(range(len(order))):
            return text
        return f"tl.trans({text})" if order == [1, 0] else f"tl.permute({text}, {order})"
    marks = subscript(source, target)
    if marks is None:
        named = [d for d in target if d in source]
        if sorted(named) != sorted(source):
            raise InternalError(f"cannot bring a tile over {source} to {target}")
        inner = place(text, source, tuple(named))
        return f"{inner}{subscript(tuple(named), target)}"
    return text + marks
