"""Proofs of equality for all sizes: the outputs of a graph as indexed normal forms (`forms.py`).

`indexed_forms` gives each output as a form over the elements of the inputs, `prove_equal` compares two graphs. Equal
forms are a proof, as each step is an identity of the reals: for all sizes of at least 1 and all cuts into programs,
iterations and tiles, wherever denominators are not 0 and what a root is taken of is not negative. Different forms
prove nothing.

A sum over the tile, the loop and the grid part of an axis is the sum over the axis; a value that still depends on how
an axis is cut has no form. Casts are passed over.

A running maximum is a function of which nothing is known, of the iteration and the axes that it has, and its last value
is the maximum: what is rescaled by it, Σ x·exp(c·(m − m_last)) over the iterations, has a form where exp merges all
that was subtracted. So repaired graphs are proved for any m, as softmax subtracts any m from its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from neptune.errors import Unsupported, answered
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Cast, Const, Expr, Op, Var, walk
from neptune.ir.text.printer import print_expr
from neptune.mirage.ir import GRID, LOOP, NOTHING, TILE, Graph, Kernel, Load, Node, tensors_of
from neptune.mirage.ops import OPS
from neptune.mirage.types import graph_types
from neptune.mirage.verifier import forms
from neptune.mirage.verifier.domain import Need, Needs, demanded, folded, lacking
from neptune.mirage.verifier.forms import ONE, Atom, Domain, Form, Index, add, multiply, number, scaled
from neptune.mirage.verifier.powers import divided, logarithm, power

CONDITIONS = (
    "sizes are at least 1",
    "denominators are not 0",
    "what a root is taken of is not negative",
    "inputs are finite",
)
"""What a proof takes for granted."""
Variables: TypeAlias = Mapping[str, str]
"""The variables of an axis by its part."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether two graphs are equal for all sizes. `why` says what stands in the way where it is not proved."""

    proved: bool
    why: str = ""
    conditions: tuple[str, ...] = CONDITIONS

    def __str__(self) -> str:
        if not self.proved:
            return f"not decided: {self.why}"
        return f"proved for all sizes, where {', '.join(self.conditions)}"


@dataclass(frozen=True, slots=True)
class _Value:
    """A value: its form, and for each axis that it varies over the variables of its parts, and all that it ever had.
    `running` is its value in each iteration, where it is a running maximum or follows from one; `needs`: what it takes
    for it to have a value."""

    form: Form
    axes: Mapping[str, Variables]
    whole: Mapping[str, Index]
    running: _Value | None = None
    needs: Needs = frozenset()

    @property
    def changes(self) -> bool:
        """True where it is another value in each iteration of a loop."""
        return any(LOOP in parts for parts in self.axes.values())


def prove_equal(graph: Graph, other: Graph) -> Proof:
    """A proof that the outputs of two valid graphs are equal in their order, or why there is none.

    Inputs correspond by the names of their buffers, sizes and scalars by theirs.
    """
    if len(graph.outputs) != len(other.outputs):
        return Proof(False, f"one has {len(graph.outputs)} outputs, the other {len(other.outputs)}")
    ours = indexed_forms(graph)
    if isinstance(ours, Unsupported):
        return Proof(False, str(ours))
    expected = indexed_forms(other)
    if isinstance(expected, Unsupported):
        return Proof(False, str(expected))
    for a, b in zip(graph.outputs, other.outputs, strict=True):
        if [d.key for d in ours[a.name][1]] != [d.key for d in expected[b.name][1]]:
            return Proof(False, f"output `{a.name}` has another shape")
        if ours[a.name][0] != expected[b.name][0]:
            return Proof(False, f"output `{a.name}` has another normal form")
    return Proof(True)


def indexed_forms(graph: Graph) -> dict[str, tuple[Form, tuple[Domain, ...]]] | Unsupported:
    """Each output by name: its form over the indices `@0`, `@1`, …, and the sizes of its dimensions; Unsupported, with
    the reason, where a value has no form."""
    values_walk = answered(_walked, graph)
    if isinstance(values_walk, Unsupported):
        return values_walk
    for out in graph.outputs:
        if part := forms.depends_on_cuts(values_walk.values[out.value].form):
            return Unsupported(f"output `{out.name}` depends on how axes are cut, by `{part}`")
    return values_walk.outputs


