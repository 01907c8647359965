"""Kernel-level nodes on arrays in float64: what a graph without kernels of its own means, written down once more."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neptune.ir.expr import OPS as EXPR_OPS
from neptune.ir.expr import Cast, Const, Expr, Op, Var
from neptune.mirage.ir import Graph, Node

Labelled = tuple[tuple[str, ...], np.ndarray]
"""The axes of an array, and the array."""

MAPS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "neg": np.negative,
    "exp": np.exp,
    "sqr": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "shift": np.add,
    "scale": np.multiply,
    "power": np.power,
    "cast": lambda x: x,
}


def number(e: Expr, sizes: Mapping[str, float]) -> float:
    match e:
        case Const(value, _):
            return float(value)
        case Var(name, _):
            return float(sizes[name])
        case Cast(arg, _):
            return number(arg, sizes)
        case Op(name, args, _):
            return float(EXPR_OPS[name].value(*(number(a, sizes) for a in args)))
    raise TypeError(e)


def run(graph: Graph, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, float]) -> dict[str, np.ndarray]:
    """The results of a graph of library operators by name; casts are the identity."""
    found: dict[str, Labelled] = {t.name: (t.axes, np.asarray(inputs[t.source], float)) for t in graph.inputs}
    for node in graph.steps:
        assert isinstance(node, Node)
        found[node.name] = _node(node, [found[o] for o in node.operands], sizes)
    return {o.name: _along(found[o.value], o.axes) for o in graph.outputs}


def _node(node: Node, operands: list[Labelled], sizes: Mapping[str, float]) -> Labelled:
    axes = tuple(dict.fromkeys(a for on, _ in operands for a in on))
    values = [_along(x, axes) for x in operands]
    values += [] if node.constant is None else [np.float64(number(node.constant, sizes))]
    at = axes.index(node.axis) if node.axis else 0
    left = tuple(a for a in axes if a != node.axis)
    match node.op:
        case "matmul":
            return left, (values[0] * values[1]).sum(at)
        case "sum":
            return left, values[0].sum(at)
        case "max":
            return left, values[0].max(at)
        case "opaque":
            fn = np.vectorize(EXPR_OPS[node.function].value, otypes=[float])
            return axes, fn(*values)
    return axes, MAPS[node.op](*values)


def _along(x: Labelled, axes: tuple[str, ...]) -> np.ndarray:
    """The array with these dimensions in order; of length 1 where it has none."""
    on, array = x
    array = array.transpose([on.index(a) for a in axes if a in on])
    return array.reshape([array.shape[[a for a in axes if a in on].index(a)] if a in on else 1 for a in axes])
