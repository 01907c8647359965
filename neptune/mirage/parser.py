"""Read graphs back from the text that `neptune.mirage.printer` prints: `parse_graph(print_graph(g)) == g`.

The tokens and expressions are those of the text of programs (`neptune.ir.line`). Text that is no graph raises
ExpressionError with the line it stumbled over. Whether a graph is valid is not asked here: `types.graph_types` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn

from neptune.boundary import public
from neptune.errors import ExpressionError
from neptune.ir.expr import Expr
from neptune.ir.line import Env
from neptune.ir.parser import ProgramLine
from neptune.ir.program import parameter_names
from neptune.mirage.ir import WHOLE, Graph, Kernel, Load, Node, Output, Save, Step, Tensor, Thread
from neptune.mirage.ops import OPS
from neptune.mirage.printer import PARTS


@public
def parse_graph(text: str) -> Graph:
    """The graph that `text` prints.

    >>> from neptune.mirage.printer import print_graph
    >>> text = "graph g\\n  axis i: 8\\n  in x: f16[i]\\n  out y: f16[i] = e\\nsteps:\\n  e = exp(x)\\n"
    >>> print_graph(parse_graph(text)) == text
    True
    """
    return _GraphReader(text).graph()


class _Line(ProgramLine):
    """One line of a graph."""

    def fail(self, wrong: str, legal: Iterable[str] = ()) -> NoReturn:
        where = f"line {self.number}: {self.text.strip()}"
        raise ExpressionError("cannot read the text of the graph", wrong, where=where, legal=tuple(legal), kind="ir")

    def names(self, close: str) -> tuple[str, ...]:
        return self.list_of(self.name, close)

    def axis(self, env: Env) -> tuple[str, Expr]:
        label = self.name()
        self.expect(":")
        size = self.expr(env)
        self.end()
        return label, size

    def dims(self) -> tuple[str, str, tuple[str, ...]]:
        """`x: f16[i, k]`: a name, a dtype, and axes."""
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        return name, dtype, self.names("]")

    def tensor(self) -> Tensor:
        name, dtype, axes = self.dims()
        buffer = self.name() if self.accept("of") else ""
        self.end()
        return Tensor(name, axes, dtype, buffer)

    def output(self) -> Output:
        name, dtype, axes = self.dims()
        self.expect("=")
        value = self.name()
        self.end()
        return Output(name, axes, dtype, value)

    def save(self) -> Save:
        self.expect("save")
        name = self.name()
        self.expect("=")
        save = Save(name, self.name())
        self.end()
        return save

    def load_of(self) -> Load:
        name = self.name()
        self.expect("=", "load")
        tensor = self.name()
        whole: tuple[str, ...] = ()
        if self.accept("whole"):
            self.expect("(")
            whole = self.names(")")
        self.end()
        return Load(name, tensor, whole)

    def node(self, env: Env) -> Node:
        name = self.name()
        self.expect("=")
        op = self.name()
        if op not in OPS:
            self.fail(f"there is no operator `{op}`", ("load", *OPS))
        function = "" if self.peek() == "(" else self.name()
        self.expect("(")
        operands = self.names(")")
        axis, parts = "", WHOLE
        if self.accept("over"):
            axis = self.name()
            parts = frozenset(iter(self.part, "")) or WHOLE
        dtype = self.dtype() if self.accept("to") else ""
        constant = self.expr(env) if self.accept("by") else None
        self.end()
        return Node(name, op, operands, axis, parts, constant, dtype, function)

    def part(self) -> str:
        return self.take() if self.peek() in PARTS else ""

    def head(self) -> tuple[str, tuple[str, ...], str | None]:
        """`kernel fused grid (i, j) loop k:`: a name, the axes of the grid, and the loop."""
        self.expect("kernel")
        name = self.name()
        self.expect("grid", "(")
        grid = self.names(")")
        loop = self.name() if self.accept("loop") else None
        self.expect(":")
        self.end()
        return name, grid, loop


class _GraphReader:
    """The lines of a graph, and what spans lines."""

    def __init__(self, text: str) -> None:
        source = [(k, line.rstrip()) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
        number, first = source[0] if source else (1, "")
        if not first.startswith("graph "):
            _Line(number, "").fail("a graph starts with `graph <name>`")
        self.name = first.removeprefix("graph ").strip()
        self.lines = [_Line(k, line) for k, line in source[1:]]
        self.last = _Line(*source[-1])
        self.at = 0

    def graph(self) -> Graph:
        groups: dict[str, list[_Line]] = {word: [] for word in ("axis", "in", "out", "scalar")}
        while (line := self.next_line()).peek() != "steps":
            word = line.take()
            if word not in groups:
                line.fail(f"unknown declaration {word!r}", (*groups, "steps:"))
            groups[word].append(line)
        line.expect("steps", ":")
        line.end()
        scalars = tuple(x.scalar() for x in groups["scalar"])
        env = Env(parameter_names(scalars, ()))
        return Graph(
            self.name,
            dict(x.axis(env) for x in groups["axis"]),
            tuple(x.tensor() for x in groups["in"]),
            tuple(self.steps(line.indent, env)),
            tuple(x.output() for x in groups["out"]),
            scalars,
        )

    def next_line(self) -> _Line:
        if self.at == len(self.lines):
            self.last.fail("the graph ends before its `steps:`")
        self.at += 1
        return self.lines[self.at - 1]

    def inner(self, indent: int) -> Iterator[_Line]:
        """The lines of the block below a line at `indent`; the caller reads what is below one of them."""
        while self.at < len(self.lines) and self.lines[self.at].indent > indent:
            yield self.next_line()

    def steps(self, indent: int, env: Env) -> Iterator[Step]:
        for line in self.inner(indent):
            yield self.kernel(line, env) if line.peek(1) != "=" else line.node(env)
        if self.at < len(self.lines):
            self.next_line().fail("nothing stands behind the steps")

    def kernel(self, line: _Line, env: Env) -> Kernel:
        name, grid, loop = line.head()
        loads: list[Load] = []
        body: list[Node | Thread] = []
        saves: list[Save] = []
        for x in self.inner(line.indent):
            if x.peek(1) != "=":
                if x.peek() == "thread":
                    body.append(self.thread(x, env))
                else:
                    saves.append(x.save())
            elif x.peek(2) == "load":
                loads.append(x.load_of())
            else:
                body.append(x.node(env))
        return Kernel(name, grid, loop, tuple(loads), tuple(body), tuple(saves))

    def thread(self, line: _Line, env: Env) -> Thread:
        line.expect("thread", ":")
        line.end()
        chain = tuple(x.node(env) for x in self.inner(line.indent))
        if not chain:
            line.fail("a thread has a chain of nodes below it")
        return Thread(chain)
