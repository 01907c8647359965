"""ATen's views as values: the same expression under other axes, and parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neptune.errors import Unsupported
from neptune.graph.aten import ROWS as ROWS
from neptune.graph.aten import aten, dims_of, row
from neptune.graph.imports import Import
from neptune.graph.sizes import same, size_of
from neptune.graph.values import AxisOf, Value, view
from neptune.ir.expr import Const, binary


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
