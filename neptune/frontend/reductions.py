"""Reductions of the builder: folds over axes, with `where=` and `init=`."""

from __future__ import annotations

from collections.abc import Sequence

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Reduction, TupleReduction
from neptune.frontend.choices import checked_axes, choice, exponentials, top_row
from neptune.frontend.functions import CAST_HINT, as_value, checked_predicate
from neptune.ir import expr as ir
from neptune.ir.expr import ExprLike
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr


def reduction(
    reducer: str,
    value: ExprLike,
    axis: Axis | Sequence[Axis] | None,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Reduction:
    """`reducer` over `axis`. `where` drops values (they become neutral), `init` replaces the identity."""
    hint = "maximum(a, b) and minimum(a, b) take two values" if reducer in ("max", "min") else None
    axes = checked_axes(reducer, axis, hint)
    e = as_value(value)
    if REDUCERS[reducer].folds == "bools":
        e = checked_predicate(e)
    elif REDUCERS[reducer].folds == "integers" and not REDUCERS[reducer].takes(e.dtype):
        wrong = f"it folds the bits of integers, and this is {e.dtype}"
        raise ExpressionError(f"{reducer} of `{print_expr(e)}`", wrong, hint="any(…) folds predicates")
    elif e.dtype == "bool":
        raise ExpressionError(f"{reducer} of `{print_expr(e)}`", "a bool cannot be reduced", hint=".astype('int32')")
    identity = REDUCERS[reducer].identity(e.dtype)[0]
    start = identity if init is None else ir.as_expr(init, e.dtype)
    if start.dtype != e.dtype:
        raise ExpressionError(f"{reducer} of {e.dtype} values", f"init is {start.dtype}", hint=CAST_HINT)
    if where is not None:
        # Folding an idempotent reducer's start once more changes nothing; its identity might (init = -inf).
        neutral = start if REDUCERS[reducer].idempotent else identity
        e = ir.select(checked_predicate(where), e, neutral)
    return Reduction(reducer, (e,), axes, (start,))


@public
def sum(
    expr: ExprLike,
    axis: Axis | Sequence[Axis] | None = None,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Reduction:
    """Σ expr over `axis`, in the dtype of `expr`, starting from 0 (or `init`)."""
    return reduction("sum", expr, axis, where, init)


@public
def prod(
    expr: ExprLike,
    axis: Axis | Sequence[Axis] | None = None,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The product of expr over `axis`, starting from 1 (or `init`)."""
    return reduction("prod", expr, axis, where, init)


@public
def max(
    expr: ExprLike,
    axis: Axis | Sequence[Axis] | None = None,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The maximum of expr over `axis`, starting from the lowest finite value (or `init`)."""
    return reduction("max", expr, axis, where, init)


@public
def min(
    expr: ExprLike,
    axis: Axis | Sequence[Axis] | None = None,
    where: ExprLike | None = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The minimum of expr over `axis`, starting from the highest finite value (or `init`)."""
    return reduction("min", expr, axis, where, init)


@public
def all(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> Reduction:
    """A bool: the predicate holds everywhere along `axis` (over nothing: true)."""
    return reduction("all", expr, axis, where)


@public
def any(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> Reduction:
    """A bool: the predicate holds somewhere along `axis` (over nothing: false)."""
    return reduction("any", expr, axis, where)


@public
def bitor(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> Reduction:
    """The bits that any integer along `axis` has (over nothing: 0): the union of sets of flags."""
    return reduction("bitor", expr, axis, where)


@public
def bitxor(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> Reduction:
    """The bits that an odd number of integers along `axis` have (over nothing: 0): a checksum, in any order."""
    return reduction("bitxor", expr, axis, where)


@public
def argmax(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> TupleReduction:
    """The largest value over `axis` and where it first stands: two results, of the value's dtype and int32.

    NaN counts as the largest. The index is that of the axis; over several, the row-major position among them.
    Where there is no element, the results are -inf (the lowest integer) and 2**31 - 1.
    """
    return choice("argmax", as_value(expr), axis, None if where is None else checked_predicate(where))


@public
def argmin(expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None) -> TupleReduction:
    """The smallest value over `axis` and where it first stands; see `argmax`. NaN counts as the smallest."""
    return choice("argmin", as_value(expr), axis, None if where is None else checked_predicate(where))


@public
def max_sumexp(
    expr: ExprLike, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None
) -> TupleReduction:
    """The maximum m over `axis` and Σ exp(expr - m), what softmax and log-sum-exp need: `<name>_max`, `<name>_sum`.

    m + log(sum) is the log-sum-exp; of nothing but -inf it is that of the lowest number and 0.
    """
    return exponentials(as_value(expr), axis, None if where is None else checked_predicate(where))


@public
def top_k(
    expr: ExprLike, k: int, axis: Axis | Sequence[Axis] | None = None, where: ExprLike | None = None
) -> TupleReduction:
    """The k (1 to 8) largest values over `axis`, descending, and where they stand: k values, then k indices.

    Of equal values the first stands first. Elements that there are too few of are as in `argmax`.
    """
    return choice(top_row(k), as_value(expr), axis, None if where is None else checked_predicate(where))
