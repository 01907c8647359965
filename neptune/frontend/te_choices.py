"""Recognise TE's argmax and argmin: a `te.comm_reducer` of (index, value) or (value, index).

A combiner that only compares values with values and indices with indices is decided by how these are ordered,
so that trying every order *is* the proof that it chooses as our reducer does.  TE folds along the axis, where
the state's index is the smaller one: a combiner may leave the indices alone (`lhs[1] >= rhs[1]` keeps the
first), provided that the index is the position along the axis.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from neptune.frontend.assemble import Axis, TupleReduction
from neptune.frontend.choices import position
from neptune.frontend.tvm_expr import Scope
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import TRUE, Cast, Const, Expr, select
from neptune.ir.indices.affine import poly
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

_COMPARE = {
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.EQ: lambda a, b: a == b,
    tirx.NE: lambda a, b: a != b,
}
_PICK = {tirx.Max: max, tirx.Min: min}
_BOTH: Mapping[Any, Any] = {**_COMPARE, **_PICK, tirx.And: operator.and_, tirx.Or: operator.or_}


@dataclass(frozen=True)
class Choice:
    """A recognised combiner: our reducer, the value's component, and whether the order of indices matters to it."""

    reducer: str
    value: int
    minds: bool


def recognise(combiner: Any) -> Choice | str:
    """The choice that a `te.comm_reducer` of two components makes, or why it makes none that we have."""
    if len(combiner.result) != 2:
        return f"it folds {len(combiner.result)} values"
    parts = {side[c]: c for side in (combiner.lhs, combiner.rhs) for c in range(2)}
    sides = [_part(e, parts) for e in combiner.result]
    wrong = next((p for p in sides if isinstance(p, str)), None)
    if wrong is not None:
        return wrong
    values = (1, 0) if sides == [0, 1] else ()
    for value, (reducer, sign) in itertools.product(values, (("argmax", 1), ("argmin", -1))):
        first, minds, last = (_agrees(combiner, value, sign, which) for which in ("first", "any", "last"))
        if first:
            return Choice(reducer, value, minds)
        if last:
            return "of equal values it keeps the last"
    return "it is neither argmax nor argmin"


def _part(e: Any, parts: Mapping[Any, int]) -> int | str:
    """The component that an expression is of, -1 of a predicate; else why it is no choice."""
    kind, choice = type(e), _choice(e)
    if kind is tirx.Var and e in parts:
        return parts[e]
    if kind is tirx.IntImm and str(e.ty) == "bool":
        return -1
    alike = kind in _COMPARE or kind in _PICK
    if not (kind in _BOTH or kind is tirx.Not or choice is not None):
        return f"it uses `{kind.__name__}`, and only comparisons and choices of its arguments are understood"
    sides = [_part(x, parts) for x in choice or ((e.a,) if kind is tirx.Not else (e.a, e.b))]
    wrong = next((p for p in sides if isinstance(p, str)), None)
    if wrong is None and (alike or choice is not None) and sides[-1] != sides[-2]:
        wrong = "it compares a value with an index" if alike else "it takes a value for an index"
    return wrong or (sides[-1] if kind in _PICK or choice is not None else -1)


def _agrees(combiner: Any, value: int, sign: int, which: str) -> bool:
    """Return True if a combiner picks the best value, of equal ones the smaller index (`which` = "last": the larger).

    Tried on every order of two values and two indices, the second index being the smaller only for "any".
    """
    for lv, rv, li, ri in itertools.product(range(2), repeat=4):
        if li > ri and which != "any":
            continue
        left, right = ((lv * sign, -li), (rv * sign, -ri))
        best = max(left, right) if which != "last" else max(left, right, key=lambda p: (p[0], -p[1]))
        expected = {value: best[0] * sign, 1 - value: -best[1]}
        env: dict[Any, int] = {}
        for side, v, i in ((combiner.lhs, lv, li), (combiner.rhs, rv, ri)):
            env |= {side[value]: v, side[1 - value]: i}
        if any(_run(e, env) != expected[c] for c, e in enumerate(combiner.result)):
            return False
    return True


def _run(e: Any, env: Mapping[Any, int]) -> Any:
    """The value of an expression that has a `_part`."""
    kind, choice = type(e), _choice(e)
    if kind is tirx.Var:
        return env[e]
    if kind is tirx.IntImm:
        return bool(e.value)
    if kind is tirx.Not:
        return not _run(e.a, env)
    if choice is not None:
        p, a, b = (_run(x, env) for x in choice)
        return a if p else b
    return _BOTH[kind](_run(e.a, env), _run(e.b, env))


def _choice(e: Any) -> tuple[Any, Any, Any] | None:
    """Condition and branches of a select."""
    if isinstance(e, tirx.Select):
        return e.condition, e.true_value, e.false_value
    if isinstance(e, tvm.ir.Call) and str(getattr(e.op, "name", "")).endswith("if_then_else"):
        return tuple(a for a in e.args if isinstance(a, tvm.ir.Expr))
    return None


