"""Reductions inside larger expressions: each becomes a stage of its own, over the axes that it depends on.

    y[i, j] = x[i, j] / sum(x[i, k], axis=k)        →        y_sum[i]  = sum(x[i, k], axis=k)
                                                             y[i, j]   = x[i, j] / y_sum[i]

Equal reductions of one expression are one stage; a reduction inside another has a stage in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar, cast

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Body, Fold, Read, Reduction, Tensor
from neptune.ir.expr import Expr, Load, Var, rewrite, walk
from neptune.ir.program import ZERO
from neptune.ir.text.printer import print_expr

V = TypeVar("V")
HINT = "give the reduction a stage of its own, and read that here"


class Lifting:
    """The stages of what is nested in one `compute`; `name` is that of its tensor."""

    def __init__(self, name: str) -> None:
        self.name, self.request = name, f"stage `{name}`"
        self._stages: dict[object, Tensor] = {}

    def value(self, value: V, scope: tuple[Axis, ...]) -> V:
        """The value of a stage whose loops are `scope` with reads in place of the reductions inside it."""
        if not isinstance(value, Fold):
            return cast("V", self._flat(cast("Expr", value), scope))
        inner = (*scope, *value.axes)
        values, inits = (
            tuple(self._flat(e, inner) for e in value.values),
            tuple(self._flat(e, scope) for e in value.inits),
        )
        unchanged = all(map(is_, (*values, *inits), (*value.values, *value.inits)))
        return value if unchanged else replace(value, values=values, inits=inits)

    def _flat(self, e: Expr, scope: tuple[Axis, ...]) -> Expr:
        return rewrite(e, lambda x: self._read(x, scope) if isinstance(x, Reduction) else None)

    def _read(self, fold: Reduction, scope: tuple[Axis, ...]) -> Read:
        """The element of a reduction's stage at the axes of `scope` that it depends on."""
        flat = self.value(fold, scope)
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
        key = (fold.reducer, len(axes), *(_renamed(e, places) for e in _exprs(fold)))
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
            shape = tuple(a.hi for a in axes)
            name = f"{self.name}_{fold.reducer}"
            self._stages[key] = Tensor(name, shape, fold.dtype, Body(tuple(own.values()), body), soft=True)
        return self._stages[key]


def _exprs(fold: Reduction) -> tuple[Expr, ...]:
    """Every expression of a reduction: ranges, value, start."""
    return (*(e for a in fold.axes for e in (a.lo, a.hi)), *fold.values, *fold.inits)


def _renamed(e: Expr, names: Mapping[Axis, Any]) -> Expr:
    return rewrite(e, lambda x: names.get(x) if isinstance(x, Axis) else None)
