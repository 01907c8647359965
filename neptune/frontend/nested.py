"""Reductions inside larger expressions: each becomes a stage of its own, over the axes that it depends on.

    y[i, j] = x[i, j] / sum(x[i, k], axis=k)        →        y_sum[i]  = sum(x[i, k], axis=k)
                                                             y[i, j]   = x[i, j] / y_sum[i]

Equal reductions of one expression are one stage; a reduction inside another has a stage in front of it. One in a branch
of a select folds values that exist where the branch is taken; where these need not exist elsewhere, as x[i - 1, k], its
stage has the condition:

    y[i] = sum(x[i - 1, k], axis=k) if i > 0 else 0     →       y_sum[i] = sum(x[i - 1, k] if i > 0 else 0, axis=k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import is_
from typing import Any, TypeVar, cast

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Body, Fold, Read, Reduction, Tensor
from neptune.ir.analysis.facts import range_of
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Expr, Load, Op, Select, Var, logical_and, op, rewrite, select, walk
from neptune.ir.expr import maximum as larger
from neptune.ir.ops import Range
from neptune.ir.program import ZERO
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

V = TypeVar("V")
HINT = "give the reduction a stage of its own, and read that here"


class Lifting:
    """The stages of what is nested in one `compute`; `name` is that of its tensor."""

    def __init__(self, name: str) -> None:
        self.name, self.request = name, f"stage `{name}`"
        self._stages: dict[object, Tensor] = {}

    def value(self, value: V, scope: tuple[Axis, ...], given: tuple[Expr, ...] = ()) -> V:
        """The value of a stage whose loops are `scope`, with reads in place of the reductions inside it. It is read
        where the conditions `given` hold."""
        if not isinstance(value, Fold):
            return cast("V", self._flat(cast("Expr", value), scope, given))
        inner = (*scope, *value.axes)
        values, inits = (
            tuple(self._flat(e, inner, given) for e in value.values),
            tuple(self._flat(e, scope, given) for e in value.inits),
        )
        unchanged = all(map(is_, (*values, *inits), (*value.values, *value.inits)))
        return value if unchanged else replace(value, values=values, inits=inits)

    def _flat(self, e: Expr, scope: tuple[Axis, ...], given: tuple[Expr, ...]) -> Expr:
        def flat(x: Expr) -> Expr | None:
            if isinstance(x, Reduction):
                return self._read(x, scope, given)
            if not isinstance(x, Select) or not any(isinstance(r, Reduction) for r in walk(x)):
                return None
            pred = self._flat(x.pred, scope, given)
            then = self._flat(x.then, scope, (*given, pred))
            return replace(x, pred=pred, then=then, other=self._flat(x.other, scope, (*given, op("not", pred))))

        return rewrite(e, flat)

    def _read(self, fold: Reduction, scope: tuple[Axis, ...], given: tuple[Expr, ...]) -> Read:
        """The element of a reduction's stage at the axes of `scope` that it depends on."""
        flat = self.value(fold, scope, given)
        if given and any(_partial(x) for e in _exprs(flat) for x in walk(e)):
            flat = _under(flat, given)
        # Its own axes are bound here, also where the expression around it is over the same.
        used = {x for e in _exprs(flat) for x in walk(e) if isinstance(x, Axis)}.difference(flat.axes)
        axes = tuple(a for a in dict.fromkeys(scope) if a in used)
        for a in axes:
            if a.lo != ZERO or any(isinstance(x, Axis | Load) for x in walk(a.hi)):
                wrong = f"{fold!r} inside a larger expression depends on `{a.name}`, over [{print_expr(a.lo)}, "
                raise ExpressionError(self.request, f"{wrong}{print_expr(a.hi)}): no dimension of a tensor", hint=HINT)
        tensor = self._stage(flat, axes)
        return Read(tensor.name, axes, tensor.dtype, source=tensor)

    def _stage(self, fold: Reduction, axes: tuple[Axis, ...]) -> Tensor:
        places: dict[Axis, Var] = {a: Var(f"%{k}") for k, a in enumerate((*axes, *fold.axes))}
        shape = tuple(map(_length, axes))
        key = (fold.reducer, shape, *(_renamed(e, places) for e in _exprs(fold)))
        if key not in self._stages:
            own = {a: Axis(a.name, a.dtype, ZERO, a.hi) for a in axes}
            inner = dict(own)
            for a in fold.axes:
                inner[a] = Axis(a.name, a.dtype, _renamed(a.lo, inner), _renamed(a.hi, inner))
            body = replace(
                fold,
                values=tuple(_renamed(e, inner) for e in fold.values),
                axes=tuple(inner[a] for a in fold.axes),
                inits=tuple(_renamed(e, inner) for e in fold.inits),
            )
            name = f"{self.name}_{fold.reducer}"
            self._stages[key] = Tensor(name, shape, fold.dtype, Body(tuple(own.values()), body), soft=True)
        return self._stages[key]


def _exprs(fold: Reduction) -> tuple[Expr, ...]:
    """Every expression of a reduction: ranges, value, start."""
    return (*(e for a in fold.axes for e in (a.lo, a.hi)), *fold.values, *fold.inits)


def _length(axis: Axis) -> Expr:
    """How many elements a dimension has for an axis from 0 on: none where it ends below."""
    return axis.hi if range_of(axis.hi, _size).lo >= 0 else larger(axis.hi, 0)


def _size(e: Expr) -> Range | None:
    return Range(0) if isinstance(e, Var) else None


def _partial(x: Expr) -> bool:
    """True for what need not have a value everywhere: a read elsewhere than along a dimension, and a division of
    integers."""
    if isinstance(x, Read):
        along = (
            isinstance(i, Axis) and (i.lo, i.hi) == (ZERO, n) for i, n in zip(x.index, x.source.shape, strict=True)
        )
        return not all(along)
    return isinstance(x, Op) and is_int(x.dtype) and x.name in ("floordiv", "mod", "fmod")


def _under(fold: Reduction, given: tuple[Expr, ...]) -> Reduction:
    """A reduction that folds nothing where a condition does not hold."""
    holds = reduce(logical_and, given)
    neutral = REDUCERS[fold.reducer].identity(fold.dtype)
    values, inits = (
        tuple(select(holds, e, start) for e, start in zip(part, neutral, strict=True))
        for part in (fold.values, fold.inits)
    )
    return replace(fold, values=values, inits=inits)


def _renamed(e: Expr, names: Mapping[Axis, Any]) -> Expr:
    return rewrite(e, lambda x: names.get(x) if isinstance(x, Axis) else None)
