"""Translate reductions of tuples (argmax, argmin, the k largest, sums of exponentials) into tile statements.

    best_value[i1], best_index[i1] argmax= x[i1, j1], j1
→
    top = reduce(x, max);  at = reduce(where(x == top, iota(j1), highest), min)
    first = …              (best_value, best_index) stands before (top, at)
    best_value = where(first, best_value, top);  best_index = where(first, best_index, at)

A tile's best pair takes two ordinary reductions; the k best take k rounds, each without the winners before it.
NaN, which comes before every number, is +inf here (for argmin -inf) with its index moved below 0: so of equal
values NaN is first, and among NaN the first one.  What is merged into the state is the code of the reducer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, cast

from neptune.errors import TargetError
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Expr, Op, Select, Var, op, rewrite, variables
from neptune.ir.indices.affine import linear, nonnegative, number, poly
from neptune.ir.lists import folds_list
from neptune.ir.program import Update
from neptune.ir.reducers import REDUCERS, WORST, last_pair
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.state import names_in_use
from neptune.tile.context import align_to
from neptune.tile.ir import Assign, Local, Reduce, Scalar, TExpr, TStmt

if TYPE_CHECKING:
    from neptune.tile.stage import StageTranslator

FOLD = {"gt": "max", "lt": "min"}
Pair = tuple[TExpr, TExpr]


def fold_choice(work: StageTranslator, action: Update, dims: tuple[str, ...], guards: list[Expr]) -> list[TStmt]:
    """`action` on tiles over `dims`; elements outside of `guards` count as none."""
    row = REDUCERS[action.reducer]
    k = row.elements
    code = _Code(work)
    nothing = row.identity(*(v.dtype for v in action.values))
    reduced = tuple(a for a in work.axes if a not in dims)
    every = [work.masked(work.expr(v, ()), guards, Scalar(n)) for v, n in zip(action.values, nothing, strict=True)]
    if not reduced:
        parts = every
    elif folds_list(action):
        wrong = f"it merges lists along {', '.join(f'`{a}`' for a in reduced)}, which are sorted each for itself only"
        hint = "a serial loop over the parts that are merged"
        raise TargetError(
            f"translate stage `{work.stage.name}` to tiles", wrong, where=print_stage(work.stage), hint=hint
        )
    else:
        _check_index(work, action, nothing[k], reduced)
        pairs = _Rounds(code, row.best, reduced, every[0], every[k]).run(k)
        parts = [*(v for v, _ in pairs), *(i for _, i in pairs)]
    states = [Local(b, dims, v.dtype) for b, v in zip(action.buffers, action.values, strict=True)]
    results = _combined(code, action, parts, states, dims)
    return [*code.stmts, *(Assign(b, e, work.stage.name) for b, e in zip(action.buffers, results, strict=True))]


def fold_exponentials(work: StageTranslator, action: Update, dims: tuple[str, ...], guards: list[Expr]) -> list[TStmt]:
    """A sum of exponentials on tiles: the maximum of the tile, what the others are beside it, and the state.

    top = max(reduce(m, max), lowest);  total = reduce(l * exp(m - top), sum)
    """
    code = _Code(work)
    nothing = REDUCERS[action.reducer].identity(*(v.dtype for v in action.values))
    reduced = tuple(a for a in work.axes if a not in dims)
    pair = [work.masked(work.expr(v, ()), guards, Scalar(n)) for v, n in zip(action.values, nothing, strict=True)]
    if reduced:
        pair = _summed(code, pair, nothing[0], reduced)
    states = [Local(b, dims, v.dtype) for b, v in zip(action.buffers, action.values, strict=True)]
    results = _combined(code, action, pair, states, dims)
    return [*code.stmts, *(Assign(b, e, work.stage.name) for b, e in zip(action.buffers, results, strict=True))]


def _summed(code: _Code, pair: Sequence[TExpr], lowest: Const, reduced: tuple[str, ...]) -> list[TExpr]:
    """The pair that stands for the whole tile; a tile of -inf alone sums to 0."""
    work = code.work
    used = {*pair[0].dims, *pair[1].dims, *reduced}
    dims = tuple(a for a in work.axes if a in used)
    m, held = (align_to(x, dims) for x in pair)
    here = code.let("value", work.filled(m, dims))
    top: TExpr = here
    for axis in reduced:
        top = Reduce("max", axis, top)
    finite = code.let("top", Op("max", (top, Scalar(lowest)), top.dtype))
    beside = Op("exp", (Op("sub", (here, align_to(finite, dims)), m.dtype),), m.dtype)
    alone = isinstance(held, Scalar) and held.expr == Const(1.0, held.dtype)
    total: TExpr = beside if alone else Op("mul", (beside, held), held.dtype)
    for axis in reduced:
        total = Reduce("sum", axis, total)
    return [finite, code.let("total", total)]


def combine_choice(work: StageTranslator, action: Update, states: Sequence[TExpr]) -> tuple[list[TStmt], list[TExpr]]:
    """Statements, and the state after `action` has folded one element into `states`: scalars in memory."""
    code = _Code(work)
    held = [code.let("state", s) for s in states]
    results = _combined(code, action, [work.expr(v, ()) for v in action.values], held, ())
    return code.stmts, results


def _combined(
    code: _Code, action: Update, parts: Sequence[TExpr], states: Sequence[TExpr], dims: tuple[str, ...]
) -> list[TExpr]:
    """The state after the reducer's own code has folded `parts` into `states`."""
    state = [Var(f"%state{t}", v.dtype) for t, v in enumerate(action.values)]
    fresh = [Var(f"%value{t}", v.dtype) for t, v in enumerate(action.values)]
    env = {v.name: s for v, s in zip(state, states, strict=True)}
    for v, part in zip(fresh, parts, strict=True):
        part = code.work.filled(align_to(part, dims), dims)
        env[v.name] = part if isinstance(part, Local) else code.let("top", part)
    combined = REDUCERS[action.reducer].combine(state, fresh)
    for name, e in combined.lets:
        env[name.name] = code.let("first" if e.dtype == "bool" else "top", _tile(e, env))
    return [_tile(e, env) for e in combined.result]


