"""µGraphs over labelled axes: the grammar on one screen.

    graph  := name  axes (label = size …)  inputs  steps  outputs
    step   := node | kernel
    node   := name = op(operand …) [axis] [parts] [constant] [dtype] [function]
    kernel := name  grid (axis …)  loop [axis]  loads  body (node | thread)…  saves (name = value …)
    load   := name = tensor [whole (axis …)]
    thread := name  body (node …)  result
    output := name[axis …] dtype = value

Semantics.
- Every dimension is an *axis*, by its label; equal labels are one axis. A value is a function of its axes and has no
  other shape: broadcasting is absence, a transpose is nothing. Only inputs and outputs have an order of dimensions.
- A kernel cuts the axes of its `grid` (at most three) over programs and at most one axis, the `loop`, over iterations;
  an axis may be in both. What is left of an axis is its tile. So an axis has the *parts* grid, loop and tile, and a
  value in a kernel says for each of its axes which parts it varies over. Parts need not be equal: tails are masked.
- A load gives a tile of a tensor in device memory. Its imap and fmap follow: a dimension whose axis is in the grid (is
  the loop) is cut by it. Axes in `whole` are not cut: every program and iteration has all of them (φ).
- A fold takes the tile part of its axis away; `parts=("grid",)` at kernel level what a split has left. An accumulator
  takes the loop part away. An axis is gone when all of its parts are. Maps need the same parts of an axis that operands
  share, or one operand has fewer and no tile part (a statistic of a tile beside its elements).
- Nodes of a kernel are in the *body* of its loop where they vary over the loop part, *behind* it where they read an
  accumulator, and belong to both otherwise (loop-invariant). A body node cannot read what is behind the loop, but for
  an acc_max: in the body that is the maximum so far.
- A saved value varies over no loop part. Where it has the grid part of an axis whose tile part is gone, that is a
  *split*: the tensor has one element a program there, and a later step sums them. Programs write disjoint parts (omap):
  a saved value has every axis of the grid.
- At kernel level a node is a library operator on whole tensors: its axes have the tile part alone.
- A thread graph is a chain of maps whose values stay in registers; only its result is seen outside.

Sizes are expressions over symbolic sizes; tile sizes are no part of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Protocol, TypeAlias

from neptune.ir.expr import Expr
from neptune.ir.program import Scalar
from neptune.mirage.ops import OPS, V

Parts = frozenset[str]
Type: TypeAlias = Mapping[str, Parts]
"""The type of a value: of each axis that it varies over the parts, in any order."""

GRID, LOOP, TILE = "grid", "loop", "tile"
WHOLE: Parts = frozenset({TILE})
"""The parts of a dimension of a whole tensor."""
SPLIT: Parts = frozenset({GRID})
"""The parts of a dimension that a split has left: one element a program."""
NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Node:
    """An operator (a row of `ops.OPS`) on values by name.

    `axis` is what a fold or an accumulator takes away. `constant` is the number of shift, scale, power and
    acc_rescaled: an expression over sizes and scalars. `dtype` is that of a cast. `function` names what is opaque, an
    operator of expressions (neptune/ir/ops.py); where that has an argument more than there are operands, that is
    `constant`: max(x, 0) of a relu.
    """

    name: str
    op: str
    operands: tuple[str, ...]
    axis: str = ""
    parts: Parts = WHOLE
    constant: Expr | None = None
    dtype: str = ""
    function: str = ""

    @property
    def taken(self) -> Parts:
        """The parts of its axis that a fold or an accumulator takes away."""
        if OPS[self.op].kind == "fold":
            return self.parts
        return frozenset({LOOP, TILE} if self.op == "acc_sum" else {LOOP})

    @property
    def number(self) -> Expr | None:
        """The number of an operator that has one, and the last argument of what is opaque."""
        return self.constant if OPS[self.op].constant or self.op == "opaque" else None

    def applied(self, apply: Callable[..., V], *args: V) -> V:
        """The value of a map; `apply(name, *args)` makes that of an operator of expressions, the number last."""
        return apply(self.function, *args) if self.op == "opaque" else OPS[self.op].applied(apply, *args)

    def computed(self, apply: Callable[..., V], *args: V) -> V:
        """The same value as a kernel computes it (`OpRow.computed`)."""
        return apply(self.function, *args) if self.op == "opaque" else OPS[self.op].computed(apply, *args)


@dataclass(frozen=True, slots=True)
class Thread:
    """A chain of maps in registers. It is called like its last node, the one that others see."""

    body: tuple[Node, ...]

    @property
    def name(self) -> str:
        return self.body[-1].name


@dataclass(frozen=True, slots=True)
class Load:
    """A tile of a tensor in device memory; dimensions whose axis is in `whole` are not cut."""

    name: str
    tensor: str
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Save:
    """A tensor in device memory that programs write: the value `value` of the kernel."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A graph-defined kernel: what one program of its grid does."""

    name: str
    grid: tuple[str, ...]
    loop: str | None
    loads: tuple[Load, ...]
    body: tuple[Node | Thread, ...]
    saves: tuple[Save, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order, those of thread graphs among them."""
        return tuple(n for x in self.body for n in (x.body if isinstance(x, Thread) else (x,)))

    @property
    def size(self) -> int:
        """The number of block operators as bounds count them: loads and nodes, not saves."""
        return len(self.loads) + len(self.nodes)

    def cuts(self, axis: str) -> Parts:
        """The parts beside its tile into which the kernel divides an axis."""
        return frozenset({p for p, cut in ((GRID, axis in self.grid), (LOOP, axis == self.loop)) if cut})


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input: its dimensions' axes in order. An axis of length 1 that is broadcast is an axis like any other.

    `buffer` is the user's buffer where one input is used with different axes (x[i, k] and x[j, k] of x·xᵀ).
    """

    name: str
    axes: tuple[str, ...]
    dtype: str
    buffer: str = ""

    @property
    def source(self) -> str:
        """The name of the buffer that a call passes."""
        return self.buffer or self.name


@dataclass(frozen=True, slots=True)
class Output:
    """A result: a value at kernel level, its dimensions in the order of the user's buffer, and its dtype."""

    name: str
    axes: tuple[str, ...]
    dtype: str
    value: str


Step: TypeAlias = Node | Kernel


@dataclass(frozen=True)
class Graph:
    """A kernel graph. `axes` gives the size of each axis, `scalars` the sizes and scalar arguments in it."""

    name: str
    axes: Mapping[str, Expr]
    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[Scalar, ...] = field(default=())

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The graph-defined kernels, in order."""
        return tuple(s for s in self.steps if isinstance(s, Kernel))

    def with_steps(self, *steps: Step) -> Graph:
        return replace(self, steps=steps)

    def with_kernels(self, fn: Callable[[Kernel], Step]) -> Graph:
        """The graph with each of its kernels as `fn` rewrites it."""
        return self.with_steps(*(fn(s) if isinstance(s, Kernel) else s for s in self.steps))

    def _repr_html_(self) -> str:
        """The text, as notebooks show a graph."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        from neptune.mirage.printer import print_graph

        return print_graph(self)


def nodes(graph: Graph) -> Iterator[Node]:
    """Every node, of all levels, in order."""
    for step in graph.steps:
        yield from step.nodes if isinstance(step, Kernel) else (step,)


class Semantics(Protocol[V]):
    """What the loads, nodes and saves of a graph mean: each makes a value, of any kind."""

    def load(self, load: Load, kernel: Kernel, tensor: V) -> V: ...

    def node(self, node: Node, operands: Sequence[V]) -> V: ...

    def save(self, value: V) -> V: ...


def tensors_of(graph: Graph, inputs: Mapping[str, V], semantics: Semantics[V]) -> dict[str, V]:
    """The values of all tensors in device memory by name, given those of the inputs."""
    tensors = dict(inputs)
    for step in graph.steps:
        if isinstance(step, Node):
            tensors[step.name] = semantics.node(step, [tensors[o] for o in step.operands])
            continue
        inside = {load.name: semantics.load(load, step, tensors[load.tensor]) for load in step.loads}
        for node in step.nodes:
            inside[node.name] = semantics.node(node, [inside[o] for o in node.operands])
        tensors |= {save.name: semantics.save(inside[save.value]) for save in step.saves}
    return tensors


def reads(step: Step) -> Iterator[str]:
    """The tensors that a step reads, as often as it does."""
    yield from (load.tensor for load in step.loads) if isinstance(step, Kernel) else step.operands


def writes(step: Step) -> Iterator[str]:
    """The tensors that a step makes."""
    yield from (save.name for save in step.saves) if isinstance(step, Kernel) else (step.name,)


def needed(nodes: Iterable[Node], results: Collection[str], given: Collection[str] = ()) -> set[str]:
    """The values that results are computed from, these among them, beside those that are given."""
    wanted = {*results} - {*given}
    for node in reversed([*nodes]):
        if node.name in wanted:
            wanted |= {*node.operands} - {*given}
    return wanted
