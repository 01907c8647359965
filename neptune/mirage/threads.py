"""Thread graphs: chains of maps whose values stay in registers, made by rule.

    e = exp(s); d = add(e, b); y = mul(d, c)  →  thread y: e = exp(s); d = add(e, b); y = mul(d, c)

A map joins the only operator that reads it, where that is a map over the same tile in the same phase of the loop: each
thread then has its elements of both. Nothing is searched; what a fold or an accumulator reads, several read, or a
kernel saves, stays a tile that others see.

Source: Wu et al., "Mirage", §4.2 (thread graphs by rule-based fusion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.mirage.ir import Graph, Kernel, Node, Thread, Type
from neptune.mirage.ops import OPS
from neptune.mirage.types import Typed, graph_types, kernel_types


def with_threads(graph: Graph) -> Graph:
    """The graph with the chains of maps of its kernels as thread graphs."""
    tensors = graph_types(graph)
    return graph.with_kernels(lambda k: fused(k, tensors))


def without_threads(graph: Graph) -> Graph:
    """The graph with all operators of its kernels on one level."""
    return graph.with_kernels(lambda k: replace(k, body=k.nodes))


def fused(kernel: Kernel, tensors: Mapping[str, Type]) -> Kernel:
    """The kernel with its chains of maps as thread graphs; `tensors` are the types of tensors in device memory."""
    typed = kernel_types(kernel, tensors)
    readers: dict[str, list[Node]] = {}
    for n in kernel.nodes:
        for o in dict.fromkeys(n.operands):
            readers.setdefault(o, []).append(n)
    kept = {s.value for s in kernel.saves}
    # The result of the thread graph that each map is in: from the last one back, a map joins its reader's.
    result: dict[str, str] = {}
    for n in reversed(kernel.nodes):
        reading = readers.get(n.name, [])
        joins = len(reading) == 1 and n.name not in kept and _together(n, reading[0], typed)
        result[n.name] = result[reading[0].name] if joins else n.name
    members: dict[str, list[Node]] = {}
    for n in kernel.nodes:
        members.setdefault(result[n.name], []).append(n)
    ends = [n for n in kernel.nodes if result[n.name] == n.name]
    return replace(kernel, body=tuple(Thread(tuple(m)) if len(m := members[n.name]) > 1 else n for n in ends))


def _together(n: Node, reader: Node, typed: Mapping[str, Typed]) -> bool:
    """True where both are maps of elements that one thread has, in the loop or both behind it."""
    maps = OPS[n.op].kind == OPS[reader.op].kind == "map"
    a, b = typed[n.name], typed[reader.name]
    return maps and dict(a.type) == dict(b.type) and a.behind == b.behind
