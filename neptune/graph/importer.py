"""A group of nodes of an ATen graph as a Program.

    imported([view, permute, bmm, …, bmm_1, view_7], outputs=[view_7])  →  Program, its inputs as nodes, its sizes

A node is written where it is read, unless it is a reduction or is read by several: then it is a stage of its own, named
after the node. Results are rounded to the dtype that the graph gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from neptune.errors import NeptuneError, Unsupported
from neptune.frontend.assemble import Axis, Tensor
from neptune.frontend.builder import build
from neptune.graph import aten_attention, aten_elements
from neptune.graph.aten import ROWS, aten
from neptune.graph.imports import Import, name_of
from neptune.graph.merge import merged
from neptune.graph.sizes import Size, hint, size_of
from neptune.graph.values import Value
from neptune.ir.expr import Var, walk
from neptune.ir.program import Program

VIEWS = frozenset(
    (
        aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default,
        aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor,
        aten.select.int, aten.clone.default, aten.alias.default, aten.detach.default, aten.t.default,
        aten.transpose.int, getitem,
    )
)  # fmt: skip
"""What gives elements of its argument other indices: no reason for a stage."""


LONGEST = 2000
"""Nodes of an expression that is written where it is read."""

# Their rows are entered by importing them.
assert all(m.ROWS is ROWS for m in (aten_attention, aten_elements, aten_elements))


@dataclass(frozen=True)
class Imported:
    """A Program for nodes of a graph. `inputs`: the nodes whose tensors it reads, in the order of its arguments;
    `merges`: for each of them the positions at which two dimensions are flattened, in turn; `scalars`: the sizes that a
    call passes behind them, `passed`: their names; `example`: the value of each size in the example; `outputs`: the
    nodes that it computes, in order; `dropped`: roundings of the graph that it does not make; `gathers`: nodes of
    indices that must lie in [0, size), where torch itself looks."""

    program: Program
    inputs: tuple[Node, ...]
    merges: tuple[tuple[int, ...], ...]
    scalars: tuple[Size, ...]
    passed: tuple[str, ...]
    example: Mapping[Size, int]
    outputs: tuple[Node, ...]
    dropped: tuple[str, ...]
    gathers: tuple[tuple[Node, Size], ...]


def tensor_of(node: Any) -> torch.Tensor | None:
    """The fake tensor that a node stands for; None where it stands for something else."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _dims(node: Node) -> Sequence[Any]:
    t = tensor_of(node)
    return () if t is None else t.shape


def imported(nodes: Sequence[Node], outputs: Sequence[Node], name: str) -> Imported:
    """The Program of `nodes`, which are in the order of the graph; Unsupported where one of them has none."""
    inside = frozenset(nodes)
    s = Import()
    outside = list(dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside))
    tensors = [a for a in outside if tensor_of(a) is not None]
    shapes = {a: tuple(map(size_of, a.meta["val"].shape)) for a in tensors}
    s.sizes.learn(d for a in tensors for d in shapes[a])
    for a in tensors:
        s.values[a] = s.read(a, shapes[a], a.meta["val"].dtype)
    results: dict[Node, Tensor] = {}
    for node in nodes:
        with _blamed(node):
            value = _made(s, node)
            if isinstance(value, Value):
                if node in outputs:
                    value, results[node] = _result(s, node, value)
                elif not value.plain and not value.indices and node.target not in VIEWS and _readers(node, inside) > 1:
                    value, _ = s.stage(value, node.name)
            for v in (value,) if isinstance(value, Value) else value:
                _written(v)
            s.values[node] = value  # type: ignore[assignment]
    outs, ins, merges = merged([results[n] for n in outputs], [s.inputs[a] for a in tensors])
    program = _built(s, outs, ins, name)
    bound = {d.name for b in program.inputs for d in b.shape if isinstance(d, Var)}
    scalars = [sc.name for sc in program.scalars if sc.name not in bound]
    if unknown := [n for n in scalars if n not in s.sizes.passed]:
        raise Unsupported(f"the size {unknown[0]}, which no input has")
    example = {size_of(d): hint(d) for n in nodes for d in _dims(n)}
    return Imported(
        program,
        tuple(tensors),
        tuple(map(tuple, merges)),
        tuple(s.sizes.passed[n] for n in scalars),
        tuple(scalars),
        example,
        tuple(outputs),
        tuple(s.dropped),
        tuple(s.gathers),
    )


def _made(s: Import, node: Node) -> Value | tuple[Value, ...]:
    if node.target is getitem:
        family, k = node.args
        several: Any = s.values[family]
        one: Value = several[k]
        return one
    make = ROWS.get(node.target)
    if make is None:
        raise Unsupported(f"the operator {node.target}")
    return make(s, node, *node.args, **node.kwargs)


@contextmanager
def _blamed(node: Node) -> Iterator[None]:
    """What cannot be written of a node is a boundary there: by the row itself, or by the builder."""
    try:
        yield
    except Unsupported as error:
        error.node = node
        raise
    except (NeptuneError, TypeError) as error:
        wrong = str(error).partition("\n")[0] if isinstance(error, TypeError) else error.wrong
        refusal = Unsupported(f"{node.target}: {wrong}")
        refusal.node = node
        raise refusal from error


def _written(v: Value) -> None:
    """Write a value once, so that what cannot be is found at its node, and what grows too large."""
    e = v.at(tuple(Axis(f"p{k}") for k in range(len(v.axes))))
    if sum(1 for _ in islice(walk(e), LONGEST + 1)) > LONGEST:
        raise Unsupported(f"an expression of more than {LONGEST} nodes")


def _result(s: Import, node: Node, v: Value) -> tuple[Value, Tensor]:
    dtype = node.meta["val"].dtype
    return s.stage(v, node.name, name_of(dtype), whole=True)


def _readers(node: Node, inside: Iterable[Node]) -> int:
    """How many nodes inside compute with a node, views looked through."""
    return sum(_readers(u, inside) if u.target in VIEWS else 1 for u in node.users if u in inside)


def _built(s: Import, outputs: list[Tensor], inputs: list[Tensor], name: str) -> Program:
    try:
        return build(outputs, inputs=inputs, name=name)
    except NeptuneError as error:
        raise Unsupported(f"{error.asked}: {error.wrong}") from error
