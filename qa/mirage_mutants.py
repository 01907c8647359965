"""Mutants of a graph: one operator, operand, axis, map, part or constant changed, to try checks on.

    product = acc(xw) [k]   →   product = acc_max(xw) [k]      an operator
    y = div(product, root)  →   y = div(product, mean)         an operand
    grid (i, j) loop k      →   grid (i, j) loop i             a map

Most are no valid graphs, or another function; some are the same function, as x + x is 2·x or as another grid only cuts
the same sum elsewhere. `mutants` gives all that one change makes, in order, and then, drawn by a seed, some of two, of
which the first leaves a valid graph.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from neptune.ir.expr import Cast, Expr, Op, Var, as_expr, binary
from neptune.mirage.ir import GRID, LOOP, TILE, Graph, Kernel, Load, Node, Step, Thread, writes
from neptune.mirage.ops import OPS
from neptune.mirage.types import fault

KINDS = ("operator", "operand", "axis", "map", "part", "constant")
PARTS = tuple(frozenset(x) for n in (1, 2, 3) for x in combinations((GRID, LOOP, TILE), n))
NUMBERS = tuple(row.name for row in OPS.values() if row.kind == "map" and row.constant)
"""Maps with a number."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A graph that differs from another in what `change` says; `kind` is a word of KINDS, or two of them."""

    graph: Graph
    kind: str
    change: str


def mutants(graph: Graph, count: int | None = None, seed: int = 0) -> Iterator[Mutant]:
    """`count` different mutants: those of one change first, then of two; without a count those of one."""
    seen = {_key(graph)}
    singles = []
    for m in _changed(graph):
        if (key := _key(m.graph)) not in seen and (count is None or len(seen) <= count):
            seen.add(key)
            singles.append(m)
            yield m
    rng = random.Random(seed)
    after: dict[Hashable, list[Mutant]] = {}
    tries = 0
    singles = [m for m in singles if count is not None and fault(m.graph) is None]
    while count is not None and len(seen) <= count and singles and tries < 20 * count:
        tries += 1
        first = rng.choice(singles)
        at = _key(first.graph)
        if at not in after:
            after[at] = list(_changed(first.graph))
        second = rng.choice(after[at])
        if (key := _key(second.graph)) not in seen:
            seen.add(key)
            yield Mutant(second.graph, f"{first.kind}, {second.kind}", f"{first.change}; {second.change}")


def _key(graph: Graph) -> Hashable:
    return graph.inputs, graph.steps, graph.outputs


def _changed(graph: Graph) -> Iterator[Mutant]:
    yield from _of_interface(graph)
    known = [t.name for t in graph.inputs]
    for at, step in enumerate(graph.steps):
        if isinstance(step, Kernel):
            for kind, text, kernel in _of_kernel(graph, step, known):
                yield Mutant(_with(graph, at, kernel), kind, text)
            known += [s.name for s in step.saves]
        else:
            for kind, node in _of_node(graph, step, known):
                yield Mutant(_with(graph, at, node), kind, _text(step, node))
            known.append(step.name)


def _with(graph: Graph, at: int, step: Step) -> Graph:
    return graph.with_steps(*graph.steps[:at], step, *graph.steps[at + 1 :])


def _of_interface(graph: Graph) -> Iterator[Mutant]:
    """Inputs read and outputs written with their dimensions in another order, and another value as an output."""
    for at, t in enumerate(graph.inputs):
        for axes in permutations(t.axes):
            inputs = (*graph.inputs[:at], replace(t, axes=axes), *graph.inputs[at + 1 :])
            yield Mutant(replace(graph, inputs=inputs), "axis", f"{t.name}[{', '.join(axes)}]")
    values = [*(t.name for t in graph.inputs), *(n for s in graph.steps for n in writes(s))]
    for at, out in enumerate(graph.outputs):
        others = [replace(out, axes=axes) for axes in permutations(out.axes)]
        for new in [*others, *(replace(out, value=v) for v in values)]:
            outputs = (*graph.outputs[:at], new, *graph.outputs[at + 1 :])
            kind = "axis" if new.value == out.value else "operand"
            yield Mutant(replace(graph, outputs=outputs), kind, f"{new.name}[{', '.join(new.axes)}] = {new.value}")


