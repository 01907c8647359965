"""Run a Program over a domain, in lockstep over the iterations that are independent.

The k-th enclosing lane or fold loop is array axis k *from the right*, so that values computed further
out broadcast against those further in without reshaping.  Variables of serial loops are Python ints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import FOLD_OPS, Array, Value, some, tree_fold
from neptune.ir.evaluate.expressions import Evaluator, apply_cast, both, choose
from neptune.ir.evaluate.memory import Mask, Memory, joint_shape, spread
from neptune.ir.evaluate.parallel import classify
from neptune.ir.expr import Expr, Var
from neptune.ir.program import Alloc, For, If, Seq, Stage, Stmt, Store, Update
from neptune.ir.reducers import REDUCERS

GRID_LIMIT = 1 << 22


@dataclass(frozen=True)
class Axis:
    """An array axis: a loop variable, its number of iterations, and whether it is folded away."""

    var: str
    extent: int
    fold: bool


@dataclass(frozen=True)
class Lanes:
    """The point of execution: variables, enclosing axes, and the active lanes.

    `env["@" + var]` is the position along a lane axis, with which private buffers are indexed.
    """

    env: dict[str, Any]
    axes: tuple[Axis, ...] = ()
    mask: Mask = None

    def bind(self, var: str, value: int) -> Lanes:
        return Lanes(self.env | {var: value}, self.axes, self.mask)

    def masked(self, mask: Mask) -> Lanes:
        return Lanes(self.env, self.axes, mask)

    def push(self, axis: Axis, start: int) -> Lanes:
        """Enter a loop of `axis.extent` iterations from `start` as a new leftmost axis."""
        shape = (axis.extent,) + (1,) * len(self.axes)
        position = np.arange(axis.extent).reshape(shape)
        env = self.env | {axis.var: position + start, "@" + axis.var: position}
        return Lanes(env, (*self.axes, axis), self.mask)

    def split(self) -> Iterator[Lanes]:
        """The same lanes in pieces, cut along the longest axis."""
        k = max(range(len(self.axes)), key=lambda a: self.axes[a].extent)
        n = self.axes[k].extent
        for start, stop in ((0, n // 2), (n // 2, n)):

            def cut(x: Any, start: int = start, stop: int = stop) -> Any:
                if not isinstance(x, np.ndarray) or x.ndim <= k or x.shape[-1 - k] == 1:
                    return x
                index: list[slice] = [slice(None)] * x.ndim
                index[x.ndim - 1 - k] = slice(start, stop)
                return x[tuple(index)]

            axes = (*self.axes[:k], replace(self.axes[k], extent=stop - start), *self.axes[k + 1 :])
            yield Lanes({v: cut(x) for v, x in self.env.items()}, axes, cut(self.mask))

    @property
    def size(self) -> int:
        size = 1
        for axis in self.axes:
            size *= axis.extent
        return size


class Loops:
    """Statements over a memory."""

    def __init__(self, memory: Memory, evaluator: Evaluator, kinds: dict[int, str] | None = None) -> None:
        self.memory = memory
        self.domain = memory.domain
        self.evaluator = evaluator
        # Statements are kept alive by the program, so their ids are stable as long as it is.
        self._kinds: dict[int, str] = {} if kinds is None else kinds

    def run(self, s: Stmt, lanes: Lanes) -> None:
        """Execute a statement in all active lanes."""
        match s:
            case Seq(stmts):
                for part in stmts:
                    self.run(part, lanes)
            case For():
                self._loop(s, lanes)
            case If(pred, body):
                if (inside := self._under(pred, lanes)) is not None:
                    self.run(body, inside)
            case Alloc(buffer, body):
                # Iterations that run at once may need different sizes: there is one array for all of them.
                shape = tuple(int(np.max(self.evaluator.run(d, lanes.env), initial=0)) for d in buffer.shape)
                extents = tuple(a.extent for a in lanes.axes)
                outer = self.memory.cells.get(buffer.name)
                self.memory.allocate(buffer.name, extents + shape, buffer.dtype, tuple(a.var for a in lanes.axes))
                self.run(body, lanes)
                del self.memory.cells[buffer.name]
                if outer is not None:
                    self.memory.cells[buffer.name] = outer
            case Stage():
                self._stage(s, lanes)

    def _under(self, pred: Expr | None, lanes: Lanes) -> Lanes | None:
        """The lanes where `pred` holds as well; None where there are none."""
        if pred is None:
            return lanes
        return self._where(self.evaluator.run(pred, lanes.env, lanes.mask), lanes)

    def _where(self, holds: Any, lanes: Lanes) -> Lanes | None:
        """The lanes where a condition holds that was evaluated; None where there are none."""
        mask = both(lanes.mask, holds)
        if mask is None:
            return lanes
        if not some(mask):
            return None
        return lanes.masked(None if mask.ndim == 0 else mask)

    def _loop(self, loop: For, lanes: Lanes) -> None:
        lo = self.evaluator.run(loop.lo, lanes.env, lanes.mask)
        hi = self.evaluator.run(loop.hi, lanes.env, lanes.mask)
        start, stop = lo, hi
        if not (isinstance(lo, int) and isinstance(hi, int)):
            # Where a lane's own range is empty, its bounds say nothing.
            mask = both(lanes.mask, np.less(lo, hi))
            start, stop = _extreme(lo, mask, np.min), _extreme(hi, mask, np.max)
        if stop <= start:
            return
        kind = self._kinds.get(id(loop))
        if kind is None:
            kind = self._kinds[id(loop)] = classify(loop)
        if kind == "serial":
            for v in range(start, stop):
                self._iterate(loop, lanes.bind(loop.var, v), lo, hi)
        else:
            self._iterate(loop, lanes.push(Axis(loop.var, stop - start, kind == "fold"), start), lo, hi)

    def _iterate(self, loop: For, lanes: Lanes, lo: Any, hi: Any) -> None:
        """The body, in the lanes whose own bounds contain the loop variable."""
        v, mask = lanes.env[loop.var], lanes.mask
        if getattr(lo, "ndim", 0):
            mask = both(mask, v >= lo)
        if getattr(hi, "ndim", 0):
            mask = both(mask, v < hi)
        if mask is None or some(mask):
            self.run(loop.body, lanes if mask is lanes.mask else lanes.masked(mask))

    def _stage(self, stage: Stage, lanes: Lanes) -> None:
        if lanes.size > GRID_LIMIT:
            for piece in lanes.split():
                if piece.mask is None or np.any(piece.mask):
                    self._stage(stage, piece)
            return
        self.memory.spend(lanes.size)
        inside = self._under(stage.when, lanes)
        if inside is None:
            return
        if isinstance(stage.action, Store):
            self._store(stage.action, inside)
        else:
            self._update(stage.action, inside)

    def _place(self, buffer: str, index: tuple[Expr, ...], lanes: Lanes) -> tuple[Any, ...]:
        return self.evaluator.lanes(buffer, lanes.env) + self.evaluator.index(index, lanes.env, lanes.mask)

    def _store(self, action: Store, lanes: Lanes) -> None:
        value = self.evaluator.run(action.value, lanes.env, lanes.mask)
        value = self._as_stored(value, action.value.dtype, action.buffer)
        self.memory.store(action.buffer, self._place(action.buffer, action.index, lanes), value, lanes.mask)

    def _as_stored(self, value: Value, dtype: str, buffer: str) -> Value:
        cell = self.memory.cells.get(buffer)
        return value if cell is None or cell.dtype == dtype else apply_cast(self.domain, value, dtype, cell.dtype)

    def _update(self, action: Update, lanes: Lanes) -> None:
        reducer = REDUCERS[action.reducer]
        dtypes = [v.dtype for v in action.values]
        values = tuple(self.evaluator.run(v, lanes.env, lanes.mask) for v in action.values)
        values = tuple(self._as_stored(v, d, b) for v, d, b in zip(values, dtypes, action.buffers, strict=True))
        dtypes = [self.memory.cells[b].dtype for b in action.buffers]
        folds = [k for k, axis in enumerate(lanes.axes) if axis.fold]
        active = lanes.mask
        if folds:
            values = self._fold(action.reducer, values, dtypes, lanes, folds)
            for k in folds:
                if active is not None and active.ndim > k:
                    active = np.asarray(active.any(axis=active.ndim - 1 - k, keepdims=True))
        after = lanes.masked(active)
        places = [self._place(b, action.index, after) for b in action.buffers]
        state = tuple(self.memory.load(b, p, active) for b, p in zip(action.buffers, places, strict=True))
        fresh = combine(self.evaluator, reducer.name, state, values, dtypes)
        for b, p, v in zip(action.buffers, places, fresh, strict=True):
            self.memory.store(b, p, v, active)

    def _fold(
        self, reducer: str, values: tuple[Value, ...], dtypes: list[str], lanes: Lanes, folds: list[int]
    ) -> tuple[Value, ...]:
        """Fold the values of inactive lanes as neutral ones, over every fold axis."""
        extents = tuple(a.extent if a.fold else 1 for a in reversed(lanes.axes))
        shapes = [np.shape(part) for v, d in zip(values, dtypes, strict=True) for part in self._parts(v, d)]
        shape = joint_shape((extents, *shapes, () if lanes.mask is None else lanes.mask.shape))
        full = []
        for k, (v, d) in enumerate(zip(values, dtypes, strict=True)):
            if lanes.mask is not None:
                v = choose(self.domain, lanes.mask, v, neutral(self.evaluator, reducer, k, dtypes), d)
            full.append(_structural(self.domain, lambda x: spread(x, shape), v, d))
        values = tuple(full)
        for k in folds:
            axis = len(shape) - 1 - k
            values = fold_axis(self.evaluator, reducer, values, dtypes, axis)
            values = tuple(
                _structural(self.domain, lambda x, axis=axis: np.expand_dims(x, axis), v, d)
                for v, d in zip(values, dtypes, strict=True)
            )
        return values

    def _parts(self, v: Value, dtype: str) -> tuple[Array, ...]:
        return self.domain.parts(v) if is_float(dtype) else (np.asarray(v),)


def _extreme(bound: Any, mask: Mask, pick: Any) -> int:
    """The least or greatest loop bound over the active lanes."""
    if not np.ndim(bound):
        return int(bound)
    if mask is not None:
        shape = joint_shape((bound.shape, mask.shape))
        bound = spread(bound, shape)[spread(mask, shape)]
    return int(pick(bound)) if bound.size else 0


def _structural(domain: Any, fn: Any, v: Value, dtype: str) -> Value:
    return domain.make([fn(x) for x in domain.parts(v)]) if is_float(dtype) else fn(np.asarray(v))


def neutral(evaluator: Evaluator, reducer: str, position: int, dtypes: list[str]) -> Value:
    """Return the part at `position` of the element that changes no result of the reducer."""
    dtype = dtypes[position]
    row = REDUCERS[reducer]
    if row.width > 1:
        return evaluator.const(row.identity(*dtypes)[position].value, dtype)
    value = row.neutral
    if is_float(dtype):
        return evaluator.const(value, dtype)
    if dtype == "bool":
        return bool(value)
    limits = np.iinfo(np.int64)
    return int(limits.min if value == -np.inf else limits.max if value == np.inf else value)


def combine(
    evaluator: Evaluator, reducer: str, state: tuple[Value, ...], values: tuple[Value, ...], dtypes: list[str]
) -> tuple[Value, ...]:
    """state ⊕ values, by the reducer's own expressions."""
    names = [f"state{k}" for k in range(len(dtypes))], [f"value{k}" for k in range(len(dtypes))]
    left, right = (tuple(Var(n, d) for n, d in zip(group, dtypes, strict=True)) for group in names)
    env = dict(zip((*names[0], *names[1]), (*state, *values), strict=True))
    combined = REDUCERS[reducer].combine(left, right)
    for name, e in combined.lets:
        env[name.name] = evaluator.run(e, env)
    return tuple(evaluator.run(e, env) for e in combined.result)


_INTEGER_FOLD: dict[str, Any] = {n: getattr(np, n) for n in ("sum", "prod", "max", "min", "all", "any")}
_INTEGER_FOLD |= {"bitor": np.bitwise_or.reduce, "bitxor": np.bitwise_xor.reduce}


def fold_axis(
    evaluator: Evaluator, reducer: str, values: tuple[Value, ...], dtypes: list[str], axis: int
) -> tuple[Value, ...]:
    """Fold one axis of positive length away."""
    if reducer in FOLD_OPS and (is_float(dtypes[0]) or reducer in _INTEGER_FOLD):
        (v,), (d,) = values, dtypes
        return (evaluator.domain.fold(reducer, v, axis, d) if is_float(d) else _INTEGER_FOLD[reducer](v, axis=axis),)
    return tree_fold(lambda a, b: combine(evaluator, reducer, a, b, dtypes), values, axis, evaluator.domain)
