"""An import in progress: what the rows of `neptune.graph.aten` are given to make values with."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from neptune.errors import Unsupported
from neptune.frontend.assemble import Axis, Reduction, Tensor, unique
from neptune.frontend.builder import compute, placeholder
from neptune.frontend.reductions import reduction
from neptune.graph.narrow import narrowed, wide
from neptune.graph.sizes import Size, Sizes, size_of
from neptune.graph.values import AxisOf, Group, Index, Value, alike, constant
from neptune.ir.dtypes import DTYPES, FLOAT8, is_float
from neptune.ir.expr import Cast, Const, Expr, Op, as_expr, cast
from neptune.ir.names import usable
from neptune.ir.ops import OPS
from neptune.ir.program import ZERO
from neptune.torch_ops.scalars import computed

NAMES = {getattr(torch, name): name for name in DTYPES if name not in FLOAT8}
"""The dtypes that are imported."""
NARROW = (torch.float16, torch.bfloat16)
SHORT = (torch.int8, torch.uint8)
"""Integers that are computed in int32, and wrap around."""


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype; Unsupported for one that is not imported."""
    if dtype not in NAMES:
        raise Unsupported(f"the dtype {str(dtype).removeprefix('torch.')}")
    return NAMES[dtype]


@dataclass
class Import:
    """The values of nodes so far, and the tensors that they read. `dropped`: roundings of the graph that the Program
    does not make, in the order of the graph. `gathers`: nodes of indices, and the size that they must lie below."""

    sizes: Sizes = field(default_factory=Sizes)
    values: dict[Any, Value] = field(default_factory=dict)
    inputs: dict[Any, Tensor] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    gathers: list[tuple[torch.fx.Node, Size]] = field(default_factory=list)

    def named(self, name: str) -> str:
        """A name that no tensor has yet, and that does not tell one layer of a model from the next."""
        unused = unique(usable(re.sub(r"_\d+$", "", name)), self.names)
        self.names.add(unused)
        return unused

    def value(self, x: Any, like: torch.dtype | None = None) -> Value:
        """The value of an argument: of a node, or a Python number in the dtype `like`."""
        if isinstance(x, torch.fx.Node):
            if x in self.values:
                return self.values[x]
            meta = x.meta.get("val")
            if isinstance(meta, torch.SymInt | int):
                return self.size(size_of(meta))
            raise Unsupported(f"`{x.name}`, which is no tensor")
        if isinstance(x, torch.SymInt | sympy.Expr):
            return self.size(size_of(x))
        if isinstance(x, bool):
            return constant(as_expr(x), torch.bool)
        if isinstance(x, builtins.int):
            dtype = like if like is not None and like is not torch.bool else torch.int64
            return constant(as_expr(x, computed(dtype)), dtype)
        if isinstance(x, float):
            dtype = like if like is not None and like.is_floating_point else torch.float32
            return constant(Const(x, computed(dtype)), dtype)
        raise Unsupported(f"the argument {x!r:.40}")

    def size(self, n: Size) -> Value:
        """A size as a value: torch computes with it in int64."""
        return constant(wide(self.sizes.expr(n)), torch.int64)

    def read(self, node: Any, shape: Sequence[Size], dtype: torch.dtype) -> Value:
        """An input of the Program: the tensor of a node that is computed before."""
        kept = [d for d in shape if d != 1]
        t = placeholder([self.sizes.bind(d) for d in shape], name_of(dtype), self.named(f"x{len(self.inputs)}"))
        self.inputs[node] = t
        groups = tuple((AxisOf(d),) if d != 1 else () for d in shape)
        places = [k for k, d in enumerate(shape) if d != 1]

        def at(i: Index) -> Expr:
            full: list[Expr] = [ZERO] * len(shape)
            for k, e in zip(places, i[: len(kept)], strict=True):
                full[k] = e
            return cast(t(*full), computed(dtype))

        return Value(groups, dtype, at)

    # --- stages --------------------------------------------------------------------------------

    def stage(self, v: Value, name: str, dtype: str | None = None, whole: bool = False) -> tuple[Value, Tensor]:
        """A stage that computes a value, and the value that reads it: over all axes that something depends on."""
        used = [k for k, a in enumerate(v.axes) if whole or not a.free]
        shape = [self.sizes.expr(v.axes[k].size) for k in used]

        def body(*i: Expr) -> Expr:
            e = narrowed(v.at(_spread(i, used, len(v.axes))))
            return e if dtype is None else _rounded(e, dtype)

        t = compute(shape, body, self.named(name))

        def at(i: Index) -> Expr:
            return cast(t(*(i[k] for k in used)), computed(v.dtype))

        return replace(v, at=at, plain=True, indices=False, rounded=v.rounded or dtype is not None), t

    def fold(self, v: Value, dims: Sequence[int], keep: bool, name: str, make: Callable[..., Any]) -> Value:
        """A reduction stage over some dimensions: `make(expression, axes)` is its fold."""
        over = [k for d in dims for k in range(v.starts(d), v.starts(d + 1))]
        groups = [g if d not in dims else () for d, g in enumerate(v.groups)]
        left = tuple(g for d, g in enumerate(groups) if keep or d not in dims)
        rest = [k for k in range(len(v.axes)) if k not in over]
        used = [k for k in rest if not v.axes[k].free]
        axes = [Axis(f"r{k}", "int32", ZERO, self.sizes.expr(v.axes[k].size)) for k in over]
        if not axes:
            raise Unsupported("a reduction over a dimension of size 1")

        def body(*i: Expr) -> Reduction:
            point = list(_spread(i, used, len(v.axes)))
            for k, a in zip(over, axes, strict=True):
                point[k] = a
            reduction: Reduction = make(narrowed(v.at(tuple(point))), axes)
            return reduction

        t = compute([self.sizes.expr(v.axes[k].size) for k in used], body, self.named(name))
        places = [rest.index(k) for k in used]
        return Value(left, v.dtype, lambda i: t(*(i[p] for p in places)), rounded=False, plain=True)

    def reduced(self, word: str, v: Value, dims: Sequence[int], keep: bool, name: str) -> Value:
        """sum, max, min or prod over some dimensions."""
        return self.fold(v, dims, keep, name, lambda e, axes: reduction(word, e, axes))

    # --- maps ----------------------------------------------------------------------------------

    def map(self, dtype: torch.dtype, fn: Callable[..., Expr], *values: Value) -> Value:
        """fn at each point of values that are broadcast as torch does."""
        groups, places, laid = self.broadcast(values)
        if not any(v.groups for v in values) and all(v.indices for v in values):
            return constant(folded(fn(*(v.at(()) for v in values))), dtype)

        def at(i: Index) -> Expr:
            return fn(*(v.at(tuple(i[k] for k in p)) for v, p in zip(laid, places, strict=True)))

        plain = sum(not v.indices for v in values) <= 1 and all(v.plain for v in values)
        return Value(groups, dtype, at, False, plain and dtype == torch.bool, all(v.indices for v in values))

    def broadcast(self, values: Sequence[Value]) -> tuple[tuple[Group, ...], list[list[int]], list[Value]]:
        """The common groups, for each value the number of each of its axes among them, and values over these axes."""
        rank = max((len(v.groups) for v in values), default=0)
        laid = [v.with_groups(((),) * (rank - len(v.groups)) + v.groups) for v in values]
        for d in range(rank):
            laid = alike(laid, d, self.sizes)
        groups: list[Group] = []
        for d in range(rank):
            there = [v.groups[d] for v in laid if v.groups[d]]
            first = there[0] if there else ()
            groups.append(tuple(AxisOf(a.size, all(g[k].free for g in there)) for k, a in enumerate(first)))
        starts = [sum(map(len, groups[:d])) for d in range(rank)]
        places = [[starts[d] + k for d, g in enumerate(v.groups) for k in range(len(g))] for v in laid]
        return tuple(groups), places, laid


