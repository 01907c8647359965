"""Expressions as nodes of a graph: one operator a node, equal ones once, and compound forms under their names.

    x * x → sqr(x)      x / (1 + exp(-x)) → silu(x)      1 / sqrt(x) → rsqrt(x)      x / n → scale(x) by 1 / n

Forms are found among nodes, so that it does not matter which stage wrote which part. Nothing is cancelled or
reordered: each node has the value of the expression that it is made of, in real numbers. A cast that rounds is a node;
one that makes a number wider changes nothing, and is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, loads, op, variables
from neptune.ir.names import fresh_name
from neptune.mirage.ir import Node, needed
from neptune.mirage.ops import FLOATS, OPS

Operand: TypeAlias = "str | Expr"
"""A value by its name, or a number: an expression over sizes and scalars."""

OPERATORS = {row.function: row.name for row in OPS.values() if row.function and not row.constant}
"""Operators of expressions that are operators of graphs; others are opaque, and called by their names."""
POWERS = {"sqr": 2.0, "sqrt": 0.5, "rsqrt": -0.5}
NUMBER_FIRST = frozenset(("add", "mul", "max", "min", "sub", "div"))
"""Operators of graphs whose first argument may be a number."""
EXACT = frozenset(("neg", "abs", "max", "min", "floor", "ceil", "round", "trunc"))
"""Operators whose results need no rounding in the dtype of their arguments."""


def unsupported(e: Expr, loops: frozenset[str]) -> str | None:
    """What no graph has of the expression of a stage with these loops."""
    if not loads(e):
        return _varying(e, loops) or "a value that is made of no tensor: a number is no tensor"
    return _beyond(e, loops)


def _varying(e: Expr, loops: frozenset[str]) -> str | None:
    varied = sorted(variables(e) & loops)
    return f"arithmetic on the index of axis `{varied[0]}`: values are made of tensors alone" if varied else None


def _beyond(e: Expr, loops: frozenset[str]) -> str | None:
    if not loads(e):
        return _varying(e, loops)
    match e:
        case Load():
            return None
        case Cast(arg, dtype):
            wrong = None if arg.dtype in FLOATS and dtype in FLOATS else f"`cast` of {arg.dtype} to {dtype}"
            wrong = wrong and f"{wrong}: a graph has floats of 16 bits and more"
            return _beyond(arg, loops) or wrong
        case Op(name, args, dtype):
            inner = next((w for a in args if (w := _beyond(a, loops)) is not None), None)
            if inner is None and dtype not in FLOATS:
                return f"`{name}` of {dtype}: a graph computes with floats of 16 bits and more"
            if inner is None and not loads(args[0]) and name not in NUMBER_FIRST:
                return f"`{name}` of a number and a tensor, in this order"
            return inner
    return "`select`: a graph has no masks" if isinstance(e, Select) else f"`{type(e).__name__.lower()}`"


@dataclass
class Nodes:
    """The nodes so far, in order, and of each value the axes that it varies over."""

    axes: dict[str, frozenset[str]] = field(default_factory=dict)
    made: dict[str, Node] = field(default_factory=dict)
    _known: dict[Node, str] = field(default_factory=dict)

    def add(
        self, op: str, *operands: str, axis: str = "", constant: Expr | None = None, dtype: str = "", function: str = ""
    ) -> str:
        """The value of a node, by its name: of one that there is, if one is equal."""
        commutes = OPS[op].commutes
        node = Node("", op, tuple(sorted(operands)) if commutes else operands, axis, constant=constant, dtype=dtype)
        node = replace(node, function=function)
        if node not in self._known:
            name = f"v{len(self.made)}'"  # no name of a user's; `called` gives the last ones
            self._known[node] = name
            self.made[name] = replace(node, name=name, operands=operands)
            self.axes[name] = frozenset[str]().union(*(self.axes[o] for o in operands)) - {axis}
        return self._known[node]

    def node(self, name: str, op: str) -> Node | None:
        """The node that makes a value, if it is one of this operator."""
        node = self.made.get(name)
        return node if node is not None and node.op == op else None

    def called(
        self, wishes: Mapping[str, str], kept: Iterable[str], taken: Iterable[str]
    ) -> tuple[dict[str, str], tuple[Node, ...]]:
        """The last names of values, and the nodes that those in `kept` need, under these names.

        `wishes` are the names of the stages that values are of; any other is called like its operator.
        """
        live = needed(self.made.values(), {*kept})
        names, used = {}, set(taken)
        for name in (*(n for n in wishes if n in live), *(n for n in self.made if n in live and n not in wishes)):
            if name in self.made:
                names[name] = fresh_name(used, wishes.get(name, self.made[name].op))
                used.add(names[name])
        nodes = (n for name, n in self.made.items() if name in live)
        return names, tuple(
            replace(n, name=names[n.name], operands=tuple(names.get(o, o) for o in n.operands)) for n in nodes
        )


@dataclass(frozen=True)
class Writer:
    """Writes expressions of a stage in which nothing is `unsupported` as nodes; `read` gives the value of a load."""

    nodes: Nodes
    read: Callable[[Load], str]

    def value(self, e: Expr) -> str:
        """The value of an expression that reads a tensor."""
        if isinstance(e, Load):
            return self.read(e)
        if isinstance(e, Cast):
            return self._cast(self.value(e.arg), e.arg.dtype, e.dtype)
        assert isinstance(e, Op), e
        return self._op(e.name, [self.value(a) if loads(a) else a for a in e.args], e.dtype)

    def _cast(self, x: str, source: str, dtype: str) -> str:
        wider = DTYPES[dtype].bits > DTYPES[source].bits and dtype != "float64"
        return x if wider else self.rounded(x, dtype)

    def rounded(self, x: str, dtype: str) -> str:
        """x as a number of `dtype`."""
        last = self.nodes.node(x, "cast")
        return x if last is not None and last.dtype == dtype else self.nodes.add("cast", x, dtype=dtype)

    def _op(self, name: str, args: list[Operand], dtype: str) -> str:
        exact = self._exact(name, args)
        narrow = DTYPES[dtype].bits == 16 and name not in EXACT
        return self.rounded(exact, dtype) if narrow else exact

    def _exact(self, name: str, args: list[Operand]) -> str:
        values = tuple(a for a in args if isinstance(a, str))
        if len(values) == len(args):
            return self._of_values(name, values)
        number_first, number = next((k == 0, a) for k, a in enumerate(args) if not isinstance(a, str))
        if number_first and name in ("sub", "div"):
            return self._of_number(name, number, values[0])
        return self._with_number(name, values[0], number)

    def _of_values(self, name: str, values: tuple[str, ...]) -> str:
        add, x = self.nodes.add, values[0]
        match name:
            case "exp2":
                return add("exp", self.scaled(x, op("ln2")))
            case "mul" if x == values[1]:
                return add("sqr", x)
            case "mul" if (gated := self._gated(*values)) is not None:
                return add("silu", gated)
            case "div" if self._logistic(values[1]) == x:
                return add("silu", x)
        return add(OPERATORS[name], *values) if name in OPERATORS else add("opaque", *values, function=name)

    def _with_number(self, name: str, x: str, number: Expr) -> str:
        match name:
            case "add":
                return self.shifted(x, number)
            case "sub":
                return self.shifted(x, negative(number))
            case "mul":
                return self.scaled(x, number)
            case "div":
                return self.scaled(x, reciprocal(number))
            case "pow":
                return self._power(x, number)
        return self.nodes.add("opaque", x, constant=number, function=name)

    def _of_number(self, name: str, number: Expr, x: str) -> str:
        if name == "sub":
            return self.shifted(self.nodes.add("neg", x), number)
        if (logistic := self._logistic(x)) is not None:
            return self.scaled(self.nodes.add("sigmoid", logistic), number)
        root = self.nodes.node(x, "sqrt")
        inverse = self._power(x, Const(-1.0, number.dtype)) if root is None else self.nodes.add("rsqrt", *root.operands)
        return self.scaled(inverse, number)

    def shifted(self, x: str, number: Expr) -> str:
        """x + number."""
        return x if _is(number, 0) else self.nodes.add("shift", x, constant=number)

    def scaled(self, x: str, number: Expr) -> str:
        """x · number."""
        return x if _is(number, 1) else self.nodes.add("scale", x, constant=number)

    def _power(self, x: str, number: Expr) -> str:
        if _is(number, 1):
            return x
        short = next((name for name, by in POWERS.items() if _is(number, by)), None)
        return self.nodes.add("power", x, constant=number) if short is None else self.nodes.add(short, x)

    def _gated(self, a: str, b: str) -> str | None:
        """x of x · sigmoid(x)."""
        for x, gate in ((a, b), (b, a)):
            node = self.nodes.node(gate, "sigmoid")
            if node is not None and node.operands == (x,):
                return x
        return None

    def _logistic(self, y: str) -> str | None:
        """x of 1 + exp(-x)."""
        sum_ = self.nodes.node(y, "shift")
        exp = self.nodes.node(sum_.operands[0], "exp") if sum_ is not None and _is(sum_.constant, 1) else None
        if exp is None:
            return None
        neg, scale = self.nodes.node(exp.operands[0], "neg"), self.nodes.node(exp.operands[0], "scale")
        if neg is not None:
            return neg.operands[0]
        return scale.operands[0] if scale is not None and _is(scale.constant, -1) else None


def reciprocal(number: Expr) -> Expr:
    """1 / number."""
    return binary("div", Const(1.0, number.dtype), number)


def negative(number: Expr) -> Expr:
    """-number."""
    return Const(-number.value, number.dtype) if isinstance(number, Const) else op("neg", number)


def _is(number: Expr | None, value: float) -> bool:
    return isinstance(number, Const) and number.value == value
