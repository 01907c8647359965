"""Graphs written by hand, on three levels: library operators, kernels, and threads in a kernel.

    g = GraphBuilder("rms_norm", i="m", k="k", j="n")
    x, w = g.input("x", "i k"), g.input("w", "k j")
    with g.kernel("fused", grid="i j", loop="k") as kernel:
        a, b = kernel.load(x), kernel.load(w)
        y = a.matmul(b, "k").acc() / (a.sqr().acc_sum() / g.size("k")).sqrt()
        kernel.save("y", y)
    graph = g.output("y", "i j").graph()

Axes are `label=size`, a size a name (a symbol), a number or an expression. A value is called like its operator, or as
`value.called("root")` says. Every call is checked as it is made: what is not valid raises an ExpressionError there,
which names the operator and the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from neptune.base.boundary import public
from neptune.errors import ExpressionError, unless_refused
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Expr, Var, as_expr, cast, walk
from neptune.ir.names import fresh_name
from neptune.ir.program import Scalar
from neptune.mirage.decompose import negative, reciprocal
from neptune.mirage.ir import WHOLE, Graph, Kernel, Load, Node, Output, Parts, Save, Step, Tensor, Thread, Type, nodes
from neptune.mirage.types import Typed, graph_types, kernel_node, library_node, loaded, save_fault, saved

Number: TypeAlias = "int | float | Expr"


def _number(x: Number) -> Expr:
    """A number in float32; integers, and sizes, are converted."""
    e = as_expr(float(x)) if isinstance(x, int | float) else x
    return cast(e, "float32") if is_int(e.dtype) else e


def _map(op: str) -> Callable[[Value], Value]:
    @public
    def method(x: Value) -> Value:
        return x.scope.node(op, x)

    return method


def _infix(op: str, by: Callable[[Value, Number], Value]) -> Callable[[Value, Value | Number], Value]:
    """An operator of two values, or of a value and a number."""

    @public
    def method(a: Value, b: Value | Number) -> Value:
        return a.scope.node(op, a, b) if isinstance(b, Value) else by(a, b)

    return method


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a graph or of one of its kernels, by its name there. Operators and methods make nodes of it."""

    scope: _Scope[Any]
    name: str

    @public
    def called(self, name: str) -> Value:
        """The same value under another name. To be called before other nodes read it."""
        return self.scope.renamed(self, name)

    # --- maps ---

    exp, sqr, sqrt, rsqrt, silu, sigmoid = (_map(op) for op in ("exp", "sqr", "sqrt", "rsqrt", "silu", "sigmoid"))
    __neg__ = _map("neg")

    @public
    def maximum(self, other: Value) -> Value:
        """The larger of two values."""
        return self.scope.node("maximum", self, other)

    @public
    def minimum(self, other: Value) -> Value:
        """The smaller of two values."""
        return self.scope.node("minimum", self, other)

    @public
    def shift(self, number: Number) -> Value:
        """x + number."""
        return self.scope.node("shift", self, constant=_number(number))

    @public
    def scale(self, number: Number) -> Value:
        """x · number."""
        return self.scope.node("scale", self, constant=_number(number))

    @public
    def power(self, number: Number) -> Value:
        """x to a constant power."""
        return self.scope.node("power", self, constant=_number(number))

    @public
    def cast(self, dtype: str) -> Value:
        """x rounded to a dtype."""
        return self.scope.node("cast", self, dtype=dtype)

    @public
    def opaque(self, function: str, *others: Value, constant: Number | None = None) -> Value:
        """An operator of expressions of which a graph knows nothing: tanh, log, floor …"""
        by = None if constant is None else _number(constant)
        return self.scope.node("opaque", self, *others, function=function, constant=by)

    __add__ = __radd__ = _infix("add", lambda a, n: a.shift(n))
    __mul__ = __rmul__ = _infix("mul", lambda a, n: a.scale(n))
    __sub__ = _infix("sub", lambda a, n: a.shift(negative(_number(n))))
    __truediv__ = _infix("div", lambda a, n: a.scale(reciprocal(_number(n))))

    # --- folds and accumulators ---

    @public
    def matmul(self, other: Value, axis: str) -> Value:
        """Σ of x · other over the tile part of an axis."""
        return self.scope.node("matmul", self, other, axis=axis)

    @public
    def sum(self, axis: str, parts: Parts = WHOLE) -> Value:
        """Σ over the tile part of an axis; with `parts=SPLIT` over what programs have left of it."""
        return self.scope.node("sum", self, axis=axis, parts=parts)

    @public
    def max(self, axis: str, parts: Parts = WHOLE) -> Value:
        """The largest along the tile part of an axis; with `parts=SPLIT` of what programs have left of it."""
        return self.scope.node("max", self, axis=axis, parts=parts)

    @public
    def acc(self) -> Value:
        """Σ over the iterations of the kernel's loop."""
        return self.scope.node("acc", self, axis=self.scope.loop)

    @public
    def acc_sum(self) -> Value:
        """Σ over the iterations of the loop, and over the tile part of its axis."""
        return self.scope.node("acc_sum", self, axis=self.scope.loop)

    @public
    def acc_max(self) -> Value:
        """The largest of all iterations of the loop."""
        return self.scope.node("acc_max", self, axis=self.scope.loop)

    @public
    def acc_rescaled(self, running: Value, degree: Number) -> Value:
        """Σ over the iterations of x · exp(degree · (m_before - m)) for a running maximum m."""
        return self.scope.node("acc_rescaled", self, running, axis=self.scope.loop, constant=_number(degree))


