"""A graph in the words of an expression: its axes, sizes and outputs called as the expression's graph calls them.

    X[a, b] of axes a = 16, b = n     →     X[i, k] of axes i = m, k = n        where the expression reads X[i, k]

Inputs correspond by their buffers, axes by the dimensions of inputs. Outputs correspond by name where both sides have
the same names, and otherwise wherever values agree (`orders`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations

from neptune.errors import Unsupported
from neptune.ir.expr import Expr, Var, substitute, variables
from neptune.ir.printer import print_expr
from neptune.mirage.ir import Graph, Node, Output, Step, Tensor, Thread, nodes

ORDERS = 24
"""The most orders of outputs that are tried."""


def aligned(graph: Graph, expression: Graph) -> Graph | Unsupported:
    """The graph with the expression's names of axes and sizes; an Unsupported where its inputs are others."""
    labels = _labels(graph, expression)
    if isinstance(labels, Unsupported):
        return labels
    sizes = _sizes(graph, expression, labels)
    if isinstance(sizes, Unsupported):
        return sizes
    axes = {labels[a]: expression.axes.get(labels[a], substitute(e, sizes)) for a, e in graph.axes.items()}
    renamed = replace(
        graph,
        axes=axes,
        inputs=tuple(replace(t, axes=_each(labels, t.axes)) for t in graph.inputs),
        steps=tuple(_step(s, labels, sizes) for s in graph.steps),
        outputs=tuple(replace(o, axes=_each(labels, o.axes)) for o in graph.outputs),
        scalars=expression.scalars,
    )
    unknown = [a for a in renamed.axes if a not in expression.axes]
    if unknown:
        return Unsupported(f"axis `{unknown[0]}` is no dimension of an input, and no axis of the expression")
    numbers = {s.name for s in expression.scalars}.union(*map(variables, expression.axes.values()))
    for node in nodes(renamed):
        strange = set() if node.constant is None else variables(node.constant) - numbers
        if strange:
            return Unsupported(
                f"the number of its `{node.name}` has `{min(strange)}`, and the expression has no such scalar"
            )
    return renamed


def orders(graph: Graph, expression: Graph) -> list[tuple[int, ...]] | Unsupported:
    """Which output of the graph each of the expression's may be, in the order of the expression's."""
    mine, theirs = [o.name for o in graph.outputs], [o.name for o in expression.outputs]
    if len(mine) != len(theirs):
        return Unsupported(f"it has {len(mine)} outputs, and the expression {len(theirs)}")
    tried: Iterator[tuple[int, ...]] = permutations(range(len(mine)))
    if sorted(mine) == sorted(theirs):
        tried = iter([tuple(mine.index(n) for n in theirs)])
    shapes, wanted = [_shape(graph, o) for o in graph.outputs], [_shape(expression, o) for o in expression.outputs]
    fitting = list(islice((order for order in tried if [shapes[k] for k in order] == wanted), ORDERS))
    return fitting or Unsupported("its outputs have other shapes than the expression's")


def _shape(graph: Graph, output: Output) -> list[Expr]:
    return [graph.axes[a] for a in output.axes]


def ordered(graph: Graph, expression: Graph, order: Sequence[int]) -> Graph:
    """The graph with its outputs in an order of the expression's, under their names and in their dtypes."""
    pairs = zip(order, expression.outputs, strict=True)
    return replace(graph, outputs=tuple(replace(graph.outputs[k], name=o.name, dtype=o.dtype) for k, o in pairs))


def _labels(graph: Graph, expression: Graph) -> dict[str, str] | Unsupported:
    """The expression's names of the graph's axes, by the dimensions of inputs."""
    theirs: dict[str, list[Tensor]] = {}
    for t in expression.inputs:
        theirs.setdefault(t.source, []).append(t)
    found: dict[str, str] = {}
    for t in graph.inputs:
        mine = theirs.get(t.source, [])
        if not mine:
            known = ", ".join(theirs)
            return Unsupported(f"it reads `{t.source}`, and the expression's inputs are {known}")
        at = next((k for k, x in enumerate(mine) if x.name == t.name), 0)
        other = mine.pop(at) if len(mine) > 1 else mine[0]
        if len(other.axes) != len(t.axes):
            return Unsupported(f"its `{t.source}` has {len(t.axes)} dimensions, and the expression's {len(other.axes)}")
        if t.dtype != other.dtype:
            return Unsupported(f"its `{t.source}` is {t.dtype}, and the expression's {other.dtype}")
        for a, b in zip(t.axes, other.axes, strict=True):
            if found.setdefault(a, b) != b:
                return Unsupported(f"its axis `{a}` is both axis `{found[a]}` and axis `{b}` of the expression")
    for a in graph.axes:
        found.setdefault(a, a)
    return found


def _sizes(graph: Graph, expression: Graph, labels: Mapping[str, str]) -> dict[str, Expr] | Unsupported:
    """What the symbolic sizes of the graph are in the expression's words."""
    found: dict[str, Expr] = {}
    for a, e in graph.axes.items():
        theirs = expression.axes.get(labels[a], e)
        if isinstance(e, Var):
            if found.setdefault(e.name, theirs) != theirs:
                return Unsupported(f"its size `{e.name}` is both {print_expr(found[e.name])} and {print_expr(theirs)}")
        elif substitute(e, found) != theirs:
            return Unsupported(f"its axis `{a}` is {print_expr(e)} long, and the expression's {print_expr(theirs)}")
    return found


def _each(labels: Mapping[str, str], axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(a, a) for a in axes)


def _step(step: Step, labels: Mapping[str, str], sizes: Mapping[str, Expr]) -> Step:
    if isinstance(step, Node):
        return _node(step, labels, sizes)
    return replace(
        step,
        grid=_each(labels, step.grid),
        loop=None if step.loop is None else labels.get(step.loop, step.loop),
        loads=tuple(replace(x, whole=_each(labels, x.whole)) for x in step.loads),
        body=tuple(
            Thread(tuple(_node(n, labels, sizes) for n in x.body)) if isinstance(x, Thread) else _node(x, labels, sizes)
            for x in step.body
        ),
    )


def _node(node: Node, labels: Mapping[str, str], sizes: Mapping[str, Expr]) -> Node:
    constant = None if node.constant is None else substitute(node.constant, sizes)
    return replace(node, axis=labels.get(node.axis, node.axis), constant=constant)
