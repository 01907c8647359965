"""From the graph of a mod to its expression: each node is a row of `neptune.torch_ops`, a view of a captured tensor, or
a read of one.

Integers have torch's widths: indices are int64 there, and what leaves a dtype wraps around.

q_idx * 30000000                      as if int64: exact, in whatever dtype has room (`neptune.ir.indices.widths`)
starts[q_idx] + 2, starts int32       int32: computed in int64 and cut off, of which no proof is made
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from neptune.errors import Unsupported
from neptune.frontend.assemble import Tensor
from neptune.functional import arrays
from neptune.functional.arrays import Array, Dim
from neptune.ir.dtypes import holds, is_int
from neptune.ir.expr import Cast, Const, Expr, Op, cast
from neptune.ir.indices.widths import NEARLY_ALL, Interval, Known, interval, is_data, opaque, widened
from neptune.torch_ops.scalars import SHORT, as_dtype, as_torch, bounded, computed, promoted, wrapped
from neptune.torch_ops.table import TABLE, overloads

ASKS = (
    "it asks for the value of a score, an index or a captured tensor, which is known in the kernel only: a branch (if, "
    "and, or, not, min, max) or .item()"
)
INSTEAD = "torch.where(condition, a, b); & | ~ of conditions; torch.minimum, torch.maximum"
WRITES = "a mod gives a value for one pair of query and key, and changes nothing"
WHERE = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit")
"""Named arguments that change no value beside the dtype of the node."""
SAME = (
    *("_to_copy", "lift_fresh", "lift_fresh_copy", "clone", "detach", "alias", "to", "contiguous", "resolve_neg"),
    *("convert_element_type", "resolve_conj", "_conj", "real"),
)
NEW = {"ones": 1, "zeros": 0, "new_ones": 1, "new_zeros": 0, "ones_like": 1, "zeros_like": 0}
FULL = {"scalar_tensor": 0, "full": 1, "full_like": 1, "new_full": 2}
"""What makes a value of a number: the number, and the argument that is it."""
FURTHER = [getattr(torch.ops.aten, name) for name in ("gelu", "elu", "leaky_relu", "hardtanh")]
"""Of these torch has decompositions that are none of its core's."""
CHOOSES = ("where", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "masked_fill", *SAME, *NEW, *FULL)
"""Functions whose results are one of their arguments: the only ones of short integers, which wrap around in torch."""
FOLDS = {"sum": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "any": "any", "all": "all",
         "max": "amax", "min": "amin"}  # fmt: skip


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's own decompositions, but for what the table has itself: its forms keep more digits."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    own = overloads()

    def has(target: Any) -> bool:
        name = target.name().partition("::")[2].partition(".")[0]
        return target in own or name in FOLDS or hasattr(Translation, f"_do_{name.strip('_')}")

    known: dict[Any, Callable[..., Any]] = {**core_aten_decompositions(), **get_decompositions(FURTHER)}
    return {target: decomposition for target, decomposition in known.items() if not has(target)}


