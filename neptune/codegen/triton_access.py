"""Addresses: a base pointer with all that is scalar, plus a small int32 tile of offsets.

Scalar parts are int64 where a stride multiplies them and are computed in the outermost scope that knows
their variables (`q_base`); tiles of offsets (`q_offs`) depend on no loop and are computed once.

Offsets within a tile are int32 because int64 takes up to 11 more registers and makes kernels spill that
otherwise do not (attention of depth 256 on sm_90). Strides are known at the launch only, so each tile of
offsets leaves a `Span` behind, by which the caller finds out whether int32 is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from neptune.codegen.triton_place import place
from neptune.codegen.triton_scope import Context
from neptune.codegen.triton_text import ATOM, Text, call, infix
from neptune.ir.expr import Const, Expr
from neptune.runtime.addressing import Span
from neptune.tile.index import Term, linear
from neptune.tile.ir import Iota, TExpr


@dataclass
class Parts:
    """The index of an access, by dimension: scalars by the scope they can be computed in, axes, the rest."""

    scalars: dict[int, list[tuple[str | None, list[Term]]]] = field(default_factory=dict)
    axes: list[tuple[int, str | None, Term]] = field(default_factory=list)
    opaque: list[tuple[str | None, Term]] = field(default_factory=list)


def split(ctx: Context, buffer: str, index: tuple[TExpr, ...]) -> Parts:
    """Sort the terms of an index."""
    parts = Parts()
    for dim, e in enumerate(index):
        terms = linear(e)
        stride = ctx.stride(buffer, dim) if terms else None
        levels: dict[int, list[Term]] = {}
        for t in terms:
            if t.tile is None:
                levels.setdefault(ctx.level(t.factors), []).append(t)
            elif isinstance(t.tile, Iota):
                parts.axes.append((dim, stride, t))
            else:
                parts.opaque.append((stride, t))
        for level, group in levels.items():
            parts.scalars.setdefault(level, []).append((stride, group))
    return parts


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


def scalar_sum(ctx: Context, stride: str | None, terms: list[Term]) -> Text:
    """Σ terms, times the stride."""
    total: Text | None = None
    for t in sorted(terms, key=lambda t: t.negative):
        total = add(total, product(ctx, t.factors), t.negative)
    assert total is not None
    if stride is None:
        return total
    return infix("mul", ctx.widened(total, [f for t in terms for f in t.factors]), Text(stride))


def base(ctx: Context, buffer: str, parts: Parts) -> Text:
    """The pointer with every scalar part; parts of outer scopes are named there."""
    pointer = Text(ctx.pointer(buffer))
    for level in sorted(parts.scalars):
        for stride, terms in parts.scalars[level]:
            pointer = infix("add", pointer, scalar_sum(ctx, stride, terms))
        if level < ctx.depth or level == 0:
            pointer = Text(ctx.define(("base", str(pointer)), f"{buffer}_base", pointer, level))
    return pointer


def iota(ctx: Context, axis: str) -> str:
    """`offs_<axis>`: 0, 1, … along a tile axis."""
    layout = ctx.layout((axis,))
    text = call("tl.arange", "0", ctx.scalar(ctx.extents[axis]), *(f"layout={x}" for x in layout))
    return ctx.define(("iota", axis, layout), f"offs_{ctx.labels[axis]}", text, 0, first=True)


def offsets(ctx: Context, buffer: str, parts: Parts, dims: tuple[str, ...]) -> Text | None:
    """The tile of offsets along axes, named unless it is one axis as it stands."""
    total: Text | None = None
    for _, stride, t in parts.axes:
        assert isinstance(t.tile, Iota)
        name = iota(ctx, t.tile.axis)
        if stride is not None and (ctx.int64_offsets or factor(t) is None):
            name = f"{name}.to(tl.int64)"
        text = product(ctx, t.factors, Text(place(name, t.tile.dims, dims)))
        text = text if stride is None else infix("mul", text, Text(stride))
        total = add(total, text, t.negative)
    if total is None or (total.level == ATOM and len(parts.axes) == 1):
        return total
    if not ctx.int64_offsets:
        note_span(ctx, buffer, parts)
    level = ctx.level([f for _, _, t in parts.axes for f in t.factors])
    return Text(ctx.define(("offs", str(total)), f"{buffer}_offs", total, level))


def factor(t: Term) -> int | None:
    """The product of the term's factors, None where it is known only at run time."""
    known = [int(f.value) for f in t.factors if isinstance(f, Const)]
    return math.prod(known) if len(known) == len(t.factors) else None


def note_span(ctx: Context, buffer: str, parts: Parts) -> None:
    """Keep what the int32 offsets reach, so that a caller can tell whether his strides let them."""
    terms = [(dim, t, factor(t)) for dim, _, t in parts.axes]
    axes = tuple((d, ctx.extents[t.tile.axis], abs(f)) for d, t, f in terms if isinstance(t.tile, Iota) and f)
    ctx.spans.append(Span(buffer, axes))


def covered(parts: Parts, dims: tuple[str, ...]) -> bool:
    """True where the address varies along every named dim, so that its tile has the full shape."""
    terms = [t for _, _, t in parts.axes] + [t for _, t in parts.opaque]
    axes = {d for t in terms if t.tile is not None for d in t.tile.dims}
    return all(d == "1" or d in axes for d in dims)


def shape(ctx: Context, dims: tuple[str, ...]) -> str:
    """The shape of a tile as a list."""
    return f"[{', '.join('1' if d == '1' else str(ctx.scalar(ctx.extents[d])) for d in dims)}]"
