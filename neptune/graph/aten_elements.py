"""Rows of ATen's operators that choose elements: argmax, top-k, gather, cat, indexing of one axis, and views.

A view is the same expression under other axes, or a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neptune.errors import Unsupported
from neptune.frontend.assemble import Axis
from neptune.frontend.builder import compute
from neptune.frontend.choices import choice, top_row
from neptune.frontend.reductions import reduction
from neptune.graph.aten import ROWS as ROWS
from neptune.graph.aten import aten, dims_of, row
from neptune.graph.imports import Import
from neptune.graph.narrow import narrowed
from neptune.graph.sizes import same, size_of
from neptune.graph.values import AxisOf, Index, Value, merge_group, position, view
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr, binary, cast, select
from neptune.ir.program import ZERO
from neptune.torch_ops.scalars import computed


def chosen(s: Import, node: Any, v: Value, dim: int, word: str, k: int) -> tuple[Value, Value]:
    """The k best along a dimension of one axis and where they stand, with a dimension of k in its place."""
    (d,) = dims_of(v, dim) or [0]
    if not v.groups or not v.groups[d]:
        # One element: it is the best, and the first.
        return v, Value(v.groups, torch.int64, lambda _: Const(0, "int64"), indices=True)
    if v.dtype == torch.bool:
        value, index = chosen(s, node, s.map(torch.int32, lambda e: cast(e, "int32"), v), dim, word, k)
        return s.map(torch.bool, lambda e: ir.ne(e, 0), value), index
    if len(v.groups[d]) > 1:
        v = merge_group(v, d, s.sizes)
    start = v.starts(d)
    rest = [p for p in range(len(v.axes)) if p != start and not v.axes[p].free]
    axis = Axis("r", "int32", ZERO, s.sizes.expr(v.axes[start].size))

    def body(*i: Expr) -> Any:
        point: list[Expr] = [ZERO] * len(v.axes)
        for p, e in zip(rest, i, strict=True):
            point[p] = e
        point[start] = axis
        return choice(word, narrowed(v.at(tuple(point))), axis, None)

    family: Any = compute([s.sizes.expr(v.axes[p].size) for p in rest], body, s.named(node.name))
    best: tuple[AxisOf, ...] = () if k == 1 else (AxisOf(k),)
    groups = (*v.groups[:d], best, *v.groups[d + 1 :])
    # The axis of the best stands where that of the elements stood; a single best has none.
    places = [p - (k == 1 and p > start) for p in rest]

    def pick(tensors: Any, dtype: str) -> Any:
        def read(i: Index) -> Expr:
            index = tuple(i[p] for p in places)
            e: Expr = tensors[-1](*index)
            for n, t in reversed(list(enumerate(tensors[:-1]))):
                e = select(ir.eq(i[start], n), t(*index), e)
            return cast(e, dtype)

        return read

    values = Value(groups, v.dtype, pick(family[:k], computed(v.dtype)), rounded=v.rounded, plain=True)
    return values, Value(groups, torch.int64, pick(family[k:], "int64"), plain=True)


@row(aten.topk.default)
def _topk(s: Import, node: Any, x: Any, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> Any:
    if not largest or not isinstance(k, int) or not 1 <= k <= 8:
        raise Unsupported("a top-k of the smallest, or of more than 8")
    return chosen(s, node, s.value(x), dim, top_row(k), k)


@row(aten.argmax.default, aten.argmin.default)
def _arg(s: Import, node: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    v = s.value(x)
    if dim is None:
        if keepdim:
            raise Unsupported("an argmax over all dimensions that keeps them")
        v, dim = v.with_groups([tuple(a for g in v.groups for a in g)]), 0
    word = "argmax" if node.target is aten.argmax.default else "argmin"
    _, index = chosen(s, node, v, dim, word, 1)
    return index if keepdim else _without(index, dim)


@row(aten.max.dim, aten.min.dim)
def _max_dim(s: Import, node: Any, x: Any, dim: int, keepdim: bool = False) -> tuple[Value, ...]:
    word = "argmax" if node.target is aten.max.dim else "argmin"
    pair = chosen(s, node, s.value(x), dim, word, 1)
    return pair if keepdim else tuple(_without(v, dim) for v in pair)


def _without(v: Value, dim: int) -> Value:
    gone = dims_of(v, dim)
    return v.with_groups([g for d, g in enumerate(v.groups) if d not in gone])


@row(aten.gather.default)
def _gather(s: Import, node: Any, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Value:
    """One element of each row: folded along the row where that is computed, so that it need not be stored."""
    v, i = s.value(x), s.value(index)
    d = dim % len(v.groups)
    if i.groups[d] or len(v.groups[d]) != 1:
        raise Unsupported("a gather of several elements of a row")
    if any(len(g) != len(h) for k, (g, h) in enumerate(zip(v.groups, i.groups, strict=True)) if k != d):
        raise Unsupported("a gather from a part of the rows")
    axis = v.groups[d][0]
    s.gathers.append((index, axis.size))
    place = position(len(v.groups), d, axis)
    zero = Const(0.0 if v.dtype.is_floating_point else 0, computed(v.dtype))
    masked = s.map(v.dtype, lambda e, j, t: select(ir.eq(j, t), e, zero), v, place, i)
    return s.fold(masked, [d], True, node.name, lambda e, axes: reduction("sum", e, axes))


@row(aten.cat.default)
def _cat(s: Import, node: Any, tensors: Any, dim: int = 0) -> Value:
    """Two tensors, one behind the other."""
    if len(tensors) != 2:
        raise Unsupported(f"a cat of {len(tensors)}")
    a, b = (s.value(t) for t in tensors)
    d = dim % len(a.groups)
    first = s.sizes.expr(size_of(tensors[0].meta["val"].shape[d]))
    whole = AxisOf(size_of(node.meta["val"].shape[d]))
    sides = []
    for v, start in ((a, None), (b, first)):
        if len(v.groups[d]) > 1:
            raise Unsupported("a cat along several axes")
        k = v.starts(d)
        there = bool(v.groups[d])

        def at(i: Index, v: Value = v, k: int = k, there: bool = there, start: Expr | None = start) -> Expr:
            own = i[k] if start is None else binary("sub", i[k], start)
            return v.at((*i[:k], *((own,) if there else ()), *i[k + 1 :]))

        sides.append(v.with_groups((*v.groups[:d], (whole,), *v.groups[d + 1 :]), at))
    place = position(len(a.groups), d, whole)
    into = computed(node.meta["val"].dtype)

    def either(j: Expr, x: Expr, y: Expr) -> Expr:
        return select(binary("lt", j, first), cast(x, into), cast(y, into))

    return s.map(node.meta["val"].dtype, either, place, *sides)


@row(aten.embedding.default)
def _embedding(s: Import, node: Any, table: Any, index: Any, *_: Any) -> Value:
    v, i = s.value(table), s.value(index)
    if not same(size_of(node.meta["val"].shape[-1]), v.groups[1][0].size if v.groups[1] else 1):
        raise Unsupported("an embedding of another shape")
    n = len(i.axes)
    return Value((*i.groups, v.groups[1]), v.dtype, lambda p: v.at((i.at(p[:n]), *p[n:])), v.rounded, False)


# --- views ------------------------------------------------------------------------------------------


@row(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _view(s: Import, node: Any, x: Any, shape: Any) -> Value:
    return view(s.value(x), [size_of(n) for n in node.meta["val"].shape], s.sizes)


@row(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default)
def _same(s: Import, node: Any, x: Any, **_: Any) -> Value:
    return s.value(x)


@row(aten.expand.default)
def _expand(s: Import, node: Any, x: Any, shape: Any, **_: Any) -> Value:
    v = s.value(x)
    out = [size_of(n) for n in node.meta["val"].shape]
    v = v.with_groups(((),) * (len(out) - len(v.groups)) + v.groups)
    groups = [g or (() if n == 1 else (AxisOf(n, True),)) for g, n in zip(v.groups, out, strict=True)]
    kept = [
        k for d, g in enumerate(v.groups) for k in range(sum(map(len, groups[:d])), sum(map(len, groups[:d])) + len(g))
    ]
    return v.with_groups(groups, lambda i: v.at(tuple(i[k] for k in kept)))


@row(aten.permute.default)
def _permute(s: Import, node: Any, x: Any, order: Sequence[int]) -> Value:
    v = s.value(x)
    return _moved(v, dims_of(v, order))


def _moved(v: Value, order: Sequence[int]) -> Value:
    """The dimensions in another order."""
    groups = [v.groups[d] for d in order]
    # The axis of the result that each axis of the value is.
    place: dict[int, int] = {}
    for d, start in zip(order, (sum(map(len, groups[:k])) for k in range(len(groups))), strict=True):
        place.update({v.starts(d) + k: start + k for k in range(len(v.groups[d]))})
    return v.with_groups(groups, lambda i: v.at(tuple(i[place[k]] for k in range(len(place)))))


@row(aten.t.default)
def _t(s: Import, node: Any, x: Any) -> Value:
    v = s.value(x)
    return _moved(v, range(len(v.groups))[::-1])


@row(aten.transpose.int)
def _transpose(s: Import, node: Any, x: Any, a: int, b: int) -> Value:
    v = s.value(x)
    order = list(range(len(v.groups)))
    a, b = dims_of(v, [a, b])
    order[a], order[b] = order[b], order[a]
    return _moved(v, order)


@row(aten.unsqueeze.default)
def _unsqueeze(s: Import, node: Any, x: Any, dim: int) -> Value:
    v = s.value(x)
    d = dim % (len(v.groups) + 1)
    return v.with_groups((*v.groups[:d], (), *v.groups[d:]))


@row(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(s: Import, node: Any, x: Any, dims: Any = None) -> Value:
    v = s.value(x)
    gone = range(len(v.groups)) if dims is None else dims_of(v, dims)
    return v.with_groups([g for d, g in enumerate(v.groups) if g or d not in gone])


@row(aten.slice.Tensor)
def _slice(s: Import, node: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    v = s.value(x)
    d = dim % len(v.groups)
    before, after = (size_of(n.meta["val"].shape[d]) for n in (x, node))
    if same(before, after):
        return v
    if len(v.groups[d]) != 1 or not isinstance(start, int) or start < 0 or step != 1:
        raise Unsupported("a slice whose start is no number, or with steps")
    return _shifted(v, d, AxisOf(after, v.groups[d][0].free), start)


def _shifted(v: Value, d: int, axis: AxisOf, start: int) -> Value:
    k = v.starts(d)
    if axis.size == 1:
        groups = (*v.groups[:d], (), *v.groups[d + 1 :])
        return v.with_groups(groups, lambda i: v.at((*i[:k], Const(start, "int32"), *i[k:])))
    groups = (*v.groups[:d], (axis,), *v.groups[d + 1 :])
    return v.with_groups(groups, lambda i: v.at((*i[:k], binary("add", i[k], start), *i[k + 1 :])))


@row(aten.select.int)
def _select(s: Import, node: Any, x: Any, dim: int, index: Any) -> Value:
    v = s.value(x)
    d = dim % len(v.groups)
    if not isinstance(index, int) or index < 0 or len(v.groups[d]) > 1:
        raise Unsupported("a selected index that is no number")
    one = v if not v.groups[d] else _shifted(v, d, AxisOf(1), index)
    return one.with_groups((*one.groups[:d], *one.groups[d + 1 :]))