class Translation:
    """One walk over a mod's graph. `inputs`: the captured tensors, by identity; `read` is told every index."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        inputs: dict[int, tuple[Tensor, torch.Tensor]],
        scalars: Sequence[Expr],
        read: Callable[[Dim, Expr], None],
        sized: Callable[[], None],
    ) -> None:
        self.module, self.inputs, self.read, self.sized = module, inputs, read, sized
        self.scalars, self.done = iter(scalars), dict[Node, Any]()
        self.known = positions(e for e in scalars if is_int(e.dtype))

    def value(self) -> Any:
        """What the mod returns; Unsupported where a node of it is none."""
        for node in self.module.graph.nodes:
            if node.op == "output":
                return self._result(node.args[0])
            self.done[node] = self._node(node)
        raise AssertionError("a graph ends with its output")

    def _result(self, node: Any) -> Expr:
        if not isinstance(node, Node):
            raise Unsupported(f"it returns {node!r:.60}", hint="one value: a score, or a condition")
        result = self.done[node]
        if isinstance(result, Array):
            left = len(result.dims)
            raise Unsupported(
                f"it uses {'all' if result.whole else 'a slice'} of `{result.name}`, "
                f"which has {left} more dimension{'s' * (left > 1)}",
                hint="read one element: tensor[b, h, q_idx, kv_idx]",
            )
        e: Expr = result
        return e

    def _node(self, node: Node) -> Any:
        if node.op == "placeholder":
            return next(self.scalars)
        if node.op == "get_attr":
            return self._captured(getattr(self.module, str(node.target)))
        schema = getattr(node.target, "_schema", None)
        name = schema.name.partition("::")[2] if schema is not None else str(node.target)
        if name == "_local_scalar_dense":
            raise Unsupported(ASKS, hint=INSTEAD)
        if schema is not None and schema.is_mutable:
            raise Unsupported(f"it writes to a tensor ({name})", hint=WRITES)
        args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: self.done[n])
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise Unsupported(f"it calls {name}, which makes several values at once", hint="functions of single values")
        view = getattr(self, f"_do_{name.strip('_')}", None)
        if view is not None and (name != "view" or node.target is not torch.ops.aten.view.dtype):
            return view(node, *args, **named)
        if name in FOLDS and node.target not in overloads():
            return self._folded(name, node, *args, **named)
        return self._pointwise(name, node, args, named)

    def _captured(self, value: torch.Tensor) -> Any:
        known = self.inputs.get(id(value))
        if known is None:
            return as_dtype(value.item(), computed(value.dtype))
        t, tensor = known
        name = t.name.removesuffix("_in")
        if tensor.dim() == 0:
            return t[0]
        dims = tuple(Dim(n, t.shape[k], (t.name, k)) for k, n in enumerate(tensor.shape))
        return Array(dims, lambda i: t[i], name, whole=True)

    # --- single values -----------------------------------------------------------------------------

    def _pointwise(self, name: str, node: Node, args: Sequence[Any], named: dict[str, Any]) -> Any:
        val = node.meta["val"]
        made = val.dtype
        if node.target is torch.ops.aten.view.dtype:
            raise Unsupported("it reads a number's bits as another dtype", hint="x.to(dtype), which casts")
        if made in map(_dtype, SHORT) and (name not in CHOOSES or any(v.dtype != made for v in _read_by(node))):
            raise Unsupported(f"it computes in {made}, which wraps around", hint="tensor[…].to(torch.int32)")
        position = FULL.get(name)
        if name in NEW or position is not None:
            number = NEW[name] if position is None else args[position]
            return arrays.made(tuple(val.shape), lambda _: wrapped(as_dtype(number, computed(made)), made), name)
        if name in SAME:
            return arrays.mapped(lambda e: rounded(e, made, self.known), args[:1], tuple(val.shape))
        row = TABLE.get(name)
        if row is None or node.target not in overloads():
            raise Unsupported(f"it calls {name}, which has no row in neptune.torch_ops", hint="torch's other functions")
        common = row.dtype(node)
        dtype, count = computed(common), row.operands
        unknown = [k for k, v in named.items() if k in WHERE and v is not None and k != "dtype"]
        named = {k: v for k, v in named.items() if k not in unknown}

        def at(*values: Expr) -> Expr:
            operands = [row.operand(v, common) for v in values]
            operands = [cut(v, dtype, self.known) for v in operands]
            value = row.rule(carried(dtype, name, (*operands, *args[count:])), *operands, *args[count:], **named)
            return rounded(bounded(as_torch(value, dtype, self.known)), made, self.known)

        self.together(args[:count])
        return arrays.mapped(at, args[:count], tuple(val.shape))

    def together(self, values: Sequence[Any]) -> None:
        """Take note that lengths count, where several captured tensors are: with others one may be broadcast."""
        if sum(isinstance(v, Array) for v in values) > 1:
            self.sized()

    # --- parts and folds of captured tensors ---------------------------------------------------------

    def _folded(self, name: str, node: Node, x: Any, dims: Any = None, *_: Any, **__: Any) -> Any:
        val = node.meta["val"]
        if not isinstance(x, Array):
            return wrapped(as_dtype(x, computed(val.dtype)), val.dtype)
        self.sized()
        dims = [dims] if isinstance(dims, int) else dims
        shape, dtype = tuple(val.shape), computed(val.dtype)
        results = arrays.folded(FOLDS[name], x, dims, shape, dtype)
        return arrays.mapped(lambda e: wrapped(e, val.dtype), [results], shape)

    def _do_mean(self, node: Node, x: Any, dims: Any = None, keep: bool = False, **_: Any) -> Any:
        val = node.meta["val"]
        count = x.count(dims) if isinstance(x, Array) else 1
        total = self._folded("sum", node, x, dims)
        dtype = computed(val.dtype)
        return arrays.mapped(lambda e: wrapped(as_dtype(e, dtype) / float(count), val.dtype), [total], tuple(val.shape))

    def _do_dot(self, node: Node, x: Array, y: Array) -> Any:
        dtype = computed(node.meta["val"].dtype)
        both = arrays.mapped(lambda a, b: as_dtype(a, dtype) * as_dtype(b, dtype), [x, y], x.shape)
        return self._folded("sum", node, both)

    def _do_bucketize(self, node: Node, x: Any, ends: Any, *, out_int32: bool = False, right: bool = False) -> Any:
        return self._searched(node, node.args[1], node.args[0], ends, x, right)

    def _do_searchsorted(self, node: Node, ends: Any, x: Any, *, out_int32: bool = False, right: bool = False,
                         side: str | None = None, sorter: Any = None) -> Any:  # fmt: skip
        if sorter is not None:
            raise Unsupported("it calls searchsorted with sorter=", hint="numbers that are sorted")
        return self._searched(node, node.args[0], node.args[1], ends, x, right or side == "right")

    def _searched(self, node: Node, values: Any, what: Any, ends: Any, x: Any, right: bool) -> Any:
        if not isinstance(ends, Array) or len(ends.dims) != 1:
            raise Unsupported("it looks among numbers that are not one captured vector", hint=WRITES)
        self.sized()
        meta = node.meta["val"]
        dtype = computed(promoted((values, what)))
        return arrays.mapped(
            lambda e: wrapped(arrays.counted_below(ends, e, dtype, right), meta.dtype), [x], tuple(meta.shape)
        )

    def _do_index(self, node: Node, x: Any, index: Sequence[Any]) -> Any:
        if not isinstance(x, Array):
            raise Unsupported("it indexes what is no captured tensor", hint="a tensor from outside of the mod")
        self.together(index)
        return arrays.indexed(x, index, tuple(node.meta["val"].shape), self.read)

    def _do_take(self, node: Node, x: Array, index: Any) -> Any:
        self.sized()
        flat = arrays.viewed(x, (x.count(),))
        return arrays.indexed(flat, [index], tuple(node.meta["val"].shape), self.read)

    def _do_index_select(self, node: Node, x: Array, dim: int, index: Any) -> Any:
        d = dim % len(x.dims)
        return arrays.indexed(x, [*[None] * d, index], tuple(node.meta["val"].shape), self.read)

    def _do_embedding(self, node: Node, x: Array, index: Any, *_: Any) -> Any:
        return arrays.indexed(x, [index], tuple(node.meta["val"].shape), self.read)

    def _do_select(self, node: Node, x: Array, dim: int, place: int) -> Any:
        d = dim % len(x.dims)
        if place >= 0:
            self.read(x.dims[d], Const(place, "int32"))
        return arrays.selected(x, d, arrays.from_end(x.dims[d], Const(place, "int32")))

    def _do_slice(self, node: Node, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        n, length = x.dims[dim].length, node.meta["val"].shape[dim]
        first = min(n, start + n if (start or 0) < 0 else start or 0)
        # An end that is beyond this tensor may lie within another one.
        if (first, step) != (0, 1) or (end is not None and end < sys.maxsize):
            self.sized()
        return arrays.sliced(x, dim, max(first, 0), length, step)

    def _do_permute(self, node: Node, x: Array, order: Sequence[int]) -> Any:
        return arrays.permuted(x, order)

    def _do_t(self, node: Node, x: Array) -> Any:
        return arrays.permuted(x, range(len(x.dims))[::-1])

    def _do_transpose(self, node: Node, x: Array, a: int, b: int) -> Any:
        order = list(range(len(x.dims)))
        order[a], order[b] = order[b], order[a]
        return arrays.permuted(x, order)

    def _do_unsqueeze(self, node: Node, x: Any, dim: int) -> Any:
        return arrays.with_dim(x, dim) if isinstance(x, Array) else arrays.made((1,), lambda _: x, "a value")

    def _do_squeeze(self, node: Node, x: Any, dims: Any = None) -> Any:
        if not isinstance(x, Array):
            return x
        self.sized()
        return arrays.without(x, range(len(x.dims)) if dims is None else [dims] if isinstance(dims, int) else dims)

    def _do_view(self, node: Node, x: Any, *_: Any) -> Any:
        shape = tuple(node.meta["val"].shape)
        if not isinstance(x, Array):
            return arrays.made(shape, lambda _: x, "a value")
        self.sized()
        return arrays.viewed(x, shape)

    _do_reshape = _do_unsafe_view = _do_reshape_alias = _do_view

    def _do_expand(self, node: Node, x: Any, *_: Any, **__: Any) -> Any:
        shape = tuple(node.meta["val"].shape)
        self.sized()
        return arrays.expanded(x, shape) if isinstance(x, Array) else arrays.made(shape, lambda _: x, "a value")

    def _do_flip(self, node: Node, x: Array, dims: Sequence[int]) -> Any:
        self.sized()
        return arrays.flipped(x, dims)

    def _do_neg_view(self, node: Node, x: Any) -> Any:
        return arrays.mapped(lambda e: -e, [x], tuple(node.meta["val"].shape))

    def _do_iota(self, node: Node, *_: Any, start: int = 0, step: int = 1, **__: Any) -> Any:
        return self._do_arange(node, start, 0, step)

    def _do_arange(self, node: Node, start: Any = 0, _end: Any = None, step: Any = 1, **__: Any) -> Any:
        val = node.meta["val"]
        dtype = computed(val.dtype)
        return arrays.made(tuple(val.shape), lambda i: as_dtype(i[0], dtype) * step + start, "a range")


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _read_by(node: Node) -> list[torch.Tensor]:
    """The values of a node's arguments, but for conditions."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return [v for v in values if isinstance(v, torch.Tensor) and v.dtype != torch.bool]


