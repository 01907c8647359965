"""The types of values in a µGraph: which parts of which axes each varies over, and where in a kernel it lives.

The rules are those of Definition 2.1 of the paper, on labelled axes: `kernel_types` and `graph_types` raise an
ExpressionError that names the node, the operator and the axis where a graph is not valid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from neptune.base.boundary import public
from neptune.errors import ExpressionError, unless_refused
from neptune.ir.ops import OPS as OPERATORS
from neptune.mirage.ir import GRID, LOOP, NOTHING, SPLIT, TILE, WHOLE, Graph, Kernel, Node, Parts, Type
from neptune.mirage.ops import FLOATS, OPS

FUNCTIONS = {name: row for name, row in OPERATORS.items() if row.kind in ("arith", "math")}
"""The functions of numbers, which an opaque node may have."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of a kernel: its type, and whether it reads an accumulator (is `behind` the loop).

    A `running` one has a value in every iteration too, which the body may read: the maximum so far of an acc_max.
    `left`: the tile part of the loop's axis is what an accumulator has left of it, as long as one iteration's.
    """

    type: Type
    behind: bool = False
    running: bool = False
    left: bool = False

    @property
    def body(self) -> bool:
        """True where it varies from one iteration of the loop to the next."""
        return any(LOOP in parts for parts in self.type.values())


def loaded(axes: Mapping[str, Parts], kernel: Kernel, whole: Sequence[str] = ()) -> Type:
    """The type of a tile of a tensor with these axes (at kernel level) in a kernel."""
    return {a: p if p == SPLIT or a in whole else p | kernel.cuts(a) for a, p in axes.items()}


def joined(a: Type, b: Type) -> Type | None:
    """The type of a map of two values; None where neither has the parts of a shared axis that the other has."""
    both = dict(a)
    for axis, parts in b.items():
        parts_here = both.get(axis, parts)
        if not agree(parts_here, parts):
            return None
        both[axis] = parts_here | parts
    return both


def agree(a: Parts, b: Parts) -> bool:
    """True where values that vary over these parts of one axis have a common map.

    Two tiles of an axis are of one size only where they are cut alike.
    """
    return a == b or (a < b and TILE not in a) or (b < a and TILE not in b)


def _unfit(node: Node, known: Collection[str]) -> ExpressionError | None:
    """A value that is not `found` before a node, what it lacks of what its operator has beside operands, or has that
    that has not."""
    unknown = next((o for o in node.operands if o not in known), None)
    if unknown is not None:
        return _bad(node, f"there is no value `{unknown}` before it", list(known))
    row = OPS.get(node.op)
    if row is None:
        return _bad(node, f"there is no operator `{node.op}`", list(OPS))
    if row.kind == "fold" and not node.axis:
        return _bad(node, f"`{node.op}` takes an axis away, and none is given")
    if row.constant and node.constant is None:
        return _bad(node, f"`{node.op}` has a number, and none is given")
    if node.op == "cast" and node.dtype not in FLOATS:
        return _bad(node, f"it rounds to {node.dtype or 'nothing'}", FLOATS)
    if row.kind == "fold" and not node.parts:
        return _bad(node, f"it takes no part of axis `{node.axis}` away", [TILE, GRID])
    if node.op == "opaque":
        return _function_fault(node)
    return None


def _function_fault(node: Node) -> ExpressionError | None:
    """That a function is none of numbers, or takes another count of them."""
    row = FUNCTIONS.get(node.function)
    if row is None:
        return _bad(node, f"`opaque` has a function, and `{node.function}` is none", list(FUNCTIONS))
    given = len(node.operands) + (node.constant is not None)
    if given != row.arity:
        return _bad(node, f"`{node.function}` takes {row.arity} values, and {given} are given")
    return None


def without(t: Type, axis: str, parts: Parts) -> Type:
    """The type with parts of an axis taken away."""
    left = t[axis] - parts
    return {a: p if a != axis else left for a, p in t.items() if a != axis or left}


def _node_type(node: Node, operands: Sequence[Type]) -> Type | ExpressionError:
    """The type of a node's value from those of its operands, or what is wrong with it."""
    row = OPS[node.op]
    if row.arity >= 0 and len(operands) != row.arity:
        return _bad(node, f"`{node.op}` takes {row.arity} operands, and {len(operands)} are given")
    t: Type = {}
    for other in operands if row.kind != "accumulate" else operands[:1]:
        both = joined(t, other)
        if both is None:
            axes = [a for a in t if a in other and not agree(t[a], other[a])]
            return _bad(node, f"its operands hold different parts of axis `{axes[0]}`")
        t = both
    if row.kind == "map":
        return t
    taken = node.taken
    if not taken <= t.get(node.axis, NOTHING):
        has = "does not vary along it" if node.axis not in t else f"has its {_names(t[node.axis])} part"
        return _bad(
            node, f"it takes the {_names(taken)} part of axis `{node.axis}` away, and its operand {has}", sorted(t)
        )
    return without(t, node.axis, taken)


