"""Import TVM PrimFuncs: each block that writes a buffer is one stage.

    for i, j in T.grid(m, n):
        with T.sblock("y"):
            v_i, v_j = T.axis.remap("SR", [i, j])       for i in [0, m):
            with T.init():                                for j in [0, n):
                y[v_i] = T.float32(0)               →       y: y[i] += x[i, j]  init 0.0
            y[v_i] = y[v_i] + x[v_i, v_j]

What a block computes is said by its block axes alone. How the loops around it run over them (order, tiling,
threads, guards of tails, storage scopes, annotations) is a schedule; it is checked to visit every instance of
the block exactly once, and dropped. As in `neptune.frontend.te`, the blocks become the builder's tensors.

A stage takes its buffer's name. Buffers that are written are outputs if they are parameters, in the order of
the parameters, and the other buffer parameters are the inputs; scalar parameters that are used follow. A block
of two stores is an argmax or argmin, as te.create_prim_func writes it, and is called after the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend import builder, reductions
from neptune.frontend.assemble import Axis, Body, Fold, Read, Reduction, Tensor, build
from neptune.frontend.te_choices import folded_choice, split_update
from neptune.frontend.tvm_blocks import REDUCE, SPATIAL, TAKEN, Blocks, Level, Nest, same
from neptune.frontend.tvm_expr import COMBINERS, Scope, known_dtype
from neptune.ir.expr import Const, Expr, binary, rewrite, walk
from neptune.ir.program import ZERO, Program
from neptune.ir.text.printer import print_expr


@public
def from_tvmscript(
    source: tirx.PrimFunc | tvm.IRModule, inputs: Sequence[Any] | None = None, name: str | None = None
) -> Program:
    """The Program of a PrimFunc, or of the only one of an IRModule.

    `inputs` orders the input buffers and scalars, as names or as parameters of the function; by default they
    stand in the function's order. `name` defaults to the function's name, to that of its first output for `main`.

    Raises ExpressionError, naming the block and what is taken instead.
    """
    function, known_as = _function(source)
    importer = _Importer(function, f"importing PrimFunc `{known_as}`")
    for nest in importer.nests():
        importer.stage(nest)
    outputs, args = importer.interface(inputs)
    importer.check_scalars()
    return build(outputs, args, name or (None if known_as == "main" else known_as))


def is_function(source: Any) -> bool:
    """True for what `from_tvmscript` takes."""
    return isinstance(source, tirx.PrimFunc | tvm.IRModule)


def _function(source: Any) -> tuple[Any, str]:
    """The PrimFunc to import and its name."""
    if isinstance(source, tirx.PrimFunc):
        return source, str((source.attrs or {}).get("global_symbol", "main"))
    functions = {v.name_hint: f for v, f in source.functions.items() if isinstance(f, tirx.PrimFunc)}
    if len(functions) != 1:
        what = (
            f"it has {len(functions)} PrimFuncs: {', '.join(sorted(functions))}" if functions else "it has no PrimFunc"
        )
        raise ExpressionError("importing an IRModule", what, legal=("one PrimFunc",), hint='pass module["name"]')
    ((known_as, function),) = functions.items()
    return function, str(known_as)


class _Importer(Blocks):
    """The import so far. `tensors` are parameters that were read and blocks that have run."""

    def __init__(self, function: Any, request: str) -> None:
        super().__init__(function, request)
        self.tensors: dict[Any, Tensor] = {}
        self.read: set[Any] = set()

    # --- stages --------------------------------------------------------------------------------------

    def stage(self, nest: Nest) -> None:
        """Define the tensors that a block writes."""
        if isinstance(nest.block.body, tirx.SeqStmt):
            return self.pair(nest)
        store = self.only_store(nest)
        buffer, name = store.buffer, self.name(store.buffer, store.buffer.name)
        scope = Scope(self, name, self.tensor)
        axes = [pair for level in (*nest.outer, nest.level) for pair in self.bind(level, scope)]
        shape = scope.shape(buffer.shape)
        spatial = [axis for axis, kind in axes if kind == SPATIAL]
        reduce = tuple(axis for axis, kind in axes if kind == REDUCE)
        out = self.out_axes(nest, scope, store, shape, spatial)
        if reduce:
            value: Expr | Reduction = self.reduction(nest, scope, store, out, reduce)
        elif nest.block.init is not None:
            raise self.refuse(nest.name, "it has T.init() and no reduce axis")
        else:
            value = self.spatial(nest, scope, store)
        self.tensors[buffer] = builder.define(name, shape, out, value)

    def bind(self, level: Level, scope: Scope) -> list[tuple[Axis, int]]:
        """The new axes of a block. One that simply is a loop takes its name, and stands for it in other ranges."""
        loops = {f.loop_var for f in level.loops}
        self.axes.update(dict.fromkeys(loops, scope.stage))
        axes: list[tuple[Axis, int]] = []
        for iv, value in level.bound:
            if value in scope.env:
                scope.env[iv.var] = scope.env[value]
                continue
            (axis,) = scope.bind([iv], value.name if value in loops else None)
            axes.append((axis, iv.iter_type))
            if value in loops:
                scope.env[value] = axis
        return axes

    def only_store(self, nest: Nest) -> Any:
        """The one store of a block."""
        body = nest.block.body
        if not isinstance(body, tirx.BufferStore):
            raise self.refuse(nest.name, f"its body is {type(body).__name__}, not one store")
        return body

    def pair(self, nest: Nest) -> None:
        """Define the two tensors of a block that chooses: an argmax or argmin."""
        stores, new = self.updates(nest)
        name = self.name(nest.block, nest.name)
        names = [self.name(s.buffer, s.buffer.name) for s in stores]
        scope = Scope(self, name, self.tensor)
        axes = [pair for level in (*nest.outer, nest.level) for pair in self.bind(level, scope)]
        shapes = [scope.shape(s.buffer.shape) for s in stores]
        spatial = [axis for axis, kind in axes if kind == SPATIAL]
        if not _same_place(*stores) or not all(map(_same_size, *shapes)):
            raise self.refuse(nest.name, f"`{names[0]}` and `{names[1]}` are not stored at the same place")
        out = self.out_axes(nest, scope, stores[0], shapes[0], spatial)
        starts = self.starts(nest, scope, stores)
        split = split_update([tvm.tirx.BufferLoad(s.buffer, s.indices) for s in stores], new)
        if split is None:
            raise self.refuse(nest.name, "what it stores is not chosen between the old values and new ones")
        reduced = tuple(axis for axis, kind in axes if kind == REDUCE)
        choice, folded = folded_choice(scope, *split, reduced, starts, tirx.const(True, "bool"))
        if any(s.buffer in self.read for s in stores):
            raise self.refuse(nest.name, f"what it folds reads `{name}` itself, or a block before it did")
        order = (choice.value, 1 - choice.value)
        family = builder.define_family(name, shapes[0], out, folded, [names[c] for c in order])
        self.tensors |= {stores[c].buffer: t for c, t in zip(order, family, strict=True)}

    def updates(self, nest: Nest) -> tuple[list[Any], list[Any]]:
        """The two stores of a block, and the values that are bound to variables before any of them."""
        parts = list(nest.block.body.seq)
        lets, stores = parts[:-2], parts[-2:]
        bound = [(p.var, p.value) for p in lets if isinstance(p, tirx.Bind)]
        plain = len(bound) == len(lets) and all(isinstance(s, tirx.BufferStore) for s in stores)
        new = [v for s in stores for x, v in bound if s.value.same_as(x)] if plain else []
        if len(new) != 2 or stores[0].buffer.same_as(stores[1].buffer) or nest.block.init is None:
            what = "it stores several values, and not as an argmax of te.create_prim_func does"
            raise self.refuse(nest.name, what, "with T.init(); both values bound to variables, then two stores")
        return stores, new

    def starts(self, nest: Nest, scope: Scope, stores: list[Any]) -> list[Expr]:
        """Return the values that the two results of a block start from."""
        init = nest.block.init
        parts = list(init.seq) if isinstance(init, tirx.SeqStmt) else []
        if len(parts) != 2 or not all(
            isinstance(p, tirx.BufferStore) and p.buffer.same_as(s.buffer) and _same_place(p, s)
            for p, s in zip(parts, stores, strict=True)
        ):
            raise self.refuse(nest.name, "T.init() does not store what the block updates")
        if any(s.buffer in self.tensors or s.buffer in self.read for s in stores):
            raise self.refuse(nest.name, "what it writes was read or written before it")
        return [scope.expr(p.value) for p in parts]

    def out_axes(
        self, nest: Nest, scope: Scope, store: Any, shape: tuple[Expr, ...], spatial: list[Axis]
    ) -> tuple[Axis, ...]:
        """The axes that index the written buffer, in its order; they must cover it."""
        remaining = list(spatial)
        out: list[Axis] = []
        for k, (i, dim) in enumerate(zip(store.indices, shape, strict=True)):
            index = scope.expr(i)
            if index == ZERO and dim == Const(1, "int32"):
                out.append(Axis(f"i{k}", "int32", ZERO, dim))
                continue
            if not isinstance(index, Axis) or index not in remaining:
                what = f"it stores at index `{print_expr(index)}`, not at its own spatial axes, each once"
                raise self.refuse(nest.name, what)
            if index.lo != ZERO or not _same_size(index.hi, dim):
                span = f"[{print_expr(index.lo)}, {print_expr(index.hi)})"
                what = f"it writes {span} of a dimension [0, {print_expr(dim)}) of `{scope.stage}`"
                raise self.refuse(nest.name, what, "store everywhere, and choose the value with T.if_then_else")
            remaining.remove(index)
            out.append(index)
        for axis in remaining:
            if (axis.lo, axis.hi) != (ZERO, Const(1, "int32")):
                raise self.refuse(nest.name, f"its spatial axis `{axis.name}` does not index what it writes")
            # TVM gives a block without axes this one.
            scope.env.update({v: ZERO for v, e in scope.env.items() if e is axis})
        return tuple(out)

    def spatial(self, nest: Nest, scope: Scope, store: Any) -> Expr:
        if store.buffer in self.tensors or store.buffer in self.read:
            raise self.refuse(nest.name, f"`{scope.stage}` was read or written before it")
        value = scope.expr(store.value)
        if store.buffer in self.read:
            raise self.refuse(nest.name, f"it reads `{scope.stage}`, which it writes")
        return value

    def reduction(
        self, nest: Nest, scope: Scope, store: Any, out: tuple[Axis, ...], axes: tuple[Axis, ...]
    ) -> Reduction:
        """`y[i] = y[i] ⊕ e` over the reduce axes."""
        init = self.start(nest, scope, store, out)
        value = store.value
        reducer = COMBINERS.get(type(value))
        own = [x for x in ("a", "b") if reducer and _reads_itself(getattr(value, x), store)]
        if reducer is None or not own:
            raise self.refuse(nest.name, f"`{scope.stage}` is not updated as y[i] = y[i] ⊕ e")
        folded = scope.expr(getattr(value, "b" if own[0] == "a" else "a"))
        if store.buffer in self.read:
            raise self.refuse(nest.name, f"what it folds reads `{scope.stage}` itself, or a block before it did")
        if any(x in axes for x in walk(init)):
            raise self.refuse(nest.name, "T.init() depends on a reduce axis")
        return scope.checked(value, lambda: reductions.reduction(reducer, folded, axes, None, init))

    def start(self, nest: Nest, scope: Scope, store: Any, out: tuple[Axis, ...]) -> Expr:
        """Return the start of a reduction: its T.init(), or the block before that stored it."""
        init = nest.block.init
        before = self.tensors.pop(store.buffer, None)
        if init is not None:
            if before is not None or store.buffer in self.read:
                raise self.refuse(nest.name, f"`{scope.stage}` was read or written before it")
            own = isinstance(init, tirx.BufferStore) and init.buffer.same_as(store.buffer)
            if not own or not all(same(a, b) for a, b in zip(init.indices, store.indices, strict=True)):
                raise self.refuse(nest.name, "T.init() does not store what the block updates")
            return scope.expr(init.value)
        if before is None or before.body is None or isinstance(before.body.value, Reduction):
            raise self.refuse(nest.name, "a reduction needs T.init()")
        if store.buffer in self.read:
            raise self.refuse(nest.name, f"`{scope.stage}` was read before it was reduced")
        return _moved(before.body, out)

    # --- buffers -------------------------------------------------------------------------------------

    def tensor(self, buffer: Any) -> Tensor:
        """The tensor behind a buffer that is read."""
        self.read.add(buffer)
        if buffer not in self.tensors:
            name = self.name(buffer, buffer.name)
            if buffer not in self.parameters:
                raise ExpressionError(self.asked, f"`{name}` is read before a block writes it", legal=TAKEN)
            scope = Scope(self, name, self.tensor)
            shape = scope.shape(self.layout(buffer).shape)
            self.tensors[buffer] = Tensor(name, shape, known_dtype(self.asked, name, buffer.ty.dtype))
        return self.tensors[buffer]

    def layout(self, parameter: Any) -> Any:
        """The type of a buffer parameter, which must be dense."""
        ty = parameter.ty
        if len(ty.strides) or not _is_zero(ty.elem_offset):
            raise ExpressionError(
                self.asked,
                f"the parameter `{parameter.name}` has strides or an offset of its own",
                hint="leave them out: a kernel takes tensors of any strides",
            )
        return ty

    def interface(self, inputs: Sequence[Any] | None) -> tuple[list[Tensor], list[Any]]:
        """The outputs, and the inputs in their order with the scalars after them."""
        written = {p for p in self.parameters if p in self.tensors and self.tensors[p].body is not None}
        outputs = [self.tensors[p] for p in self.parameters if p in written]
        if not outputs:
            raise ExpressionError(self.asked, "no block writes a parameter, so there is no output")
        known: dict[Any, Any] = {}
        for p in self.function.params:
            if p in written:
                self.layout(p)
            elif p in self.parameters:
                known[p] = self.tensor(p)
            elif isinstance(p.ty, tvm.ir.PrimType):
                known[p] = self.scalar(p, "parameters")
            else:
                raise ExpressionError(self.asked, f"the parameter `{p.name}` is neither a buffer nor a scalar")
        return outputs, list(known.values()) if inputs is None else [self.argument(known, x) for x in inputs]

    def argument(self, known: Mapping[Any, Any], x: Any) -> Any:
        """One entry of the user's `inputs`."""
        matches = [v for p, v in known.items() if (p.name == x if isinstance(x, str) else p.same_as(x))]
        if not matches:
            legal = tuple(f"`{p.name}`" for p in known)
            raise ExpressionError(self.asked, f"inputs: {x!r} is none of its inputs and scalars", legal=legal)
        return matches[0]


