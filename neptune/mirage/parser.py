"""Read graphs back from the text that `neptune.mirage.printer` prints: `parse_graph(print_graph(g)) == g`.

The tokens and expressions are those of the text of programs (`neptune.ir.text.line`). Text that is no graph raises
ExpressionError with the line it stumbled over. Whether a graph is valid is not asked here: `types.graph_types` says.
"""

from __future__ import annotations

from neptune.base.boundary import public
from neptune.ir.expr import Expr
from neptune.ir.text.line import Env, Line, Lines
from neptune.ir.text.parser import sizes_of
from neptune.ir.text.printer import SCALAR_TEXT
from neptune.mirage.ir import WHOLE, Graph, Kernel, Load, Node, Parts, Save, Step, Thread
from neptune.mirage.ops import OPS
from neptune.mirage.printer import KERNEL_TEXT, LOAD_TEXT, NODE_TEXT, OUTPUT_TEXT, PARTS, SAVE_TEXT, TENSOR_TEXT


@public
def parse_graph(text: str) -> Graph:
    """The graph that `text` prints.

    >>> from neptune.mirage.printer import print_graph
    >>> text = "graph g\\n  axis i: 8\\n  in x: f16[i]\\n  out y: f16[i] = e\\nsteps:\\n  e = exp(x)\\n"
    >>> print_graph(parse_graph(text)) == text
    True
    """
    return _GraphReader(text, _Line, "graph").graph()


class _Line(Line):
    """One line of a graph."""

    reads, code = "the text of the graph", "ir"

    def axes(self) -> tuple[str, ...]:
        """`[i, k]`"""
        self.expect("[")
        return self.list_of(self.name, "]")

    def operator(self) -> str:
        op = self.name()
        if op not in OPS:
            self.fail(f"there is no operator `{op}`", ("load", *OPS))
        return op

    def parts(self) -> Parts:
        """The parts of an axis that are named; where none is, the whole."""
        parts: set[str] = set()
        while self.peek() in PARTS:
            parts.add(self.take())
        return frozenset(parts) or WHOLE

    def sized(self, env: Env) -> tuple[str, Expr]:
        """An axis and its size."""
        self.env = env
        label = self.name()
        self.expect(":")
        size = self.expr()
        self.end()
        return label, size


class _GraphReader(Lines[_Line]):
    """The lines of a graph, and what spans lines."""

    def graph(self) -> Graph:
        groups = self.declarations(("axis", "in", "out", "scalar"), "steps")
        self.env = env = Env(sizes_of(groups["scalar"]))
        scalars = tuple(SCALAR_TEXT.read_line(line, env) for line in groups["scalar"])
        axes = dict(line.sized(env) for line in groups["axis"])
        inputs = tuple(TENSOR_TEXT.read_line(line, env) for line in groups["in"])
        steps = tuple(map(self.step, self.below(0)))
        outputs = tuple(OUTPUT_TEXT.read_line(line, env) for line in groups["out"])
        if (line := self.peek()) is not None:
            line.fail("nothing stands behind the steps")
        return Graph(self.name, axes, inputs, steps, outputs, scalars)

    def step(self, line: _Line) -> Step:
        return NODE_TEXT.read_line(line, self.env) if line.peek(1) == "=" else self.kernel(line)

    def kernel(self, line: _Line) -> Kernel:
        head = KERNEL_TEXT.values(line)
        line.expect(":")
        line.end()
        loads: list[Load] = []
        body: list[Node | Thread] = []
        saves: list[Save] = []
        for x in self.below(line.indent):
            if x.peek(1) == ":":
                body.append(self.thread(x))
            elif x.peek(1) != "=":
                saves.append(SAVE_TEXT.read_line(x, self.env))
            elif x.peek(2) == "load":
                loads.append(LOAD_TEXT.read_line(x, self.env))
            else:
                body.append(NODE_TEXT.read_line(x, self.env))
        return Kernel(**head, loads=tuple(loads), body=tuple(body), saves=tuple(saves))

    def thread(self, line: _Line) -> Thread:
        line.expect("thread", ":")
        line.end()
        chain = tuple(NODE_TEXT.read_line(x, self.env) for x in self.below(line.indent))
        if not chain:
            line.fail("a thread has a chain of nodes below it")
        return Thread(chain)