# --- integers of torch's widths ---------------------------------------------------------------------

POSITIONS = (0, NEARLY_ALL)
"""The indices for which a mod is made; calls with more rows are looked at when they are launched."""


def positions(indices: Iterable[Expr]) -> Known:
    """What is known of the indices that a mod is given."""
    places = tuple(indices)

    def known(e: Expr) -> Interval | None:
        return POSITIONS if any(e is i or e == i for i in places) else None

    return known


def carried(dtype: str, name: str, args: Iterable[Any]) -> str:
    """The dtype in which a node of `dtype` is written: int64 of what are no data is int32, which is widened where that
    has no room. A shift drops bits by its dtype."""
    if dtype != "int64" or "shift" in name:
        return dtype
    return "int32" if all(_narrow(a) for a in args) else dtype


def _narrow(x: Any) -> bool:
    if isinstance(x, Const) and is_int(x.dtype):
        return holds("int32", (int(x.value), int(x.value)))
    if hasattr(x, "dtype"):
        return x.dtype in ("int32", "bool") and not is_data(x)
    return not isinstance(x, int) or holds("int32", (x, x))


def rounded(e: Expr, dtype: torch.dtype, known: Known) -> Expr:
    """`wrapped`, but that int64 of what are no data may stay int32."""
    if dtype == torch.int64 and _narrow(e):
        return as_dtype(e, "int32")
    return wrapped(cut(e, str(dtype).removeprefix("torch."), known), dtype)


def cut(x: Any, dtype: str, known: Known) -> Any:
    """An argument that torch casts to `dtype`: indices have been exact so far."""
    if isinstance(x, Const) or not isinstance(x, Op | Cast) or dtype != "int32" or x.dtype != "int32" or is_data(x):
        return x
    return x if holds(dtype, interval(x, known)) else cast(opaque(cast(widened(x, known), "int64")), dtype)