def _of_kernel(graph: Graph, kernel: Kernel, tensors: Sequence[str]) -> Iterator[tuple[str, str, Kernel]]:
    for grid in _grids(graph, kernel):
        yield "map", f"grid ({', '.join(grid)})", replace(kernel, grid=grid)
    for loop in (*graph.axes, None):
        yield "map", f"loop {loop or 'none'}", replace(kernel, loop=loop)
    for at, load in enumerate(kernel.loads):
        for kind, new in _of_load(kernel, load, tensors):
            loads = (*kernel.loads[:at], new, *kernel.loads[at + 1 :])
            text = f"{new.name} = {new.tensor}{''.join(f' whole {a}' for a in new.whole)}"
            yield kind, text, replace(kernel, loads=loads)
    known = [x.name for x in kernel.loads]
    for node in kernel.nodes:
        for kind, new_node in _of_node(graph, node, known):
            yield kind, _text(node, new_node), replace(kernel, body=tuple(_put(x, node, new_node) for x in kernel.body))
        known.append(node.name)
    for at, save in enumerate(kernel.saves):
        for value in known:
            saves = (*kernel.saves[:at], replace(save, value=value), *kernel.saves[at + 1 :])
            yield "operand", f"{save.name} = {value}", replace(kernel, saves=saves)


def _grids(graph: Graph, kernel: Kernel) -> Iterator[tuple[str, ...]]:
    grid = kernel.grid
    yield from (tuple(a for a in grid if a != gone) for gone in grid)
    yield from ((*grid, a) for a in graph.axes if a not in grid and len(grid) < 3)
    yield from (tuple(b if a == gone else a for a in grid) for gone in grid for b in graph.axes if b not in grid)


def _of_load(kernel: Kernel, load: Load, tensors: Sequence[str]) -> Iterator[tuple[str, Load]]:
    for axis in (*kernel.grid, *([kernel.loop] if kernel.loop else [])):
        whole = tuple(a for a in load.whole if a != axis) if axis in load.whole else (*load.whole, axis)
        yield "map", replace(load, whole=whole)
    for tensor in tensors:
        yield "operand", replace(load, tensor=tensor)


def _put(x: Node | Thread, old: Node, new: Node) -> Node | Thread:
    if isinstance(x, Thread):
        return Thread(tuple(new if n is old else n for n in x.body))
    return new if x is old else x


def _of_node(graph: Graph, node: Node, known: Sequence[str]) -> Iterator[tuple[str, Node]]:
    row = OPS[node.op]
    if node.op in NUMBERS:
        yield from (("operator", replace(node, op=op)) for op in NUMBERS)
    else:
        alike = [r.name for r in OPS.values() if (r.kind, r.arity, r.constant) == (row.kind, row.arity, row.constant)]
        yield from (("operator", replace(node, op=op)) for op in alike if op not in ("cast", "opaque"))
    if row.kind == "map" and row.arity == 1:
        yield "operator", Node(node.name, "cast", node.operands, dtype="float32")
    if row.arity == 2 and row.kind == "map":
        yield "operand", replace(node, operands=node.operands[::-1])
    if node.op == "acc_rescaled":
        yield "operator", replace(node, op="acc", operands=node.operands[:1], constant=None)
    for at in range(len(node.operands)):
        for other in known:
            yield "operand", replace(node, operands=(*node.operands[:at], other, *node.operands[at + 1 :]))
    if row.kind != "map":
        yield from (("axis", replace(node, axis=a)) for a in graph.axes)
    if row.kind == "fold":
        yield from (("part", replace(node, parts=p)) for p in PARTS)
    if node.constant is not None:
        yield from (("constant", replace(node, constant=c)) for c in _constants(graph, node.constant))


def _constants(graph: Graph, e: Expr) -> Iterator[Expr]:
    """Numbers near one: its double, its opposite, one more; another size in it."""
    yield binary("mul", e, as_expr(2, e.dtype))
    yield binary("mul", e, as_expr(-1, e.dtype))
    yield binary("add", e, as_expr(1, e.dtype))
    yield as_expr(1, e.dtype)
    for size in graph.axes.values():
        if isinstance(size, Var):
            yield _resized(e, size)


def _resized(e: Expr, size: Var) -> Expr:
    """The expression with one size in the place of every other one."""
    match e:
        case Var(_, dtype) if dtype == size.dtype:
            return size
        case Cast() | Op():
            made: Expr = e.with_parts(tuple(_resized(p, size) for p in e.parts))
            return made
        case _:
            return e


def _text(old: Node, new: Node) -> str:
    def shown(n: Node) -> str:
        parts = "" if n.parts == frozenset({TILE}) else f" of {' and '.join(sorted(n.parts))}"
        return f"{n.op}({', '.join(n.operands)}){f' [{n.axis}]' if n.axis else ''}{parts}"

    changed = f"{new.name} = {shown(new)}, not {shown(old)}"
    return changed if new.constant == old.constant else f"{new.name}: another constant"
