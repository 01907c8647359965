"""Captured tensors inside a mod, of which it reads one element in the end: views, parts, and folds over a few.

    bias.t()[kv_idx, 2]        bias[2, kv_idx]
    (ends <= kv_idx).sum()     select(ends[0] <= j, 1, 0) + select(ends[1] <= j, 1, 0) + …

An array is a function of its index, so that nothing of it is made before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from neptune.errors import Unsupported
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr, Op, Var, binary
from neptune.torch_ops.scalars import as_dtype, nan_first

Index = tuple[Expr, ...]
MOST = 64
"""Elements that a fold unrolls."""


@dataclass(frozen=True)
class Dim:
    """A dimension: its length at the trace, the expression of its length, and what it is of the captured tensor."""

    length: int
    size: Expr
    of: tuple[str, int] | None = None


@dataclass(frozen=True, eq=False)
class Array:
    """Several values of one dtype. `name`: the captured tensor; `whole`: no index of it is known yet."""

    dims: tuple[Dim, ...]
    at: Callable[[Index], Expr]
    name: str
    whole: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths at the trace."""
        return tuple(d.length for d in self.dims)

    def over(self, dims: Any = None) -> list[int]:
        """Dimensions that may count from the end, or one, or all (None), in order."""
        chosen = [dims] if isinstance(dims, int) else dims or range(len(self.dims))
        return sorted({d % len(self.dims) for d in chosen})

    def count(self, dims: Any = None) -> int:
        """How many elements there are along dimensions."""
        return prod(self.dims[d].length for d in self.over(dims))


def number(k: int) -> Expr:
    """An index as an expression."""
    return Const(k, "int32")


def made(shape: Sequence[int], at: Callable[[Index], Expr], name: str) -> Any:
    """An array of these lengths, a scalar where there are none."""
    return Array(tuple(Dim(n, number(n)) for n in shape), at, name) if shape else at(())


# --- views -----------------------------------------------------------------------------------------------


def permuted(x: Array, order: Sequence[int]) -> Array:
    """The dimensions in another order."""
    places = [d % len(x.dims) for d in order]
    back = [places.index(d) for d in range(len(places))]
    return replace(x, dims=tuple(x.dims[d] for d in places), at=lambda i: x.at(tuple(i[k] for k in back)))


def with_dim(x: Array, d: int) -> Array:
    """A dimension of length 1 more."""
    d %= len(x.dims) + 1
    dims = (*x.dims[:d], Dim(1, number(1)), *x.dims[d:])
    return replace(x, dims=dims, at=lambda i: x.at((*i[:d], *i[d + 1 :])))


def without(x: Array, dims: Sequence[int]) -> Any:
    """Without dimensions of length 1."""
    gone = {d % len(x.dims) for d in dims if x.dims[d].length == 1}
    kept = [d for d in range(len(x.dims)) if d not in gone]

    def at(i: Index) -> Expr:
        full = [number(0)] * len(x.dims)
        for d, e in zip(kept, i, strict=True):
            full[d] = e
        return x.at(tuple(full))

    return replace(x, dims=tuple(x.dims[d] for d in kept), at=at) if kept else at(())


def selected(x: Array, d: int, place: Expr) -> Any:
    """One position of a dimension."""
    d %= len(x.dims)
    left = (*x.dims[:d], *x.dims[d + 1 :])

    def inner(i: Index) -> Expr:
        return x.at((*i[:d], place, *i[d:]))

    return Array(left, inner, x.name) if left else inner(())


def sliced(x: Array, d: int, start: int, length: int, step: int) -> Array:
    """Every step-th position from `start` on."""
    d %= len(x.dims)
    if (start, step) == (0, 1) and length == x.dims[d].length:
        return x
    dims = (*x.dims[:d], Dim(length, number(length)), *x.dims[d + 1 :])
    return replace(x, dims=dims, at=lambda i: x.at((*i[:d], i[d] * step + start, *i[d + 1 :])))


def flipped(x: Array, dims: Sequence[int]) -> Array:
    """Dimensions from their ends."""
    turned = {d % len(x.dims) for d in dims}
    last = [d.length - 1 for d in x.dims]
    return replace(x, at=lambda i: x.at(tuple(last[k] - e if k in turned else e for k, e in enumerate(i))))


def expanded(x: Array, shape: Sequence[int]) -> Array:
    """Dimensions of length 1, and new ones in front, repeated."""
    new = len(shape) - len(x.dims)
    dims = tuple(x.dims[k - new] if k >= new and x.dims[k - new].length == n else Dim(n, number(n))
                 for k, n in enumerate(shape))  # fmt: skip
    return replace(x, dims=dims, at=lambda i: x.at(_within(x.shape, i, shape)))


def _within(shape: Sequence[int], i: Index, outer: Sequence[int]) -> Index:
    """The index into a value of `shape` that is broadcast to a value `of` another. Where neither has more than one
    element nothing is broadcast: a tensor of other lengths is read at the same index."""
    new = len(i) - len(shape)
    return tuple(number(0) if n == 1 != m else e for n, m, e in zip(shape, outer[new:], i[new:], strict=True))


def viewed(x: Array, shape: Sequence[int]) -> Any:
    """The elements in their order under other dimensions."""

    def at(i: Index) -> Expr:
        if x.shape == tuple(shape):
            return x.at(i)
        flat = _flat(i, shape)
        if len(x.dims) == 1:
            return x.at((flat,))
        parts = []
        for n in reversed(x.shape[1:]):
            parts.append(flat % n)
            flat = flat // n
        return x.at((flat, *reversed(parts)))

    return made(shape, at, x.name)