def lacks(graph: Graph, expression: Graph) -> list[Need] | Unsupported:
    """What outputs of a graph need to have a value, and those of an expression in the same order and names do not;
    Unsupported where a value of either has no form."""
    graph_walk = answered(_walked, graph)
    if isinstance(graph_walk, Unsupported):
        return graph_walk
    expression_walk = answered(_walked, expression)
    if isinstance(expression_walk, Unsupported):
        return expression_walk
    needs: list[Need] = []
    for a, b in zip(graph.outputs, expression.outputs, strict=True):
        if a.axes != b.axes:
            return Unsupported(f"output `{a.name}` has other axes")
        needs += lacking(graph_walk.values[a.value].needs, expression_walk.values[b.value].needs)
    return list(dict.fromkeys(needs))


def _walked(graph: Graph) -> _Walk:
    """A graph with the values of its steps; Unsupported where any form on the way grows too large."""
    graph_types(graph)
    values_walk = _Walk(graph)
    values_walk.values = tensors_of(graph, values_walk.values, values_walk)
    for out in graph.outputs:
        names = {a: f"@{n}" for n, a in enumerate(out.axes) if not values_walk.single(a)}
        form = forms.rename(values_walk.values[out.value].form, names)
        values_walk.outputs[out.name] = form, tuple(values_walk.domains[a] for a in out.axes)
    return values_walk


