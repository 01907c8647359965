"""Which symbolic sizes of a graph become numbers before it is imported: depths of batched products.

A kernel serves all lengths, but keeps a whole head in a tile: its depth is a number, as in `neptune.ops.attention`.
What torch traced as a symbol becomes one by a guard of torch's own, so that another depth traces anew and another
length does not.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
import torch
from torch.fx import Node

from neptune.graph.aten import aten
from neptune.graph.aten_attention import ATTENTION, options
from neptune.graph.sizes import hint, size_of

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