T = TypeVar("T")


class _Scope(Generic[T]):
    """What values are made in: a graph, or a kernel of it. `chain` holds the nodes that are made at present.

    `types` has the types of all values by name.
    """

    loop = ""

    def __init__(self, what: str) -> None:
        self.what = what
        self.chain: list[Node] = []
        self.types: dict[str, T] = {}

    def node(self, op: str, *operands: Value, **fields: Any) -> Value:
        """A node more, called like its operator."""
        stranger = next((x for x in operands if x.scope is not self), None)
        if stranger is not None:
            raise ExpressionError(
                f"`{op}({', '.join(x.name for x in operands)})` in {self.what}",
                f"`{stranger.name}` is a value of {stranger.scope.what}",
                hint="kernel.load(tensor) for what a kernel reads, kernel.save(name, value) for what others read of it",
            )
        node = Node(fresh_name(self.types, op), op, tuple(x.name for x in operands), **fields)
        self.types[node.name] = unless_refused(self.typed(node))
        self.chain.append(node)
        return Value(self, node.name)

    def renamed(self, value: Value, name: str) -> Value:
        if name in self.types or not self.chain or self.chain[-1].name != value.name:
            wrong = "another value has its name" if name in self.types else "it is not what was made last"
            raise ExpressionError(f"calling `{value.name}` of {self.what} `{name}`", wrong)
        self.chain[-1] = replace(self.chain[-1], name=name)
        self.types[name] = self.types.pop(value.name)
        return Value(self, name)

    def typed(self, node: Node) -> T | ExpressionError:
        """The type of a node, or what is wrong with it."""
        raise NotImplementedError


class KernelBuilder(_Scope[Typed]):
    """A kernel in a graph: loads, then nodes and threads, then saves."""

    def __init__(self, graph: GraphBuilder, kernel: Kernel) -> None:
        super().__init__(f"kernel `{kernel.name}`")
        self.graph, self.kernel = graph, kernel
        self.loop = kernel.loop or ""

    @public
    def load(self, tensor: Value, whole: str = "", name: str = "") -> Value:
        """A tile of a tensor, called like it. Axes in `whole` are not cut by the grid and the loop."""
        load = Load(name or tensor.name, tensor.name, tuple(whole.split()))
        if tensor.scope is not self.graph or tensor.name not in self.graph.types:
            raise ExpressionError(
                f"load `{load.name}` of {self.what}",
                f"`{tensor.name}` is no tensor but a value of {tensor.scope.what}",
                legal=list(self.graph.types),
            )
        if load.name in self.types:
            raise ExpressionError(f"load `{load.name}` of {self.what}", "another value has its name")
        self.types[load.name] = Typed(loaded(self.graph.types[tensor.name], self.kernel, load.whole))
        self.kernel = replace(self.kernel, loads=(*self.kernel.loads, load))
        return Value(self, load.name)

    @contextmanager
    def thread(self) -> Iterator[None]:
        """What is made in this block is a chain in registers; its last value alone is seen outside."""
        self.end_chain()
        yield
        if self.chain:
            self.kernel = replace(self.kernel, body=(*self.kernel.body, Thread(tuple(self.chain))))
        self.chain = []

    @public
    def save(self, name: str, value: Value) -> Value:
        """Write a value to memory: the tensor `name` for what comes behind the kernel."""
        unless_refused(save_fault(self.kernel, name, self.types.get(value.name) if value.scope is self else None))
        self.kernel = replace(self.kernel, saves=(*self.kernel.saves, Save(name, value.name)))
        return Value(self.graph, name)

    def end_chain(self) -> None:
        """Put the nodes made so far into the kernel."""
        self.kernel = replace(self.kernel, body=(*self.kernel.body, *self.chain))
        self.chain = []

    def typed(self, node: Node) -> Typed | ExpressionError:
        return kernel_node(node, self.kernel, self.types)