class _Walk:
    """The values of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = {v.name for e in graph.axes.values() for v in _variables(e)}
        self.domains = {a: _domain(self.constant(e)) for a, e in graph.axes.items()}
        self.values: dict[str, _Value] = {}
        self.outputs: dict[str, tuple[Form, tuple[Domain, ...]]] = {}
        for t in graph.inputs:
            variables = {a: {TILE: self.variable(a)} for a in t.axes}
            indices = {a: (self.variable(a),) for a in t.axes}
            self.values[t.name] = _Value(forms.element(t.source, [indices[a] for a in t.axes]), variables, indices)

    def single(self, axis: str) -> bool:
        """True for an axis of one element."""
        return self.domains[axis].key == "1"

    def variable(self, axis: str) -> str:
        return "0" if self.single(axis) else axis

    def load(self, load: Load, kernel: Kernel, v: _Value) -> _Value:
        """A tile of a tensor: each index in parts."""
        tuples: dict[Index, Index] = {}
        axes, indices = dict(v.axes), dict(v.whole)
        for axis, own in v.axes.items():
            cuts = NOTHING if axis in load.whole else kernel.cuts(axis)
            parts = [p for p in (GRID, LOOP, TILE) if p in cuts or p == TILE]
            if self.single(axis):
                axes[axis] = dict.fromkeys(parts, "0")
                continue
            if not cuts or set(own) != {TILE}:
                continue
            axes[axis] = {p: f"{axis}.{p}@{kernel.name}" for p in parts}
            indices[axis] = tuple(axes[axis].values())
            tuples[axis,] = indices[axis]
        return replace(v, form=forms.rename(v.form, {}, tuples), axes=axes, whole=indices)

    def save(self, v: _Value) -> _Value:
        """A tensor in device memory: each index one variable again."""
        tuples, axes, indices = {}, dict(v.axes), dict(v.whole)
        for axis, own in v.axes.items():
            if TILE not in own or self.single(axis):
                axes[axis] = {TILE: "0"} if TILE in own else own
                continue
            if set(own.values()) != set(v.whole[axis]):
                raise Unsupported(f"a tensor has the tiles of axis `{axis}`, and not all of its parts")
            tuples[v.whole[axis]] = (axis,)
            axes[axis], indices[axis] = {TILE: axis}, (axis,)
        form = forms.rename(v.form, {}, tuples)
        for axis in (a for t in tuples for a in tuples[t]):
            if form.free & {x for x in v.whole[axis] if x != axis}:
                raise Unsupported(f"a tensor depends on how axis `{axis}` is cut")
        return replace(v, form=form, axes=axes, whole=indices)

    def node(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """The value of an operator, with what it and its operands need."""
        result = self.value(node, operands)
        needs = frozenset(n for v in operands for n in v.needs).union(*(self.demands(node, operands)))
        if OPS[node.op].kind != "map":
            needs = folded(needs, node.axis)
        running = result.running and replace(result.running, needs=needs)
        return replace(result, needs=needs, running=running)

    def demands(self, node: Node, operands: Sequence[_Value]) -> Iterator[Iterable[Need]]:
        """What an operator needs itself, of whole axes, and what its number does."""
        name = node.function if node.op == "opaque" else "pow" if node.op == "power" else node.op
        joined_indices = {v.whole[a]: (a,) for v in operands for a in v.whole if len(v.whole[a]) > 1}
        args = [forms.rename(v.form, {}, joined_indices) for v in operands]
        if node.constant is not None:
            args.append(self.constant(node.constant))
            for x in walk(node.constant):
                if isinstance(x, Op):
                    yield demanded(x.name, [self.constant(a) for a in x.args])
        yield demanded(name, args, _rational(args[-1]) if node.constant is not None else None)

    def value(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """The value of an operator."""
        row = OPS[node.op]
        if row.kind == "map":
            return self.mapped(node, operands)
        if node.op == "acc_rescaled":
            return self.folded(node, self.rescaled(node, *operands))
        if any(v.changes for v in operands) and any(v.running for v in operands):
            raise Unsupported(f"`{node.name}` folds a running maximum")
        form = multiply(*(v.form for v in operands)) if node.op == "matmul" else operands[0].form
        inner = replace(_joined(node, operands), form=form)
        result = self.folded(node, inner)
        return replace(result, running=self.running(node, inner)) if node.op == "acc_max" else result

    def mapped(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """A map; in the loop it reads what a running maximum is there, and behind it the last one."""
        there = [v.running or v for v in operands]
        if any(v.changes for v in operands):
            operands = there
        result = replace(_joined(node, operands), form=self.map(node, [v.form for v in operands]))
        if operands is there or all(v.running is None for v in operands):
            return result
        return replace(result, running=self.mapped(node, there))

    def running(self, node: Node, v: _Value) -> _Value:
        """A number of which nothing is known for each iteration."""
        index = tuple(tuple(parts.values()) for parts in v.axes.values())
        return replace(v, form=forms.of_atom(Atom("running", node.name, index)))

    def rescaled(self, node: Node, x: _Value, m: _Value) -> _Value:
        """x·exp(c·(m − m_last)) in each iteration."""
        if m.running is None:
            raise Unsupported(f"`{node.name}` is rescaled by what is no running maximum")
        degree = ONE if node.constant is None else self.constant(node.constant)
        moved = multiply(degree, _minus(m.running.form, m.form))
        joined = _joined(node, [x, m.running])
        return replace(joined, form=multiply(x.form, forms.exponential(moved)))

    def folded(self, node: Node, v: _Value) -> _Value:
        """A value without the parts of an axis that a node takes away: summed, or its largest."""
        own = v.axes[node.axis]
        left = {p: x for p, x in own.items() if p not in node.taken}
        axes = {a: left if a == node.axis else x for a, x in v.axes.items() if a != node.axis or left}
        variables = {x: self.part(node.axis, x) for p, x in own.items() if p in node.taken and x != "0"}
        if OPS[node.op].reducer == "max":
            return replace(v, form=self.largest(node, v, variables), axes=axes)
        complete = v.whole.get(node.axis, ()) == tuple(own.values())
        sums = []
        for t, c in v.form.terms:
            f = Form(((t, c),))
            if not variables.keys() <= t.free:
                if not complete:
                    raise Unsupported(f"`{node.name}` sums over parts of axis `{node.axis}` what is the same in each")
                f = multiply(f, forms.of_atom(Atom("one", "", (v.whole[node.axis],))))
            sums.append(forms.total(f, variables))
        return replace(v, form=add(*sums), axes=axes)

    def largest(self, node: Node, v: _Value, variables: Mapping[str, Domain]) -> Form:
        """The maximum over variables; those of a whole axis that the value is free of do not count."""
        lacks = variables.keys() - v.form.free
        if any(variables[x].size is None for x in lacks):
            raise Unsupported(f"`{node.name}` folds parts of axis `{node.axis}` of what is the same in each")
        return forms.largest(v.form, {x: d for x, d in variables.items() if x not in lacks})

    def part(self, axis: str, variable: str) -> Domain:
        """What a variable runs over."""
        domain = self.domains[axis]
        return domain if variable == axis else Domain(variable, None, domain)

    def map(self, node: Node, args: list[Form]) -> Form:
        """An elementwise operator on forms."""
        if node.op == "cast":
            return args[0]
        args = [*args, *([] if node.number is None else [self.constant(node.number)])]
        if node.op == "opaque":
            return logarithm(*args) if (node.function, len(args)) == ("log", 1) else forms.call(node.function, *args)
        return node.applied(_applied, *args)

    def constant(self, e: Expr) -> Form:
        """An expression over sizes and scalars, exactly: a float is the rational that it is."""
        match e:
            case Const(value, _) if not isinstance(value, bool) and isfinite(value):
                return number(Fraction(value))
            case Var(name, dtype):
                return forms.size(name) if name in self.sizes and is_int(dtype) else forms.call(name, kind="scalar")
            case Cast(arg, dtype) if dtype not in ("bool", "int8", "int16", "int32", "int64") or is_int(arg.dtype):
                return self.constant(arg)
            case Op(name, args, _) if name in _OF_NUMBERS:
                return _applied(name, *(self.constant(a) for a in args))
            case _:
                return forms.call(print_expr(e))


def _joined(node: Node, operands: Sequence[_Value]) -> _Value:
    """The axes of a map of values; each axis has to be cut alike in all of them."""
    axes: dict[str, dict[str, str]] = {}
    indices: dict[str, Index] = {}
    for v in operands:
        for axis, own in v.axes.items():
            held = axes.setdefault(axis, {})
            for p, x in own.items():
                if held.setdefault(p, x) != x:
                    raise Unsupported(f"`{node.name}` joins values that are cut differently along axis `{axis}`")
            if indices.setdefault(axis, v.whole[axis]) != v.whole[axis]:
                raise Unsupported(f"`{node.name}` joins values that are cut differently along axis `{axis}`")
    return _Value(ONE, axes, indices)


def _variables(e: Expr) -> list[Var]:
    return [e] if isinstance(e, Var) else [v for p in e.parts for v in _variables(p)]


def _domain(size: Form) -> Domain:
    return Domain(size.key, size)


def _sigmoid(x: Form) -> Form:
    return divided(ONE, add(ONE, forms.exponential(scaled(x, Fraction(-1)))))


def _maximum(a: Form, b: Form) -> Form:
    if a == b:
        return a
    first, second = sorted((a, b), key=lambda f: f.key)
    return forms.call("maximum", first, second)


def _power(x: Form, e: Form) -> Form:
    exponent = _rational(e)
    if exponent is None:
        return forms.call("power", x, e)
    return power(x, exponent)


def _rational(e: Form) -> Fraction | None:
    """The number that a form is, if it is one."""
    if not e.terms:
        return Fraction(0)
    (term, c), *rest = e.terms
    return c if not rest and not term.factors and not term.bound else None


def _minus(a: Form, b: Form) -> Form:
    return add(a, scaled(b, Fraction(-1)))


_HALF = Fraction(1, 2)
_FUNCTIONS: Mapping[str, Callable[..., Form]] = {
    "add": add,
    "sub": _minus,
    "mul": multiply,
    "div": divided,
    "max": _maximum,
    "neg": lambda x: scaled(x, Fraction(-1)),
    "exp": forms.exponential,
    "sqrt": lambda x: power(x, _HALF),
    "rsqrt": lambda x: power(x, -_HALF),
    "sigmoid": _sigmoid,
    "pow": _power,
}
_OF_NUMBERS = _FUNCTIONS.keys() - {"max", "sigmoid", "pow"}
"""Those of which the numbers of nodes are made, written out."""


def _applied(name: str, *args: Form) -> Form:
    return _FUNCTIONS[name](*args)
