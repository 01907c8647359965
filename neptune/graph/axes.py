"""Which dimensions of a graph's tensors are one axis: found by union over its nodes, to propose regions.

    s = q @ k.mT; p = softmax(s, -1); o = p @ v      the last dimension of s, the axis of the softmax and the rows of v
                                                      are one axis

It is a guess that the importer need not share: where two axes are joined that are not the same, a region is proposed
that no template fuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from neptune.graph.aten import aten
from neptune.graph.aten_attention import ATTENTION
from neptune.graph.sizes import same, size_of

PRODUCTS = frozenset((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default))
BATCHED = frozenset((aten.bmm.default, aten.baddbmm.default))
REDUCTIONS = frozenset(
    (
        aten.amax.default, aten.amin.default, aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default,
        aten.var_mean.correction, aten.var.correction, aten.prod.dim_int, aten.prod.default,
        aten.argmax.default, aten.argmin.default, aten.topk.default, aten.max.dim, aten.min.dim, aten.gather.default,
        aten.max.default, aten.min.default, aten.any.default, aten.any.dim, aten.any.dims, aten.all.default,
        aten.all.dim, aten.all.dims,
    )
)  # fmt: skip


class Axes:
    """The axes of every tensor of a graph; `folds[node]` are those that a reduction or a product folds."""

    def __init__(self, graph: Graph) -> None:
        self._parent: list[int] = []
        self._of: dict[Node, list[int]] = {}
        self._folds: dict[Node, list[int]] = {}
        for node in graph.nodes:
            if isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
                self._of[node] = self._axes_of(node)

    def of(self, node: Node) -> set[int]:
        """The axes of a node's dimensions."""
        return {self._find(a) for a in self._of.get(node, ())}

    def folds(self, node: Node) -> set[int]:
        """The axes that a node folds."""
        return {self._find(a) for a in self._folds.get(node, ())}

    def _new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _find(self, a: int) -> int:
        while self._parent[a] != a:
            a = self._parent[a]
        return a

    def _join(self, a: int, b: int) -> None:
        self._parent[self._find(a)] = self._find(b)

    def _axes_of(self, node: Node) -> list[int]:
        val = node.meta["val"]
        args: Any = node.args
        if node.target is getitem and args[0].target in REDUCTIONS | ATTENTION:
            return self._of[args[0]]
        if node.target in PRODUCTS:
            return self._product(node)
        if node.target in ATTENTION:
            return self._of[args[0]]
        if node.target in REDUCTIONS:
            return self._reduction(node)
        if not isinstance(val, torch.Tensor):
            return []
        sources = [a for a in node.all_input_nodes if a in self._of and isinstance(a.meta["val"], torch.Tensor)]
        x = self._of[sources[0]] if sources else []
        match node.target:
            case aten.permute.default:
                return [x[d % len(x)] for d in args[1]]
            case aten.unsqueeze.default:
                d = args[1] % (len(x) + 1)
                return [*x[:d], self._new(), *x[d:]]
            case aten.view.default | aten.reshape.default:
                return list(self._viewed(sources[0], node))
            case aten.squeeze.dim | aten.squeeze.dims:
                dims = [args[1]] if isinstance(args[1], int) else args[1]
                gone = {d % len(x) for d in dims if x}
                return [a for k, a in enumerate(x) if k not in gone]
            case aten.select.int:
                d = args[1] % len(x)
                return [*x[:d], *x[d + 1 :]]
        return self._laid(val, sources)

    def _laid(self, val: torch.Tensor, sources: Sequence[Node]) -> list[int]:
        """Dimensions that are broadcast from the right."""
        out = [self._new() for _ in val.shape]
        for s in sources:
            shape = s.meta["val"].shape
            for k in range(1, min(len(shape), len(out)) + 1):
                if same(size_of(shape[-k]), size_of(val.shape[-k])) and size_of(shape[-k]) != 1:
                    self._join(self._of[s][-k], out[-k])
        return out

    def _viewed(self, source: Node, node: Node) -> Iterator[int]:
        old = [size_of(n) for n in source.meta["val"].shape]
        new = [size_of(n) for n in node.meta["val"].shape]
        x = self._of[source]
        front = 0
        while front < min(len(old), len(new)) and same(old[front], new[front]):
            front += 1
        back = 0
        while back < min(len(old), len(new)) - front and same(old[-1 - back], new[-1 - back]):
            back += 1
        yield from x[:front]
        yield from (self._new() for _ in range(len(new) - front - back))
        yield from x[len(x) - back :]

    def _product(self, node: Node) -> list[int]:
        operands: Any = node.args[-2:]
        a, b = (self._of[n] for n in operands)
        self._join(a[-1], b[-2])
        self._folds[node] = [a[-1]]
        if len(a) == 3:
            self._join(a[0], b[0])
        return [*a[:-1], b[-1]]

    def _reduction(self, node: Node) -> list[int]:
        args: Any = node.args
        x = self._of[args[0]]
        dims: Any = args[1] if len(args) > 1 else node.kwargs.get("dim")
        if node.target is aten.topk.default:
            dims = args[2] if len(args) > 2 else -1
        chosen = [dims] if isinstance(dims, int) else list(dims or range(len(x)))
        over = {d % len(x) for d in chosen} if x else set()
        self._folds[node] = [x[d] for d in over]
        kept = node.target in (aten.topk.default, aten.gather.default)
        keep = kept or (len(args) > 2 and args[2] is True) or node.kwargs.get("keepdim") is True
        return [self._new() if k in over else a for k, a in enumerate(x) if keep or k not in over]
