"""Reductions of the builder: folds over axes, with `where=` and `init=`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Reduction, TupleReduction, reduction_of
from neptune.frontend.choices import checked_axes, choice, exponentials, top_row
from neptune.frontend.functions import CAST_HINT, as_value, checked_predicate
from neptune.frontend.ranges import over
from neptune.ir import expr as ir
from neptune.ir.expr import Expr, ExprLike
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

Value: TypeAlias = "ExprLike | Callable[..., ExprLike]"
"""What is reduced: an expression of reduce axes, or a function of indices."""
Range: TypeAlias = "Axis | ExprLike | Sequence[Any] | None"
"""One reduce axis or several; for a function a length or (lo, hi), one for each index, or None for those of reads."""
Where: TypeAlias = "ExprLike | Callable[..., ExprLike] | None"


def reduction(
    reducer: str,
    value: Value,
    axis: Range,
    where: Where = None,
    init: ExprLike | None = None,
) -> Reduction:
    """`reducer` over `axis`. `where` drops values (they become neutral), `init` replaces the identity."""
    element, axis, predicate = over(reducer, value, axis, where)
    hint = "maximum(a, b) and minimum(a, b) take two values" if reducer in ("max", "min") else None
    axes = checked_axes(reducer, axis, hint)
    e = as_value(element)
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
    if own := [a for a in axes if a in ir.walk(start)]:
        wrong = f"init is `{print_expr(start)}`, and `{own[0].name}` is folded: there is none where a fold starts"
        raise ExpressionError(f"{reducer} of `{print_expr(e)}`", wrong, hint="another axis, or a constant")
    if predicate is not None:
        # Folding an idempotent reducer's start once more changes nothing; its identity might (init = -inf).
        neutral = start if REDUCERS[reducer].idempotent else identity
        e = ir.select(checked_predicate(predicate), e, neutral)
    return reduction_of(reducer, e, axes, start)


@public
def sum(
    expr: Value,
    axis: Range = None,
    where: Where = None,
    init: ExprLike | None = None,
) -> Reduction:
    """Σ expr over `axis`, in the dtype of `expr`, starting from 0 (or `init`)."""
    return reduction("sum", expr, axis, where, init)


@public
def prod(
    expr: Value,
    axis: Range = None,
    where: Where = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The product of expr over `axis`, starting from 1 (or `init`)."""
    return reduction("prod", expr, axis, where, init)


@public
def max(
    expr: Value,
    axis: Range = None,
    where: Where = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The maximum of expr over `axis`, starting from the lowest finite value (or `init`)."""
    return reduction("max", expr, axis, where, init)


@public
def min(
    expr: Value,
    axis: Range = None,
    where: Where = None,
    init: ExprLike | None = None,
) -> Reduction:
    """The minimum of expr over `axis`, starting from the highest finite value (or `init`)."""
    return reduction("min", expr, axis, where, init)


@public
def all(expr: Value, axis: Range = None, where: Where = None) -> Reduction:
    """A bool: the predicate holds everywhere along `axis` (over nothing: true)."""
    return reduction("all", expr, axis, where)


@public
def any(expr: Value, axis: Range = None, where: Where = None) -> Reduction:
    """A bool: the predicate holds somewhere along `axis` (over nothing: false)."""
    return reduction("any", expr, axis, where)


def _chosen(reducer: str, value: Value, axis: Range, where: Where) -> tuple[Expr, object, Expr | None]:
    """The value, the axes and the predicate of a reduction of several results."""
    element, axes, predicate = over(reducer, value, axis, where)
    return as_value(element), axes, None if predicate is None else checked_predicate(predicate)


@public
def bitor(expr: Value, axis: Range = None, where: Where = None) -> Reduction:
    """The bits that any integer along `axis` has (over nothing: 0): the union of sets of flags."""
    return reduction("bitor", expr, axis, where)


@public
def bitxor(expr: Value, axis: Range = None, where: Where = None) -> Reduction:
    """The bits that an odd number of integers along `axis` have (over nothing: 0): a checksum, in any order."""
    return reduction("bitxor", expr, axis, where)


@public
def argmax(expr: Value, axis: Range = None, where: Where = None) -> TupleReduction:
    """The largest value over `axis` and where it first stands: two results, of the value's dtype and int32.

    NaN counts as the largest. The index is that of the axis; over several, the row-major position among them.
    Where there is no element, the results are -inf (the lowest integer) and 2**31 - 1.
    """
    return choice("argmax", *_chosen("argmax", expr, axis, where))


@public
def argmin(expr: Value, axis: Range = None, where: Where = None) -> TupleReduction:
    """The smallest value over `axis` and where it first stands; see `argmax`. NaN counts as the smallest."""
    return choice("argmin", *_chosen("argmin", expr, axis, where))


@public
def max_sumexp(expr: Value, axis: Range = None, where: Where = None) -> TupleReduction:
    """The maximum m over `axis` and Σ exp(expr - m), what softmax and log-sum-exp need: `<name>_max`, `<name>_sum`.

    m + log(sum) is the log-sum-exp; of nothing but -inf it is that of the lowest number and 0.
    """
    return exponentials(*_chosen("max_sumexp", expr, axis, where))


@public
def top_k(expr: Value, k: int, axis: Range = None, where: Where = None) -> TupleReduction:
    """The k (1 to 8) largest values over `axis`, descending, and where they stand: k values, then k indices.

    Of equal values the first stands first. Elements that there are too few of are as in `argmax`.
    """
    return choice(top_row(k), *_chosen("top_k", expr, axis, where))
