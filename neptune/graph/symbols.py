"""Symbolic sizes of a graph: their nodes, and which of them become numbers before it is imported.

Nodes are those that there are, or new ones made of them. Depths of batched products become numbers.

A kernel serves all lengths, but keeps a whole head in a tile: its depth is a number, as in `neptune.ops.attention`.
What torch traced as a symbol becomes one by a guard of torch's own, so that another depth traces anew and another
length does not.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from neptune.errors import Unsupported, answered
from neptune.graph.aten import aten
from neptune.graph.aten_attention import ATTENTION, options
from neptune.graph.sizes import Size, hint, size_of


def from_arguments(graph: Graph) -> None:
    """Compute every size from the graph's arguments: torch asks tensors on the way for some, which would keep these."""
    first = next((n for n in graph.nodes if n.op not in ("placeholder", "get_attr")), None)
    if first is None:
        return
    sizes = SizeNodes(graph, first)
    gone = []
    for n in list(graph.nodes):
        if n.op == "call_function" and isinstance(n.meta.get("val"), torch.SymInt) and n not in sizes.made:
            size = answered(sizes.node, n.meta["val"])
            if not isinstance(size, Unsupported):
                n.replace_all_uses_with(size)
                gone.append(n)
    # Not before all are made: new ones are put in front of the first, which may be one of these.
    for n in reversed(gone):
        graph.erase_node(n)


class SizeNodes:
    """The sizes in front of `before`, as arguments of nodes."""

    def __init__(self, graph: Graph, before: Node) -> None:
        self._graph, self.before = graph, before
        self._known: dict[Any, Any] = {}
        self.made: set[Node] = set()
        self._tensors: list[Node] = []
        for n in graph.nodes:
            if n is before:
                break
            val = n.meta.get("val")
            if isinstance(val, torch.SymInt):
                self._known.setdefault(size_of(val), n)
            elif isinstance(val, torch.Tensor) and n.op == "placeholder":
                self._tensors.append(n)

    def node(self, d: Any) -> Any:
        """A dimension of a fake tensor as an argument: a number, or a node."""
        return self.node_of(size_of(d))

    def node_of(self, e: Size) -> Any:
        """A size as an argument."""
        if isinstance(e, int) or e.is_Integer:
            return int(e)
        if e not in self._known:
            self._known[e] = self._made(e)
        return self._known[e]

    def _made(self, e: sympy.Expr) -> Any:
        for t in self._tensors:
            for k, d in enumerate(t.meta["val"].shape):
                if size_of(d) == e:
                    return self._call(torch.ops.aten.sym_size.int, (t, k), d)
        words = {sympy.Add: operator.add, sympy.Mul: operator.mul}
        if e.func in words:
            word = words[e.func]
            parts = [self.node_of(a) for a in e.args]
            return reduce(lambda a, b: self._call(word, (a, b), word(_val(a), _val(b))), parts)
        if e.is_Pow and e.args[1].is_Integer and 0 < int(e.args[1]) < 5:
            base = self.node_of(e.args[0])
            return reduce(lambda a, b: self._call(operator.mul, (a, b), _val(a) * _val(b)), [base] * int(e.args[1]))
        if type(e).__name__ == "FloorDiv":
            a, b = (self.node_of(x) for x in e.args)
            return self._call(operator.floordiv, (a, b), _val(a) // _val(b))
        raise Unsupported(f"the size {e}")

    def _call(self, word: Any, args: tuple[Any, ...], val: Any) -> Node:
        with self._graph.inserting_before(self.before):
            node = self._graph.call_function(word, args)
        node.meta["val"] = val
        self.made.add(node)
        return node


def _val(x: Any) -> Any:
    return x.meta["val"] if isinstance(x, Node) else x


# --- sizes that become numbers ----------------------------------------------------------------------

DEEPEST = 512
"""A longer depth is a length."""


def specialise(nodes: Iterable[Node]) -> None:
    """Guard the depths of batched products: what each sums over, and where it follows a softmax, its columns."""
    nodes = list(nodes)
    _fix_divided(nodes)
    for node in nodes:
        if node.target is aten.bmm.default:
            a, b = (x.meta["val"].shape for x in node.args)  # type: ignore[union-attr]
            first = not _normalised(node.args[0])
            _fix(a[-1] if first else b[-1])
        elif node.target in ATTENTION:
            o = options(node)
            _fix(o["query"].meta["val"].shape[-1])
            _fix(o["value"].meta["val"].shape[-1])


def _fix_divided(nodes: Iterable[Node]) -> None:
    """Guard the symbols of sizes that are quotients, as the size of a group of heads is: their form does not tell what
    divides what."""
    known: dict[object, torch.SymInt] = {}
    for node in nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt) and node.op == "placeholder":
            known[size_of(val)] = val
        for n in val.shape if isinstance(val, torch.Tensor) else ():
            e = size_of(n)
            quotients = set() if isinstance(e, int) else set(e.atoms(sympy.Function))
            for symbol in {s for q in quotients for s in q.free_symbols} & known.keys():
                _fix(known[symbol])


def _fix(n: int | torch.SymInt) -> None:
    if isinstance(n, torch.SymInt) and hint(n) <= DEEPEST:
        # The comparison with a number is what leaves the guard.
        int(n)


def _normalised(node: object) -> bool:
    """True for the quotient of a softmax, through casts and views."""
    while isinstance(node, Node) and node.target is not aten.div.Tensor:
        if len(node.all_input_nodes) == 0 or node.target is aten.bmm.default:
            return False
        node = node.all_input_nodes[0]
    return isinstance(node, Node)
