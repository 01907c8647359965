"""Groups of nodes that one Program may take: connected chains of reductions, with what is computed in between.

    q @ k.mT → scale → mask → amax → exp → sum → div → @ v      one region of four anchors
    pow → mean → rsqrt → mul → @ w                              one of two

Anchors are reductions and products of matrices. Two are linked where nothing but maps and views lies between them and
the later one folds an axis that the earlier folds or makes. What lies between the anchors of a region is part of it; in
front of it are taken constants, indices and views, which cost nothing to compute again, and maps that nobody else
reads; behind it maps that alone read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import getitem

import torch
from torch.fx import Graph, Node

from neptune.graph.aten import ROWS, aten, prims
from neptune.graph.aten_attention import ATTENTION
from neptune.graph.axes import BATCHED, PRODUCTS, REDUCTIONS, Axes
from neptune.graph.importer import VIEWS, tensor_of
from neptune.graph.imports import NAMES
from neptune.ir.names import usable

ROOTS = frozenset((prims.iota.default, aten.full.default, aten.scalar_tensor.default))
"""What is made of nothing."""
ANCHORS = PRODUCTS | REDUCTIONS | ATTENTION
MOST = 96
"""Nodes of a region: a longer chain is no kernel."""


@dataclass(frozen=True)
class Region:
    """`nodes` in the order of the graph, `anchors` among them, `outputs` those that others read."""

    nodes: tuple[Node, ...]
    anchors: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def name(self) -> str:
        """What it is called: after its anchors."""
        words = (re.sub(r"_\d+$", "", a.name) for a in self.anchors)
        return usable("_".join(dict.fromkeys(w.strip("_") for w in words))[:48])


def is_size(node: Node) -> bool:
    """True for a node that is a number of torch's shapes."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)


def known(node: Node) -> str | None:
    """None where a node can be imported, as far as its operator and dtype tell; else why it cannot."""
    if node.op != "call_function":
        return "an argument"
    if is_size(node):
        return "arithmetic of sizes"
    made_by = node.args[0] if node.target is getitem else node
    if not isinstance(made_by, Node) or made_by.target not in ROWS:
        target = made_by.target if isinstance(made_by, Node) else node.target
        return f"the operator {target} is not in neptune.graph.aten"
    if node.target in ATTENTION and any(u.target is not getitem or u.args[1] != 0 for u in node.users):
        return "more than its first result is read"
    val = node.meta.get("val")
    values = val if isinstance(val, tuple | list) else [val]
    for t in values:
        if isinstance(t, torch.Tensor) and t.dtype not in NAMES:
            return f"the dtype {str(t.dtype).removeprefix('torch.')}"
    return None


def proposed(graph: Graph, refused: Mapping[Node, str]) -> tuple[tuple[Region, ...], dict[Node, str]]:
    """The regions of a graph, none of which share an output, and why other nodes are in none: `refused`, because they
    cannot be imported, or for what is told from the graph alone."""
    reasons = {n: why for n in graph.nodes if n.op == "call_function" and (why := known(n)) is not None} | dict(refused)
    reasons |= {n: reasons[f] for n in graph.nodes if n.target is getitem and (f := n.args[0]) in reasons}
    taken: set[Node] = set()
    regions: list[Region] = []
    order = {n: k for k, n in enumerate(graph.nodes)}
    for anchors in _chains(graph, reasons):
        region = _grown(sorted(anchors, key=order.__getitem__), order, reasons, taken)
        if isinstance(region, str):
            reasons.update(dict.fromkeys(anchors, region))
            continue
        regions.append(region)
        taken.update(region.nodes)
    for n in graph.nodes:
        if n.op == "call_function" and n not in taken and n not in reasons:
            reasons[n] = "no chain of reductions: " + (
                "a product by itself" if n.target in PRODUCTS else "a map, a view or sizes"
            )
    return tuple(regions), reasons


# --- anchors --------------------------------------------------------------------------------------


def _chains(graph: Graph, reasons: Mapping[Node, str]) -> list[set[Node]]:
    """Sets of linked anchors, in the order of the graph, but for products by themselves."""
    axes = Axes(graph)
    anchors = [n for n in graph.nodes if n.target in ANCHORS and n not in reasons]
    links = [(a, b) for a in anchors for b in _next(a, reasons)]
    chain_of = {a: {a} for a in anchors}
    heads: list[tuple[Node, Node]] = []
    for a, b in links:
        if axes.folds(a) & axes.folds(b) or (a.target in BATCHED and axes.of(a) & axes.folds(b)):
            _unite(chain_of, a, b)
        elif a.target in PRODUCTS and b.target in REDUCTIONS and axes.of(a) & axes.folds(b):
            heads.append((a, b))
    # The output of a linear in front of a softmax or a loss; in front of a norm it stays what it is.
    for a, b in heads:
        alone = not any(x.target in PRODUCTS for x in chain_of[b]) and all(x.target in PRODUCTS for x in chain_of[a])
        if alone and len(chain_of[a]) == 1:
            _unite(chain_of, a, b)
    by_id = {id(c): c for c in chain_of.values()}
    return [c for c in by_id.values() if len(c) > 1 or not c & {x for x in c if x.target in PRODUCTS}]


