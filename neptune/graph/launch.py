"""A kernel in a graph: a custom operator that torch's compilers take as it is.

    torch.ops.neptune_graph.amax_sum_bmm_0(q, k, v, [sizes], [shape of the result])

The kernel's results have an axis for each axis of the Program; the operator gives them the shape of the graph.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from math import prod
from typing import Any, NamedTuple

import torch

from neptune.errors import ShapeError
from neptune.functional.tensors import dense
from neptune.graph.choose import Serving
from neptune.graph.sizes import hint
from neptune.runtime.calls.indices import may_look

_LIBRARY: Any = torch.library.Library("neptune_graph", "FRAGMENT")  # type: ignore[no-untyped-call]
_NUMBERS = count()


_LIBRARY.define("check_index(Tensor index, SymInt size) -> Tensor")


def _check_index(index: torch.Tensor, size: int) -> torch.Tensor:
    """An empty tensor. Raises ShapeError for an index of a gather outside of [0, size), which torch refuses too, where
    it may be looked at."""
    if may_look(index) and bool((wrong := (index < 0) | (index >= size)).any()):
        first = int(index[wrong][0])
        raise ShapeError(
            "gather in a fused region", f"index {first} of a dimension of {size}", legal=[f"0 to {size - 1}"]
        )
    return index.new_empty(0)


def _no_elements(index: torch.Tensor, size: Any) -> torch.Tensor:
    return index.new_empty(0)


_LIBRARY.impl("check_index", _check_index, "CompositeExplicitAutograd")
torch.library.register_fake("neptune_graph::check_index", _no_elements, lib=_LIBRARY)


class Result(NamedTuple):
    """The dtype of a result, and its dimensions from that of the largest stride to that of the least; None where they
    lie in their order. Torch's other nodes rest on the strides that eager's results have."""

    dtype: torch.dtype
    order: tuple[int, ...] | None = None

    @staticmethod
    def of(t: torch.Tensor) -> Result:
        """That of a fake tensor, whose elements lie side by side; of others nothing is asked."""
        strides, sizes = ([hint(n) for n in numbers] for numbers in (t.stride(), t.shape))
        order = sorted(range(t.dim()), key=lambda d: (-strides[d], d))
        behind = [prod(sizes[d] for d in order[k + 1 :]) for k in range(len(order))]
        dense = all(sizes[d] == 1 or strides[d] == n for d, n in zip(order, behind, strict=True))
        return Result(t.dtype, tuple(order) if dense and order != sorted(order) else None)

    def laid(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor of the result's shape with these strides; a copy where it has others."""
        if self.order is None:
            return t
        back = sorted(range(t.dim()), key=self.order.__getitem__)
        return t.permute(self.order).contiguous().permute(back)


@cache
def operator(
    serving: Serving,
    name: str,
    results: tuple[Result, ...],
    merges: tuple[tuple[int, ...], ...],
    waits: bool = False,
) -> Any:
    """The operator of what serves a region: (*tensors, sizes that it is passed, a shape for each result) → a tuple of
    `results`. `merges` are those of `Imported`; `waits`: results of checks come last, which the kernel runs behind."""
    # Inductor keeps what it compiled by this name: strides are part of it.
    laid = "".join(f"_{''.join(map(str, r.order))}" for r in results if r.order is not None)
    own = f"{name}_{next(_NUMBERS)}{laid}"
    tensors = [f"Tensor x{k}" for k in range(len(serving.kernel.inputs))]
    shapes = [f"SymInt[] shape{k}" for k in range(len(results))]
    gives = f"({', '.join('Tensor' for _ in results)})" if len(results) > 1 else "Tensor"
    checks = ["Tensor[] checks"] if waits else []
    _LIBRARY.define(f"{own}({', '.join([*tensors, 'SymInt[] sizes', *shapes, *checks])}) -> {gives}")
    n, behind = len(tensors), len(tensors) + 1 + len(results)

    def launch(*args: Any) -> Any:
        inputs, sizes, out_shapes = args[:n], args[n], args[n + 1 : behind]
        made = serving.kernel(*map(_flattened, inputs, merges), *sizes)
        outs = [made] if isinstance(made, torch.Tensor) else list(made)
        shaped = tuple(r.laid(o.reshape(s)) for r, o, s in zip(results, outs, out_shapes, strict=True))
        return shaped if len(shaped) > 1 else shaped[0]

    def fake(*args: Any) -> Any:
        shapes = zip(results, args[n + 1 : behind], strict=True)
        fakes = tuple(r.laid(args[0].new_empty(s, dtype=r.dtype)) for r, s in shapes)
        return fakes if len(fakes) > 1 else fakes[0]

    _LIBRARY.impl(own, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"neptune_graph::{own}", fake, lib=_LIBRARY)
    return getattr(torch.ops.neptune_graph, own).default


def _flattened(t: torch.Tensor, merges: tuple[int, ...]) -> torch.Tensor:
    """A tensor as the kernel takes it: some dimensions as one, the last one dense."""
    for d in merges:
        t = t.flatten(d, d + 1)
    return dense(t)
