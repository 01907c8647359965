"""Names of graphs: of an equal program's buffers, behind a prefix, or by the places of a program's buffers.

    in x, in w, out y    ──placed──▶   in in0, in in1, out out0    ──named──▶   in a, in b, out c

Two programs of one structure differ in the names of their buffers alone (`neptune.records.structure`), so that a graph
of one, by places, is one of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.ir.program import Program
from neptune.mirage.ir import Graph, Kernel, Load, Node, Output, Save, Tensor, Thread


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
    own = {t.name for t in graph.inputs if t.buffer} | {s.name for s in graph.steps if isinstance(s, Node)}
    own |= {x.name for k in graph.kernels for x in k.saves}
    own -= {t.source for t in graph.inputs} | {o.name for o in graph.outputs}
    return _renamed(graph, outer, "g_" if own & {*outer.values()} else "")


def _renamed(graph: Graph, names: Mapping[str, str], prefix: str) -> Graph:
    """The graph with other names of buffers (of those in `names`), and a prefix in front of all others."""
    buffers = {t.source for t in graph.inputs} | {o.name for o in graph.outputs}
    outer = {b: names.get(b, b) for b in buffers}
    tensors = {t.name: prefix + t.name if t.buffer else outer[t.source] for t in graph.inputs}

    def tensor(name: str) -> str:
        return tensors.get(name) or outer.get(name) or prefix + name

    def node(n: Node) -> Node:
        return replace(n, name=prefix + n.name, operands=tuple(prefix + o for o in n.operands))

    def step(s: Node | Kernel) -> Node | Kernel:
        if isinstance(s, Node):
            return replace(s, name=tensor(s.name), operands=tuple(map(tensor, s.operands)))
        body = (Thread(tuple(map(node, x.body))) if isinstance(x, Thread) else node(x) for x in s.body)
        return Kernel(
            prefix + s.name,
            s.grid,
            s.loop,
            tuple(Load(prefix + x.name, tensor(x.tensor), x.whole) for x in s.loads),
            tuple(body),
            tuple(Save(tensor(x.name), prefix + x.value) for x in s.saves),
        )

    inputs = (Tensor(tensors[t.name], t.axes, t.dtype, outer[t.buffer] if t.buffer else "") for t in graph.inputs)
    outputs = (Output(outer[o.name], o.axes, o.dtype, tensor(o.value)) for o in graph.outputs)
    return replace(graph, inputs=tuple(inputs), steps=tuple(map(step, graph.steps)), outputs=tuple(outputs))