def folded_choice(
    scope: Scope, combiner: Any, source: Sequence[Any], axes: tuple[Axis, ...], starts: Sequence[Expr], condition: Any
) -> tuple[Choice, TupleReduction]:
    """The argmax or argmin that `combiner` (with `lhs`, `rhs` and `result`) makes of `source`.

    ExpressionError for other combiners, and for indices that are not the position along the reduction.
    """
    supported = "argmax and argmin of a value and its position, of equal values the first"
    choice = recognise(combiner)
    if isinstance(choice, str):
        raise scope.refuse("te.comm_reducer", choice, legal=(supported,))
    value, index = (scope.expr(source[c]) for c in (choice.value, 1 - choice.value))
    along = scope.checked(source[1 - choice.value], lambda: position("a reduction of tuples", axes))
    plain = index
    while isinstance(plain, Cast):
        plain = plain.arg
    if poly(plain) != poly(along) or any(not isinstance(a.lo, Const) or a.lo.value < 0 for a in axes):
        wrong = f"the index is not the position `{print_expr(along)}` along the reduction"
        raise scope.refuse(print_expr(index), wrong, legal=(supported,))
    inits = tuple(finite(starts[c]) for c in (choice.value, 1 - choice.value))
    if not choice.minds and not (isinstance(inits[1], Const) and inits[1].value <= 0):
        wrong = f"a start of index {print_expr(inits[1])} would win against the elements"
        raise scope.refuse("te.comm_reducer", wrong, "start from index -1")
    where = scope.expr(condition)
    if where != TRUE:
        nothing = REDUCERS[choice.reducer].identity(value.dtype, index.dtype)
        value, index = select(where, value, nothing[0]), select(where, index, nothing[1])
    return choice, TupleReduction(choice.reducer, (value, index), axes, inits, ("value", "index"))


def finite(identity: Expr) -> Expr:
    """TVM starts bfloat16 max and min from float32's extremes, which are infinite in bfloat16."""
    if isinstance(identity, Const) and is_float(identity.dtype) and math.isfinite(identity.value):
        row = DTYPES[identity.dtype]
        return Const(min(max(identity.value, row.lowest), row.highest), identity.dtype)
    return identity


# --- a combiner as a PrimFunc says it ------------------------------------------------------------------


@dataclass(frozen=True)
class Combiner:
    """The fold of a block: `result` is the new state in terms of the old (`lhs`) and of one element (`rhs`)."""

    lhs: tuple[Any, ...]
    rhs: tuple[Any, ...]
    result: tuple[Any, ...]


def split_update(old: Sequence[Any], new: Sequence[Any]) -> tuple[Combiner, list[Any]] | None:
    """The combiner and the elements of `old[c] = new[c]`, where `new` chooses between `old` and something else.

    `select(y0[i] > x[i, k], y0[i], x[i, k])` of the loads `y0[i]`, `y1[i]` folds the element `x[i, k]`. None where
    a component chooses between more than two values. What is left over by a wrong guess, no combiner has.
    """
    source: list[Any] = []
    for target, e in zip(old, new, strict=True):
        others: list[Any] = []
        for leaf in _leaves(e):
            if not any(tvm_ffi.structural_equal(leaf, x) for x in (target, *others)):
                others.append(leaf)
        if len(others) != 1:
            return None
        source += others
    lhs = tuple(tirx.Var(f"lhs{c}", e.ty.dtype) for c, e in enumerate(old))
    rhs = tuple(tirx.Var(f"rhs{c}", e.ty.dtype) for c, e in enumerate(source))
    known = [*zip(old, lhs, strict=True), *zip(source, rhs, strict=True)]
    return Combiner(lhs, rhs, tuple(_replaced(e, known) for e in new)), source


def _leaves(e: Any) -> Iterator[Any]:
    """Yield the values that an expression of choices can have."""
    choice = _choice(e)
    parts = choice[1:] if choice is not None else (e.a, e.b) if type(e) in _PICK else ()
    yield from (x for part in parts for x in _leaves(part)) if parts else (e,)


def _replaced(e: Any, known: Sequence[tuple[Any, Any]]) -> Any:
    """Whole subexpressions of choices and comparisons replaced by variables."""
    for whole, variable in known:
        if tvm_ffi.structural_equal(e, whole):
            return variable
    choice = _choice(e)
    if choice is not None:
        return tirx.Select(*(_replaced(x, known) for x in choice))
    if type(e) in (*_COMPARE, *_PICK, tirx.And, tirx.Or):
        return type(e)(_replaced(e.a, known), _replaced(e.b, known))
    return tirx.Not(_replaced(e.a, known)) if isinstance(e, tirx.Not) else e
