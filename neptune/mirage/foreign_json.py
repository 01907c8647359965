"""What the reader of Mirage's JSON asks of its objects, each of which may be torn, or of another kind.

The dimensions of its tensors are known by the axes that stand in them (`Shaped`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from neptune import private
from neptune.errors import ExpressionError
from neptune.ir.expr import Const
from neptune.mirage.builder import Value
from neptune.mirage.ir import LOOP, SPLIT, Graph, Output, Parts, Tensor

COORDINATES = ("x", "y", "z")


def graphs_of(text: str) -> list[list[Any]]:
    """The graphs of a file as lists of operators; one graph by itself is a file, too."""
    try:
        read = private.understood(text)
    except json.JSONDecodeError as error:
        wrong = f"it is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    except ValueError as error:
        wrong = str(error)
    else:
        graphs = [read] if isinstance(read, list) and read and all(isinstance(x, dict) for x in read) else read
        if isinstance(graphs, list) and graphs and all(isinstance(g, list) for g in graphs):
            return graphs
        wrong = "it is JSON of another kind"
    raise ExpressionError("the JSON of Mirage's graphs", wrong, hint="a list of graphs, each a list of operators")


class Json:
    """The objects of one graph. `at` is the operator that is read at present, in the words of an error."""

    def __init__(self, at: str) -> None:
        self.at = at

    def fail(self, wrong: str, legal: Sequence[str] = (), hint: str | None = None) -> NoReturn:
        raise ExpressionError(self.at, wrong, legal=legal, hint=hint)

    def get(self, owner: Any, key: str, kind: type) -> Any:
        """`of[key]`, which has to be there and of that type."""
        field = owner.get(key) if isinstance(owner, dict) else None
        if not isinstance(field, kind) or isinstance(field, bool):
            self.fail(f"it has no `{key}`, or one that is no {kind.__name__}: the JSON is torn, or of another kind")
        return field

    def checked(self, operator: Any) -> dict[str, Any]:
        self.get(operator, "op_type", str)
        return dict(operator)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        dims, rank = self.get(tensor, "dim", list), self.get(tensor, "num_dims", int)
        if rank > len(dims) or not all(isinstance(n, int) and n > 0 for n in dims[:rank]):
            self.fail(f"a tensor has {rank} dimensions of lengths {dims}")
        return tuple(dims[:rank])

    def mapped(self, owner: Any, key: str) -> dict[str, int]:
        """A map of x, y and z, which may be written as a list."""
        places = owner.get(key) if isinstance(owner, dict) else None
        if isinstance(places, list) and len(places) == len(COORDINATES):
            places = dict(zip(COORDINATES, places, strict=True))
        if not isinstance(places, dict) or not all(isinstance(places.get(c), int) for c in COORDINATES):
            self.fail(f"it has no `{key}` of x, y and z: the JSON is torn, or of another kind")
        return {c: places[c] for c in COORDINATES}

    def result(self, operator: Any) -> Any:
        """The one tensor that an operator makes."""
        tensors = self.get(operator, "output_tensors", list)
        if len(tensors) != 1:
            self.fail(f"it makes {len(tensors)} tensors, and a graph's operators make one")
        return tensors[0]

    def inferred(self, operators: Sequence[Any], name: str) -> Graph:
        """The inputs and outputs of the file, dimensions of one length being one axis."""
        kinds = {"kn_input_op": "output_tensors", "kn_output_op": "input_tensors"}
        shapes_of: dict[str, list[tuple[int, ...]]] = {kind: [] for kind in kinds}
        for operator in operators:
            kind = operator["op_type"]
            if kind in kinds:
                shapes_of[kind] += [self.shape(t) for t in self.get(operator, kinds[kind], list)]
        for shape in (*shapes_of["kn_input_op"], *shapes_of["kn_output_op"]):
            twice = next((n for n in shape if shape.count(n) > 1), None)
            if twice is not None:
                self.fail(f"a tensor has two dimensions of length {twice}: which axes they are, its expression says")
        named = {kind: [tuple(f"n{n}" for n in shape) for shape in shapes] for kind, shapes in shapes_of.items()}
        sizes = {f"n{n}": Const(n, "int32") for shapes in shapes_of.values() for shape in shapes for n in shape}
        return Graph(
            name,
            sizes,
            tuple(Tensor(f"x{k}", axes, "float16") for k, axes in enumerate(named["kn_input_op"])),
            (),
            tuple(Output(f"y{k}", axes, "float16", f"y{k}") for k, axes in enumerate(named["kn_output_op"])),
        )


# --- dimensions -------------------------------------------------------------------------------------


Dim: TypeAlias = tuple[tuple[str, Parts], ...]
"""The axes of a dimension, outermost first, with their parts: none where its length is 1, two behind a split."""

LEFT: Parts = frozenset({"left"})
"""What an accumulator leaves of the loop's axis, as long as a tile, or columns to which an axis is folded: it is summed
already, and may only be summed."""
ROUNDS: Parts = SPLIT | {LOOP}
"""What a split has left, read in rounds by a loop, whose accumulators may only add all of it up."""


@dataclass(frozen=True)
class Shaped:
    """A value with the axes of its dimensions."""

    value: Value
    dims: tuple[Dim, ...]


def holds(dim: Dim, *kinds: Parts) -> bool:
    """True where a dimension has an axis with these parts."""
    return any(parts in kinds for _, parts in dim)


def total(value: Value, dim: Dim) -> Value:
    """The sum over all parts of a dimension."""
    for axis, parts in dim:
        if parts != LEFT:
            value = value.sum(axis, SPLIT if parts == ROUNDS else parts)
    return value


def text(dim: Dim) -> str:
    if not dim:
        return "a dimension of length 1"
    words = {SPLIT: "the programs along", ROUNDS: "the programs along", LEFT: "tiles of axis"}
    return " and ".join(f"{words.get(parts, 'axis')} `{a}`" for a, parts in dim)
