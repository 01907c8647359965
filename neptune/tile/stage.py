"""Translate one stage, with the loops that become its tile axes, into tile statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neptune.errors import TargetError
from neptune.ir.analysis.absorb import ZERO, Known, absorbed
from neptune.ir.contraction import NoProduct, matrix_product, operand_dtype
from neptune.ir.expr import (
    FALSE,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    cast,
    conjuncts,
    loads,
    logical_and,
    variables,
)
from neptune.ir.indices.affine import Scope, always, as_nonnegative, scope_of
from neptune.ir.program import For, Stage, Store, Update, writes
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr, print_stage
from neptune.tile.choices import combine_choice, fold_choice, fold_exponentials
from neptune.tile.context import Context, align_to
from neptune.tile.ir import Assign, Branch, Dot, Full, Iota, LoadTile, Local, Reduce, Scalar, StoreTile, TExpr, TStmt
from neptune.tile.localize import MAX_AXIS

_APART = "leave the init of a reduction in its kernel: decompose it inside, or not at all"


def _unsupported(stage: Stage, wrong: str, hint: str | None = None) -> TargetError:
    return TargetError(f"translate stage `{stage.name}` to tiles", wrong, where=print_stage(stage), hint=hint)


def translate_stage(context: Context, loops: tuple[For, ...], stage: Stage) -> list[TStmt]:
    """The tile statements of `stage` with `loops` as tile axes."""
    padding: list[Expr] = []
    for f in loops:
        extent = context.extent(f)
        context.axes[f.var] = extent
        if extent != f.hi:
            padding.append(Op("lt", (Var(f.var), f.hi), "bool"))
    guards = [*conjuncts(stage.when), *padding]
    work = StageTranslator(context, loops, stage, guards)
    fixed = [g for g in guards if work.is_fixed(g)]
    action = stage.action
    if not fixed or (not stage.folds and work.is_first(*action.buffers)):
        return work.run()
    # A guard without tile axes decides for the whole tile: it may have to keep what it holds.
    inside = replace(work, guards=[g for g in guards if g not in fixed], given=tuple(fixed)).run()
    context.contents.may_run([stage])
    return [Branch(logical_and(*fixed), tuple(inside))]


@dataclass
class StageTranslator:
    """Translates one stage inside of its loops into statements on tiles."""

    context: Context
    loops: tuple[For, ...]
    stage: Stage
    guards: list[Expr]
    # What holds around the whole stage.
    given: tuple[Expr, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f.var for f in self.loops)

    def scope(self, facts: Iterable[Expr] = ()) -> Scope:
        padded = tuple(_padded(f, self.context.extent(f)) for f in self.loops)
        base = scope_of(self.context.program, (*self.context.outer, *padded))
        more = [p for f in (*self.given, *facts) for p in as_nonnegative(f, base) or []]
        return Scope(base.ranges, base.at_least, (*base.facts, *more))

    def dims_of(self, e: Expr) -> tuple[str, ...]:
        """The tile axes an expression runs over, in loop order."""
        used = variables(e)
        return tuple(a for a in self.axes if a in used)

    def is_fixed(self, guard: Expr) -> bool:
        """True for a guard that a branch can decide: it has no tile axes and reads no tiles."""
        reads_tiles = any(x.buffer in self.context.local for x in loads(guard))
        return not self.dims_of(guard) and not reads_tiles and not always(guard, self.scope())

    # --- statements ---

    def run(self) -> list[TStmt]:
        """The statements of the stage."""
        action = self.stage.action
        stmts = self.store(action) if isinstance(action, Store) else self.update(action)
        for b in writes(action):
            if b in self.context.local:
                under = frozenset((*self.guards, *self.given))
                self.context.given_under[b] = under if self.is_first(b) else under & self.context.given_under[b]
                self.context.assigned.add(b)
        return stmts

    def is_first(self, buffer: str) -> bool:
        """True for a local without an older value to keep."""
        return buffer in self.context.local and buffer not in self.context.assigned

    def keeping(self, buffer: str) -> list[Expr]:
        """Guards where whose falsehood a local keeps a value that somebody may read."""
        if self.is_first(buffer):
            return []
        return [g for g in self.guards if g not in self.context.given_under[buffer]]

    def store(self, action: Store) -> list[TStmt]:
        if action.buffer in self.context.local:
            dims = self.target_dims(action.buffer, action.index)
            value = self.filled(align_to(self.expr(action.value, ()), dims), dims)
            if keeping := self.keeping(action.buffer):
                old = Local(action.buffer, dims, value.dtype)
                self.context.contents.may_run([self.stage])
                return [Assign(action.buffer, self.masked(value, keeping, old), self.stage.name)]
            self.context.contents.store(action.buffer, action.value, self.load_guards)
            return [Assign(action.buffer, value, self.stage.name)]
        dims = tuple(dict.fromkeys(a for i in action.index for a in self.dims_of(i)))
        value = self.expr(action.value, ())
        if set(value.dims) - set(dims) - {"1"}:
            raise _unsupported(self.stage, "its value runs over axes that its index does not have")
        self.context.stored.append(action.buffer)
        mask = self.mask([g for g in self.guards if set(self.dims_of(g)) <= set(dims)], dims)
        index = tuple(align_to(self.expr(i, ()), dims) for i in action.index)
        return [StoreTile(action.buffer, index, align_to(value, dims), mask, dims, self.stage.name)]

    def update(self, action: Update) -> list[TStmt]:
        outside = next((b for b in action.buffers if b not in self.context.local), None)
        if outside is not None and self.axes:
            raise _unsupported(self.stage, f"`{outside}` is reduced in global memory", _APART)
        if REDUCERS[action.reducer].width > 1:
            return self.pairs(action) if outside is None else self.choice_in_memory(action)
        (buffer,), (value,) = action.buffers, action.values
        if outside is not None:
            return self.update_memory(action)
        dims = self.target_dims(buffer, action.index)
        reduced = tuple(a for a in self.axes if a not in dims)
        state = Local(buffer, dims, self.context.local[buffer].dtype)
        folds = frozenset(reduced) | self.context.reducing(buffer, action.index)
        guards = [g for g in self.guards if variables(g) & folds or g in self.keeping(buffer)]
        dot = self.dot(dims, reduced, state, guards)
        tile = self.guarded(value, guards, action.reducer) if dot is None else dot
        self.context.contents.update(buffer, action.reducer)
        if dot is not None:
            return [Assign(buffer, dot, self.stage.name)]
        for axis in reduced:
            tile = Reduce(action.reducer, axis, self.spread(tile, axis))
        folded = Op(REDUCERS[action.reducer].op, (state, align_to(tile, dims)), state.dtype)
        return [Assign(buffer, folded, self.stage.name)]

    def update_memory(self, action: Update) -> list[TStmt]:
        """One element of global memory read, folded into and written back."""
        (buffer,), (value,) = action.buffers, action.values
        old = self.element(buffer, action)
        return [self.put(buffer, action, Op(REDUCERS[action.reducer].op, (old, self.expr(value, ())), old.dtype))]

    def choice_in_memory(self, action: Update) -> list[TStmt]:
        """The same for a tuple: every element is read before any is written."""
        stmts, results = combine_choice(self, action, [self.element(b, action) for b in action.buffers])
        return [*stmts, *(self.put(b, action, e) for b, e in zip(action.buffers, results, strict=True))]

    def element(self, buffer: str, action: Update) -> TExpr:
        """Return the load of the element that the action writes."""
        return self.expr(Load(buffer, action.index, self.context.buffer(buffer).dtype), ())

    def put(self, buffer: str, action: Update, value: TExpr) -> TStmt:
        """A scalar stored where the action writes."""
        self.context.stored.append(buffer)
        return StoreTile(buffer, tuple(self.expr(i, ()) for i in action.index), value, None, (), self.stage.name)

    def pairs(self, action: Update) -> list[TStmt]:
        """A reduction of tuples: a choice, or a sum of exponentials."""
        for b in action.buffers:
            dims = self.target_dims(b, action.index)
        folds = frozenset(a for a in self.axes if a not in dims)
        folds |= self.context.reducing(action.buffers[0], action.index)
        kept = [g for b in action.buffers for g in self.keeping(b)]
        fold = fold_choice if REDUCERS[action.reducer].best else fold_exponentials
        stmts = fold(self, action, dims, [g for g in self.guards if variables(g) & folds or g in kept])
        for b in action.buffers:
            self.context.contents.update(b, action.reducer)
        return stmts

    def target_dims(self, buffer: str, index: tuple[Expr, ...]) -> tuple[str, ...]:
        self.check_loops(buffer, index)
        names = [i.name for i in index if isinstance(i, Var)]
        if len(names) != len(index) or len(set(names)) != len(names) or not set(names) <= set(self.axes):
            shown = ", ".join(map(print_expr, index))
            raise _unsupported(
                self.stage,
                f"its tile access {buffer}[{shown}] is not a plain list of tile axes",
                "leave this stage in a kernel of its own",
            )
        known = self.context.tile_dims.setdefault(buffer, tuple(names))
        if known != tuple(names):
            raise _unsupported(
                self.stage,
                f"it reads `{buffer}` over ({', '.join(names)}), a tile over ({', '.join(known)}): "
                "one program sees each element of a tile at one place",
                "leave this stage in a kernel of its own",
            )
        return known

    def check_loops(self, buffer: str, index: tuple[Expr, ...]) -> None:
        """An element of a tile cannot be picked by a loop: its loops must have become tile axes."""
        mentioned = frozenset[str]().union(*(variables(i) for i in index))
        for f in self.context.outer:
            if f.var not in mentioned:
                continue
            length = f"axis `{f.var}` of `{buffer}` ({print_expr(f.hi)} elements)"
            if isinstance(f.hi, Const) and f.hi.value > MAX_AXIS:
                raise _unsupported(self.stage, f"{length} fits no tile (at most {MAX_AXIS})", "split or tile it")
            # What the user can give as a number is a size that the axis is as long as, not a count of its tiles.
            number = f"give `{f.hi.name}` as a number, " if isinstance(f.hi, Var) else ""
            raise _unsupported(
                self.stage,
                f"{length} stays a loop: a tile axis is a constant or a param, and no other loop's bounds use it",
                f"{number}split or bind it, move reduction loops inside it, or leave this stage in a kernel of its own",
            )

    def filled(self, value: TExpr, dims: tuple[str, ...]) -> TExpr:
        """A value broadcast to the whole tile where it has fewer dimensions."""
        if value.dims == dims:
            return value
        if isinstance(value, Scalar):
            return Full(value, dims, value.dtype)
        if value.dtype == "bool":
            return Op("or", (Full(Scalar(FALSE), dims, "bool"), value), "bool")
        zero = Full(Scalar(REDUCERS["sum"].identity(value.dtype)[0]), dims, value.dtype)
        return Op("add", (zero, value), value.dtype)

    def spread(self, tile: TExpr, axis: str) -> TExpr:
        """Make sure `tile` has `axis` before it is folded (a constant is folded as often as it occurs)."""
        if axis in tile.dims:
            return tile
        dims = tuple(a for a in self.axes if a in tile.dims or a == axis)
        return self.filled(align_to(tile, dims), dims)

    # --- guards ---

    def guarded(self, value: Expr, guards: list[Expr], reducer: str) -> TExpr:
        """The value with what the reducer absorbs where one of `guards` is false.

        An accumulator that starts from -inf must keep it: no finite identity may be in its place.
        """
        needed = [g for g in guards if not absorbed(reducer, self.outside(value, g))]
        return self.masked(self.expr(value, ()), needed, Scalar(REDUCERS[reducer].nothing(value.dtype)))

    def masked(self, tile: TExpr, guards: list[Expr], other: TExpr) -> TExpr:
        """`tile` where all guards hold, else `other`."""
        scope = self.scope()
        guards = [g for g in guards if not always(g, scope)]
        if not guards:
            return tile
        used = {a for g in guards for a in self.dims_of(g)} | set(tile.dims)
        dims = tuple(a for a in self.axes if a in used)
        pred = self.mask(guards, dims)
        assert pred is not None
        return Select(pred, align_to(tile, dims), align_to(other, dims))

    def outside(self, e: Expr, guard: Expr) -> Known:
        """Return the known value of `e` where `guard` is false."""
        return self.context.contents.outside(e, guard, self.load_guards, self.context.local)

    def load_guards(self, load: Load) -> list[Expr]:
        """The guards that a global load is masked by: those over axes its index uses."""
        dims = {a for i in load.index for a in self.dims_of(i)}
        return [g for g in self.guards if set(self.dims_of(g)) <= dims]

    def mask(self, preds: list[Expr], dims: tuple[str, ...]) -> TExpr | None:
        """The conjunction of predicates as a bool tile that broadcasts to `dims`."""
        scope = self.scope()
        unproved = [p for p in dict.fromkeys(preds) if not always(p, scope)]
        if not unproved:
            return None
        # A load in a guard is masked by the guards that load nothing: by itself it cannot be.
        plain = replace(self, guards=[g for g in self.guards if not loads(g)])
        return align_to(plain.expr(logical_and(*unproved), ()), dims)

    # --- expressions ---

    def expr(self, e: Expr, preds: tuple[Expr, ...]) -> TExpr:
        """The tile expression of `e`; `preds` hold around it (they may guard its loads)."""
        if not self.dims_of(e) and not loads(e):
            return Scalar(e)
        match e:
            case Var(name, _):
                return Iota(name)
            case Load():
                return self.local_load(e) if e.buffer in self.context.local else self.global_load(e, preds)
            case Cast(arg, dtype):
                return Cast(self.expr(arg, preds), dtype)
            case Select(p, a, b):
                inside = (*preds, *conjuncts(p))
                parts = [self.expr(p, preds), self.expr(a, inside), self.expr(b, preds)]
                dims = self.join(parts)
                pred, then, other = (align_to(x, dims) for x in parts)
                return Select(pred, then, other)
            case Op(name, args, dtype):
                parts = [self.expr(a, preds) for a in args]
                dims = self.join(parts)
                return Op(name, tuple(align_to(x, dims) for x in parts), dtype)
            case _:
                return Scalar(e)

    def join(self, parts: list[TExpr]) -> tuple[str, ...]:
        used = {d for p in parts for d in p.dims}
        return tuple(a for a in self.axes if a in used)

    def local_load(self, e: Load) -> TExpr:
        dims = self.target_dims(e.buffer, e.index)
        tile = Local(e.buffer, dims, e.dtype)
        return align_to(tile, tuple(a for a in self.axes if a in dims))

    def global_load(self, e: Load, preds: tuple[Expr, ...]) -> TExpr:
        # A load keeps the dimension order of its buffer; what uses it says how to rearrange it.
        dims = tuple(dict.fromkeys(a for i in e.index for a in self.dims_of(i)))
        guards = self.load_guards(e)
        shape = self.context.program.globals[e.buffer].shape
        bounds = [b for i, n in zip(e.index, shape, strict=True) for b in _in_bounds(i, n)]
        # Enclosing choices and explicit bounds guard a load that the stage's own guards do not make safe.
        scope = self.scope(guards)
        if not all(always(b, scope) for b in bounds):
            extra = [p for p in preds if set(self.dims_of(p)) <= set(dims)]
            guards = [*guards, *extra]
            scope = self.scope(guards)
            guards += [b for b in bounds if not always(b, scope)]
        index = tuple(align_to(self.expr(i, preds), dims) for i in e.index)
        return LoadTile(e.buffer, index, self.mask(guards, dims), 0.0, dims, e.dtype)

    # --- matrix products ---

    def dot(self, dims: tuple[str, ...], reduced: tuple[str, ...], state: Local, guards: list[Expr]) -> TExpr | None:
        """`Σ_k a[x, k]·b[k, y]` on the matrix unit, where the statement has that form over tiles."""
        product = matrix_product(self.stage.action, self.axes)
        if isinstance(product, NoProduct) or state.dtype != product.dtype:
            return None
        if dims == (*product.cols, *product.rows):
            product = product.flipped
        if dims != (*product.rows, *product.cols) or len(dims) != 2 or reduced != product.depth or len(reduced) != 1:
            return None
        if not self.context.sums_products(*reduced):
            return None
        dtype = operand_dtype(product.a.dtype, product.b.dtype)
        a, b = cast(product.a, dtype), cast(product.b, dtype)
        left = self.factor(a, (*product.rows, *reduced), guards)
        right = self.factor(b, (*reduced, *product.cols), guards)
        if left is None or right is None:
            return None
        return Dot(align_to(left, (*product.rows, *reduced)), align_to(right, (*reduced, *product.cols)), state)

    def factor(self, e: Expr, dims: tuple[str, ...], guards: list[Expr]) -> TExpr | None:
        """One operand over `dims`, with zeros where a guard is false; None where that is not enough.

        Both operands must be zero there: 0·NaN is NaN.  A guard over axes of both cannot be put into one.
        """
        needed = [g for g in guards if self.outside(e, g) != ZERO]
        if not all(set(self.dims_of(g)) <= set(dims) for g in needed):
            return None
        return self.masked(self.expr(e, ()), needed, Scalar(REDUCERS["sum"].identity(e.dtype)[0]))


def _padded(f: For, extent: Expr) -> For:
    """The loop over a whole tile axis; its facts hold in its own iterations, not in those that pad it."""
    return f if extent == f.hi else replace(f, hi=extent, facts=())


def _in_bounds(i: Expr, n: Expr) -> list[Expr]:
    if isinstance(i, Const) and isinstance(n, Const) and 0 <= i.value < n.value:
        return []
    if i.dtype == "int64":
        n = Cast(n, "int64")
        return [Op("ge", (i, Const(0, "int64")), "bool"), Op("lt", (i, n), "bool")]
    return [Op("ge", (i, Const(0, "int32")), "bool"), Op("lt", (i, n), "bool")]
