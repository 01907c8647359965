"""The meaning of a graph: its outputs on arrays of any numbers, with every axis in its parts.

A value in a kernel is an array with a dimension for each part (grid, loop, tile) of each of its axes, behind a first
one that numbers draws. Where parts do not fill their tile, places repeat the last element: what is folded by max may
see them, a sum leaves them out.

Running maxima. An `acc_max` has a value in every iteration of its loop, which nodes in the body read, and the last one,
which those behind it read. `acc_rescaled(x, m)` is Σ x·exp(c·(m − m_last)) over the iterations. With `free` every
maximum (by an accumulator, a fold or element by element) is an array of its own that is drawn: one number for each
element and iteration. What does not depend on a maximum at all is the same then.

Values are kept by what they are, so that graphs which share a beginning share its evaluation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, pairwise
from operator import and_, gt
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from neptune.ir.evaluate.domains import Array, EvaluationError, Results, Unevaluated, Value, every, results_or_why
from neptune.ir.evaluate.floats import Float64
from neptune.ir.expr import Expr
from neptune.ir.ops import OPS as OPERATORS
from neptune.mirage.ir import GRID, LOOP, NOTHING, TILE, Graph, Kernel, Load, Node, tensors_of
from neptune.mirage.ops import OPS
from neptune.mirage.verifier.constants import Constants, Numbers, applied
from neptune.mirage.verifier.witness import Witness

POLES = frozenset(name for name, row in OPERATORS.items() if {"one", "+", "base"}.intersection(row.domain))
"""Operators that have no value at 0, where floating point has an infinity."""
MEMORY = 1 << 28
"""Bytes of values that an evaluator keeps."""
_ORDER = {GRID: 0, LOOP: 1, TILE: 2}


class Reals(Float64):
    """float64, for `draws` instances at once."""

    def __init__(self, draws: int = 1) -> None:
        self.draws = draws

    def number(self, value: Fraction) -> Value:
        return np.asarray(float(value))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        return rng.standard_normal((self.draws, *shape))

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        try:
            return super().apply(name, args, dtype)
        except KeyError:
            raise EvaluationError(f"float64 has no function `{name}`") from None


class Defined(Reals):
    """float64 in which x/0 and log 0 are no numbers, as they are none of the reals: nor is what is made of them."""

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        result = np.asarray(super().apply(name, args, dtype))
        if name not in POLES:
            return result
        return np.where(np.isinf(result) & reduce(and_, map(np.isfinite, args)), np.nan, result)


class Dim(NamedTuple):
    """A dimension: a part of an axis, and by what the axis is cut ("grid", "loop"). A grid part is one however."""

    axis: str
    part: str
    by: frozenset[str]


@dataclass(frozen=True, slots=True)
class Tiled:
    """A value: its dimensions in order, behind that of draws. `running`: what it is in each iteration of the loop."""

    dims: tuple[Dim, ...]
    value: Value
    running: Tiled | None = None
    key: int = -1

    @property
    def body(self) -> bool:
        return any(d.part == LOOP for d in self.dims)


Pairs: TypeAlias = dict[str, tuple[Value, Value]]
"""Each output of two graphs by name: the first one's, and the other's."""


def pairs(numbers: Numbers, expected: Results, got: Results) -> Pairs | EvaluationError:
    """The outputs of two graphs side by side; an EvaluationError where they do not correspond."""
    if expected.keys() != got.keys():
        return EvaluationError("it has other outputs")
    for name, value in expected.items():
        if numbers.parts(value)[0].shape[1:] != numbers.parts(got[name])[0].shape[1:]:
            return EvaluationError(f"output `{name}` has other axes")
    return {name: (value, got[name]) for name, value in expected.items()}


class Evaluator:
    """Evaluates graphs on one set of inputs. `scalars` gives numbers (arrays over draws) to scalars in constants.

    `inputs` maps buffers to arrays of the numbers: (draws, lengths of the axes in the tensor's order). Raises
    EvaluationError where a graph does with parts of axes what has no meaning.
    """

    def __init__(
        self,
        numbers: Numbers,
        witness: Witness,
        inputs: Mapping[str, Value],
        scalars: Mapping[str, Value],
        *,
        free: bool = False,
        seed: int = 0,
        memory: int = MEMORY,
    ) -> None:
        self.numbers, self.witness, self.inputs, self.scalars = numbers, witness, inputs, scalars
        self.free, self._seed, self._memory = free, seed, memory
        self._keys: dict[Any, int] = {}
        self._found: OrderedDict[int, tuple[Tiled, int]] = OrderedDict()
        self._held = 0
        self._constants = Constants(numbers, scalars, self._free_number if free else None)

    # --- graphs ------------------------------------------------------------------------------------

    def evaluated(self, graph: Graph) -> Results | Unevaluated:
        """The outputs, or why the graph has none in these numbers: an operator deep in it finds that out."""
        return results_or_why(self.outputs, graph)

    def outputs(self, graph: Graph) -> Results:
        """The outputs by name, the first dimension that of draws, the others in the order of the output."""
        tensors = tensors_of(graph, self.graph_inputs(graph), self)
        return {o.name: self.laid_out(tensors[o.value], o.axes) for o in graph.outputs}

    def paired(self, reference: Graph, graph: Graph) -> Pairs | Unevaluated:
        """The outputs of two graphs side by side, or why there are none."""
        both = every(self.evaluated(g) for g in (reference, graph))
        return both if isinstance(both, Unevaluated) else pairs(self.numbers, *both)

    def graph_inputs(self, graph: Graph) -> dict[str, Tiled]:
        """The inputs of a graph, which the reference must have."""
        values = {}
        for t in graph.inputs:
            unknown = [a for a in t.axes if a not in self.witness.lengths]
            if unknown or t.source not in self.inputs:
                what = f"axis `{unknown[0]}`" if unknown else f"input `{t.source}`"
                raise EvaluationError(f"input `{t.name}`: the reference has no {what}")
            lengths = tuple(self.witness.lengths[a] for a in t.axes)
            has = self.numbers.parts(self.inputs[t.source])[0].shape[1:]
            if len(has) != len(lengths) or any(map(gt, lengths, has)):
                raise EvaluationError(f"input `{t.name}`: the reference has other axes there")
            cut = (slice(None), *map(slice, lengths))
            dims = tuple(Dim(a, TILE, frozenset()) for a in t.axes)
            key = self._key("input", t.source, t.axes)
            value = self.numbers.make([x[cut] for x in self.numbers.parts(self.inputs[t.source])])
            values[t.name] = Tiled(dims, value, None, key)
        return values

    def load(self, load: Load, kernel: Kernel, tensor: Tiled) -> Tiled:
        """A tensor in the parts that programs and iterations have."""

        def by(d: Dim) -> frozenset[str]:
            return NOTHING if d.part != TILE or d.axis in load.whole else kernel.cuts(d.axis)

        cuts = [by(d) for d in tensor.dims]
        key = self._key("load", tensor.key, *cuts)
        return self._kept(key) or self._keep(key, self._cut(tensor, cuts))

    def _cut(self, tensor: Tiled, cuts: Sequence[frozenset[str]]) -> Tiled:
        dims: list[Dim] = []
        parts = list(self.numbers.parts(tensor.value))
        for d, by in zip(tensor.dims, cuts, strict=True):
            if not by:
                dims.append(d)
                continue
            cut, dimension = self.witness.cut(d.axis, by), len(dims) + 1
            parts = [np.take(x, cut.element, axis=dimension) for x in parts]
            dims += [Dim(d.axis, p, frozenset() if p == GRID else by) for p in cut.parts]
        return Tiled(tuple(dims), self.numbers.make(parts))

    def save(self, value: Tiled) -> Tiled:
        """What a kernel writes: tiles joined to whole axes, splits as they are."""
        key = self._key("save", value.key)
        return self._kept(key) or self._keep(key, self._joined(value))

    def _joined(self, value: Tiled) -> Tiled:
        if value.body:
            raise EvaluationError("a result changes in the loop")
        value = self._sorted(value)
        dims: list[Dim] = []
        parts = list(self.numbers.parts(value.value))
        for d in value.dims:
            dimension = len(dims) + 1
            if d.part == GRID and Dim(d.axis, TILE, frozenset({GRID})) in value.dims:
                shape = [
                    (*x.shape[:dimension], x.shape[dimension] * x.shape[dimension + 1], *x.shape[dimension + 2 :])
                    for x in parts
                ]
                cut = self.witness.cut(d.axis, frozenset({GRID}))
                places = np.flatnonzero(cut.valid.ravel())
                parts = [np.take(x.reshape(s), places, axis=dimension) for x, s in zip(parts, shape, strict=True)]
                dims.append(Dim(d.axis, TILE, frozenset()))
            elif d.part == TILE and LOOP in d.by:
                raise EvaluationError(f"the tiles of the loop over `{d.axis}` are no part of a tensor")
            elif d.by and Dim(d.axis, GRID, frozenset()) not in value.dims:
                raise EvaluationError(f"the tiles of axis `{d.axis}` without its programs are no part of a tensor")
            elif not d.by:
                dims.append(d)
        return Tiled(tuple(dims), self.numbers.make(parts))

    def laid_out(self, value: Tiled, axes: Sequence[str]) -> Value:
        """A whole tensor with its dimensions in an order."""
        places = {d.axis: k for k, d in enumerate(value.dims, 1)}
        if sorted(places) != sorted(axes) or any(d.part != TILE for d in value.dims):
            raise EvaluationError(f"a value over {', '.join(places)} is no output over {', '.join(axes)}")
        order = (0, *(places[a] for a in axes))
        return self._each(value.value, lambda x: x.transpose(order))

    # --- nodes -------------------------------------------------------------------------------------

    def node(self, node: Node, operands: Sequence[Tiled]) -> Tiled:
        """The value of a node."""
        keys = [x.key for x in operands]
        key = self._key(node.op, node.axis, node.parts, node.constant, node.function, *keys)
        return self._kept(key) or self._keep(key, self._made(node, operands, key))

    def _made(self, node: Node, operands: Sequence[Tiled], key: int) -> Tiled:
        x, row = operands[0], OPS[node.op]
        if row.kind == "map":
            return self._map(node, operands, key)
        if node.op == "acc_max":
            return self._running_max(x, node.axis, key)
        if node.op == "matmul":
            x = self._binary("mul", *operands)
        elif node.op == "acc_rescaled":
            x = self._rescaled(x, operands[1], node.constant)
        return self._folded(x, node.axis, node.taken, row.reducer, key)

    def _map(self, node: Node, operands: Sequence[Tiled], key: int) -> Tiled:
        changing = any(x.body for x in operands)
        if changing:
            operands = [x.running if x.running is not None else x for x in operands]
        value = self._mapped(node, operands, key)
        if changing or all(x.running is None for x in operands):
            return value
        running = self._mapped(node, [x.running if x.running is not None else x for x in operands], key ^ -2)
        return Tiled(value.dims, value.value, running)

    def _mapped(self, node: Node, operands: Sequence[Tiled], key: int) -> Tiled:
        if node.op == "cast":
            return operands[0]
        dims, values = self._aligned(operands)
        if OPS[node.op].extremum and self.free:
            return Tiled(dims, self._drawn(dims, key))
        if node.op == "power":
            return Tiled(dims, self._constants.power(values[0], node.constant, len(dims)))
        if OPS[node.op].constant or node.number is not None:
            values.append(self._constants.at(node.number, len(dims)))
        return Tiled(dims, node.applied(self._apply, *values))

    def _binary(self, name: str, *operands: Tiled) -> Tiled:
        dims, values = self._aligned(operands)
        return Tiled(dims, self._apply(name, *values))

    def _apply(self, name: str, *values: Value) -> Value:
        return applied(self.numbers, name, *values)

    def _aligned(self, operands: Sequence[Tiled]) -> tuple[tuple[Dim, ...], list[Value]]:
        """The dimensions that some operand has, and the operands with length 1 where one has it not."""
        seen = {d for x in operands for d in x.dims}
        dims = tuple(sorted(seen, key=_rank))
        for a, b in pairwise(dims):
            if a.axis == b.axis and (GRID not in b.by if a.part == GRID else a.by != b.by):
                raise EvaluationError(f"operands hold different parts of axis `{a.axis}`")
        return dims, [self._spread(x, dims) for x in operands]

    def _spread(self, x: Tiled, dims: tuple[Dim, ...]) -> Value:
        if x.dims == dims:
            return x.value
        order = (0, *(x.dims.index(d) + 1 for d in dims if d in x.dims))
        shape = [k for k, d in enumerate(dims, 1) if d not in x.dims]
        return self._each(x.value, lambda v: np.expand_dims(v.transpose(order), shape))

    def _sorted(self, x: Tiled) -> Tiled:
        dims, (value,) = self._aligned([x])
        return Tiled(dims, value)

    def _folded(self, x: Tiled, axis: str, parts: Any, reducer: str, key: int) -> Tiled:
        gone = [d for d in x.dims if d.axis == axis and d.part in parts]
        if {d.part for d in gone} != set(parts):
            raise EvaluationError(f"a fold takes parts of axis `{axis}` away that its operand has not")
        dims = tuple(d for d in x.dims if d not in gone)
        if reducer == "max" and self.free:
            return Tiled(dims, self._drawn(dims, key))
        value = x.value if reducer == "max" else self._masked(x, axis, gone)
        for k in sorted((x.dims.index(d) for d in gone), reverse=True):
            value = self.numbers.fold(reducer, value, k + 1, "float64")
        return Tiled(dims, value)

    def _masked(self, x: Tiled, axis: str, gone: Sequence[Dim]) -> Value:
        """The value with 0 where parts of an axis are beyond its end."""
        by = next((d.by for d in gone if d.by), frozenset())
        if not by:
            return x.value
        cut = self.witness.cut(axis, by)
        present = {d.part: k for k, d in enumerate(x.dims, 1) if d.axis == axis}
        valid = cut.valid.any(tuple(k for k, p in enumerate(cut.parts) if p not in present))
        if valid.all():
            return x.value
        shape = [1] * (len(x.dims) + 1)
        for p, n in zip((p for p in cut.parts if p in present), valid.shape, strict=True):
            shape[present[p]] = n
        mask = valid.reshape(shape)
        zero = self.numbers.parts(self.numbers.number(Fraction(0)))
        return self.numbers.make([np.where(mask, v, z) for v, z in zip(self.numbers.parts(x.value), zero, strict=True)])

    def _running_max(self, x: Tiled, axis: str, key: int) -> Tiled:
        dimension = next((k for k, d in enumerate(x.dims, 1) if d.axis == axis and d.part == LOOP), None)
        if dimension is None:
            raise EvaluationError(f"an accumulator over `{axis}` does not change in its loop")
        if self.free:
            running = self._drawn(x.dims, key)
        else:
            steps = [self._step(x.value, dimension, k) for k in range(self._length(x.dims[dimension - 1]))]
            maxima = accumulate(steps, lambda before, step: self._apply("max", before, step))
            parts = zip(*map(self.numbers.parts, maxima), strict=True)
            running = self.numbers.make([np.stack(part, axis=dimension) for part in parts])
        dims = tuple(d for k, d in enumerate(x.dims, 1) if k != dimension)
        return Tiled(dims, self._step(running, dimension, -1), Tiled(x.dims, running))

    def _step(self, v: Value, dimension: int, k: int) -> Value:
        return self._each(v, lambda x: np.take(x, k, axis=dimension))

    def _each(self, v: Value, fn: Callable[[Array], Array]) -> Value:
        """A value with each array of which it is made as `fn` makes it."""
        return self.numbers.make([fn(x) for x in self.numbers.parts(v)])

    def _rescaled(self, x: Tiled, m: Tiled, degree: Expr | None) -> Tiled:
        if m.running is None:
            raise EvaluationError("a sum is rescaled by what is no running maximum")
        moved = self._binary("sub", m.running, Tiled(m.dims, m.value))
        by = self._apply("mul", moved.value, self._constants.at(degree, len(moved.dims)))
        return self._binary("mul", x, Tiled(moved.dims, self._apply("exp", by)))

    def _drawn(self, dims: tuple[Dim, ...], key: int, what: str = "maximum") -> Value:
        rng = np.random.default_rng((self._seed, *what.encode(), key & (1 << 64) - 1))
        return self.numbers.draw(rng, tuple(self._length(d) for d in dims))

    def _free_number(self, key: int) -> Value:
        return self._drawn((), key, "number")

    def _length(self, d: Dim) -> int:
        by = d.by | {GRID} if d.part == GRID else d.by
        cut = self.witness.cut(d.axis, by)
        return int(cut.element.shape[cut.parts.index(d.part)])

    # --- what is kept ------------------------------------------------------------------------------

    def _key(self, *what: Any) -> int:
        return self._keys.setdefault(what, len(self._keys))

    def _kept(self, key: int) -> Tiled | None:
        held = self._found.get(key)
        if held is None:
            return None
        self._found.move_to_end(key)
        return held[0]

    def _keep(self, key: int, value: Tiled) -> Tiled:
        value = Tiled(value.dims, value.value, value.running, key)
        held = (value,) if value.running is None else (value, value.running)
        size = sum(x.nbytes for v in held for x in self.numbers.parts(v.value))
        self._found[key] = value, size
        self._held += size
        while self._held > self._memory and len(self._found) > 1:
            self._held -= self._found.popitem(last=False)[1][1]
        return value


def _rank(d: Dim) -> tuple[str, int]:
    return d.axis, _ORDER[d.part]
