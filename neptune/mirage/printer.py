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

from collections.abc import Iterable, Iterator

from neptune.ir.dtypes import DTYPES
from neptune.ir.printer import print_expr, print_scalar
from neptune.mirage.ir import GRID, LOOP, TILE, WHOLE, Graph, Kernel, Load, Node, Output, Step, Tensor, Thread

PARTS = (GRID, LOOP, TILE)


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
    return _buffer(t) + (f" of {t.buffer}" if t.buffer else "")


def print_output(o: Output) -> str:
    """A result: `y: f16[i, j] = value`."""
    return f"{_buffer(o)} = {o.value}"


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
    yield from (f"  save {s.name} = {s.value}" for s in step.saves)


def print_head(kernel: Kernel) -> str:
    """The first line of a kernel: `kernel fused grid (i, j) loop k`."""
    return f"kernel {kernel.name} grid {_listed(kernel.grid)}" + (f" loop {kernel.loop}" if kernel.loop else "")


def print_load(load: Load) -> str:
    """A load on one line."""
    return f"{load.name} = load {load.tensor}" + (f" whole {_listed(load.whole)}" if load.whole else "")


def print_node(node: Node) -> str:
    """A node on one line."""
    text = f"{node.name} = {node.op} {node.function}" if node.function else f"{node.name} = {node.op}"
    text += _listed(node.operands)
    if node.axis:
        text += f" over {node.axis}" + (
            "" if node.parts == WHOLE else "".join(f" {p}" for p in PARTS if p in node.parts)
        )
    text += f" to {DTYPES[node.dtype].short}" if node.dtype else ""
    return text if node.constant is None else f"{text} by {print_expr(node.constant)}"


def _buffer(x: Tensor | Output) -> str:
    return f"{x.name}: {DTYPES[x.dtype].short}[{', '.join(x.axes)}]"


def _listed(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"
