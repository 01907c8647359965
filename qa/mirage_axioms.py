"""The axioms that graphs are rewritten by, and the nearest statements that are false, as pairs of graphs.

`IDENTITIES` are the rules of Wu et al., "Mirage" (OSDI 2025), table 2, on labelled axes, with the conditions that make
them theorems; `FALSE` are the same without a condition, or one step beside: a verifier that accepts one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from neptune.ir.expr import Const, Expr, Var
from neptune.mirage.ir import Graph, Node, Output, Tensor

INPUTS = {"x": ("i", "k"), "y": ("i", "k"), "z": ("i",), "w": ("k",), "v": ("j", "k")}
AXES = {"i": Var("m"), "j": Var("n"), "k": Var("n")}
"""The axes j and k are equally long."""


@dataclass(frozen=True)
class V:
    """A value of a graph that is being written: its nodes, the last one its own."""

    name: str
    axes: frozenset[str]
    nodes: tuple[Node, ...] = ()

    def __add__(self, other: V) -> V:
        return _node("add", self, other)

    def __sub__(self, other: V) -> V:
        return _node("sub", self, other)

    def __mul__(self, other: V) -> V:
        return _node("mul", self, other)

    def __truediv__(self, other: V) -> V:
        return _node("div", self, other)


def _node(op: str, *operands: V, axis: str = "", constant: Expr | None = None) -> V:
    before = tuple(dict.fromkeys(n for v in operands for n in v.nodes))
    axes = frozenset[str]().union(*(v.axes for v in operands)) - {axis}
    text = f"{op}({', '.join(v.name for v in operands)}){axis}{constant}"
    node = Node(text, op, tuple(v.name for v in operands), axis=axis, constant=constant)
    return V(text, axes, before if node in before else (*before, node))


def f(op: str) -> Callable[..., V]:
    """A function by the name of its operator."""
    return lambda *args: _node(op, *args)


def total(axis: str, x: V) -> V:
    return _node("sum", x, axis=axis)


def top(axis: str, x: V) -> V:
    return _node("max", x, axis=axis)


def times(c: float, x: V) -> V:
    return _node("scale", x, constant=Const(c, "float32"))


exp, sqrt, sqr, rsqrt, silu, sigmoid = (f(op) for op in ("exp", "sqrt", "sqr", "rsqrt", "silu", "sigmoid"))
X, Y, Z, W, VJ = (V(name, frozenset(axes)) for name, axes in INPUTS.items())
Pair: TypeAlias = tuple[V, V]
IDENTITIES: dict[str, Pair] = {
    "x + y = y + x": (X + Y, Y + X),
    "(x + y) + z = x + (y + z)": ((X + Y) + Z, X + (Y + Z)),
    "x·y = y·x": (X * Y, Y * X),
    "(x·y)·z = x·(y·z)": ((X * Y) * Z, X * (Y * Z)),
    "x·(y + z) = x·y + x·z": (X * (Y + Z), X * Y + X * Z),
    "(x + y)/z = x/z + y/z": ((X + Y) / Z, X / Z + Y / Z),
    "x·(y/z) = (x·y)/z": (X * (Y / Z), (X * Y) / Z),
    "(x/y)/z = x/(y·z)": ((X / Y) / Z, X / (Y * Z)),
    "Σᵢ Σₖ x = Σₖ Σᵢ x": (total("i", total("k", X)), total("k", total("i", X))),
    "Σₖ (x + y) = Σₖ x + Σₖ y": (total("k", X + Y), total("k", X) + total("k", Y)),
    "Σₖ x·z = (Σₖ x)·z": (total("k", X * Z), total("k", X) * Z),
    "Σₖ x/z = (Σₖ x)/z": (total("k", X / Z), total("k", X) / Z),
    "exp x · exp y = exp(x + y)": (exp(X) * exp(Y), exp(X + Y)),
    "exp x / exp y = exp(x − y)": (exp(X) / exp(Y), exp(X - Y)),
    "z/(x·exp w + y·exp w) = z/(x + y)/exp w": (Z / (X * exp(W) + Y * exp(W)), Z / (X + Y) / exp(W)),
    "√x²·√y² = √(x²·y²)": (sqrt(sqr(X)) * sqrt(sqr(Y)), sqrt(sqr(X) * sqr(Y))),
    "√Σx² · √Σy² = √(Σx² · Σy²)": (
        sqrt(total("k", sqr(X))) * sqrt(total("k", sqr(Y))),
        sqrt(total("k", sqr(X)) * total("k", sqr(Y))),
    ),
    "x/√Σx² = x·rsqrt(Σx²)": (X / sqrt(total("k", sqr(X))), X * rsqrt(total("k", sqr(X)))),
    "silu x = x·sigmoid x": (silu(X), X * sigmoid(X)),
    "x/(1 + exp −x) = silu x": (X / (exp(X - X) + exp(times(-1.0, X))), silu(X)),
    "softmax(x − z) = softmax x": (
        exp(X - Z) / total("k", exp(X - Z)),
        exp(X) / total("k", exp(X)),
    ),
    "softmax(x − max x) = softmax x": (
        exp(X - top("k", X)) / total("k", exp(X - top("k", X))),
        exp(X) / total("k", exp(X)),
    ),
}
FALSE: dict[str, Pair] = {
    "x − y = y − x": (X - Y, Y - X),
    "x/y = y/x": (X / Y, Y / X),
    "x + y·z = (x + y)·z": (X + Y * Z, (X + Y) * Z),
    "z/(x + y) = z/x + z/y": (Z / (X + Y), Z / X + Z / Y),
    "(x/y)/z = x/(y/z)": ((X / Y) / Z, X / (Y / Z)),
    "z/(x·exp w + y·exp w) = z/(x + y)": (Z / (X * exp(W) + Y * exp(W)), Z / (X + Y)),
    "z/(x·exp w + y·exp w) = z/(x/exp w + y/exp w)": (
        Z / (X * exp(W) + Y * exp(W)),
        Z / (X / exp(W) + Y / exp(W)),
    ),
    "Σₖ x·y = (Σₖ x)·(Σₖ y)": (total("k", X * Y), total("k", X) * total("k", Y)),
    "Σₖ x·w = (Σₖ x)·(Σₖ w)": (total("k", X * W), total("k", X) * total("k", W)),
    "Σₖ x/y = (Σₖ x)/(Σₖ y)": (total("k", X / Y), total("k", X) / total("k", Y)),
    "Σₖ (x + z) = Σₖ x + z": (total("k", X + Z), total("k", X) + Z),
    "Σₖ v² = (Σₖ v)²": (total("k", VJ * VJ), total("k", VJ) * total("k", VJ)),
    "Σₖ v = Σⱼ v of a square v": (total("k", VJ), total("j", VJ)),
    "exp(x·y) = exp x · exp y": (exp(X * Y), exp(X) * exp(Y)),
    "exp x + exp y = exp(x + y)": (exp(X) + exp(Y), exp(X + Y)),
    "Σₖ exp x = exp Σₖ x": (total("k", exp(X)), exp(total("k", X))),
    "√(x² + y²) = √x² + √y²": (sqrt(sqr(X) + sqr(Y)), sqrt(sqr(X)) + sqrt(sqr(Y))),
    "√x² = x": (sqrt(sqr(X)), times(1.0, X)),
    "Σₖ √x² = √Σₖ x²": (total("k", sqrt(sqr(X))), sqrt(total("k", sqr(X)))),
    "silu x = sigmoid x": (silu(X), sigmoid(X)),
    "silu(x·z) = silu(x)·z": (silu(X * Z), silu(X) * Z),
    "exp(x − w)/Σ exp(x − w) = softmax x": (exp(X - W) / total("k", exp(X - W)), exp(X) / total("k", exp(X))),
    "exp(x − max x)/Σ exp x = softmax x": (
        exp(X - top("k", X)) / total("k", exp(X)),
        exp(X) / total("k", exp(X)),
    ),
    "max (x + y) = max x + max y": (top("k", X + Y), top("k", X) + top("k", Y)),
    "max −x = −max x": (top("k", times(-1.0, X)), times(-1.0, top("k", X))),
}


def graph(v: V) -> Graph:
    """A value as the output of a graph at kernel level, over all inputs."""
    names = {n.name: f"v{k}" for k, n in enumerate(v.nodes)}
    steps = [
        Node(names[n.name], n.op, tuple(names.get(o, o) for o in n.operands), axis=n.axis, constant=n.constant)
        for n in v.nodes
    ]
    inputs = tuple(Tensor(name, axes, "float32") for name, axes in INPUTS.items())
    dims = tuple(a for a in AXES if a in v.axes)
    return Graph("axiom", AXES, inputs, tuple(steps), (Output("out", dims, "float32", names[v.name]),))