def kernel_types(kernel: Kernel, tensors: Mapping[str, Type]) -> dict[str, Typed]:
    """The types of all values of a kernel by name; `tensors` are those in device memory."""
    return unless_refused(_kernel_types(kernel, tensors))


def _kernel_types(kernel: Kernel, tensors: Mapping[str, Type]) -> dict[str, Typed] | ExpressionError:
    types: dict[str, Typed] = {}
    if len(set(kernel.grid)) < len(kernel.grid):
        return ExpressionError(f"kernel `{kernel.name}`", f"its grid ({', '.join(kernel.grid)}) has an axis twice")
    if len(kernel.grid) > 3:
        return ExpressionError(
            f"kernel `{kernel.name}`", f"a grid has up to three axes, and {len(kernel.grid)} are given"
        )
    for load in kernel.loads:
        if load.tensor not in tensors:
            return ExpressionError(f"load `{load.name}`", f"there is no tensor `{load.tensor}`", legal=list(tensors))
        types[load.name] = Typed(loaded(tensors[load.tensor], kernel, load.whole))
    for node in kernel.nodes:
        typed = kernel_node(node, kernel, types)
        if isinstance(typed, ExpressionError):
            return typed
        types[node.name] = typed
    wrong = (save_fault(kernel, save.name, types.get(save.value)) for save in kernel.saves)
    return next((w for w in wrong if w is not None), types)


def kernel_node(node: Node, kernel: Kernel, known: Mapping[str, Typed]) -> Typed | ExpressionError:
    """The type of a node of a kernel from those of the values before it, or what is wrong with it."""
    wrong = _unfit(node, known)
    if wrong is not None:
        return wrong
    if node.name in known:
        return _bad(node, "another value has its name")
    operands = [known[o] for o in node.operands]
    accumulates = OPS[node.op].kind == "accumulate"
    if accumulates and node.axis != kernel.loop:
        return _bad(node, f"the loop is over {kernel.loop or 'nothing'}, and it accumulates over axis `{node.axis}`")
    t = _node_type(node, [o.type for o in operands])
    if isinstance(t, ExpressionError):
        return t
    changes = not accumulates and any(o.body for o in operands)
    behind = accumulates or any(o.behind and not (changes and o.running) for o in operands)
    if changes and behind:
        return _bad(
            node, "one operand changes in the loop, and another is there behind it only: it needs an accumulator"
        )
    if node.op == "acc_rescaled" and not operands[1].running:
        return _bad(node, f"`{node.operands[1]}` is no running maximum, by which a sum could be rescaled")
    left = _left(kernel.loop, t, operands if not accumulates else None)
    if len(left) > 1:
        what = f"one operand holds all of axis `{kernel.loop}`, and another what an accumulator has left of it"
        return _bad(node, what)
    return Typed(t, behind, node.op == "acc_max", any(left))


def _left(loop: str | None, t: Type, operands: Sequence[Typed] | None) -> set[bool]:
    """Whether the tile part of the loop's axis is what an accumulator has left, as each operand says; this is one, if
    without operands."""
    if loop is None or TILE not in t.get(loop, NOTHING):
        return {False}
    return {True} if operands is None else {o.left for o in operands if loop in o.type}


