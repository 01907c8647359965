"""ATen's operators as values: one row each. What is not here is a boundary.

    aten.exp(x)            exp(x[i, j])                       a map of x's axes
    aten.amax(x, [-1])     a stage: max over j of x[i, j]
    aten.view(x, …)        the same expression under other axes

Rows take the import, the node and its arguments, and return a Value, or a tuple of them for several results. Maps of
narrow floats compute in float32 and are rounded where the graph says so (a cast, an operand of a product, a result).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from neptune.errors import Unsupported
from neptune.frontend.reductions import reduction
from neptune.graph.imports import SHORT, Import, name_of
from neptune.graph.narrow import wide
from neptune.graph.products import matrix_product
from neptune.graph.sizes import size_of
from neptune.graph.values import AxisOf, Index, Value
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr, binary, cast, select
from neptune.ir.indices.widths import up_to_nearly_all
from neptune.ir.program import ZERO
from neptune.ir.reducers import REDUCERS
from neptune.torch_ops.scalars import Number, as_dtype, as_torch, bounded, computed
from neptune.torch_ops.table import Row as Element
from neptune.torch_ops.table import overloads

aten, prims = torch.ops.aten, torch.ops.prims
Row: TypeAlias = Callable[..., Value | tuple[Value, ...]]
ROWS: dict[Any, Row] = {}


def row(*targets: Any) -> Callable[[Row], Row]:
    """Enter a row for these operators."""

    def enter(fn: Row) -> Row:
        ROWS.update(dict.fromkeys(targets, fn))
        return fn

    return enter


# --- maps ----------------------------------------------------------------------------------------


def _mapped(row: Element) -> Row:
    """A row of the table as one of regions."""

    def make(s: Import, node: Any, *args: Any, **named: Any) -> Value:
        dtype = node.meta["val"].dtype
        common = row.dtype(node)
        operands = args[: row.operands]
        values = [s.value(a) for a in operands if not isinstance(a, Number | None)]

        def at(*exprs: Expr) -> Expr:
            own = iter(zip(values, exprs, strict=True))
            filled = [row.operand(a, common) if isinstance(a, Number | None) else met(*next(own)) for a in operands]
            result = row.rule(computed(common), *filled, *args[row.operands :], **named)
            result = bounded(as_torch(result, computed(common), up_to_nearly_all))
            return cast(cast(result, name_of(dtype)), computed(dtype)) if dtype in SHORT else result

        def met(v: Value, e: Expr) -> Expr:
            # What has the digits of its dtype alone needs no rounding to it.
            operand: Expr = e if v.rounded and v.dtype == common else row.operand(e, common)
            return operand

        return s.map(dtype, at, *values)

    return make


ROWS.update({target: _mapped(element) for target, element in overloads().items()})


@row(prims.convert_element_type.default, aten._to_copy.default)
def _convert(s: Import, node: Any, x: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return _converted(s, s.value(x), node.meta["val"].dtype)


def _converted(s: Import, v: Value, to: torch.dtype) -> Value:
    if v.dtype == to:
        return v
    kept, into = name_of(to), computed(to)
    if to == torch.bool:
        return s.map(to, lambda e: ir.ne(e, 0) if e.dtype != "bool" else e, v)
    jumps = not to.is_floating_point and v.dtype.is_floating_point

    # What is computed wider is rounded, or wraps around, to the digits that it has.
    def at(e: Expr) -> Expr:
        if jumps and not v.rounded:
            e = cast(cast(e, name_of(v.dtype)), computed(v.dtype))
        e = as_dtype(e, kept) if jumps else e
        whole = as_torch(as_dtype(e, into), into, up_to_nearly_all)
        return whole if kept == into else cast(cast(e, kept), into)

    converted = s.map(to, at, v)
    return Value(converted.groups, to, converted.at, True, v.plain, v.indices)


# --- constants -----------------------------------------------------------------------------------


@row(aten.full.default)
def _full(s: Import, node: Any, shape: Sequence[Any], fill: Any, **_: Any) -> Value:
    return _filled(s, node, fill)


@row(aten.full_like.default, aten.scalar_tensor.default, prims.scalar_tensor.default)
def _full_like(s: Import, node: Any, x: Any, fill: Any = None, **_: Any) -> Value:
    return _filled(s, node, fill if node.target is aten.full_like.default else x)


def _filled(s: Import, node: Any, fill: Any) -> Value:
    dtype = node.meta["val"].dtype
    v = s.value(fill, like=dtype)
    e = v.at(())
    filled = as_dtype(e, computed(dtype)) if dtype != torch.bool else e if e.dtype == "bool" else ir.ne(e, 0)
    groups = tuple(() if n == 1 else (AxisOf(n, True),) for n in map(size_of, node.meta["val"].shape))
    return Value(groups, dtype, lambda _: filled, indices=True)


@row(prims.iota.default)
def _iota(s: Import, node: Any, length: Any, *, start: Any, step: Any, **_: Any) -> Value:
    n = size_of(node.meta["val"].shape[0])
    first, by = (s.value(x).at(()) for x in (start, step))
    groups = ((),) if n == 1 else ((AxisOf(n),),)
    dtype = node.meta["val"].dtype

    def at(i: Index) -> Expr:
        place = cast(i[0] if i else ZERO, "int64")
        return cast(binary("add", binary("mul", place, by), first), computed(dtype))

    return Value(groups, dtype, at, indices=True)


def dims_of(v: Value, dims: Any) -> list[int]:
    """Dimensions that may count from the end, or one, as a list; a tensor without any has none to name."""
    rank = len(v.groups)
    return [d % rank for d in ([dims] if isinstance(dims, int) else dims) if rank]


# --- reductions ----------------------------------------------------------------------------------


def _over(v: Value, dims: Any) -> list[int]:
    chosen = range(len(v.groups)) if dims is None or dims == [] else dims_of(v, dims)
    return [d for d in chosen if v.groups[d]]


def _dropped(v: Value, dims: Any, keep: bool) -> Value:
    """A value without dimensions of size 1 that were reduced."""
    gone = set(range(len(v.groups)) if dims is None or dims == [] else dims_of(v, dims))
    return v if keep else v.with_groups([g for d, g in enumerate(v.groups) if d not in gone])


def _reduce(s: Import, node: Any, word: str, x: Value, dims: Any, keep: bool) -> Value:
    over = _over(x, dims)
    reduced = s.reduced(word, x, over, True, node.name) if over else x
    return _dropped(reduced, dims, keep)


@row(aten.amax.default, aten.amin.default)
def _extreme(s: Import, node: Any, x: Any, dims: Any = (), keepdim: bool = False) -> Value:
    word = "max" if node.target is aten.amax.default else "min"
    return extreme(s, node, word, x, list(dims), keepdim)


@row(aten.max.default, aten.min.default)
def _largest(s: Import, node: Any, x: Any) -> Value:
    return extreme(s, node, "max" if node.target is aten.max.default else "min", x, None, False)


def extreme(s: Import, node: Any, word: str, x: Any, dims: Any, keep: bool) -> Value:
    """A maximum or minimum as torch has it: -inf of nothing but -inf, and NaN beside one.

    Our reducers start from a finite number, and pass over NaN: right for a maximum that shifts exponents, whose sum has
    the NaN. Any other starts from the infinite number, and a fold beside it says whether there is a NaN.
    """
    v = s.value(x)
    if v.dtype == torch.bool:
        return _reduce(s, node, "any" if word == "max" else "all", v, dims, keep)
    if not v.dtype.is_floating_point or only_shifts_exponents(node, x):
        return _reduce(s, node, word, v, dims, keep)
    if not (over := _over(v, dims)):
        return _dropped(v, dims, keep)
    start = REDUCERS[word].nothing(computed(v.dtype))
    best = s.fold(v, over, True, node.name, lambda e, axes: reduction(word, e, axes, init=start))
    if not no_nan(x):
        nan = s.map(torch.bool, ir.is_nan, v)
        there = s.reduced("any", nan, over, True, f"{node.name}_nan")
        best = s.map(v.dtype, lambda e, p: select(p, Const(math.nan, e.dtype), e), best, there)
    return _dropped(best, dims, keep)


def no_nan(x: Any) -> bool:
    """True for what holds no NaN whatever is read: integers and truth values, also as floats."""
    while x.meta["val"].dtype.is_floating_point:
        if x.target not in (prims.convert_element_type.default, aten.abs.default, aten.neg.default):
            return False
        x = x.args[0]
    return True


@row(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def _holds(s: Import, node: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Value:
    word = node.target._schema.name.removeprefix("aten::")
    v = s.value(x)
    truth = v if v.dtype == torch.bool else s.map(torch.bool, lambda e: ir.ne(e, 0), v)
    return _reduce(s, node, word, truth, dims, keepdim)


def only_shifts_exponents(node: Any, x: Any) -> bool:
    """True for a maximum m of x that is read as softmax and log-sum-exp read it: exp(x - m), and log(Σ …) + m.

    A NaN in x is then one in the sum of these exponentials, which is all that the graph goes on with.
    """
    shifts, over = 0, _folded_dims(node, x)
    for u in _readers(node):
        if u.target is aten.sub.Tensor and u.args[0] is x:
            # log-softmax: x - m is read again, minus the logarithm of the sum.
            shifts += any(_summed_exponential(e, over) for e in u.users)
            if not all(e.target is aten.sub.Tensor or _summed_exponential(e, over) for e in u.users):
                return False
        elif u.target is aten.add.Tensor:
            if not any(_is_log_sum(a, x, over) for a in u.args):
                return False
        elif u.target is not aten.abs.default:
            return False
    return shifts > 0


def _readers(node: Any) -> Iterator[Any]:
    """What reads a maximum: log-sum-exp takes 0 for an infinite one, and drops the dimension of it."""
    for u in node.users:
        if u.target in (aten.where.self, aten.squeeze.dim, aten.squeeze.dims):
            yield from _readers(u)
        else:
            yield u


def _folded_dims(node: Any, x: Any) -> frozenset[int]:
    """The dimensions of x that a maximum or a sum of it folds."""
    n = x.meta["val"].dim()
    dims = node.args[1] if len(node.args) > 1 and node.args[1] else range(n)
    return frozenset(d % n for d in ([dims] if isinstance(dims, int) else dims) if n)


def _summed_exponential(node: Any, over: frozenset[int]) -> bool:
    """An exponential that a sum takes as it is: behind a mask, or along others, the sum would not see every NaN."""
    through = [*node.users, *(v for u in node.users if u.target is prims.convert_element_type.default for v in u.users)]
    sums = (u for u in through if u.target is aten.sum.dim_IntList)
    return node.target is aten.exp.default and any(_folded_dims(u, node) == over for u in sums)


def _is_log_sum(node: Any, x: Any, over: frozenset[int]) -> bool:
    """The logarithm of the sum of exponentials of x below its maximum."""
    if getattr(node, "target", None) is not aten.log.default:
        return False
    total = _behind_cast(node.args[0])
    if total.target is not aten.sum.dim_IntList or _folded_dims(total, total.args[0]) != over:
        return False
    e = _behind_cast(total.args[0])
    below = e.args[0] if e.target is aten.exp.default else e
    return below.target is aten.sub.Tensor and below.args[0] is x


def _behind_cast(node: Any) -> Any:
    return _behind_cast(node.args[0]) if node.target is prims.convert_element_type.default else node


@row(aten.sum.dim_IntList, aten.sum.default)
def _sum(s: Import, node: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _reduce(s, node, "sum", _in_its_dtype(s, node, x), dims, keepdim)


def _in_its_dtype(s: Import, node: Any, x: Any) -> Value:
    """What is reduced, in the dtype of the result: integers are summed and multiplied in int64."""
    v, to = s.value(x), node.meta["val"].dtype
    if v.dtype.is_floating_point and not to.is_floating_point:
        return _converted(s, v, to)
    return v if v.dtype == to else s.map(to, lambda e: cast(e, computed(to)), v)


@row(aten.prod.dim_int, aten.prod.default)
def _prod(s: Import, node: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return _reduce(s, node, "prod", _in_its_dtype(s, node, x), dims, keepdim)


def count(s: Import, v: Value, dims: Any, dtype: str) -> Expr:
    """The number of elements that a reduction folds, as a float."""
    n: Expr = Const(1, "int64")
    for d in _over(v, dims):
        for a in v.groups[d]:
            n = binary("mul", n, wide(s.sizes.expr(a.size)))
    return Const(float(n.value), dtype) if isinstance(n, Const) else cast(n, dtype)


@row(aten.mean.dim, aten.mean.default)
def _mean(s: Import, node: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    v, to = _in_its_dtype(s, node, x), node.meta["val"].dtype
    n = count(s, v, dims, computed(to))
    return s.map(to, lambda e: binary("div", e, n), _reduce(s, node, "sum", v, dims, keepdim))


@row(aten.var_mean.correction, aten.var.correction)
def _var_mean(s: Import, node: Any, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    v = s.value(x)
    pair = node.target is aten.var_mean.correction
    less = 1 if correction is None else correction
    dtype = v.dtype
    n = count(s, v, dims, computed(dtype))
    total = s.map(dtype, lambda e: binary("div", e, n), _reduce(s, node, "sum", v, dims, True))
    mean, _ = s.stage(total, f"{node.name}_mean")
    away = s.map(dtype, lambda a, b: (a - b) * (a - b), v, mean)
    spread = _reduce(s, node, "sum", away, dims, True)
    # torch divides by 0 where there are fewer elements than the correction.
    below = binary("max", binary("sub", n, Const(float(less), n.dtype)), Const(0.0, n.dtype)) if less else n
    variance = s.map(dtype, lambda e: binary("div", e, below), spread)
    results = (_dropped(variance, dims, keepdim), _dropped(mean, dims, keepdim))
    return results if pair else results[0]


# --- products ------------------------------------------------------------------------------------


@row(aten.mm.default, aten.bmm.default)
def _mm(s: Import, node: Any, a: Any, b: Any) -> Value:
    return matrix_product(s, node, s.value(a), s.value(b))


@row(aten.addmm.default, aten.baddbmm.default)
def _addmm(s: Import, node: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if beta != 1 or alpha != 1:
        raise Unsupported("alpha or beta other than 1")
    product = matrix_product(s, node, s.value(a), s.value(b))
    return s.map(product.dtype, lambda x, y: binary("add", x, y), product, s.value(c))
