"""The floating-point gate: what no field and no proof sees of a graph, its roundings and its overflows.

A graph is evaluated with the roundings of a kernel: sums and maps in float32, operands of products rounded to the dtype
of the inputs where that has 16 bits (so that they stay on the matrix unit), results to their own. On inputs of several
magnitudes, with needles, zeros and -inf, its error against float64 may be twice that of the expression, evaluated in
the same way with the expression's own casts, and it is finite wherever the true result is.

    exp(S) without its maximum   →   "large": inf where the true result is 0.21
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.evaluate.domains import Array, Results, Unevaluated, Value, every
from neptune.ir.evaluate.floats import round_to
from neptune.mirage.ir import Graph, Node
from neptune.mirage.verifier.evaluate import Evaluator, Reals, Tiled
from neptune.mirage.verifier.witness import Witness, drawn_shapes, size_scalars, witness
from neptune.verify.numerics import Errors, rel_error

LENGTHS, KEPT = (48, 40, 56, 44, 64), 3
"""Lengths of axes that are folded, and of others."""
SCALES = {"plain": 1.0, "small": 2.0**-6, "x8": 8.0, "large": 30.0, "huge": 300.0}
"""Magnitudes of inputs."""
TIMES, ROW = 2.0, 16.0
"""How many times the expression's error a graph may have, of all elements and in the worst row, whose elements may
cancel: there errors of roundings are large, and by chance of one side or the other."""
Tensors = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Family:
    """The relative errors on inputs of one kind, of all elements and of the worst row, beside the expression's.

    Infinite where only one side is finite.
    """

    name: str
    error: float
    expression: float
    row: float
    expression_row: float

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.error))


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate says: `wrong` names the first kind of inputs on which a graph is too far off, and how."""

    families: tuple[Family, ...]
    wrong: str = ""
    unsafe: tuple[str, ...] = ()
    """Kinds of inputs on which neither the graph nor the expression is finite, as the true result is."""

    @property
    def passed(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        worst = max(self.families, key=lambda f: f.error if f.finite else -1.0)
        text = self.wrong or f"error {worst.error:.1e} at most, the expression's {worst.expression:.1e}"
        more = f"; not finite on inputs {', '.join(self.unsafe)}, nor is the expression" if self.unsafe else ""
        return f"{text}, {len(self.families)} kinds of inputs{more}"


def gate(
    graph: Graph, expression: Graph, *, seed: int = 0, safe: bool = True, casts: bool = False
) -> Gate | Unevaluated:
    """Evaluate a graph and the expression's graph (`reference`) with roundings on inputs of all kinds.

    With `safe` a graph has to be finite also where the expression overflows. With `casts` the casts of both are all
    that rounds between, as in the graphs of Programs; else operands of products are rounded. Outputs correspond by
    name. Unevaluated where one has no value in float64.
    """
    probe = witness(expression, LENGTHS, KEPT)
    names, inputs = _inputs(expression, probe, np.random.default_rng((seed, 0x6A7E)))
    scalars = _scalars(expression, probe, seed)
    count = len(names)
    with np.errstate(all="ignore"):
        exact = Evaluator(Reals(count), probe, inputs, scalars)
        emulated = ((_Emulated(g, probe, inputs, scalars, casts), g) for g in (graph, expression))
        results = every(e.evaluated(g) for e, g in ((exact, expression), *emulated))
    if isinstance(results, Unevaluated):
        return results
    truth, own, others = results
    families = []
    for k, name in enumerate(names):
        a, b = (_errors(expression, side, truth, k) for side in (own, others))
        families.append(Family(name, a.total, b.total, a.row, b.row))
    return _judged(families, max(2.0 ** -DTYPES[o.dtype].mantissa for o in expression.outputs), safe)


def _judged(families: Sequence[Family], unit: float, safe: bool) -> Gate:
    usual = max((f.expression for f in families if np.isfinite(f.expression)), default=unit)
    unsafe = []
    for f in families:
        if f.finite:
            rows = f.expression_row if np.isfinite(f.expression_row) else usual
            if f.error > max(unit, TIMES * min(f.expression, max(usual, unit))) or f.row > max(unit, ROW * rows):
                wrong = f"on inputs `{f.name}` its error is {f.error:.1e}, the expression's {f.expression:.1e}"
                return Gate(tuple(families), f"{wrong} (of a row {f.row:.1e}, the expression's {f.expression_row:.1e})")
        elif safe or np.isfinite(f.expression):
            return Gate(tuple(families), f"on inputs `{f.name}` it is not finite where the true result is")
        else:
            unsafe.append(f.name)
    return Gate(tuple(families), unsafe=tuple(unsafe))


def _errors(graph: Graph, out: Mapping[str, Array], truth: Mapping[str, Array], k: int) -> Errors:
    """The largest errors of any output on inputs of kind k, where the true result is a number of its dtype."""
    errors = []
    for o in graph.outputs:
        beyond = ~(np.abs(truth[o.name][k]) <= DTYPES[o.dtype].highest)
        errors.append(rel_error(*(np.where(beyond, 0.0, x[o.name][k]) for x in (out, truth))))
    return Errors(max(e.total for e in errors), max(e.row for e in errors))


def _scalars(graph: Graph, probe: Witness, seed: int) -> dict[str, Value]:
    sizes = size_scalars(graph, probe.lengths)
    rng = np.random.default_rng((seed, 0x5CA1))
    return {s.name: np.asarray(sizes.get(s.name, rng.uniform(0.5, 1.5)), np.float64) for s in graph.scalars} | {
        name: np.asarray(float(n)) for name, n in sizes.items()
    }


def _inputs(graph: Graph, probe: Witness, rng: np.random.Generator) -> tuple[list[str], Tensors]:
    """The kinds of inputs, and the inputs by buffer, one of each kind in front."""
    shapes = drawn_shapes(graph, probe)
    base = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    kinds = dict(_kinds(base, graph, probe))
    dtypes = {t.source: t.dtype for t in graph.inputs}
    return list(kinds), {
        name: np.stack([_representable(f[name], dtypes[name]) for f in kinds.values()]) for name in shapes
    }


def _representable(x: Array, dtype: str) -> Array:
    highest = DTYPES[dtype].highest
    return round_to(np.where(np.isinf(x), x, np.clip(x, -highest, highest)), dtype)


def _kinds(base: Tensors, graph: Graph, probe: Witness) -> Iterator[tuple[str, Tensors]]:
    for name, scale in SCALES.items():
        yield name, {k: x * scale for k, x in base.items()}
    yield "zeros", {k: x * 0.0 for k, x in base.items()}

    def along(axis: str, place: int, change: Callable[[Array], Array]) -> Tensors:
        copies = {k: x.copy() for k, x in base.items()}
        for t in graph.inputs:
            if axis in t.axes:
                k = t.axes.index(axis)
                rows = np.moveaxis(copies[t.source], k, 0)
                rows[place] = change(np.moveaxis(base[t.source], k, 0)[place])
        return copies

    for axis in dict.fromkeys(a for t in graph.inputs for a in t.axes):
        yield f"zero at the end of {axis}", along(axis, probe.lengths[axis] - 1, lambda x: x * 0.0)
        yield f"needle at the start of {axis}", along(axis, 0, lambda x: x * 100.0)
    for k, x in base.items():
        if x.ndim:
            infinite = x.copy()
            infinite[-1] = -np.inf
            yield f"-inf in the last row of {k}", {**base, k: infinite}


class _Single(Reals):
    """float32 between."""

    def number(self, value: Fraction) -> Value:
        return round_to(np.asarray(float(value)), "float32")

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        return round_to(super().apply(name, args, dtype), "float32")

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        return super().fold(reducer, np.asarray(v, np.float32), axis, dtype).astype(np.float64)


class _Emulated(Evaluator):
    """Evaluates a graph with the roundings of a kernel."""

    def __init__(
        self, graph: Graph, probe: Witness, inputs: Tensors, scalars: Mapping[str, Value], casts: bool
    ) -> None:
        super().__init__(_Single(len(next(iter(inputs.values())))), probe, inputs, scalars)
        narrow = {t.dtype for t in graph.inputs if DTYPES[t.dtype].bits <= 16}
        self._narrow = min(narrow) if not casts and len(narrow) == 1 else ""

    def outputs(self, graph: Graph) -> Results:
        """The outputs in their dtypes."""
        dtypes = {o.name: o.dtype for o in graph.outputs}
        return {name: round_to(v, dtypes[name]) for name, v in super().outputs(graph).items()}

    def node(self, node: Node, operands: Sequence[Tiled]) -> Tiled:
        if node.op == "matmul" and self._narrow:
            return super().node(node, [self._cast(x, self._narrow) for x in operands])
        if node.op == "cast" and is_float(node.dtype):
            return self._cast(operands[0], node.dtype)
        return super().node(node, operands)

    def _cast(self, x: Tiled, dtype: str) -> Tiled:
        key = self._key("round", dtype, x.key)
        running = None if x.running is None else self._cast(x.running, dtype)
        return self._kept(key) or self._keep(key, Tiled(x.dims, round_to(x.value, dtype), running))
