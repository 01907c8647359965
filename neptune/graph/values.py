"""What a node of a graph is while it is imported: an expression at each point of its axes.

A dimension of torch's is a group of axes here, so that views are no arithmetic where they need not be: merging two
dimensions is a group of two, splitting it again gives both back. An expanded axis is *free*: nothing depends on it.

    q  [B, H, M, K]          groups (B,) (H,) (M,) (K,)        q[b, h, i, d]
    q.view(B·H, M, K)        groups (B, H) (M,) (K,)           q[b, h, i, d]
    x [B, S, H·D].view(…)    groups (B,) (S,) (H,) (D,)        x[b, s, h * D + d]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from neptune.errors import Unsupported
from neptune.graph.sizes import Size, Sizes, divided, same
from neptune.ir.expr import Expr, binary, cast
from neptune.ir.program import ZERO

Index: TypeAlias = tuple[Expr, ...]
At: TypeAlias = Callable[[Index], Expr]


@dataclass(frozen=True, eq=False)
class AxisOf:
    """One axis: its size, and whether nothing depends on it."""

    size: Size
    free: bool = False


Group: TypeAlias = tuple[AxisOf, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """`groups`: the axes of each dimension (none where its size is 1). `at` gives the expression at a point of all
    axes in order. `dtype` is torch's; narrow floats are float32 in expressions. `rounded`: it has no more digits than
    its dtype. `plain`: only reads, casts and constants, which cost nothing to write twice. `indices`: made of
    indices and constants alone."""

    groups: tuple[Group, ...]
    dtype: torch.dtype
    at: At = field(repr=False)
    rounded: bool = True
    plain: bool = True
    indices: bool = False

    @property
    def axes(self) -> Group:
        """All axes in order."""
        return tuple(a for g in self.groups for a in g)

    def starts(self, dim: int) -> int:
        """How many axes stand before a dimension."""
        return sum(len(g) for g in self.groups[:dim])

    def with_groups(self, groups: Sequence[Group], at: At | None = None) -> Value:
        """The same value under other axes."""
        return replace(self, groups=tuple(groups), at=at or self.at)


def product(group: Group) -> Size:
    """The size of a dimension."""
    n: Size = 1
    for a in group:
        n = n * a.size
    return n


def constant(e: Expr, dtype: torch.dtype) -> Value:
    """A number, of no dimensions."""
    return Value((), dtype, lambda _: e, indices=True)


def position(rank: int, dim: int, axis: AxisOf) -> Value:
    """Where an element stands along one of `rank` dimensions: int64, as torch counts."""
    groups = tuple((replace(axis, free=False),) if d == dim else () for d in range(rank))
    return Value(groups, torch.int64, lambda i: cast(i[0], "int64"), indices=True)


# --- other axes for the same elements ---------------------------------------------------------


def split_axis(v: Value, k: int, sizes: tuple[Size, ...], s: Sizes) -> Value:
    """Axis number k as several, row-major."""
    group = next(d for d in range(len(v.groups)) if v.starts(d) <= k < v.starts(d + 1))
    own = k - v.starts(group)
    parts = tuple(AxisOf(n, v.axes[k].free) for n in sizes)
    groups = list(v.groups)
    groups[group] = (*groups[group][:own], *parts, *groups[group][own + 1 :])
    exprs = [s.expr(n) for n in sizes]

    def at(i: Index) -> Expr:
        return v.at((*i[:k], flat(i[k : k + len(parts)], exprs), *i[k + len(parts) :]))

    return v.with_groups(groups, at)


def flat(index: Index, sizes: Sequence[Expr]) -> Expr:
    """The row-major position of an index."""
    e: Expr = ZERO
    for i, n in zip(index, sizes, strict=True):
        e = binary("add", binary("mul", e, n), i)
    return e


def merge_group(v: Value, dim: int, s: Sizes) -> Value:
    """A dimension of several axes as one of them, with // and %."""
    group, k = v.groups[dim], v.starts(dim)
    exprs = [s.expr(a.size) for a in group]
    groups = list(v.groups)
    groups[dim] = (AxisOf(product(group), all(a.free for a in group)),)

    def at(i: Index) -> Expr:
        rest, parts = i[k], []
        for n in reversed(exprs[1:]):
            parts.append(binary("mod", rest, n))
            rest = binary("floordiv", rest, n)
        return v.at((*i[:k], rest, *reversed(parts), *i[k + 1 :]))

    return v.with_groups(groups, at)


def view(v: Value, shape: Sequence[Size], s: Sizes) -> Value:
    """The elements in the same order under another shape."""
    done: list[Group] = []
    k = 0
    for n in shape:
        taken: list[AxisOf] = []
        while not same(n, 1):
            if k >= len(v.axes):
                raise Unsupported("a view to a shape that does not follow from its sizes")
            own = v.axes[k].size
            if (left := divided(n, own)) is not None:
                n = left
            elif (low := divided(own, n)) is not None:
                v, n = split_axis(v, k, (n, low), s), 1
            elif same(own, n):
                n = 1
            else:
                raise Unsupported(f"a view that cuts a dimension of {own} into {n}")
            taken.append(v.axes[k])
            k += 1
        done.append(tuple(taken))
    if k < len(v.axes):
        raise Unsupported("a view to a shape that does not follow from its sizes")
    return v.with_groups(done)


# --- several values over the same axes -----------------------------------------------------------


def alike(values: Sequence[Value], dim: int, s: Sizes) -> list[Value]:
    """The values with the same axes on a dimension that all of them have; those of size 1 stay without."""
    out = list(values)
    for _ in range(8):
        present = [v for v in out if v.groups[dim]]
        if not present or all(_same_group(present[0].groups[dim], v.groups[dim]) for v in present[1:]):
            return out
        coarse = min(present, key=lambda v: len(v.groups[dim]))
        for n, v in enumerate(out):
            if v.groups[dim] and not _same_group(coarse.groups[dim], v.groups[dim]):
                regrouped = _as(v, dim, coarse.groups[dim], s)
                if regrouped is None:
                    refined = _refined(coarse, dim, v.groups[dim], s)
                    out = [refined if x is coarse else x for x in out]
                    break
                out[n] = regrouped
    raise Unsupported("axes that cannot be laid over each other")


def _same_group(a: Group, b: Group) -> bool:
    return len(a) == len(b) and all(same(x.size, y.size) for x, y in zip(a, b, strict=True))


def _as(v: Value, dim: int, group: Group, s: Sizes) -> Value | None:
    """The value with one axis on a dimension, where that costs no more than one //: of its axes one at most is not
    free, as are the heads that share keys."""
    if len(group) == 1 and sum(not a.free for a in v.groups[dim]) <= 1 and len(v.groups[dim]) > 1:
        return merge_group(v, dim, s)
    return None


def _refined(v: Value, dim: int, group: Group, s: Sizes) -> Value:
    """The value with the axes of `group` on a dimension."""
    own = list(v.groups)
    own[dim:] = own[dim:]
    flat_shape: list[Size] = [a.size for g in v.groups[:dim] for a in g]
    flat_shape += [a.size for a in group]
    flat_shape += [a.size for g in v.groups[dim + 1 :] for a in g]
    fine = view(v, flat_shape, s)
    axes = list(fine.axes)
    if len(axes) != len(flat_shape):
        raise Unsupported("axes that cannot be laid over each other")
    counts = [len(group) if d == dim else len(g) for d, g in enumerate(v.groups)]
    groups: list[Group] = []
    for c in counts:
        groups.append(tuple(axes[:c]))
        axes = axes[c:]
    return fine.with_groups(groups)