def _flat(i: Index, shape: Sequence[int]) -> Expr:
    """The row-major position of an index."""
    return reduce(lambda e, p: binary("add", binary("mul", e, p[1]), p[0]), zip(i, shape, strict=True), number(0))


# --- reads -----------------------------------------------------------------------------------------------


def indexed(x: Array, index: Sequence[Any], shape: Sequence[int], read: Callable[[Dim, Expr], None]) -> Any:
    """x at expressions, or at arrays of such, along some of its dimensions (None: all of one): of torch's `shape`."""
    if len(index) > len(x.dims):
        raise Unsupported(f"it has too many indices for `{x.name}`")
    known = [k for k, e in enumerate(index) if e is not None]
    for k in known:
        dtype = index[k].at((number(0),) * len(index[k].dims)).dtype if isinstance(index[k], Array) else index[k].dtype
        if not dtype.startswith(("int", "uint")):
            raise Unsupported(f"index {k} of `{x.name}` is no integer", hint="b, h, q_idx or kv_idx")
    rank = max((len(index[k].dims) for k in known if isinstance(index[k], Array)), default=0)
    # Where indices stand side by side their dimensions take the place of these, else they come first.
    front = known[0] if known == list(range(known[0], known[-1] + 1)) else 0
    lengths = shape[front : front + rank]

    def place(k: int, common: Index) -> Expr:
        e = index[k]
        e = e.at(_within(e.shape, common, lengths)) if isinstance(e, Array) else e
        return from_end(x.dims[k], e)

    for k in known:
        if not isinstance(index[k], Array):
            read(x.dims[k], index[k])
    free = [d for d in range(len(x.dims)) if d not in known]

    def at(i: Index) -> Expr:
        common, rest = i[front : front + rank], (*i[:front], *i[front + rank :])
        own = dict(zip(free, rest, strict=True))
        return x.at(tuple(own[d] if d in own else place(d, common) for d in range(len(x.dims))))

    if not shape:
        return at(())
    left = [x.dims[d] for d in free]
    dims = (*left[:front], *(Dim(n, number(n)) for n in lengths), *left[front:])
    return Array(dims, at, x.name)


def from_end(dim: Dim, e: Expr) -> Expr:
    """torch counts negative indices from the end."""
    return e if at_least_0(e) else ir.select(e < 0, e + dim.size, e)


def at_least_0(e: Expr) -> bool:
    """True for an index that is at least 0 as it is written: indices are, and what is made of them by + * // %."""
    match e:
        case Const(value, _):
            return value >= 0
        case Var():
            return True
        case Op("add" | "mul" | "floordiv" | "min", (a, b), _):
            return at_least_0(a) and at_least_0(b)
        case Op("max", (a, b), _):
            return at_least_0(a) or at_least_0(b)
        case Op("mod", (_, b), _):
            return isinstance(b, Const) and b.value > 0
        case ir.Cast(arg, _):
            return arg.dtype.startswith("int") and at_least_0(arg)
        case _:
            return False


# --- folds -----------------------------------------------------------------------------------------------


def mapped(function: Callable[..., Expr], values: Sequence[Any], shape: Sequence[int]) -> Any:
    """A function of single values, of values that are broadcast."""
    arrays = [v for v in values if isinstance(v, Array)]

    def at(i: Index) -> Expr:
        return function(*(v.at(_within(v.shape, i, shape)) if isinstance(v, Array) else v for v in values))

    if not shape:
        return at(())
    first = arrays[0]
    if first.shape == tuple(shape):
        return replace(first, at=at, whole=first.whole and len(arrays) == 1)
    return made(shape, at, first.name)


_STEPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "sum": lambda a, b: ir.logical_or(a, b) if a.dtype == "bool" else binary("add", a, b),
    "prod": lambda a, b: binary("mul", a, b),
    "amax": nan_first("max"),
    "amin": nan_first("min"),
    "any": ir.logical_or,
    "all": ir.logical_and,
}
_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True}


def folded(word: str, x: Array, dims: Any, shape: Sequence[int], dtype: str) -> Any:
    """A reduction, in `dtype`, by its steps: one value after another."""
    over, count = x.over(dims), x.count(dims)
    if count > MOST:
        raise Unsupported(
            f"it folds {count} elements of `{x.name}`, of at most {MOST}", hint="fold it before, by torch"
        )
    kept = len(shape) == len(x.dims)
    points = list(product(*(range(x.dims[d].length) for d in over)))

    def at(i: Index) -> Expr:
        rest = [e for d, e in enumerate(i) if d not in over] if kept else list(i)
        terms = []
        for p in points:
            own, others = dict(zip(over, p, strict=True)), iter(rest)
            point = tuple(number(own[d]) if d in own else next(others) for d in range(len(x.dims)))
            terms.append(as_dtype(x.at(point), dtype))
        return reduce(_STEPS[word], terms) if terms else as_dtype(_EMPTY[word], dtype)

    return made(shape, at, x.name)


def counted_below(ends: Array, x: Expr, dtype: str, right: bool) -> Expr:
    """How many of sorted numbers stand before x: torch's bucketize and searchsorted."""
    # NaN is behind every number.
    order = "gt" if right else "ge"

    def at(i: Index) -> Expr:
        return ir.op("not", binary(order, as_dtype(ends.at(i), dtype), as_dtype(x, dtype)))

    before: Expr = folded("sum", replace(ends, at=at), None, (), "int64")
    return before