# --- small questions about TVM's nodes -----------------------------------------------------------------


def _same_place(a: Any, b: Any) -> bool:
    """True where two stores have equal indices."""
    return len(a.indices) == len(b.indices) and all(map(same, a.indices, b.indices))


def _is_zero(e: Any) -> bool:
    return e is None or (isinstance(e, tirx.IntImm) and int(e.value) == 0)


def _same_size(a: Expr, b: Expr) -> bool:
    return a == b or binary("sub", a, b) == ZERO


def _reads_itself(e: Any, store: Any) -> bool:
    if not isinstance(e, tvm.ir.TensorLoad) or not e.source.same_as(store.buffer):
        return False
    return all(same(a, b) for a, b in zip(e.indices, store.indices, strict=True))


def _moved(body: Body, axes: tuple[Axis, ...]) -> Expr:
    """The value of a stage at other axes."""
    to: dict[Expr, Axis] = dict(zip(body.axes, axes, strict=True))
    assert not isinstance(body.value, Fold)

    def move(e: Expr) -> Expr | None:
        if isinstance(e, Axis):
            return to.get(e)
        if isinstance(e, Read):
            return Read(e.buffer, tuple(rewrite(i, move) for i in e.index), e.dtype, source=e.source)
        return None

    return rewrite(body.value, move)
