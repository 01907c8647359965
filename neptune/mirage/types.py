"""The types of values in a µGraph: which parts of which axes each varies over, and where in a kernel it lives.

The rules are those of Definition 2.1 of the paper, on labelled axes: `kernel_types` and `graph_types` raise an
ExpressionError that names the node, the operator and the axis where a graph is not valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neptune.boundary import public
from neptune.errors import ExpressionError
from neptune.ir.ops import OPS as OPERATORS
from neptune.mirage.ir import GRID, LOOP, SPLIT, TILE, WHOLE, Graph, Kernel, Node, Parts, Type
from neptune.mirage.ops import FLOATS, OPS

NOTHING: Parts = frozenset()
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

    def cut(axis: str, parts: Parts) -> Parts:
        if parts == SPLIT or axis in whole:
            return parts
        return parts | {p for p, on in ((GRID, axis in kernel.grid), (LOOP, axis == kernel.loop)) if on}

    return {a: cut(a, p) for a, p in axes.items()}


def joined(a: Type, b: Type) -> Type | None:
    """The type of a map of two values; None where neither has the parts of a shared axis that the other has."""
    both = dict(a)
    for axis, parts in b.items():
        mine = both.get(axis, parts)
        if not agree(mine, parts):
            return None
        both[axis] = mine | parts
    return both


def agree(a: Parts, b: Parts) -> bool:
    """True where values that vary over these parts of one axis have a common map.

    Two tiles of an axis are of one size only where they are cut alike.
    """
    return a == b or (a < b and TILE not in a) or (b < a and TILE not in b)


def check_fields(node: Node) -> None:
    """Raise ExpressionError where a node lacks what its operator has beside operands, or has what that has not."""
    row = OPS.get(node.op)
    if row is None:
        raise _bad(node, f"there is no operator `{node.op}`", list(OPS))
    if row.kind == "fold" and not node.axis:
        raise _bad(node, f"`{node.op}` takes an axis away, and none is given")
    if row.constant and node.constant is None:
        raise _bad(node, f"`{node.op}` has a number, and none is given")
    if node.op == "cast" and node.dtype not in FLOATS:
        raise _bad(node, f"it rounds to {node.dtype or 'nothing'}", FLOATS)
    if row.kind == "fold" and not node.parts:
        raise _bad(node, f"it takes no part of axis `{node.axis}` away", [TILE, GRID])
    if node.op == "opaque":
        _check_function(node)


def _check_function(node: Node) -> None:
    """Raise ExpressionError where a function is none of numbers, or takes another count of them."""
    row = FUNCTIONS.get(node.function)
    if row is None:
        raise _bad(node, f"`opaque` has a function, and `{node.function}` is none", list(FUNCTIONS))
    given = len(node.operands) + (node.constant is not None)
    if given != row.arity:
        raise _bad(node, f"`{node.function}` takes {row.arity} values, and {given} are given")


def without(t: Type, axis: str, parts: Parts) -> Type:
    """The type with parts of an axis taken away."""
    left = t[axis] - parts
    return {a: p if a != axis else left for a, p in t.items() if a != axis or left}


def node_type(node: Node, operands: Sequence[Type]) -> Type:
    """The type of a node's value from those of its operands, or an ExpressionError."""
    row = OPS[node.op]
    if row.arity >= 0 and len(operands) != row.arity:
        raise _bad(node, f"`{node.op}` takes {row.arity} operands, and {len(operands)} are given")
    t: Type = {}
    for other in operands if row.kind != "accumulate" else operands[:1]:
        made = joined(t, other)
        if made is None:
            axes = [a for a in t if a in other and not agree(t[a], other[a])]
            raise _bad(node, f"its operands hold different parts of axis `{axes[0]}`")
        t = made
    if row.kind == "map":
        return t
    taken = node.parts if row.kind == "fold" else frozenset({LOOP, TILE} if node.op == "acc_sum" else {LOOP})
    if not taken <= t.get(node.axis, NOTHING):
        has = "does not vary along it" if node.axis not in t else f"has its {_names(t[node.axis])} part"
        raise _bad(
            node, f"it takes the {_names(taken)} part of axis `{node.axis}` away, and its operand {has}", sorted(t)
        )
    return without(t, node.axis, taken)


def kernel_types(kernel: Kernel, tensors: Mapping[str, Type]) -> dict[str, Typed]:
    """The types of all values of a kernel by name; `tensors` are those in device memory."""
    found: dict[str, Typed] = {}
    if len(set(kernel.grid)) < len(kernel.grid):
        raise ExpressionError(f"kernel `{kernel.name}`", f"its grid ({', '.join(kernel.grid)}) has an axis twice")
    if len(kernel.grid) > 3:
        raise ExpressionError(
            f"kernel `{kernel.name}`", f"a grid has up to three axes, and {len(kernel.grid)} are given"
        )
    for load in kernel.loads:
        if load.tensor not in tensors:
            raise ExpressionError(f"load `{load.name}`", f"there is no tensor `{load.tensor}`", legal=list(tensors))
        found[load.name] = Typed(loaded(tensors[load.tensor], kernel, load.whole))
    for node in kernel.nodes:
        found[node.name] = kernel_node(node, kernel, found)
    for save in kernel.saves:
        check_save(kernel, save.name, found.get(save.value))
    return found


