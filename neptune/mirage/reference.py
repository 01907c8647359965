"""A Program as a kernel graph: what a search starts from, and what its graphs are compared with.

    s[i, j] += q[i, d] * k[j, d]        s = matmul(q, k) over d
    e[i, j] = exp(s[i, j])         →    e = exp(s)
    l[i] += e[i, t]                     l = sum(e) over j         (t and j are one axis)

Each stage becomes the nodes of its expression (`decompose`), on axes that are the program's (`axes`). A sum of products
over an axis that both factors have is a `matmul`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from neptune.base.boundary import public
from neptune.errors import ExpressionError, unless_refused
from neptune.ir.contraction import grouped
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Load, Op, Var, cast, loads, variables
from neptune.ir.names import fresh_name
from neptune.ir.program import Alloc, Buffer, If, Program, Stage, stages, walk
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr, print_stage
from neptune.mirage.axes import Axes, Dim, Use
from neptune.mirage.decompose import Nodes, Writer, unsupported
from neptune.mirage.ir import Graph, Node, Output, Tensor
from neptune.mirage.ops import FLOATS
from neptune.schedule.definition import Definition, ReductionDef
from neptune.schedule.state import initial

RANK = 4
"""The most dimensions of a tensor."""
FOLDS = ("sum", "max")
"""Reducers that graphs have; operators are called like them."""


@public
def reference(program: Program) -> Graph:
    """The graph of a program: library operators on whole tensors, none of them in a kernel of the graph's own.

    >>> from neptune.ir.text.parser import parse_program
    >>> text = '''program squares
    ...   in x: f32[m, n]
    ...   out y: f32[m]
    ...   scalar m: i32
    ...   scalar n: i32
    ... body:
    ...   for i in [0, m):
    ...     for j in [0, n):
    ...       y: y[i] += x[i, j] * x[i, j] init 0.0
    ... '''
    >>> [(n.name, n.op, n.operands, n.axis) for n in reference(parse_program(text)).steps]
    [('sqr', 'sqr', ('x',), ''), ('y', 'sum', ('sqr',), 'j')]

    Raises ExpressionError, naming the stage, the operator and the axis, for masks, arithmetic on indices, sizes that
    depend on data, integers, tensors of more than four dimensions and floats of less than 16 bits.
    """
    return unless_refused(graph_or_why(program))


def graph_or_why(program: Program) -> Graph | ExpressionError:
    """The graph of a program, or why it has none."""
    if _is_scheduled(program):
        return ExpressionError(
            f"the graph of `{program.name}`",
            "it is no expression but a schedule: it has tiles of its own",
            hint="the program as it was defined",
        )
    definitions = initial(program).definitions
    by_name = {s.name: s for s in stages(program.body)}
    for name, d in definitions.items():
        wrong = _mistake(program, d)
        if wrong is not None:
            return _refused(program, by_name[name], *wrong)
    writers: dict[str, str] = {}
    given = {b.name for b in program.inputs}
    for name, d in definitions.items():
        early = next((x.buffer for x in d.reads() if x.buffer not in writers and x.buffer not in given), None)
        if early is not None or d.action.buffers[0] in writers:
            what = "a result that another stage has made" if early is None else f"`{early}` before it is made"
            return _refused(program, by_name[name], what)
        writers |= dict.fromkeys(d.action.buffers, name)
    axes = Axes(definitions, writers, {b.name: b for b in program.inputs})
    axes.read_all(b.name for b in program.outputs)
    return _Reference(program, axes, axes.names(s.name for s in program.scalars), by_name).graph()


@dataclass
class _Reference:
    """The graph as it is made, use by use. `labels`: axes by the roots of their dimensions."""

    program: Program
    axes: Axes
    labels: dict[Dim, str]
    stages: dict[str, Stage]
    nodes: Nodes = field(default_factory=Nodes)
    values: dict[Use, str] = field(default_factory=dict)
    tensors: dict[Use, Tensor] = field(default_factory=dict)

    def graph(self) -> Graph | ExpressionError:
        self._add_inputs()
        outputs = [next(u for u in self.axes.uses if u.buffer == b.name) for b in self.program.outputs]
        if (wrong := self._add_stages()) is not None:
            return wrong
        results = {u.buffer: self._unrounded(self.values[u], self.program.globals[u.buffer].dtype) for u in outputs}
        for u in outputs:
            if repeated := [a for a in self._labels(u) if a not in self.nodes.axes[results[u.buffer]]]:
                what = f"a result that does not vary along axis `{repeated[0]}`: a graph repeats no elements"
                return _refused(self.program, self.stages[u.stage], what)
        wishes: dict[str, str] = {}
        for name, value in (*((u.buffer, v) for u, v in self.values.items()), *results.items()):
            wishes.setdefault(value, name)
        names, nodes = self.nodes.called(wishes, results.values(), [t.name for t in self.tensors.values()])
        return Graph(
            self.program.name,
            self._sizes(),
            tuple(self.tensors.values()),
            nodes,
            tuple(
                Output(b.name, self._labels(u), b.dtype, names.get(results[b.name], results[b.name]))
                for b, u in zip(self.program.outputs, outputs, strict=True)
            ),
            self.program.scalars,
        )

    def _labels(self, use: Use) -> tuple[str, ...]:
        return tuple(self.labels[self.axes.root(dim)] for dim in self.axes.dims(use))

    def _label(self, use: Use, axis: str) -> str:
        return self.labels[self.axes.root((use, axis))]

    def _add_inputs(self) -> None:
        names = {b.name for b in self.program.inputs} | set(self.stages)
        for buffer in self.program.inputs:
            first, *others = self.axes.uses_of(buffer.name)
            self.tensors[first] = Tensor(buffer.name, self._labels(first), buffer.dtype)
            for use in others:
                name = fresh_name(names, buffer.name)
                names.add(name)
                self.tensors[use] = Tensor(name, self._labels(use), buffer.dtype, buffer.name)
        self.nodes.axes.update({t.name: frozenset(t.axes) for t in self.tensors.values()})

    def _sizes(self) -> dict[str, Expr]:
        """The size of each axis, those of inputs first."""
        sizes: dict[str, Expr] = {}
        for use, t in self.tensors.items():
            sizes |= dict(zip(t.axes, self.axes.inputs[use.buffer].shape, strict=True))
        for use in self.values:
            extents = self.axes.definitions[use.stage].extents
            sizes = {self._label(use, a): e for a, e in extents.items()} | sizes
        return {a: sizes[a] for a in sorted(sizes, key=list(self.labels.values()).index)}

    def _add_stages(self) -> ExpressionError | None:
        """Add the values of all stages, in order; why not, of one that no graph has."""
        for use in self.axes.in_order():

            def read(load: Load, use: Use = use) -> str:
                source = self.axes.sources[use, load.buffer, load.index]
                return self.tensors[source].name if source in self.tensors else self.values[source]

            value = self._stage(use, read)
            if isinstance(value, ExpressionError):
                return value
            self.values[use] = value
        return None

    def _unrounded(self, value: str, dtype: str) -> str:
        """What a result is rounded from, where nothing else reads what is rounded: storing it does that."""
        last = self.nodes.node(value, "cast")
        read = any(value in n.operands for n in self.nodes.made.values())
        return value if last is None or last.dtype != dtype or read else last.operands[0]

    def _stage(self, use: Use, read: Callable[[Load], str]) -> str | ExpressionError:
        d = self.axes.definitions[use.stage]
        writer = Writer(self.nodes, read)
        (value,) = d.action.values
        if not isinstance(d, ReductionDef):
            return self._written(use, writer, value)
        if d.action.reducer == "sum":
            two = grouped(value, (a.name for a in d.spatial))
            value = value if two is None else two
        folded = self._written(use, writer, value)
        if isinstance(folded, ExpressionError):
            return folded
        labels = {self._label(use, a): d.extents[a] for a in d.reduced}
        for axis in _products_first(self.nodes, folded, list(labels)):
            folded = self._folded(d.action.reducer, folded, axis, cast(labels[axis], value.dtype), writer)
        narrow = DTYPES[value.dtype].bits == 16 and d.action.reducer == "sum"
        return writer.rounded(folded, value.dtype) if narrow else folded

    def _written(self, use: Use, writer: Writer, value: Expr) -> str | ExpressionError:
        wrong = unsupported(value, frozenset(self.axes.definitions[use.stage].names))
        return writer.value(value) if wrong is None else _refused(self.program, self.stages[use.stage], wrong)

    def _folded(self, kind: str, value: str, axis: str, size: Expr, writer: Writer) -> str:
        if axis not in self.nodes.axes[value]:
            return value if kind == "max" else writer.scaled(value, size)
        product = self.nodes.node(value, "mul")
        if kind == "sum" and product is not None and _both_have(self.nodes, product, axis):
            return self.nodes.add("matmul", *product.operands, axis=axis)
        return self.nodes.add(kind, value, axis=axis)


def _products_first(nodes: Nodes, value: str, axes: list[str]) -> list[str]:
    """Axes to sum over, in an order in which a product of two factors is summed over one that both have first."""
    product = nodes.node(value, "mul")
    return axes if product is None else sorted(axes, key=lambda a: not _both_have(nodes, product, a))


def _both_have(nodes: Nodes, product: Node, axis: str) -> bool:
    return all(axis in nodes.axes[o] for o in product.operands)


# --- what is refused ----------------------------------------------------------------------------------


def _is_scheduled(program: Program) -> bool:
    strange = any(isinstance(s, Alloc | If) for s in walk(program.body))
    return strange or bool(program.owes or program.tunables)


def _mistake(program: Program, d: Definition) -> tuple[str, str | None] | None:
    """What no graph has about a stage, with a remedy."""
    sizes = {s.name for s in program.scalars}
    if d.when is not None:
        return "a guard: a graph has no masks", None
    for axis in d.axes:
        if not variables(axis.hi) <= sizes or loads(axis.hi):
            return f"the length of axis `{axis.name}`, {print_expr(axis.hi)}, depends on data or on another axis", None
    if isinstance(d, ReductionDef):
        if d.action.reducer not in FOLDS:
            return f"the reduction `{d.action.reducer}`; a graph has {' and '.join(FOLDS)}", None
        start = d.terms[0].start
        if start is not None and not _is_nothing(start, d):
            return f"a `{d.action.reducer}` that starts from {print_expr(start)}", "fold that in a stage behind it"
    shapes = {b.name: b for b in program.globals.values()}
    touched = [Load(d.action.buffers[0], d.action.index, d.action.values[0].dtype), *d.reads()]
    return next((m for x in touched if (m := _bad_access(shapes[x.buffer], x, d)) is not None), None)


def _is_nothing(start: Expr, d: ReductionDef) -> bool:
    """True for a start that changes no result."""
    neutral = (REDUCERS[d.action.reducer].neutral, d.identity[0].value)
    return isinstance(start, Const) and start.value in neutral


def _bad_access(buffer: Buffer, x: Load, d: Definition) -> tuple[str, str | None] | None:
    if buffer.dtype not in FLOATS:
        return f"tensor `{buffer.name}` of {buffer.dtype}: a graph has floats of 16 bits and more", None
    if len(buffer.shape) > RANK:
        return f"tensor `{buffer.name}` of {len(buffer.shape)} dimensions: a graph has up to {RANK}", None
    for k, (index, size) in enumerate(zip(x.index, buffer.shape, strict=True)):
        where = f"dimension {k} of `{buffer.name}`"
        if not isinstance(index, Var) or index.name not in d.names:
            what = f"`{index.name}`" if isinstance(index, Op) else "a load" if loads(index) else "a number"
            return f"{what} in {print_expr(index)}, the index of {where}: a dimension is indexed by an axis alone", None
        if d.axis(index.name).hi != size:
            length = print_expr(d.axis(index.name).hi)
            return (
                f"axis `{index.name}` over {length} of the {print_expr(size)} elements of {where}: a graph has all",
                None,
            )
    twice = {i.name for i in x.index if isinstance(i, Var) and x.index.count(i) > 1}
    return (f"axis `{min(twice)}` in two dimensions of `{buffer.name}`", None) if twice else None


def _refused(program: Program, stage: Stage, wrong: str, hint: str | None = None) -> ExpressionError:
    return ExpressionError(
        f"the graph of `{program.name}`",
        f"stage `{stage.name}` has {wrong}",
        where=print_stage(stage),
        hint=hint or "neptune.compile by a template, which takes any expression",
    )
