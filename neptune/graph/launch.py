"""A kernel in a graph: a custom operator that torch's compilers take as it is.

    torch.ops.neptune_graph.amax_sum_bmm_0(q, k, v, [sizes], [shape of the result])

The kernel's results have an axis for each axis of the Program; the operator gives them the shape of the graph.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any

import torch

from neptune.functional.tensors import dense
from neptune.kernel import Kernel

_LIBRARY: Any = torch.library.Library("neptune_graph", "FRAGMENT")  # type: ignore[no-untyped-call]
_NUMBERS = count()


@cache
def operator(kernel: Kernel, name: str, dtypes: tuple[torch.dtype, ...], merges: tuple[tuple[int, ...], ...]) -> Any:
    """The operator of a kernel: (*tensors, sizes that it is passed, a shape for each result) → a tuple of results.
    `merges` are those of `Imported`."""
    own = f"{name}_{next(_NUMBERS)}"
    tensors = [f"Tensor x{k}" for k in range(len(kernel.inputs))]
    shapes = [f"SymInt[] shape{k}" for k in range(len(dtypes))]
    results = f"({', '.join('Tensor' for _ in dtypes)})" if len(dtypes) > 1 else "Tensor"
    _LIBRARY.define(f"{own}({', '.join([*tensors, 'SymInt[] sizes', *shapes])}) -> {results}")
    n = len(tensors)

    def launch(*args: Any) -> Any:
        inputs, sizes, out_shapes = args[:n], args[n], args[n + 1 :]
        made = kernel(*map(_flattened, inputs, merges), *sizes)
        outs = [made] if isinstance(made, torch.Tensor) else list(made)
        shaped = tuple(o.reshape(s) for o, s in zip(outs, out_shapes, strict=True))
        return shaped if len(shaped) > 1 else shaped[0]

    def fake(*args: Any) -> Any:
        found = tuple(args[0].new_empty(s, dtype=d) for s, d in zip(args[n + 1 :], dtypes, strict=True))
        return found if len(found) > 1 else found[0]

    _LIBRARY.impl(own, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"neptune_graph::{own}", fake, lib=_LIBRARY)
    return getattr(torch.ops.neptune_graph, own).default


def _flattened(t: torch.Tensor, merges: tuple[int, ...]) -> torch.Tensor:
    """A tensor as the kernel takes it: some dimensions as one, the last one dense."""
    for d in merges:
        t = t.flatten(d, d + 1)
    return dense(t)