@dataclass
class _Code:
    """Statements so far, each assigning a new tile variable."""

    work: StageTranslator
    stmts: list[TStmt] = field(default_factory=list)

    def let(self, name: str, value: TExpr) -> Local:
        """A variable for `value`."""
        context = self.work.context
        used = names_in_use(context.program) | set(context.axes) | context.helpers
        wish = f"{self.work.stage.name}_{name}"
        free = next(n for n in (wish if t == 0 else f"{wish}_{t}" for t in count()) if n not in used)
        context.helpers.add(free)
        self.stmts.append(Assign(free, value, self.work.stage.name))
        return Local(free, value.dims, value.dtype)


@dataclass
class _Rounds:
    """The best pairs of a tile, one after the other."""

    code: _Code
    best: str
    reduced: tuple[str, ...]
    value: TExpr
    index: TExpr

    def run(self, k: int) -> list[Pair]:
        work = self.code.work
        used = {*self.value.dims, *self.index.dims, *self.reduced}
        dims = tuple(a for a in work.axes if a in used)
        last, nowhere = (Scalar(c) for c in last_pair(self.best, self.value.dtype, self.index.dtype))
        value: TExpr = self.code.let("value", work.filled(align_to(self.value, dims), dims))
        here = self.code.let("index", self.index)
        index = align_to(here, dims)
        moved = Scalar(Const(int(DTYPES[index.dtype].lowest), index.dtype))
        if is_float(value.dtype):
            nan = self.code.let("nan", Op("ne", (value, value), "bool"))
            below = self.code.let("below", Op("add", (here, moved), here.dtype))
            index = self.code.let("index", Select(nan, align_to(below, dims), index))
            value = self.code.let("value", Select(nan, Scalar(Const(-WORST[self.best], value.dtype)), value))
        pairs: list[Pair] = []
        for t in range(k):
            top = self.code.let("top", self.fold(FOLD[self.best], value))
            equal = Op("eq", (value, align_to(top, dims)), "bool")
            position = self.code.let("at", self.fold("min", Select(equal, index, nowhere)))
            pairs.append((top, position))
            if t < k - 1:
                won = self.code.let("won", Op("eq", (index, align_to(position, dims)), "bool"))
                value = self.code.let("value", Select(won, last, value))
                index = self.code.let("index", Select(won, nowhere, index))
        return [self.moved_back(p, moved) for p in pairs] if is_float(value.dtype) else pairs

    def fold(self, reducer: str, tile: TExpr) -> TExpr:
        for axis in self.reduced:
            tile = Reduce(reducer, axis, tile)
        return tile

    def moved_back(self, pair: Pair, moved: Scalar) -> Pair:
        """NaN, where an index says so."""
        top, position = pair
        zero = Scalar(Const(0, position.dtype))
        is_nan = self.code.let("nan", Op("lt", (position, zero), "bool"))
        infinite = Const(inf, top.dtype)
        nan = Scalar(op("sub", infinite, infinite))
        value = self.code.let("top", Select(is_nan, nan, top))
        index = Select(is_nan, Op("sub", (position, moved), position.dtype), position)
        return value, self.code.let("at", index)


def _tile(e: Expr, env: dict[str, TExpr]) -> TExpr:
    """Straight-line code of a reducer on tiles."""

    def leaf(x: TExpr) -> TExpr | None:
        return env[x.name] if isinstance(x, Var) else Scalar(x) if isinstance(x, Const) else None

    return rewrite(cast("TExpr", e), leaf)


def _check_index(work: StageTranslator, action: Update, nowhere: Const, reduced: tuple[str, ...]) -> None:
    """Rounds need indices that NaN can move below 0 and, to tell winners from the others, all different."""
    k = REDUCERS[action.reducer].elements
    index, dtype = action.values[k], action.values[0].dtype
    while isinstance(index, Select) and index.other == nowhere:
        index = index.then
    scope, p = work.scope(), poly(index)
    request = f"translate stage `{work.stage.name}` to tiles"
    hint = "take the position along the reduction, as the builder does, and make a tile of one reduction loop only"
    if is_float(dtype) and not nonnegative(p, scope):
        wrong = f"the index `{print_expr(index)}` is not shown to be >= 0"
        raise TargetError(request, wrong, where=print_stage(work.stage), hint=hint)
    room = number(1)
    for f in (f for f in reversed(work.loops) if f.var in reduced and k > 1):
        parts = linear(p, f.var)
        if parts is None or variables(f.hi) & set(work.axes) or not nonnegative(parts[0] - room, scope):
            wrong = f"the index `{print_expr(index)}` is not shown to differ along `{f.var}`"
            raise TargetError(request, wrong, where=print_stage(work.stage), hint=hint)
        room = room + parts[0] * (poly(f.hi) - number(1))
