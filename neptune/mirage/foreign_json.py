"""What the reader of Mirage's JSON asks of its objects, each of which may be torn, or of another kind.

The dimensions of its tensors are known by the axes that stand in them (`Shaped`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from neptune.base import private
from neptune.errors import ExpressionError
from neptune.ir.expr import Const
from neptune.mirage.builder import Value
from neptune.mirage.ir import LOOP, SPLIT, Graph, Output, Parts, Tensor

COORDINATES = ("x", "y", "z")
MAPS: Mapping[str, Callable[[Value], Value]] = {
    "exp": lambda x: x.exp(),
    "square": lambda x: x.sqr(),
    "sqrt": lambda x: x.sqrt(),
    "silu": lambda x: x.silu(),
    "sigmoid": lambda x: x.sigmoid(),
    "log": lambda x: x.opaque("log"),
    "relu": lambda x: x.opaque("max", constant=0),
}
PAIRS: Mapping[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
SUMS = ("red_ld_sum", "redtox_ld_sum")
ACCUMULATORS = ("nored", "red_ld_sum", "red_ld_mean", "red_ld_rms", "redtox_ld_sum", "max")


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

    def name(self, operator: Mapping[str, Any], level: str) -> str:
        """The operator's name without what says its level."""
        kind = str(operator["op_type"])
        if not (kind.startswith(f"{level}_") and kind.endswith("_op")):
            self.fail(f"there is no operator `{kind}` here", [f"{level}_…_op"])
        return kind.removeprefix(f"{level}_").removesuffix("_op")

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

    # --- what operators may be of ---

    def linear(self, kind: str, operands: list[Shaped]) -> bool:
        """True for an operator that is the same of the sum of what is left of an axis."""
        left = [any(holds(dim, LEFT) for dim in x.dims) for x in operands]
        return all(left) if kind in ("add", "sub") else kind in ("mul", "div") and left[0] and not left[-1]

    def check_folded(self, x: Shaped) -> None:
        left = next((a for dim in x.dims for a, parts in dim if parts == LEFT), None)
        if left is not None:
            self.fail(f"it reads tiles or columns that are left of axis `{left}`: a graph folds them first")

    def broadcast(self, a: Shaped, b: Shaped) -> tuple[Dim, ...]:
        """The dimensions of a map: each is that of both, or one of them has length 1."""
        if len(a.dims) != len(b.dims):
            self.fail(f"its operands have {len(a.dims)} and {len(b.dims)} dimensions")
        for p, q in zip(a.dims, b.dims, strict=True):
            if p and q and p != q:
                self.fail(f"a dimension is {text(p)} in one operand, and {text(q)} in the other")
        return tuple(p or q for p, q in zip(a.dims, b.dims, strict=True))

    def only(self, axes: dict[str, str], what: str) -> str:
        if len(axes) != 1:
            texts = [f"axis `{axis}` of `{tensor}`" for axis, tensor in axes.items()]
            self.fail(f"{what} {' and '.join(texts)}: they are not one axis" if texts else f"{what} no tensor")
        return next(iter(axes))


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
    """A dimension of one of Mirage's tensors, in words."""
    if not dim:
        return "a dimension of length 1"
    words = {SPLIT: "the programs along", ROUNDS: "the programs along", LEFT: "tiles of axis"}
    return " and ".join(f"{words.get(parts, 'axis')} `{a}`" for a, parts in dim)