def _unite(chain_of: dict[Node, set[Node]], a: Node, b: Node) -> None:
    both = chain_of[a] | chain_of[b]
    for x in both:
        chain_of[x] = both


def _next(anchor: Node, reasons: Mapping[Node, str]) -> list[Node]:
    """The anchors that are reached through maps and views alone."""
    following: dict[Node, None] = {}
    seen: set[Node] = set()
    todo = list(anchor.users)
    while todo:
        n = todo.pop()
        if n in seen or n in reasons or n.op != "call_function":
            continue
        seen.add(n)
        if n.target in ANCHORS:
            following[n] = None
        else:
            todo += n.users
    return list(following)


# --- what else is part of it ------------------------------------------------------------------------


def _grown(
    anchors: list[Node], order: Mapping[Node, int], reasons: Mapping[Node, str], taken: set[Node]
) -> Region | str:
    last = max(order[a] for a in anchors)
    below, above = _closure(anchors, False, order, last), _closure(anchors, True, order, order[anchors[0]])
    inside = set(anchors) | (below & above)
    if len(inside) > MOST:
        return f"a chain of {len(inside)} nodes"
    inside = {n for n in inside if not is_size(n)}
    for n in inside:
        if n in reasons or n.op != "call_function":
            return f"`{n.name}` lies between its parts: {reasons.get(n, 'no operator')}"
        if n in taken:
            return f"`{n.name}` is part of another kernel"
    inside |= {u for n in inside for u in n.users if u.target is getitem}
    own = set(inside)
    _take_front(own, order, reasons, taken)
    _take_back(own, inside, order, reasons, taken)
    nodes = tuple(sorted(own, key=order.__getitem__))
    core = {n for n in own if n in inside or all(u in own for u in n.users) or not _copied(n)}
    outputs = tuple(n for n in nodes if n in core and any(u not in own for u in n.users))
    if any(tensor_of(n) is None for n in outputs):
        return "a result that is several tensors"
    kept = tuple(n for n in nodes if n in core or any(u in own for u in n.users))
    return Region(kept, tuple(anchors), outputs)


def _closure(starts: Iterable[Node], up: bool, order: Mapping[Node, int], limit: int) -> set[Node]:
    """What depends on `starts`, or what they depend on, as far as `limit` in the order of the graph."""
    seen: set[Node] = set()
    todo = list(starts)
    while todo:
        n = todo.pop()
        for x in n.all_input_nodes if up else n.users:
            if x not in seen and (order[x] >= limit if up else order[x] <= limit):
                seen.add(x)
                todo.append(x)
    return seen


def _copied(n: Node) -> bool:
    """True for what may be computed again: views, constants, indices."""
    return n.target in VIEWS or n.target in ROOTS or _indices(n)


def _indices(n: Node) -> bool:
    """True for a map of indices and constants alone."""
    if n.target in ROOTS:
        return True
    tensors = [a for a in n.all_input_nodes if tensor_of(a) is not None]
    known_map = n.op == "call_function" and n.target in ROWS and n.target not in ANCHORS
    return known_map and bool(tensors) and all(map(_indices, tensors))


def _take_front(own: set[Node], order: Mapping[Node, int], reasons: Mapping[Node, str], taken: set[Node]) -> None:
    todo = sorted({a for n in own for a in n.all_input_nodes} - own, key=order.__getitem__)
    while todo:
        n = todo.pop()
        if n in own or n.op != "call_function" or n in reasons or tensor_of(n) is None or n in taken:
            continue
        if n.target is getitem and n.args[0] not in own:
            continue
        tensors = [a for a in n.all_input_nodes if tensor_of(a) is not None]
        single = len(tensors) <= 1 and n.target not in ANCHORS and all(u in own for u in n.users)
        if _copied(n) or single:
            own.add(n)
            todo += n.all_input_nodes
            todo.sort(key=order.__getitem__)


def _take_back(
    own: set[Node], inside: set[Node], order: Mapping[Node, int], reasons: Mapping[Node, str], taken: set[Node]
) -> None:
    ends = sorted((n for n in inside if any(u not in own for u in n.users)), key=order.__getitem__)
    while ends:
        n = ends.pop()
        readers = [u for u in n.users if u not in own]
        if len(readers) != 1:
            continue
        u = readers[0]
        tensors = [a for a in u.all_input_nodes if tensor_of(a) is not None]
        if u.op != "call_function" or u in reasons or u in taken or u.target in ANCHORS:
            continue
        if tensor_of(u) is None or u.target is aten.expand.default:
            continue
        if any(a not in own and _depends(a, own, order) for a in tensors):
            continue
        if any(x not in own for x in n.users if x is not u):
            continue
        own.add(u)
        inside.add(u)
        ends.append(u)


def _depends(node: Node, own: set[Node], order: Mapping[Node, int]) -> bool:
    first = min(order[n] for n in own)
    return bool(_closure([node], True, order, first) & own)
