"""Pictures of graphs: as text for a terminal, and in the language of Graphviz.

    graph rms_norm: i = m, j = n, p = k
      x: f16[i, p]
      w: f16[p, j]
    ┌ kernel fused, grid i × j
    │ ┌ loop p
    │ │ x = load x                     i‖ p↻
    │ │ w = load w                     p↻ j‖
    │ │ matmul = matmul(x, w) over p   i‖ (p↻) j‖
    │ └
    │ acc = acc(matmul) over p         i‖ j‖
    └ save y = acc                     i j
      y: f16[i, j] = y
    ‖ cut by the grid, ↻ by the loop, (…) without its tile

Behind each value stand the axes that it varies over: ‖ where the grid cuts one, ↻ where the loop does, in brackets
where its tile is folded and only parts are left. A kernel has first what no iteration changes, then its loop, then what
comes behind that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neptune.base.boundary import public
from neptune.ir.text.printer import print_expr
from neptune.mirage.ir import GRID, LOOP, TILE, Graph, Kernel, Load, Node, Thread, Type
from neptune.mirage.printer import print_load, print_node, print_output, print_tensor
from neptune.mirage.types import Typed, graph_types, kernel_types

MARKS = {GRID: "‖", LOOP: "↻"}
LEGEND = "‖ cut by the grid, ↻ by the loop, (…) without its tile"
Item = Load | Node | Thread


@public
def draw(graph: Graph) -> str:
    """The picture of a graph as text; it raises ExpressionError where the graph is not valid."""
    types = graph_types(graph)
    rows: list[tuple[str, str]] = [(f"  {print_tensor(t)}", "") for t in graph.inputs]
    for step in graph.steps:
        if isinstance(step, Kernel):
            rows += _kernel_rows(step, types)
        else:
            rows.append((f"  {print_node(step)}", _axes(types[step.name])))
    rows += [(f"  {print_output(o)}", "") for o in graph.outputs]
    width = max((len(text) for text, axes in rows if axes), default=0)
    sizes = ", ".join(f"{a} = {print_expr(e)}" for a, e in graph.axes.items())
    lines = [f"graph {graph.name}: {sizes}", *(f"{t:{width}}   {a}".rstrip() for t, a in rows)]
    return "\n".join([*lines, *([LEGEND] if graph.kernels else [])]) + "\n"


@dataclass(frozen=True)
class _Parts:
    """What a kernel has in front of its loop, in it, and behind it."""

    front: Sequence[Item]
    loop: Sequence[Item]
    behind: Sequence[Item]


def _parts(kernel: Kernel, typed: Mapping[str, Typed]) -> _Parts:
    items: tuple[Item, ...] = (*kernel.loads, *kernel.body)
    behind = [x for x in items if typed[x.name].behind]
    loop = [x for x in items if typed[x.name].body and not typed[x.name].behind]
    return _Parts([x for x in items if x not in behind and x not in loop], loop, behind)


def _kernel_rows(kernel: Kernel, types: Mapping[str, Type]) -> Iterator[tuple[str, str]]:
    typed = kernel_types(kernel, types)
    parts = _parts(kernel, typed)
    grid = " × ".join(kernel.grid)
    yield f"┌ kernel {kernel.name}" + (f", grid {grid}" if grid else ""), ""
    yield from _item_rows("│ ", parts.front, typed)
    if kernel.loop is not None:
        yield f"│ ┌ loop {kernel.loop}", ""
        yield from _item_rows("│ │ ", parts.loop, typed)
        yield "│ └", ""
    yield from _item_rows("│ ", parts.behind, typed)
    for k, s in enumerate(kernel.saves):
        corner = "└" if k == len(kernel.saves) - 1 else "├"
        yield f"{corner} save {s.name} = {s.value}", _axes(types[s.name])


def _item_rows(bars: str, items: Sequence[Item], typed: Mapping[str, Typed]) -> Iterator[tuple[str, str]]:
    for x in items:
        if isinstance(x, Thread):
            yield f"{bars}┌ thread", ""
            yield from _item_rows(f"{bars}│ ", x.body, typed)
            yield f"{bars}└", ""
        else:
            yield bars + (print_load(x) if isinstance(x, Load) else print_node(x)), _axes(typed[x.name].type)


def _axes(t: Type) -> str:
    marked = ((a + "".join(mark for p, mark in MARKS.items() if p in parts), parts) for a, parts in t.items())
    return " ".join(text if TILE in parts else f"({text})" for text, parts in marked) or "a number"


# --- Graphviz -------------------------------------------------------------------------------------------


@public
def dot(graph: Graph) -> str:
    """The graph in the language of Graphviz, kernels, loops and threads as boxes. Errors as in `draw`.

    >>> from neptune.mirage.parser import parse_graph
    >>> g = parse_graph("graph g\\n  axis i: 8\\n  in x: f16[i]\\n  out y: f16[i] = e\\nsteps:\\n  e = exp(x)\\n")
    >>> print(dot(g))
    digraph "g" {
      node [shape=box, fontname="monospace"]
      "x" [label="x: f16[i]", style=rounded]
      "e" [label="e = exp(x)\\ni"]
      "x" -> "e"
      "out y" [label="y: f16[i] = e", style=rounded]
      "e" -> "out y"
    }
    <BLANKLINE>
    """
    types = graph_types(graph)
    lines = ['node [shape=box, fontname="monospace"]']
    lines += [f"{_quoted(t.name)} [label={_quoted(print_tensor(t))}, style=rounded]" for t in graph.inputs]
    for step in graph.steps:
        if isinstance(step, Kernel):
            lines += _kernel_dot(step, types)
        else:
            lines += _node_dot("", step, types[step.name])
    for o in graph.outputs:
        lines.append(f"{_quoted(f'out {o.name}')} [label={_quoted(print_output(o))}, style=rounded]")
        lines.append(f"{_quoted(o.value)} -> {_quoted(f'out {o.name}')}")
    return "\n".join([f"digraph {_quoted(graph.name)} {{", *(f"  {x}" for x in lines), "}"]) + "\n"


def _kernel_dot(kernel: Kernel, types: Mapping[str, Type]) -> Iterator[str]:
    typed, inside = kernel_types(kernel, types), f"{kernel.name}/"
    parts = _parts(kernel, typed)
    yield from _box(f"{inside}kernel", f"kernel {kernel.name}, grid {' × '.join(kernel.grid)}")
    yield from _items_dot(inside, parts.front, typed)
    if parts.loop:
        yield from _box(f"{inside}loop", f"loop {kernel.loop}")
        yield from _items_dot(inside, parts.loop, typed)
        yield "}"
    yield from _items_dot(inside, parts.behind, typed)
    yield "}"
    for s in kernel.saves:
        yield _labelled(s.name, s.name, types[s.name])
        yield f"{_quoted(inside + s.value)} -> {_quoted(s.name)}"


def _items_dot(inside: str, items: Sequence[Item], typed: Mapping[str, Typed]) -> Iterator[str]:
    for x in items:
        if isinstance(x, Thread):
            yield from _box(f"{inside}{x.name} thread", "thread")
            yield from _items_dot(inside, x.body, typed)
            yield "}"
        elif isinstance(x, Load):
            yield _labelled(inside + x.name, print_load(x), typed[x.name].type)
            yield f"{_quoted(x.tensor)} -> {_quoted(inside + x.name)}"
        else:
            yield from _node_dot(inside, x, typed[x.name].type)


def _node_dot(inside: str, node: Node, t: Type) -> Iterator[str]:
    yield _labelled(inside + node.name, print_node(node), t)
    yield from (f"{_quoted(inside + o)} -> {_quoted(inside + node.name)}" for o in node.operands)


def _labelled(name: str, text: str, t: Type) -> str:
    label = f"{text}\n{_axes(t)}"
    return f"{_quoted(name)} [label={_quoted(label)}]"


def _box(name: str, label: str) -> Iterator[str]:
    yield f"subgraph {_quoted(f'cluster {name}')} {{"
    yield f"label={_quoted(label)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
