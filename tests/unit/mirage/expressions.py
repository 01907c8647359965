"""Random expressions over labelled axes for tests: nested tuples (operator, operands…), as graphs and in float64.

A leaf is ("input", name); a sum is ("sum", axis, x); ("scale", number, x).
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from neptune.ir.expr import Const, Var
from neptune.mirage.ir import Graph, Node, Output, Tensor
from tests.unit.mirage.arrays import MAPS

INPUTS = {"A": ("i", "k"), "B": ("i", "k"), "C": ("k", "j"), "D": ("i",), "E": ("k",), "F": ("i", "j", "k")}
SIZES = {"i": 3, "k": 4, "j": 4}
"""Equally long axes are not one axis."""
E = tuple[Any, ...]
UNARY = ("neg", "exp", "sqr", "silu", "sigmoid")


def children(e: E) -> tuple[E, ...]:
    return tuple(x for x in e[1:] if isinstance(x, tuple))


def rebuilt(e: E, parts: tuple[E, ...]) -> E:
    it = iter(parts)
    return tuple(next(it) if isinstance(x, tuple) else x for x in e)


def axes(e: E) -> frozenset[str]:
    if e[0] == "input":
        return frozenset(INPUTS[e[1]])
    inner = frozenset[str]().union(*(axes(c) for c in children(e)))
    return inner - {e[1]} if e[0] in ("sum", "max") else inner


def valid(e: E) -> bool:
    """True where each sum is over an axis along which its operand varies."""
    return all(x[1] in axes(x[2]) for _, x in positions(e) if x[0] == "sum")


def positions(e: E, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], E]]:
    yield at, e
    for n, c in enumerate(children(e)):
        yield from positions(c, (*at, n))


def replaced(e: E, at: tuple[int, ...], by: E) -> E:
    if not at:
        return by
    parts = list(children(e))
    parts[at[0]] = replaced(parts[at[0]], at[1:], by)
    return rebuilt(e, tuple(parts))


def drawn(rng: random.Random, depth: int) -> E:
    """An expression. Divisors and radicands are positive: no element is undefined."""
    kind = rng.choice(("input", "binary", "binary", "sum", "quotient", "root", "unary", "scale")) if depth else "input"
    if kind == "binary":
        return (rng.choice(("add", "mul", "mul", "sub")), drawn(rng, depth - 1), drawn(rng, depth - 1))
    if kind == "quotient":
        return ("div", drawn(rng, depth - 1), positive(rng, depth - 1))
    if kind == "root":
        return (rng.choice(("sqrt", "rsqrt")), positive(rng, depth - 1))
    if kind == "unary":
        return (rng.choice(UNARY), drawn(rng, depth - 1))
    if kind == "scale":
        return ("scale", rng.choice((0.5, -1.5, 3.0)), drawn(rng, depth - 1))
    if kind == "sum":
        x = drawn(rng, depth - 1)
        over = sorted(axes(x))
        return ("sum", rng.choice(over), x) if over else x
    return ("input", rng.choice(sorted(INPUTS)))


def positive(rng: random.Random, depth: int) -> E:
    """An expression that is positive where its inputs are not 0."""
    x = drawn(rng, max(depth - 1, 0))
    e: E = ("exp", ("scale", 0.125, x)) if rng.random() < 0.4 else ("sqr", x)
    return ("sum", rng.choice(sorted(axes(e))), e) if axes(e) and rng.random() < 0.6 else e


def graph(e: E) -> Graph:
    """The expression at kernel level; its output has its axes in the order of SIZES."""
    steps: list[Node] = []

    def put(x: E) -> str:
        if x[0] == "input":
            return str(x[1])
        operands = tuple(put(c) for c in children(x))
        name = f"v{len(steps)}"
        number = Const(x[1], "float32") if x[0] == "scale" else None
        steps.append(Node(name, x[0], operands, axis=x[1] if x[0] in ("sum", "max") else "", constant=number))
        return name

    value = put(e)
    dims = tuple(a for a in SIZES if a in axes(e))
    inputs = tuple(Tensor(n, a, "float32") for n, a in INPUTS.items())
    sizes = {a: Var(f"n_{a}") for a in SIZES}
    return Graph("drawn", sizes, inputs, tuple(steps), (Output("out", dims, "float32", value),))


def numbers(e: E, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The expression in float64, over all axes of SIZES in order (length 1 where it does not vary)."""
    order = list(SIZES)
    if e[0] == "input":
        dims = INPUTS[e[1]]
        x = np.transpose(inputs[e[1]], sorted(range(len(dims)), key=lambda n: order.index(dims[n])))
        return x.reshape([SIZES[a] if a in dims else 1 for a in order])
    parts = [numbers(c, inputs) for c in children(e)]
    if e[0] in ("sum", "max"):
        x = np.broadcast_to(
            parts[0], [SIZES[a] if a == e[1] else n for a, n in zip(order, parts[0].shape, strict=True)]
        )
        return getattr(np, e[0])(x, axis=order.index(e[1]), keepdims=True)
    numbers_beside = (e[1],) if e[0] == "scale" else ()
    return np.asarray(MAPS[e[0]](*numbers_beside, *parts))


def values(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.uniform(-1, 1, [SIZES[a] for a in dims]) for n, dims in INPUTS.items()}


def differ(a: E, b: E) -> bool:
    """True where two expressions differ in float64 on some of three instances."""
    for seed in range(3):
        with np.errstate(all="ignore"):
            x, y = numbers(a, values(seed)), numbers(b, values(seed))
        if x.shape != y.shape or not np.allclose(x, y, rtol=1e-6, atol=1e-9, equal_nan=True):
            return True
    return False
