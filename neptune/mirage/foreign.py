"""Read the graphs that Mirage's optimizer saves as JSON, on the axes of an expression.

    [[{"op_type": "kn_input_op", …}, {"op_type": "kn_customized_op", "bgraph": {…}}, {"op_type": "kn_output_op", …}]]

Mirage knows dimensions by position and length. Here each has the axis of the expression's input that it comes from, so
that lengths which only happen to be equal are told apart: a grid dimension, the loop and each operator must have one
axis in all that they touch, or the graph is refused. A saved value that has a grid dimension in a dimension of another
axis is a split: its programs' results stand side by side there, until a reduction adds them up.

Source of the format: mirage-project/mirage, `to_json` of its kernel and thread-block graphs. Tile lengths, threads,
offsets and layouts in the files are not kept: they are no part of a graph here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.ir.expr import Const
from neptune.ir.names import fresh_name
from neptune.ir.program import Program
from neptune.mirage.builder import GraphBuilder, KernelBuilder, Value
from neptune.mirage.foreign_json import (
    ACCUMULATORS,
    COORDINATES,
    LEFT,
    MAPS,
    PAIRS,
    ROUNDS,
    SUMS,
    Json,
    Shaped,
    graphs_of,
    holds,
    text,
    total,
)
from neptune.mirage.ir import SPLIT, WHOLE, Graph, Tensor
from neptune.mirage.reference import reference


@public
def read_mirage(text: str, expression: Program | Graph | None = None, number: int = 0) -> Graph:
    """Graph `number` of a file of Mirage's, on the axes of an expression (`neptune.mirage.reference` of a Program).

    Inputs and outputs are those of the expression, in order. Without an expression, dimensions of one length are one
    axis, which is refused where a tensor has two of them. Raises ExpressionError, naming graph, operator and axis, for
    what is no JSON, torn or of another kind, for operators that a graph has not, and where axes do not fit.
    """
    every = graphs_of(text)
    if not 0 <= number < len(every):
        raise ExpressionError(
            f"graph {number} of the JSON", f"the JSON has {len(every)} graphs", legal=[f"0 to {len(every) - 1}"]
        )
    return _Reader(every[number], number, expression).graph()


@dataclass
class _Block:
    """A kernel as it is read: the axis of each grid dimension, the loop, and the tiles by their guids.

    `rounds`: it has a loop over what a split has left, and none over an axis.
    """

    kernel: KernelBuilder
    axes: Mapping[str, str]
    loop: str
    dimx: int
    rounds: bool
    tiles: dict[Any, Shaped] = field(default_factory=dict)


class _Reader(Json):
    """One graph, as far as it is read."""

    def __init__(self, operators: list[Any], number: int, expression: Program | Graph | None) -> None:
        super().__init__(f"graph {number} of the JSON")
        self.whole_graph = self.at
        self.operators = [self.checked(x) for x in operators]
        if expression is None:
            expression = self.inferred(self.operators, f"graph_{number}")
        self.wanted = reference(expression) if isinstance(expression, Program) else expression
        self.builder = GraphBuilder.like(self.wanted)
        self.lengths: dict[str, int] = {}
        self.tensors: dict[Any, Shaped] = {}
        self.cut: set[str] = set()

    def operands(self, operator: Any, known: Mapping[Any, Shaped]) -> list[Shaped]:
        guids = [self.get(t, "guid", int) for t in self.get(operator, "input_tensors", list)]
        missing = next((g for g in guids if g not in known), None)
        if missing is not None:
            self.fail(f"it reads tensor {missing}, which nothing before it makes")
        return [known[g] for g in guids]

    # --- kernel level ---

    def graph(self) -> Graph:
        inputs = [t for t in self.wanted.inputs if not t.buffer]
        twice = next((t for t in self.wanted.inputs if t.buffer), None)
        if twice is not None:
            self.fail(f"input `{twice.buffer}` of the expression has several axes for a dimension")
        given, results = iter(inputs), 0
        for k, operator in enumerate(self.operators):
            self.at = f"{self.whole_graph}, operator {k} (`{operator['op_type']}`)"
            match self.name(operator, "kn"):
                case "input":
                    self.input(operator, next(given, None))
                case "output":
                    self.output(operator, results)
                    results += 1
                case "customized":
                    self.customized(operator, f"kernel_{k}")
                case kind:
                    result = self.computed(kind, self.operands(operator, self.tensors), operator)
                    self.keep(operator, result, self.tensors)
        self.at = self.whole_graph
        left = next(given, None)
        if left is not None or results != len(self.wanted.outputs):
            lacks = f"input `{left.name}`" if left is not None else f"output {results}"
            self.fail(f"it has no {lacks} of the expression")
        return self.builder.graph()

    def input(self, operator: Any, tensor: Tensor | None) -> None:
        tensor_json = self.result(operator)
        shape = self.shape(tensor_json)
        if tensor is None or len(tensor.axes) != len(shape):
            has = "no such input" if tensor is None else f"`{tensor.name}` over {', '.join(tensor.axes)}"
            self.fail(f"an input of lengths {list(shape)}, where the expression has {has}")
        for axis, length in zip(tensor.axes, shape, strict=True):
            size = self.wanted.axes[axis]
            known = size.value if isinstance(size, Const) else self.lengths.get(axis, length)
            if length != known:
                self.fail(f"axis `{axis}` of `{tensor.name}` has length {length}, and elsewhere {known}")
            self.lengths[axis] = length
        value = next(v for v in self.builder.tensors if v.name == tensor.name)
        self.tensors[self.get(tensor_json, "guid", int)] = Shaped(value, tuple(((a, WHOLE),) for a in tensor.axes))

    def output(self, operator: Any, number: int) -> None:
        read = self.operands(operator, self.tensors)
        if number >= len(self.wanted.outputs) or len(read) != 1:
            self.fail(f"the expression has {len(self.wanted.outputs)} outputs")
        wanted = self.wanted.outputs[number]
        if read[0].dims != tuple(((a, WHOLE),) for a in wanted.axes):
            has = ", ".join(map(text, read[0].dims))
            self.fail(f"its dimensions are {has}, and those of output `{wanted.name}` {', '.join(wanted.axes)}")
        self.builder.output(wanted.name, " ".join(wanted.axes), read[0].value, wanted.dtype)

    def keep(self, operator: Any, shaped: Shaped, known: dict[Any, Shaped]) -> None:
        """Remember what an operator makes, whose rank the file must have right."""
        tensor = self.result(operator)
        if len(self.shape(tensor)) != len(shaped.dims):
            self.fail(f"its result has {len(self.shape(tensor))} dimensions in the JSON, and is of {len(shaped.dims)}")
        known[self.get(tensor, "guid", int)] = shaped

    # --- operators of both levels ---

    def computed(self, kind: str, operands: list[Shaped], operator: Any, dimx: int = 0) -> Shaped:
        arity = 2 if kind in PAIRS or kind == "matmul" else 1
        if len(operands) != arity:
            self.fail(f"it has {len(operands)} operands in place of {arity}")
        x = operands[0]
        if kind.startswith("reduction_"):
            return self.reduced(kind.removeprefix("reduction_"), x, operator, dimx)
        if not self.linear(kind, operands):
            for given in operands:
                self.check_folded(given)
        if kind in MAPS:
            return Shaped(MAPS[kind](x.value), x.dims)
        if kind in PAIRS:
            return Shaped(PAIRS[kind](x.value, operands[1].value), self.broadcast(*operands))
        if kind == "matmul":
            return self.matmul(*operands)
        if kind == "rms_norm":
            axis = self.whole(x)
            if axis in self.cut:
                self.fail(f"it takes the mean along a tile of axis `{axis}`: a graph has that of one whole axis")
            return Shaped(x.value / self.root_mean(x, x.value.sqr().sum(axis)), x.dims)
        self.fail("a graph has no such operator", [*MAPS, *PAIRS, "matmul", "rms_norm", "reduction_…"])

    def matmul(self, a: Shaped, b: Shaped) -> Shaped:
        if min(len(a.dims), len(b.dims)) < 2:
            self.fail("its operands are no matrices")
        (*lead, m, k), (*other, depth, n) = a.dims, b.dims
        if k != depth:
            self.fail(f"it folds {text(k)} of one operand with {text(depth)} of the other: they are not one axis")
        if m and m == n:
            self.fail(f"rows and columns of its result are both {text(m)}")
        batch = self.broadcast(Shaped(a.value, tuple(lead)), Shaped(b.value, tuple(other)))
        if not k:
            return Shaped(a.value * b.value, (*batch, m, n))
        if k != ((k[0][0], WHOLE),):
            self.fail(f"it folds {text(k)}: a graph folds one axis, and adds up by a reduction what a split has left")
        return Shaped(a.value.matmul(b.value, k[0][0]), (*batch, m, n))

    def whole(self, x: Shaped) -> str:
        """The axis of the last dimension, none of whose parts lie elsewhere."""
        last = x.dims[-1] if x.dims else ()
        if len(last) != 1 or last[0][1] != WHOLE:
            self.fail(f"it takes the mean along {text(last)}: a graph has that of one whole axis")
        return last[0][0]

    def root_mean(self, x: Shaped, squares: Value) -> Value:
        return (squares / self.builder.size(self.whole(x))).sqrt()

    def reduced(self, kind: str, x: Shaped, operator: Any, dimx: int) -> Shaped:
        """`0`, or `0_to_dimx`: the sum over a dimension, or over the outer parts of one that a split has made."""
        digit, _, rest = kind.partition("_")
        if not digit.isdecimal() or int(digit) >= len(x.dims) or rest not in ("", "to_dimx"):
            self.fail(f"there is no reduction `{kind}` of {len(x.dims)} dimensions")
        number = int(digit)
        if rest == "" and self.shape(self.result(operator))[number] != 1:
            rest, dimx = "to_dimx", self.shape(self.result(operator))[number]
        return self.outer(x, number, dimx) if rest else self.summed(x, number)

    def summed(self, x: Shaped, number: int) -> Shaped:
        if holds(x.dims[number], ROUNDS):
            self.fail(f"it adds up a round of {text(x.dims[number])}: an accumulator has to")
        return Shaped(total(x.value, x.dims[number]), (*x.dims[:number], (), *x.dims[number + 1 :]))

    def outer(self, x: Shaped, number: int, dimx: int) -> Shaped:
        """The sum of the parts that stand side by side in a dimension; `dimx` is the length of each.

        Of one axis it leaves columns, which may only be summed.
        """
        splits = tuple(a for a in x.dims[number] if a[1] in (SPLIT, ROUNDS))
        inner = tuple(a for a in x.dims[number] if a not in splits)
        if not splits and len(inner) == 1 and dimx > 0 and self.lengths[inner[0][0]] % dimx == 0:
            return Shaped(total(x.value, inner), (*x.dims[:number], ((inner[0][0], LEFT),), *x.dims[number + 1 :]))
        if not splits or not (holds(inner, LEFT) or prod(self.lengths[a] for a, _ in inner) == dimx):
            self.fail(f"it adds up parts of {dimx} elements along {text(x.dims[number])}, which is not made of such")
        return Shaped(total(x.value, splits), (*x.dims[:number], inner, *x.dims[number + 1 :]))

    # --- kernels ---

    def customized(self, operator: Any, name: str) -> None:
        self.operands(operator, self.tensors)
        block = self.get(operator, "bgraph", dict)
        grid, steps = self.mapped(block, "grid_dim"), self.get(block, "forloop_range", int)
        operators = [self.checked(x) for x in self.get(block, "operators", list)]
        loads = [x for x in operators if x["op_type"] == "tb_input_op"]
        axes = {c: self.cut_by(c, loads) for c in COORDINATES if grid[c] > 1}
        rounds = steps > 1 and self.in_rounds(loads)
        loop = self.loop_axis(loads) if steps > 1 and not rounds else ""
        dimx = self.get(block, "reduction_dimx", int) if "reduction_dimx" in block else 0
        where = self.at
        with self.builder.kernel(name, " ".join(axes.values()), loop) as kernel:
            block_read = _Block(kernel, axes, loop, dimx, rounds)
            self.cut = {*axes.values(), loop}
            saved: list[tuple[Any, Shaped]] = []
            for k, x in enumerate(operators):
                self.at = f"{where}, operator {k} of its kernel (`{x['op_type']}`)"
                match self.name(x, "tb"):
                    case "input":
                        self.load(x, block_read)
                    case "output":
                        saved.append(self.saved(x, block_read, grid, f"{name}_{len(saved)}"))
                    case kind:
                        self.keep(x, self.block_value(kind, x, block_read), block_read.tiles)
        self.tensors |= dict(saved)
        self.at, self.cut = where, set()

    def cut_by(self, c: str, loads: list[dict[str, Any]]) -> str:
        """The axis that a dimension of the grid cuts, which has to be the same one in every tensor."""
        axes: dict[str, str] = {}
        for x in loads:
            dim = self.mapped(x, "input_map")[c]
            if dim >= 0:
                tensor = self.source(x)
                axes.setdefault(self.axis_of(tensor, dim), tensor.value.name)
        return self.only(axes, f"dimension {c} of the grid cuts")

    def in_rounds(self, loads: list[dict[str, Any]]) -> bool:
        """True for a loop over what a split has left, in every tensor that it goes over."""
        dims = [(self.source(x).dims, self.get(x, "forloop_dim", int)) for x in loads]
        return all(d < len(tensor_dims) and holds(tensor_dims[d], SPLIT) for tensor_dims, d in dims if d >= 0) and any(
            d >= 0 for _, d in dims
        )

    def loop_axis(self, loads: list[dict[str, Any]]) -> str:
        axes: dict[str, str] = {}
        for x in loads:
            dim = self.get(x, "forloop_dim", int)
            if dim >= 0:
                tensor = self.source(x)
                axes.setdefault(self.axis_of(tensor, dim), tensor.value.name)
        return self.only(axes, "the loop goes over")

    def source(self, load: Any) -> Shaped:
        guid = self.get(self.get(load, "dtensor", dict), "guid", int)
        if guid not in self.tensors:
            self.fail(f"a kernel reads tensor {guid}, which nothing before it makes")
        return self.tensors[guid]

    def axis_of(self, tensor: Shaped, dim: int) -> str:
        if dim >= len(tensor.dims) or len(tensor.dims[dim]) != 1 or tensor.dims[dim][0][1] != WHOLE:
            has = text(tensor.dims[dim]) if dim < len(tensor.dims) else "not there"
            self.fail(f"dimension {dim} of `{tensor.value.name}` is cut, which is {has}: a graph cuts single axes")
        return tensor.dims[dim][0][0]

    def load(self, operator: Any, block: _Block) -> None:
        tensor = self.source(operator)
        cuts = {c: d for c, d in self.mapped(operator, "input_map").items() if c in block.axes and d >= 0}
        by_grid = {self.axis_of(tensor, d) for d in cuts.values()}
        loop = self.get(operator, "forloop_dim", int)
        by_loop = {self.axis_of(tensor, loop)} if block.loop and loop >= 0 else set()
        has = {a for dim in tensor.dims for a, parts in dim if parts == WHOLE}
        uncut = [a for a in has if a in block.axes.values() and a not in by_grid]
        uncut += [a for a in has if a == block.loop and a not in by_loop]
        halfway = next((a for a in uncut if a in by_grid | by_loop), None)
        if halfway is not None:
            self.fail(f"axis `{halfway}` is cut by the grid and by the loop, and here by one of them alone")
        name = fresh_name(block.kernel.types, tensor.value.name)
        value = block.kernel.load(tensor.value, " ".join(dict.fromkeys(uncut)), name)
        dims = list(tensor.dims)
        if block.rounds and loop >= 0:
            inner = prod(self.lengths[a] for a, parts in dims[loop] if parts == WHOLE)
            if self.shape(self.result(operator))[loop] % inner:
                self.fail(f"a step of the loop ends within a part of {inner} elements of {text(dims[loop])}")
            dims[loop] = tuple((a, ROUNDS if parts == SPLIT else parts) for a, parts in dims[loop])
        self.keep(operator, Shaped(value, tuple(dims)), block.tiles)

    def block_value(self, kind: str, operator: Any, block: _Block) -> Shaped:
        operands = self.operands(operator, block.tiles)
        prefix = next((p for p in ("forloop_accum_", "accum_") if kind.startswith(p)), None)
        if prefix is None:
            return self.computed(kind, operands, operator, block.dimx)
        if len(operands) != 1:
            self.fail(f"it has {len(operands)} operands in place of 1")
        return self.accumulated(kind.removeprefix(prefix).replace("no_red", "nored"), operands[0], block)

    def accumulated(self, kind: str, x: Shaped, block: _Block) -> Shaped:
        last = len(x.dims) - 1

        def over(v: Value) -> Value:
            return v.acc() if block.loop else v

        if block.rounds and not (x.dims and kind in SUMS and holds(x.dims[-1], ROUNDS)):
            self.fail("its loop goes over what a split has left, and it does not add that up")
        if kind not in (*SUMS, "nored"):
            self.check_folded(x)
        tile = ((block.loop, WHOLE),)
        match kind:
            case "nored" if block.loop and tile in x.dims:
                return Shaped(x.value.acc_sum(), tuple(((block.loop, LEFT),) if d == tile else d for d in x.dims))
            case "nored":
                return Shaped(over(x.value), x.dims)
            case "max":
                return Shaped(x.value.acc_max() if block.loop else x.value, x.dims)
            case "redtox_ld_sum":
                parts = self.outer(x, last, block.dimx)
                return Shaped(over(parts.value), parts.dims)
            case "red_ld_sum":
                return Shaped(self.folded(x, block), (*x.dims[:last], ()))
            case "red_ld_mean" | "red_ld_rms":
                axis = self.whole(x)
                if (block.loop and axis != block.loop) or axis in block.axes.values():
                    self.fail(f"it takes the mean along axis `{axis}`, of which the loop and a program have not all")
                if kind == "red_ld_rms":
                    squares = Shaped(x.value.sqr(), x.dims)
                    return Shaped(self.root_mean(x, self.folded(squares, block)), (*x.dims[:last], ()))
                return Shaped(self.folded(x, block) / self.builder.size(axis), (*x.dims[:last], ()))
        self.fail(f"a graph has no accumulator `{kind}`", ACCUMULATORS)

    def folded(self, x: Shaped, block: _Block) -> Value:
        """The sum over the last dimension and the loop."""
        last = x.dims[-1] if x.dims else ()
        if block.loop and last == ((block.loop, WHOLE),):
            return x.value.acc_sum()
        value = total(x.value, last)
        return value.acc() if block.loop else value

    def saved(self, operator: Any, block: _Block, grid: Mapping[str, int], name: str) -> tuple[Any, Shaped]:
        read = self.operands(operator, block.tiles)
        if len(read) != 1:
            self.fail(f"it saves {len(read)} values in place of 1")
        x, dims = read[0], list(read[0].dims)
        to = self.mapped(operator, "output_map")
        for c, axis in block.axes.items():
            if not 0 <= to[c] < len(dims):
                self.fail(f"its map has no dimension for {c}: {grid[c]} programs along axis `{axis}` overlap")
            if (axis, WHOLE) in dims[to[c]]:
                continue
            if any((axis, WHOLE) in dim for dim in dims):
                self.fail(f"its map puts parts of axis `{axis}` side by side in {text(dims[to[c]])}")
            dims[to[c]] = ((axis, SPLIT), *dims[to[c]])
        tensor = self.get(operator, "dtensor", dict)
        return self.get(tensor, "guid", int), Shaped(block.kernel.save(name, x.value), tuple(dims))
