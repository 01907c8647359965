"""Addresses as Triton text: what `neptune.tile.address` says, with names for what is computed once.

Scalar parts of an outer scope are a pointer there (`q_base`), and so are tiles of offsets (`q_offs`).
"""

from __future__ import annotations

from neptune.codegen.triton_place import place
from neptune.codegen.triton_scope import Context
from neptune.codegen.triton_text import ATOM, Text, call, infix
from neptune.ir.expr import Expr
from neptune.tile.address import Part, Pointers, Sum, bare_axis
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
