"""A µGraph as definitions: the algebra that it computes, one stage a value, without its tiles and loops.

A tile fold and what accumulates it over the loop, and sums over programs, are ONE reduction over the axis::

    xw = matmul(x, w) [k]          product: product[i, j] += x[i, k] * w[k, j]
    product = acc(xw) [k]     →
    y = div(product, root)         Y: Y[i, j] = product[i, j] / sqrt(squares[i] / k)

Maps between the two have to be linear in the tile's sum, with factors that do not vary along the axis: they are then
what they are of the whole sum. Everything is computed in float32 (float64 where an input is); operands of products that
are computed are rounded to the inputs' dtype, so that they stay on the matrix unit, scales are moved off operands that
are read as they are, and every rounding that is another one than the expression's is a Decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neptune.errors import FusionError, NeptuneError
from neptune.ir.expr import Expr, Load, Var, cast, op, variables
from neptune.ir.names import fresh_name
from neptune.ir.program import ZERO, Buffer, For, Program, Stage, Stmt, Store, Update, seq, stages, wrap
from neptune.ir.reducers import REDUCERS
from neptune.mirage.ir import LOOP, NOTHING, TILE, WHOLE, Graph, Kernel, Node, Type, reads, writes
from neptune.mirage.lowering.operands import NARROW, core, product, substitute_hole
from neptune.mirage.ops import OPS
from neptune.mirage.types import fault, graph_types, kernel_types, saved
from neptune.schedule import state
from neptune.schedule.state import Decision


@dataclass(frozen=True)
class Placement:
    """Where a stage is computed: the kernel (the place of a step in the graph), and whether in its loop."""

    step: int
    loop: bool = False


@dataclass(frozen=True)
class Definitions:
    """A graph's algebra, with a placement. `split`: the axis whose parts programs of a step fold; `axes`: the loop
    variable of each axis; `sizes`: the length, by that; `order`: in which results have them.
    `products`: the stages that are products of matrices, whose operands have the dtype `narrow` where they can;
    `tensors`: the buffer of each tensor between kernels that is stored as it is."""

    program: Program
    placement: Mapping[str, Placement]
    split: Mapping[int, str]
    axes: Mapping[str, str]
    sizes: Mapping[str, Expr]
    order: tuple[str, ...]
    products: tuple[str, ...]
    narrow: str | None
    decisions: tuple[Decision, ...]
    tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def stages(self) -> list[Stage]:
        return stages(self.program.body)

    def note(self, decision: Decision) -> Definitions:
        return replace(self, decisions=(*self.decisions, decision))


@dataclass(frozen=True)
class Value:
    """The value of a node over axes. `open`: axes that `expr` has folded in full and the graph in part, with the
    reducer; `summand`: axes that the graph has folded in part and `expr` not at all."""

    expr: Expr
    type: Type
    open: Mapping[str, str] = field(default_factory=dict)
    summand: Mapping[str, str] = field(default_factory=dict)

    @property
    def partial(self) -> Mapping[str, str]:
        """The axes that the graph has folded in part, with the reducer."""
        return {**self.open, **self.summand}


def definitions(graph: Graph, program: Program) -> Definitions | NeptuneError:
    """The algebra of `graph` over the inputs and outputs of the user's `program`; a FusionError, naming node and axis,
    where the graph folds an axis in a way that is no sum of the whole."""
    return fault(graph) or _Writer(graph, program).written()


class _Writer:
    """The stages made so far, in order; everything else is functions of the graph."""

    def __init__(self, graph: Graph, program: Program) -> None:
        self.graph, self.program = graph, program
        taken = {s.name for s in program.scalars} | {b.name for b in (*program.inputs, *program.outputs)}
        self.axes: dict[str, str] = {}
        for label in graph.axes:
            self.axes[label] = fresh_name(taken | set(self.axes.values()), label)
        self.taken = taken | set(self.axes.values())
        outer = [a for out in graph.outputs for a in out.axes]
        self.order = [self.axes[a] for a in dict.fromkeys((*outer, *graph.axes))]
        self.sizes = {self.axes[a]: size for a, size in graph.axes.items()}
        dtypes = [t.dtype for t in graph.inputs]
        self.wide = "float64" if "float64" in dtypes else "float32"
        narrow = {t for t in dtypes if t in NARROW}
        self.narrow = next(iter(narrow)) if len(narrow) == 1 else None
        self.values: dict[str, Value] = {}
        self.buffers: dict[str, Buffer] = {}
        self.nests: list[Stmt] = []
        self.placement: dict[str, Placement] = {}
        self.split: dict[int, str] = {}
        self.notes: list[Decision] = []
        self.products: list[str] = []
        self.step = 0
        self.loop: str | None = None
        self.looping = False
        self.wrong: FusionError | None = None

    # --- the graph, step by step ---

    def written(self) -> Definitions | FusionError:
        for t in self.graph.inputs:
            index = tuple(Var(self.axes[a]) for a in t.axes)
            self.values[t.name] = Value(Load(t.source, index, t.dtype), dict.fromkeys(t.axes, WHOLE))
        steps: dict[str, int] = {}
        types = graph_types(self.graph)
        later = Counter(o for s in self.graph.steps for o in reads(s))
        loaded = {load.tensor for k in self.graph.kernels for load in k.loads}
        results = Counter(out.value for out in self.graph.outputs)
        for k, step in enumerate(self.graph.steps):
            self.step = k
            self.loop = step.loop if isinstance(step, Kernel) else None
            if isinstance(step, Kernel):
                self.kernel(step, {n: later[n] for n in types}, results)
            else:
                self.values[step.name] = self.node(step, self.values, types[step.name])
                self.materialise(step.name, step.name, self.values, force=later[step.name] > 1 or step.name in loaded)
            if self.wrong is not None:
                return self.wrong
            steps |= dict.fromkeys(writes(step), k)
        for out in self.graph.outputs:
            self.step = steps.get(out.value, self.step)
            self.output(out.name, tuple(self.axes[a] for a in out.axes), out.dtype, out.value)
        body = seq(*_live(self.nests, {out.name for out in self.graph.outputs}))
        left = {s.name for s in stages(body)}
        temporaries = tuple(b for n, b in self.buffers.items() if n in left)
        return Definitions(
            replace(self.program, temporaries=temporaries, tunables=(), owes=(), body=body),
            {n: h for n, h in self.placement.items() if n in left},
            {k: a for k, a in self.split.items() if any(h.step == k for n, h in self.placement.items() if n in left)},
            self.axes,
            self.sizes,
            tuple(self.order),
            tuple(p for p in self.products if p in left),
            self.narrow,
            tuple(self.notes),
            {n: v.expr.buffer for n, v in self.values.items() if isinstance(v.expr, Load) and n in steps},
        )

    def kernel(self, kernel: Kernel, later: Mapping[str, int], results: Mapping[str, int]) -> None:
        types = kernel_types(kernel, {n: v.type for n, v in self.values.items()})
        inside: dict[str, Value] = {}
        for load in kernel.loads:
            inside[load.name] = replace(self.values[load.tensor], type=types[load.name].type)
        uses = _uses(kernel)
        names = _names(kernel)
        for node in kernel.nodes:
            inside[node.name] = self.node(node, inside, types[node.name].type, names.get(node.name))
            if self.wrong is not None:
                return
            self.materialise(node.name, node.name, inside, force=uses[node.name] > 1)
        for save in kernel.saves:
            if later[save.name] or results[save.name] > 1:
                self.materialise(save.value, save.name, inside, force=True)
            value = inside[save.value]
            if value.partial:
                self.split[self.step] = self.axes[next(iter(value.partial))]
            self.values[save.name] = replace(value, type=saved(types[save.value].type))

    # --- nodes ---

    def node(
        self,
        node: Node,
        known: Mapping[str, Value],
        t: Type,
        name: str | None = None,
    ) -> Value:
        operands = [known[o] for o in node.operands]
        self.looping = any(self.varies(v.type) for v in operands)
        row = OPS[node.op]
        if row.kind == "map":
            return self.map(node, operands, t)
        if node.op == "acc_rescaled":
            operands = operands[:1]
        left = t.get(node.axis, NOTHING)
        x = operands[0]
        if node.axis in (a for v in operands for a in v.partial):
            return self.further(node, operands, t, left)
        reducer = row.reducer
        if left and TILE in left:
            # Iterations are added up and their tiles not: what is folded later is the same sum.
            self._linear(node, operands)
            return Value(self.wide_of(x), t, x.open, {**x.summand, node.axis: reducer})
        if any(v.partial for v in operands):
            self._linear(node, operands)
        folded, behind = self.wide_of(x), None
        if node.op == "matmul":
            sides = (folded, self.wide_of(operands[1]))
            folded, behind = product(sides, self.axes[node.axis], self.narrow, self.over)
        element = self.reduction(name or node.name, folded, self.axes[node.axis], reducer)
        if node.op == "matmul":
            self.products.append(element.buffer)
        expr = element if behind is None else substitute_hole(behind, element)
        opened, summand = _folded(operands)
        return Value(expr, t, {**opened, **({node.axis: reducer} if left else {})}, summand)

    def further(self, node: Node, operands: Sequence[Value], t: Type, left: frozenset[str]) -> Value:
        """A fold of further parts of an axis that was folded in part."""
        x, axis = operands[0], node.axis
        had = x.partial.get(axis)
        reducer = OPS[node.op].reducer
        if had != reducer or len(operands) > 1:
            self.refuse(node, axis, f"it folds by {reducer} what was folded by {had or 'nothing'} before")
            return x
        if axis in x.open:
            rest = {a: r for a, r in x.open.items() if a != axis or left}
            return replace(x, type=t, open=rest)
        if TILE in left:
            return replace(x, type=t)
        rest = {a: r for a, r in x.summand.items() if a != axis}
        element = self.reduction(node.name, x.expr, self.axes[axis], reducer)
        return Value(element, t, {**x.open, **({axis: reducer} if left else {})}, rest)

    def map(self, node: Node, operands: Sequence[Value], t: Type) -> Value:
        if any(v.partial for v in operands):
            self._linear(node, operands)
        args = [self.wide_of(v) for v in operands]
        number = [] if node.number is None else [cast(node.number, self.wide)]
        opened, summand = _folded(operands)
        expr = cast(cast(args[0], node.dtype), self.wide) if node.op == "cast" else node.computed(op, *args, *number)
        return Value(expr, t, opened, summand)

    def _linear(self, node: Node, operands: Sequence[Value]) -> None:
        """Refuse a node that is another thing of what is folded in part than of the whole."""
        for axis in sorted({a for v in operands for a in v.partial}):
            reducers = {v.partial.get(axis) for v in operands}
            has = [axis in v.partial for v in operands]
            others = [v for v, partly in zip(operands, has, strict=True) if not partly]
            if any(axis in v.type for v in others):
                return self.refuse(node, axis, "its other operand varies along that axis")
            fits = {
                "sum": {"add": all(has), "sub": all(has), "neg": True, "scale": True, "cast": True, "sum": True}
                | {"mul": sum(has) == 1, "matmul": sum(has) == 1, "div": has[0] and sum(has) == 1, "acc": True}
                | {"acc_sum": True},
                "max": {"maximum": all(has), "add": sum(has) == 1, "shift": True, "cast": True, "max": True}
                | {"sub": has[0] and sum(has) == 1, "acc_max": True},
            }
            folded = next(r for r in reducers if r is not None)
            if len(reducers - {None}) > 1 or not fits[folded].get(node.op, False):
                return self.refuse(node, axis, "of a tile's part it is another number than of the whole")
            if node.op == "cast":
                self.notes.append(Decision("rounding", node.name, "dropped", f"it rounds sums of tiles along `{axis}`"))

    def refuse(self, node: Node, axis: str, why: str) -> None:
        self.wrong = FusionError(
            f"`{node.name} = {node.op}({', '.join(node.operands)})`",
            f"its operand is folded over a part of axis `{axis}` only: {why}",
            hint=f"an accumulator over `{axis}` in front of it, or maps that are linear in the sum",
        )

    # --- stages ---

    def wide_of(self, v: Value) -> Expr:
        return cast(v.expr, self.wide)

    def varies(self, t: Type) -> bool:
        """True where a value of this type changes in the loop."""
        return self.loop is not None and LOOP in t.get(self.loop, NOTHING)

    def over(self, e: Expr) -> set[str]:
        """The axes that an expression varies along."""
        return set(variables(e)) & set(self.order)

    def materialise(self, node: str, name: str, known: dict[str, Value], *, force: bool) -> None:
        """Give a value a stage of its own, if it needs one and has none."""
        v = known[node]
        if not force or v.partial or core(v.expr) is not None or isinstance(v.expr, Load):
            return
        where = Placement(self.step, self.varies(v.type))
        known[node] = replace(v, expr=self.stage(name, v.expr, self.over(v.expr), where))

    def stage(self, wish: str, e: Expr, over: set[str], where: Placement) -> Load:
        """A map as a stage; the load of its element."""
        index = tuple(Var(a) for a in self.order if a in over)
        name = self.buffer(wish, index, e.dtype)
        self.nests.append(self.nest(index, Stage(name, Store(name, index, e))))
        self.placement[name] = where
        return Load(name, index, e.dtype)

    def reduction(self, wish: str, e: Expr, axis: str, reducer: str) -> Load:
        """A fold over the whole of an axis as a stage; the load of its element."""
        index = tuple(Var(a) for a in self.order if a in self.over(e) and a != axis)
        name = self.buffer(wish, index, e.dtype)
        update = Update((name,), index, reducer, (e,), REDUCERS[reducer].identity(e.dtype))
        self.nests.append(self.nest((*index, Var(axis)), Stage(name, update)))
        self.placement[name] = Placement(self.step, self.looping)
        return Load(name, index, e.dtype)

    def output(self, name: str, axes: tuple[str, ...], dtype: str, value: str) -> None:
        index = tuple(Var(a) for a in axes)
        store = Store(name, index, cast(self.values[value].expr, dtype))
        self.nests.append(self.nest(index, Stage(name, store)))
        self.placement[name] = Placement(self.step)

    def buffer(self, wish: str, index: Sequence[Var], dtype: str) -> str:
        name = fresh_name(self.taken, wish)
        self.taken = self.taken | {name}
        self.buffers[name] = Buffer(name, tuple(self.sizes[v.name] for v in index), dtype)
        return name

    def nest(self, axes: Sequence[Var], stage: Stage) -> Stmt:
        return wrap([For(v.name, ZERO, self.sizes[v.name], stage) for v in axes], stage)


def _folded(operands: Sequence[Value]) -> tuple[dict[str, str], dict[str, str]]:
    """The axes that operands have folded in full and the graph in part, and those that they have not, with reducers."""
    opened = {axis: reducer for v in operands for axis, reducer in v.open.items()}
    return opened, {axis: reducer for v in operands for axis, reducer in v.summand.items()}


def _live(nests: Sequence[Stmt], results: set[str]) -> list[Stmt]:
    """The nests that results are computed from."""
    kept: list[Stmt] = []
    needed = set(results)
    for nest in reversed(nests):
        (stage,) = stages(nest)
        if needed.intersection(stage.action.buffers):
            needed |= {x.buffer for x in state.reads(stage)}
            kept.append(nest)
    return kept[::-1]


# --- the graph -------------------------------------------------------------------------------------


def _uses(kernel: Kernel) -> Counter[str]:
    """How often the expression of each value is written."""
    counts: Counter[str] = Counter(s.value for s in kernel.saves)
    for node in kernel.nodes:
        for o in node.operands:
            # A compound that no function computes reads its operand twice.
            counts[o] += 2 if OPS[node.op].compound and not OPS[node.op].function else 1
    return counts


def _names(kernel: Kernel) -> dict[str, str]:
    """Folds of tiles are called like what accumulates them."""
    return {n.operands[0]: n.name for n in kernel.nodes if n.op in ("acc", "acc_max")}