def save_fault(kernel: Kernel, name: str, value: Typed | None) -> ExpressionError | None:
    """That programs cannot write a value, or would write the same elements."""
    request = f"result `{name}` of kernel `{kernel.name}`"
    if value is None:
        return ExpressionError(request, "there is no such value")
    if value.body:
        return ExpressionError(request, f"it changes in the loop over `{kernel.loop}`: no accumulator is on its way")
    if value.left:
        return ExpressionError(
            request, f"it holds what an accumulator has left of axis `{kernel.loop}`: no part of a tensor"
        )
    lacks = [a for a in kernel.grid if GRID not in value.type.get(a, NOTHING)]
    if lacks:
        return ExpressionError(
            request, f"programs along axis `{lacks[0]}` of the grid would all write the same elements"
        )
    return None


def saved(t: Type) -> Type:
    """The type at kernel level of a value that a kernel saves."""
    return {a: WHOLE if TILE in p else SPLIT for a, p in t.items()}


@public
def graph_types(graph: Graph) -> dict[str, Type]:
    """The types of all values at kernel level by name. Everything in the graph is checked."""
    return unless_refused(_graph_types(graph))


def fault(graph: Graph) -> ExpressionError | None:
    """What is wrong with a graph; None of a valid one."""
    types = _graph_types(graph)
    return types if isinstance(types, ExpressionError) else None


def _graph_types(graph: Graph) -> dict[str, Type] | ExpressionError:
    wrong = _axes_fault(graph)
    if wrong is not None:
        return wrong
    types: dict[str, Type] = {t.name: dict.fromkeys(t.axes, WHOLE) for t in graph.inputs}
    for step in graph.steps:
        own = _step_types(step, types)
        if isinstance(own, ExpressionError):
            return own
        twice = next((name for name in own if name in types), None)
        if twice is not None:
            return ExpressionError(f"value `{twice}` of the graph", "another value has its name")
        types |= own
    for out in graph.outputs:
        t = types.get(out.value)
        if t is None:
            return ExpressionError(f"output `{out.name}`", f"there is no value `{out.value}`", legal=list(types))
        if dict(t) != dict.fromkeys(out.axes, WHOLE):
            return ExpressionError(
                f"output `{out.name}`",
                f"its value varies over {_type(t)}, and its dimensions are {', '.join(out.axes)}",
            )
    return types


def _step_types(step: Kernel | Node, known: Mapping[str, Type]) -> dict[str, Type] | ExpressionError:
    """The types of what a step makes."""
    if isinstance(step, Node):
        own = library_node(step, known)
        return own if isinstance(own, ExpressionError) else {step.name: own}
    typed = _kernel_types(step, known)
    return typed if isinstance(typed, ExpressionError) else {s.name: saved(typed[s.value].type) for s in step.saves}


def _axes_fault(graph: Graph) -> ExpressionError | None:
    """An axis that has no size."""
    named = [(f"input `{t.name}`", t.axes) for t in graph.inputs]
    for k in graph.kernels:
        named.append((f"kernel `{k.name}`", k.grid if k.loop is None else (*k.grid, k.loop)))
        named += [(f"load `{x.name}`", x.whole) for x in k.loads]
    for request, axes in named:
        unknown = next((a for a in axes if a not in graph.axes), None)
        if unknown is not None:
            return ExpressionError(request, f"the graph has no axis `{unknown}`", legal=list(graph.axes))
    return None


def library_node(node: Node, known: Mapping[str, Type]) -> Type | ExpressionError:
    """The type of a node on whole tensors from those of the values before it, or what is wrong with it."""
    wrong = _unfit(node, known)
    if wrong is not None:
        return wrong
    if OPS[node.op].kind == "accumulate":
        return _bad(node, "an accumulator stands in a kernel with a loop")
    return _node_type(node, [known[o] for o in node.operands])


def _names(parts: Parts) -> str:
    return " and ".join(p for p in (GRID, LOOP, TILE) if p in parts)


def _type(t: Type) -> str:
    return ", ".join(a if p == WHOLE else f"the {_names(p)} part of {a}" for a, p in t.items()) or "nothing"


def _bad(node: Node, wrong: str, legal: Sequence[str] = ()) -> ExpressionError:
    return ExpressionError(f"`{node.name} = {node.op}({', '.join(node.operands)})`", wrong, legal=legal)