class GraphBuilder(_Scope[Type]):
    """A graph; see the module. Sizes of axes are names of symbols, numbers or expressions."""

    @public
    def __init__(self, name: str, /, **axes: str | Number) -> None:
        super().__init__("the graph")
        self.name = name
        self.axes = {a: Var(n) if isinstance(n, str) else as_expr(n) for a, n in axes.items()}
        self.scalars: tuple[Scalar, ...] = ()
        self.inputs: list[Tensor] = []
        self.steps: list[Step] = []
        self.outputs: list[Output] = []

    @classmethod
    def like(cls, graph: Graph) -> GraphBuilder:
        """Another graph of the same program: its axes, inputs and outputs, and no steps yet. `tensors` are the inputs.

        Results are the values or saved tensors that have their names, unless `output` says otherwise.
        """
        builder = cls(graph.name, **graph.axes)
        for t in graph.inputs:
            builder.input(t.name, " ".join(t.axes), t.dtype, t.buffer)
        builder.outputs = [replace(o, value=o.name) for o in graph.outputs]
        builder.scalars = graph.scalars
        return builder

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The inputs, in order."""
        return tuple(Value(self, t.name) for t in self.inputs)

    @public
    def size(self, axis: str) -> Expr:
        """The size of an axis."""
        return self.axes[self._known(f"the size of axis `{axis}`", axis)[0]]

    @public
    def input(self, name: str, axes: str, dtype: str = "float16", buffer: str = "") -> Value:
        """A tensor that a call passes, by its axes in order. `buffer` as in `ir.Tensor`."""
        tensor = Tensor(name, self._known(f"input `{name}`", axes), dtype, buffer)
        if name in self.types:
            raise ExpressionError(f"input `{name}`", "another value has its name")
        self.inputs.append(tensor)
        self.types[name] = dict.fromkeys(tensor.axes, WHOLE)
        return Value(self, name)

    @public
    def kernel(self, name: str, grid: str = "", loop: str = "") -> AbstractContextManager[KernelBuilder]:
        """A kernel over a grid of axes, with a loop over one. It is part of the graph where its block ends."""
        request = f"kernel `{name}`"
        axes, _ = self._known(request, grid), self._known(request, loop)
        return self._kernel(KernelBuilder(self, Kernel(name, axes, loop or None, (), (), ())))

    @contextmanager
    def _kernel(self, builder: KernelBuilder) -> Iterator[KernelBuilder]:
        yield builder
        builder.end_chain()
        self.steps += [*self.chain, builder.kernel]
        self.chain = []
        self.types |= {s.name: saved(builder.types[s.value].type) for s in builder.kernel.saves}

    @public
    def output(self, name: str, axes: str, value: Value | None = None, dtype: str = "float16") -> GraphBuilder:
        """A result: the value (that of the same name, if none is given), its dimensions in order."""
        given = name if value is None else value.name
        output = Output(name, self._known(f"output `{name}`", axes), dtype, given)
        self.outputs = [*(o for o in self.outputs if o.name != name), output]
        return self

    @public
    def graph(self) -> Graph:
        """The graph, which is checked as a whole once more."""
        steps = (*self.steps, *self.chain)
        graph = Graph(self.name, self.axes, tuple(self.inputs), steps, tuple(self.outputs))
        graph_types(graph)
        numbers = [*self.axes.values(), *(n.constant for n in nodes(graph) if n.constant is not None)]
        known = {s.name for s in self.scalars}
        symbols = {x.name: x.dtype for e in numbers for x in walk(e) if isinstance(x, Var) and x.name not in known}
        more = (Scalar(s, dtype, 1 if is_int(dtype) else None) for s, dtype in symbols.items())
        return replace(graph, scalars=(*self.scalars, *more))

    def _known(self, request: str, axes: str) -> tuple[str, ...]:
        labels = tuple(axes.split())
        unknown = next((a for a in labels if a not in self.axes), None)
        if unknown is not None:
            raise ExpressionError(request, f"the graph has no axis `{unknown}`", legal=list(self.axes))
        return labels

    def typed(self, node: Node) -> Type | ExpressionError:
        return library_node(node, self.types)
