"""Graphs under other names: in the words of an expression, behind a prefix, or by the places of a program's buffers.

    X[a, b] of axes a = 16, b = n     ──aligned──▶   X[i, k] of axes i = m, k = n     where the expression reads X[i, k]
    in x, in w, out y    ──placed──▶   in in0, in in1, out out0    ──named──▶   in a, in b, out c

Inputs of a graph and of an expression correspond by their buffers, axes by the dimensions of inputs; outputs by name
where both sides have the same names, otherwise wherever values agree (`orders`). Two programs of one structure differ
in the names of their buffers alone (`neptune.records.structure`): a graph of one, by places, is one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, permutations
from typing import TypeAlias

from neptune.errors import Unsupported
from neptune.ir.expr import Expr, Var, substitute, variables
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.mirage.ir import Graph, Kernel, Load, Node, Output, Save, Step, Tensor, Thread, nodes, writes

ORDERS = 24
"""The most orders of outputs that are tried."""
Rename: TypeAlias = Callable[[str], str]


def _same(name: str) -> str:
    return name


@dataclass(frozen=True)
class Renaming:
    """New names of axes, of tensors in device memory and of what is inside of kernels; `sizes` stand for symbols."""

    axis: Rename = _same
    tensor: Rename = _same
    value: Rename = _same
    sizes: Mapping[str, Expr] | None = None

    def step(self, step: Step) -> Step:
        """A step of a graph under the new names."""
        if isinstance(step, Node):
            return self._node(step, self.tensor)
        node = partial(self._node, name=self.value)
        return Kernel(
            self.value(step.name),
            tuple(map(self.axis, step.grid)),
            step.loop and self.axis(step.loop),
            tuple(Load(self.value(x.name), self.tensor(x.tensor), tuple(map(self.axis, x.whole))) for x in step.loads),
            tuple(Thread(tuple(map(node, x.body))) if isinstance(x, Thread) else node(x) for x in step.body),
            tuple(Save(self.tensor(x.name), self.value(x.value)) for x in step.saves),
        )

    def _node(self, node: Node, name: Rename) -> Node:
        constant = node.constant
        return replace(
            node,
            name=name(node.name),
            operands=tuple(map(name, node.operands)),
            axis=self.axis(node.axis),
            constant=constant if constant is None or self.sizes is None else substitute(constant, self.sizes),
        )


# --- the words of an expression ------------------------------------------------------------------------


def aligned(graph: Graph, expression: Graph) -> Graph | Unsupported:
    """The graph with the expression's names of axes and sizes; an Unsupported where its inputs are others."""
    labels = _labels(graph, expression)
    if isinstance(labels, Unsupported):
        return labels
    sizes = _sizes(graph, expression, labels)
    if isinstance(sizes, Unsupported):
        return sizes
    renaming = Renaming(axis=lambda a: labels.get(a, a), sizes=sizes)
    renamed = replace(
        graph,
        axes={labels[a]: expression.axes.get(labels[a], substitute(e, sizes)) for a, e in graph.axes.items()},
        inputs=tuple(replace(t, axes=tuple(map(renaming.axis, t.axes))) for t in graph.inputs),
        steps=tuple(map(renaming.step, graph.steps)),
        outputs=tuple(replace(o, axes=tuple(map(renaming.axis, o.axes))) for o in graph.outputs),
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
    names, wanted_names = [o.name for o in graph.outputs], [o.name for o in expression.outputs]
    if len(names) != len(wanted_names):
        return Unsupported(f"it has {len(names)} outputs, and the expression {len(wanted_names)}")
    tried: Iterator[tuple[int, ...]] = permutations(range(len(names)))
    if sorted(names) == sorted(wanted_names):
        tried = iter([tuple(names.index(n) for n in wanted_names)])
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
    uses: dict[str, list[Tensor]] = {}
    for t in expression.inputs:
        uses.setdefault(t.source, []).append(t)
    labels: dict[str, str] = {}
    for t in graph.inputs:
        others = uses.get(t.source, [])
        if not others:
            return Unsupported(f"it reads `{t.source}`, and the expression's inputs are {', '.join(uses)}")
        place = next((k for k, x in enumerate(others) if x.name == t.name), 0)
        other = others.pop(place) if len(others) > 1 else others[0]
        if len(other.axes) != len(t.axes):
            return Unsupported(f"its `{t.source}` has {len(t.axes)} dimensions, and the expression's {len(other.axes)}")
        if t.dtype != other.dtype:
            return Unsupported(f"its `{t.source}` is {t.dtype}, and the expression's {other.dtype}")
        for a, b in zip(t.axes, other.axes, strict=True):
            if labels.setdefault(a, b) != b:
                return Unsupported(f"its axis `{a}` is both axis `{labels[a]}` and axis `{b}` of the expression")
    return {a: a for a in graph.axes} | labels


def _sizes(graph: Graph, expression: Graph, labels: Mapping[str, str]) -> dict[str, Expr] | Unsupported:
    """What the symbolic sizes of the graph are in the expression's words."""
    sizes: dict[str, Expr] = {}
    for a, e in graph.axes.items():
        wanted = expression.axes.get(labels[a], e)
        if isinstance(e, Var):
            if sizes.setdefault(e.name, wanted) != wanted:
                return Unsupported(f"its size `{e.name}` is both {print_expr(sizes[e.name])} and {print_expr(wanted)}")
        elif substitute(e, sizes) != wanted:
            return Unsupported(f"its axis `{a}` is {print_expr(e)} long, and the expression's {print_expr(wanted)}")
    return sizes


# --- other names of buffers ----------------------------------------------------------------------------


def of_other(graph: Graph, first: Program, other: Program) -> Graph:
    """The graph of a program for another one of its structure."""
    return named(placed(graph, first), other)


def placed(graph: Graph, program: Program) -> Graph:
    """A graph of a program with its buffers named by their places: in0, in1, … and out0, …"""
    return _with_buffers(graph, {name: place for place, name in _places(program).items()})


def named(graph: Graph, program: Program) -> Graph:
    """A graph with places of buffers for names (`placed`), for this program. Other names stay as they are."""
    return _with_buffers(graph, _places(program))


def prefixed(graph: Graph, prefix: str) -> Graph:
    """The graph with a prefix in front of every name that is not an input's or a result's."""
    return _renamed(graph, {}, prefix)


def _places(program: Program) -> dict[str, str]:
    inputs = {f"in{k}": b.name for k, b in enumerate(program.inputs)}
    return inputs | {f"out{k}": b.name for k, b in enumerate(program.outputs)}


def _with_buffers(graph: Graph, outer: Mapping[str, str]) -> Graph:
    """The graph with other names of buffers, and with a prefix for its own where one of them is such a name."""
    own = {t.name for t in graph.inputs if t.buffer} | {name for s in graph.steps for name in writes(s)}
    own -= {t.source for t in graph.inputs} | {o.name for o in graph.outputs}
    return _renamed(graph, outer, "g_" if own & {*outer.values()} else "")


def _renamed(graph: Graph, names: Mapping[str, str], prefix: str) -> Graph:
    """The graph with other names of buffers (of those in `names`), and a prefix in front of all others."""
    buffers = {t.source for t in graph.inputs} | {o.name for o in graph.outputs}
    outer = {b: names.get(b, b) for b in buffers}
    tensors = {t.name: prefix + t.name if t.buffer else outer[t.source] for t in graph.inputs}

    def tensor(name: str) -> str:
        return tensors.get(name) or outer.get(name) or prefix + name

    renaming = Renaming(tensor=tensor, value=lambda name: prefix + name)
    inputs = (Tensor(tensors[t.name], t.axes, t.dtype, outer[t.buffer] if t.buffer else "") for t in graph.inputs)
    outputs = (Output(outer[o.name], o.axes, o.dtype, tensor(o.value)) for o in graph.outputs)
    return replace(graph, inputs=tuple(inputs), steps=tuple(map(renaming.step, graph.steps)), outputs=tuple(outputs))
