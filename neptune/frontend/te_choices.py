"""Recognise TE's argmax and argmin: a `te.comm_reducer` of (index, value) or (value, index).

A combiner that only compares values with values and indices with indices is decided by how these are ordered,
so that trying every order *is* the proof that it chooses as our reducer does.  TE folds along the axis, where
the state's index is the smaller one: a combiner may leave the indices alone (`lhs[1] >= rhs[1]` keeps the
first), provided that the index is the position along the axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

_COMPARE = {
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.EQ: lambda a, b: a == b,
    tirx.NE: lambda a, b: a != b,
}
_PICK = {tirx.Max: max, tirx.Min: min}


class _Other(Exception):
    """The combiner does something else than choose."""


@dataclass(frozen=True)
class Choice:
    """What a combiner is: our reducer, which component is the value, and whether it minds the indices' order."""

    reducer: str
    value: int
    minds: bool


def recognise(combiner: Any) -> Choice | str:
    """The choice that a `te.comm_reducer` of two components makes, or why it makes none that we have."""
    if len(combiner.result) != 2:
        return f"it folds {len(combiner.result)} values"
    try:
        for value, (reducer, sign) in itertools.product((1, 0), (("argmax", 1), ("argmin", -1))):
            first, minds, last = (_agrees(combiner, value, sign, which) for which in ("first", "any", "last"))
            if first:
                return Choice(reducer, value, minds)
            if last:
                return "of equal values it keeps the last"
    except _Other as error:
        return str(error)
    return "it is neither argmax nor argmin"


def _agrees(combiner: Any, value: int, sign: int, which: str) -> bool:
    """Whether it keeps the best value, of equal ones the smaller index (`which` = "last": the larger).

    Tried on every order of two values and two indices, the second index being the smaller only for "any".
    """
    for lv, rv, li, ri in itertools.product(range(2), repeat=4):
        if li > ri and which != "any":
            continue
        left, right = ((lv * sign, -li), (rv * sign, -ri))
        best = max(left, right) if which != "last" else max(left, right, key=lambda p: (p[0], -p[1]))
        wanted = {value: best[0] * sign, 1 - value: -best[1]}
        env: dict[Any, tuple[int, int]] = {}
        for side, v, i in ((combiner.lhs, lv, li), (combiner.rhs, rv, ri)):
            env |= {side[value]: (value, v), side[1 - value]: (1 - value, i)}
        if any(_run(e, env) != (c, wanted[c]) for c, e in enumerate(combiner.result)):
            return False
    return True


def _run(e: Any, env: Mapping[Any, tuple[int, int]]) -> tuple[int, Any]:
    """(component, number) of an expression; predicates are of component -1."""
    kind = type(e)
    if kind is tirx.Var and e in env:
        return env[e]
    if kind is tirx.IntImm and str(e.ty) == "bool":
        return -1, bool(e.value)
    if kind in (tirx.And, tirx.Or):
        a, b = _run(e.a, env)[1], _run(e.b, env)[1]
        return -1, (a and b) if kind is tirx.And else (a or b)
    if kind is tirx.Not:
        return -1, not _run(e.a, env)[1]
    if kind in _COMPARE or kind in _PICK:
        (part, a), (other, b) = _run(e.a, env), _run(e.b, env)
        if part != other:
            raise _Other("it compares a value with an index")
        return (-1, _COMPARE[kind](a, b)) if kind in _COMPARE else (part, _PICK[kind](a, b))
    choice = _choice(e)
    if choice is not None:
        p, (part, a), (other, b) = (_run(x, env) for x in choice)
        if part != other:
            raise _Other("it takes a value for an index")
        return part, a if p[1] else b
    raise _Other(f"it uses `{kind.__name__}`, and only comparisons and choices of its arguments are understood")


def _choice(e: Any) -> tuple[Any, Any, Any] | None:
    """Condition and branches of a select."""
    if isinstance(e, tirx.Select):
        return e.condition, e.true_value, e.false_value
    if isinstance(e, tvm.ir.Call) and str(getattr(e.op, "name", "")).endswith("if_then_else"):
        return tuple(a for a in e.args if isinstance(a, tvm.ir.Expr))
    return None