def kernel_node(node: Node, kernel: Kernel, found: Mapping[str, Typed]) -> Typed:
    """The type of a node of a kernel from those of the values before it."""
    unknown = next((o for o in node.operands if o not in found), None)
    if unknown is not None:
        raise _bad(node, f"there is no value `{unknown}` before it", list(found))
    check_fields(node)
    if node.name in found:
        raise _bad(node, "another value has its name")
    operands = [found[o] for o in node.operands]
    accumulates = OPS[node.op].kind == "accumulate"
    if accumulates and node.axis != kernel.loop:
        raise _bad(node, f"the loop is over {kernel.loop or 'nothing'}, and it accumulates over axis `{node.axis}`")
    t = node_type(node, [o.type for o in operands])
    changes = not accumulates and any(o.body for o in operands)
    behind = accumulates or any(o.behind and not (changes and o.running) for o in operands)
    if changes and behind:
        raise _bad(
            node, "one operand changes in the loop, and another is there behind it only: it needs an accumulator"
        )
    if node.op == "acc_rescaled" and not operands[1].running:
        raise _bad(node, f"`{node.operands[1]}` is no running maximum, by which a sum could be rescaled")
    return Typed(t, behind, node.op == "acc_max", _left(node, kernel.loop, t, operands if not accumulates else None))


def _left(node: Node, loop: str | None, t: Type, operands: Sequence[Typed] | None) -> bool:
    """True where the tile part of the loop's axis is what an accumulator has left; this is one, if without operands."""
    if loop is None or TILE not in t.get(loop, NOTHING):
        return False
    if operands is None:
        return True
    kinds = {o.left for o in operands if loop in o.type}
    if len(kinds) > 1:
        raise _bad(node, f"one operand holds all of axis `{loop}`, and another what an accumulator has left of it")
    return any(kinds)


def check_save(kernel: Kernel, name: str, value: Typed | None) -> None:
    """Raise ExpressionError where programs cannot write a value, or would write the same elements."""
    at = f"result `{name}` of kernel `{kernel.name}`"
    if value is None:
        raise ExpressionError(at, "there is no such value")
    if value.body:
        raise ExpressionError(at, f"it changes in the loop over `{kernel.loop}`: no accumulator is on its way")
    if value.left:
        raise ExpressionError(at, f"it holds what an accumulator has left of axis `{kernel.loop}`: no part of a tensor")
    lacks = [a for a in kernel.grid if GRID not in value.type.get(a, NOTHING)]
    if lacks:
        raise ExpressionError(at, f"programs along axis `{lacks[0]}` of the grid would all write the same elements")


def saved(t: Type) -> Type:
    """The type at kernel level of a value that a kernel saves."""
    return {a: WHOLE if TILE in p else SPLIT for a, p in t.items()}


@public
def graph_types(graph: Graph) -> dict[str, Type]:
    """The types of all values at kernel level by name. Everything in the graph is checked."""
    _check_axes(graph)
    found: dict[str, Type] = {t.name: dict.fromkeys(t.axes, WHOLE) for t in graph.inputs}
    for step in graph.steps:
        made: dict[str, Type]
        if isinstance(step, Kernel):
            typed = kernel_types(step, found)
            made = {s.name: saved(typed[s.value].type) for s in step.saves}
        else:
            made = {step.name: library_node(step, found)}
        twice = next((name for name in made if name in found), None)
        if twice is not None:
            raise ExpressionError(f"value `{twice}` of the graph", "another value has its name")
        found |= made
    for out in graph.outputs:
        t = found.get(out.value)
        if t is None:
            raise ExpressionError(f"output `{out.name}`", f"there is no value `{out.value}`", legal=list(found))
        if dict(t) != dict.fromkeys(out.axes, WHOLE):
            raise ExpressionError(
                f"output `{out.name}`",
                f"its value varies over {_type(t)}, and its dimensions are {', '.join(out.axes)}",
            )
    return found


def fault(graph: Graph) -> ExpressionError | None:
    """What is wrong with a graph; None of a valid one."""
    try:
        graph_types(graph)
    except ExpressionError as error:
        return error
    return None


def _check_axes(graph: Graph) -> None:
    """Raise ExpressionError for an axis that has no size."""
    named = [(f"input `{t.name}`", t.axes) for t in graph.inputs]
    for k in graph.kernels:
        named.append((f"kernel `{k.name}`", k.grid if k.loop is None else (*k.grid, k.loop)))
        named += [(f"load `{x.name}`", x.whole) for x in k.loads]
    for asked, axes in named:
        unknown = next((a for a in axes if a not in graph.axes), None)
        if unknown is not None:
            raise ExpressionError(asked, f"the graph has no axis `{unknown}`", legal=list(graph.axes))


def library_node(node: Node, found: Mapping[str, Type]) -> Type:
    """The type of a node on whole tensors from those of the values before it."""
    unknown = next((o for o in node.operands if o not in found), None)
    if unknown is not None:
        raise _bad(node, f"there is no value `{unknown}` before it", list(found))
    check_fields(node)
    if OPS[node.op].kind == "accumulate":
        raise _bad(node, "an accumulator stands in a kernel with a loop")
    return node_type(node, [found[o] for o in node.operands])


def _names(parts: Parts) -> str:
    return " and ".join(p for p in (GRID, LOOP, TILE) if p in parts)


def _type(t: Type) -> str:
    return ", ".join(a if p == WHOLE else f"the {_names(p)} part of {a}" for a, p in t.items()) or "nothing"


def _bad(node: Node, wrong: str, legal: Sequence[str] = ()) -> ExpressionError:
    return ExpressionError(f"`{node.name} = {node.op}({', '.join(node.operands)})`", wrong, legal=legal)
