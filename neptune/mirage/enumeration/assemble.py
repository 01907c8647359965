"""Kernels that the enumeration found, written as a graph.

matmul(0, 1), sqr(0), acc_sum(3) …     →     kernel fused1  grid (i, j)  loop k  loads X, W  body …  saves Y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neptune.mirage.enumeration.enumerate import Solution
from neptune.mirage.enumeration.operators import Operator, Problem
from neptune.mirage.ir import GRID, SPLIT, WHOLE, Graph, Kernel, Load, Node, Save, Type
from neptune.mirage.types import graph_types, kernel_types

MAX_GRID = 3


def kernel(problem: Problem, solution: Solution, name: str, tensors: Mapping[str, Type]) -> Kernel:
    """A solution as a kernel with the largest grid that changes no form: every axis that all results have whole.

    `tensors` gives the types of the tensors that it loads. Of more than three such axes the last ones are left out.
    """
    values = [f"{x.name}_tile" for x in problem.loads]
    loads = tuple(Load(v, x.name) for v, x in zip(values, problem.loads, strict=True))
    body: list[Node] = []
    for n, (op, operands) in enumerate(solution.steps):
        values.append(f"{op.name}{n}")
        body.append(_node(op, values[-1], [values[m] for m in operands]))
    saves = tuple(Save(t.name, values[position]) for t, position in zip(problem.targets, solution.targets, strict=True))
    largest = Kernel(name, problem.splits, problem.loop, loads, tuple(body), saves)
    typed = kernel_types(replace(largest, saves=()), tensors)
    summed = {n.axis for n in body if n.axis}
    shared = [a for a in problem.axes if a not in summed and all(a in typed[s.value].type for s in saves)]
    return replace(largest, grid=(*shared[: MAX_GRID - len(problem.splits)], *problem.splits))


def narrow(graph: Graph) -> Graph:
    """The graph with no axis in a grid that a product of the kernel does not vary along.

    Programs along such an axis would all work out that product: right for a low-rank product beside a wide result,
    wrong for scores beside a depth of 64. Sizes decide, and whoever knows them; the search gives both.
    """
    types = graph_types(graph)

    def narrower(kernel: Kernel) -> Kernel:
        typed = kernel_types(kernel, types)
        products = [typed[n.name].type for n in kernel.nodes if n.op == "matmul"]
        folded = {n.axis for n in kernel.nodes if n.axis}
        return replace(kernel, grid=tuple(a for a in kernel.grid if a in folded or all(a in t for t in products)))

    return graph.with_kernels(narrower)


def library(graph: Graph) -> Graph:
    """The graph with a library operator for each kernel that is a product of two tensors and nothing else.

    loop k: acc(matmul(X, W)), saved as P    →    P = matmul(X, W)
    """
    return graph.with_kernels(lambda k: _library(k) or k)


def _library(k: Kernel) -> Node | None:
    ops = [n.op for n in k.nodes]
    product = k.nodes[0]
    if ops not in (["matmul"], ["matmul", "acc"]) or len(k.loads) != 2 or len(k.saves) != 1:
        return None
    if product.axis in k.grid or (ops[1:] and k.loop != product.axis):
        return None
    tensors = {x.name: x.tensor for x in k.loads}
    return Node(k.saves[0].name, "matmul", tuple(tensors[o] for o in product.operands), axis=product.axis)


def _node(op: Operator, name: str, operands: Sequence[str]) -> Node:
    parts = SPLIT if op.split else WHOLE
    if op.name == "opaque":
        return Node(name, op.name, tuple(operands), constant=op.label[2], function=op.label[0])
    return Node(name, op.name, tuple(operands), axis=op.axis, parts=parts, constant=op.label)


def checked(graph: Graph) -> Graph:
    """The graph, its types looked at: an ExpressionError here is a defect of the search."""
    graph_types(graph)
    return graph


def key(graph: Graph) -> str:
    """One text for graphs that are the same but for names."""
    names: dict[str, str] = {t.name: t.name for t in graph.inputs}
    lines: list[str] = []

    def node(n: Node) -> str:
        names[n.name] = f"%{len(names)}"
        constant = "" if n.constant is None else repr(n.constant)
        reads = " ".join(names[o] for o in n.operands)
        return f"{n.op} {reads} {n.axis} {'grid' if GRID in n.parts else ''} {constant} {n.dtype} {n.function}"

    for step in graph.steps:
        if isinstance(step, Node):
            lines.append(node(step))
            continue
        lines.append(f"kernel {' '.join(step.grid)} / {step.loop}")
        for x in step.loads:
            lines.append(f"load {names[x.tensor]} {' '.join(x.whole)}")
            names[x.name] = f"%{len(names)}"
        lines += [node(n) for n in step.nodes]
        for s in step.saves:
            lines.append(f"save {names[s.value]}")
            names[s.name] = f"%{len(names)}"
    lines += [f"output {names[o.value]}" for o in graph.outputs]
    return "\n".join(lines)