def folded(e: Expr) -> Expr:
    """An expression of float constants as one of them; any other as it is.

    >>> folded(Const(4.0, "float32") * 0.5)
    Const(value=2.0, dtype='float32')
    """
    if isinstance(e, Cast) and is_float(e.dtype):
        inner = folded(e.arg)
        known = isinstance(inner, Const) and inner.dtype != "bool"
        return Const(float(inner.value), e.dtype) if known and isinstance(inner, Const) else e
    if isinstance(e, Op) and is_float(e.dtype):
        values = [a.value for a in map(folded, e.args) if isinstance(a, Const)]
        function = OPS[e.name].value
        if function is not None and len(values) == len(e.args):
            return Const(float(function(*values)), e.dtype)
    return e


def _rounded(e: Expr, dtype: str) -> Expr:
    """A cast to `dtype`, of what was rounded to it before: that."""
    if isinstance(e, Cast) and e.dtype == "float32" and e.arg.dtype == dtype:
        return e.arg
    return cast(e, dtype)


def _spread(i: Sequence[Expr], used: Sequence[int], rank: int) -> Index:
    """The point of `rank` axes of which `used` are given; the others do not matter."""
    point: list[Expr] = [ZERO] * rank
    for k, e in zip(used, i, strict=True):
        point[k] = e
    return tuple(point)
