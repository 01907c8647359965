"""Reductions that choose: the best values of an axis, and where they stand.

    best = compute((m,), lambda i: argmax(x[i, j], axis=j), "best")

is one stage with two results, `best_value` and `best_index`::

    for i in [0, m):
      for j in [0, n):
        best: best_value[i], best_index[i] argmax= x[i, j], j  init -inf, 2147483647
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, TupleReduction
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, binary, select
from neptune.ir.program import ZERO
from neptune.ir.reducers import MAX_K, REDUCERS
from neptune.ir.text.printer import print_expr


def checked_axes(request: str, axis: object, hint: str | None = None) -> tuple[Axis, ...]:
    """The reduce axes that `axis` names: one, or several distinct ones."""
    if axis is None:
        raise ExpressionError(
            f"{request} without an axis", "nothing says what is folded", hint=hint or "axis=a reduce axis"
        )
    axes = (axis,) if isinstance(axis, Axis) else tuple(axis) if isinstance(axis, Sequence) else (axis,)
    chosen = tuple(a for a in axes if isinstance(a, Axis))
    if not chosen or len(chosen) < len(axes) or len(set(chosen)) < len(chosen):
        shown = print_expr(axis) if isinstance(axis, Const | Var | Load | Op | Cast | Select) else repr(axis)
        raise ExpressionError(
            f"{request} over {shown}", "`axis` must be one or several distinct reduce axes", hint=hint
        )
    return chosen


def position(request: str, axes: tuple[Axis, ...]) -> Expr:
    """The row-major position among reduce axes: of one axis, itself."""
    first, *others = axes
    if others and any(a.lo != ZERO for a in axes):
        raise ExpressionError(
            request, "over several axes, each must start from 0", hint="shift the indices of what you read"
        )
    index: Expr = first
    for a in others:
        index = binary("add", binary("mul", index, a.hi), a)
    return index


def choice(reducer: str, value: Expr, axis: object, where: Expr | None) -> TupleReduction:
    """`argmax`, `argmin` or `top<k>` of a value and its position; `where` leaves elements out."""
    row = REDUCERS[reducer]
    request = f"{reducer} of `{print_expr(value)}`"
    axes = checked_axes(reducer, axis)
    if value.dtype == "bool":
        raise ExpressionError(request, "a bool cannot be reduced", hint=".astype('int32')")
    index = position(request, axes)
    k = row.elements
    nothing = row.identity(*[value.dtype] * k, *[index.dtype] * k)
    if where is not None:
        value, index = select(where, value, nothing[0]), select(where, index, nothing[k])
    numbers = [str(t) if k > 1 else "" for t in range(k)]
    parts = tuple(f"{word}{n}" for word in ("value", "index") for n in numbers)
    values = (value, *nothing[1:k], index, *nothing[k + 1 :])
    return TupleReduction(reducer, values, axes, nothing, parts)


def exponentials(value: Expr, axis: object, where: Expr | None) -> TupleReduction:
    """The maximum m of a value and Σ exp(value - m), in one stage; `where` leaves elements out."""
    request = f"max_sumexp of `{print_expr(value)}`"
    axes = checked_axes("max_sumexp", axis)
    if not is_float(value.dtype):
        raise ExpressionError(request, f"it takes a float, not {value.dtype}", hint="cast first")
    one, nothing = Const(1.0, value.dtype), REDUCERS["lse"].identity(value.dtype, value.dtype)
    parts = (value, one) if where is None else (select(where, value, nothing[0]), select(where, one, nothing[1]))
    return TupleReduction("lse", parts, axes, nothing, ("max", "sum"))


def top_row(k: object) -> str:
    """The name of the reducer of the k largest; ExpressionError for a k that there is none for."""
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
        raise ExpressionError(f"top_k with k = {k!r}", f"k is a Python integer from 1 to {MAX_K}")
    return f"top{k}"
