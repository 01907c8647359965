"""Print graphs as text that `neptune.mirage.parser` reads back to an equal graph.

    graph rms_norm_linear
      axis i: m
      axis k: k
      axis j: n
      in X: f16[i, k]
      in W: f16[k, j]
      out Y: f16[i, j] = Y
      scalar m: i32 lo 1
      …
    steps:
      kernel fused grid (i, j) loop k:
        x = load X
        w = load W whole (j)
        xw = matmul(x, w) over k
        mean = scale(squares) by 1.0 / cast(f32, k)
        thread:
          root = sqrt(mean)
          y = div(product, root)
        save Y = y
      z = sum(P) over k grid
      r = cast(z) to f16
      t = opaque tanh(r)

`over` names the axis of a fold or an accumulator, and parts of it that are no tile; `by` is a node's number. An input
of several uses is `in x_1: f16[j, k] of x`. Numbers and sizes are expressions as in the text of programs.
"""

from __future__ import annotations

from collections.abc import Iterator

from neptune.ir.text.line import print_expr
from neptune.ir.text.notation import LOOPS
from neptune.ir.text.printer import print_scalar
from neptune.mirage.ir import (
    GRID,
    LOOP,
    TILE,
    WHOLE,
    Graph,
    Kernel,
    Load,
    Node,
    Output,
    Parts,
    Save,
    Step,
    Tensor,
    Thread,
)

PARTS = (GRID, LOOP, TILE)


def _parts(parts: Parts) -> str:
    return "" if parts == WHOLE else "".join(f" {p}" for p in PARTS if p in parts)


GRAPHS = LOOPS.extended(axes=lambda axes: f"[{', '.join(axes)}]", operator=str, parts=_parts)
TENSOR_TEXT = GRAPHS.row(Tensor, "{name}: {dtype:dtype}{axes:axes}‹ of {buffer}›")
OUTPUT_TEXT = GRAPHS.row(Output, "{name}: {dtype:dtype}{axes:axes} = {value}")
KERNEL_TEXT = GRAPHS.row(Kernel, "kernel {name} grid {grid:names}‹ loop {loop}›")
LOAD_TEXT = GRAPHS.row(Load, "{name} = load {tensor}‹ whole {whole:names}›")
SAVE_TEXT = GRAPHS.row(Save, "save {name} = {value}")
NODE_TEXT = GRAPHS.row(
    Node,
    "{name} = {op:operator}‹ {function}›{operands:names}"
    "‹ over {axis}{parts:parts}›‹ to {dtype:dtype}›‹ by {constant:expr}›",
)


def print_graph(graph: Graph) -> str:
    """The whole graph as text."""
    lines = [f"graph {graph.name}"]
    lines += [f"  axis {label}: {print_expr(size)}" for label, size in graph.axes.items()]
    lines += [f"  in {print_tensor(t)}" for t in graph.inputs]
    lines += [f"  out {print_output(o)}" for o in graph.outputs]
    lines += [f"  scalar {print_scalar(s)}" for s in graph.scalars]
    return "\n".join([*lines, "steps:", *(f"  {x}" for step in graph.steps for x in print_step(step))]) + "\n"


def print_tensor(t: Tensor) -> str:
    """An input: `x_1: f16[j, k] of x`."""
    return TENSOR_TEXT.write(t)


def print_output(o: Output) -> str:
    """A result: `y: f16[i, j] = value`."""
    return OUTPUT_TEXT.write(o)


def print_step(step: Step) -> Iterator[str]:
    """The lines of a step, without indentation of its own."""
    if isinstance(step, Node):
        yield print_node(step)
        return
    yield f"{print_head(step)}:"
    yield from (f"  {print_load(x)}" for x in step.loads)
    for item in step.body:
        if isinstance(item, Thread):
            yield "  thread:"
            yield from (f"    {print_node(n)}" for n in item.body)
        else:
            yield f"  {print_node(item)}"
    yield from (f"  {SAVE_TEXT.write(s)}" for s in step.saves)


def print_head(kernel: Kernel) -> str:
    """The first line of a kernel: `kernel fused grid (i, j) loop k`."""
    return KERNEL_TEXT.write(kernel)


def print_load(load: Load) -> str:
    """A load on one line."""
    return LOAD_TEXT.write(load)


def print_node(node: Node) -> str:
    """A node on one line."""
    return NODE_TEXT.write(node)
