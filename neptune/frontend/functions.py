"""Functions of values in TE's spelling, for the bodies of `neptune.frontend.builder.compute`."""

from __future__ import annotations

import builtins

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import TupleReduction
from neptune.ir import expr as ir
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Expr, ExprLike
from neptune.ir.text.printer import print_expr

CAST_HINT = "cast one side with .astype(dtype)"
EQ_HINT = "compare expressions with eq(a, b) or ne(a, b): == compares their structure"


@public
def exp(x: ExprLike) -> Expr:
    """e^x."""
    return ir.op("exp", as_value(x))


@public
def exp2(x: ExprLike) -> Expr:
    """2^x."""
    return ir.op("exp2", as_value(x))


@public
def log(x: ExprLike) -> Expr:
    """The natural logarithm."""
    return ir.op("log", as_value(x))


@public
def log2(x: ExprLike) -> Expr:
    """The logarithm to base 2."""
    return ir.op("log2", as_value(x))


@public
def sqrt(x: ExprLike) -> Expr:
    """√x."""
    return ir.op("sqrt", as_value(x))


@public
def rsqrt(x: ExprLike) -> Expr:
    """1/√x."""
    return ir.op("rsqrt", as_value(x))


@public
def tanh(x: ExprLike) -> Expr:
    """The hyperbolic tangent."""
    return ir.op("tanh", as_value(x))


@public
def sigmoid(x: ExprLike) -> Expr:
    """1/(1 + e^-x)."""
    return ir.op("sigmoid", as_value(x))


@public
def erf(x: ExprLike) -> Expr:
    """The error function, 2/√π · ∫₀ˣ e^-t² dt."""
    return ir.op("erf", as_value(x))


@public
def sin(x: ExprLike) -> Expr:
    """The sine of an angle in radians."""
    return ir.op("sin", as_value(x))


@public
def cos(x: ExprLike) -> Expr:
    """The cosine of an angle in radians."""
    return ir.op("cos", as_value(x))


@public
def floor(x: ExprLike) -> Expr:
    """The largest integer that is at most x, as a float."""
    return ir.op("floor", as_value(x))


@public
def ceil(x: ExprLike) -> Expr:
    """The smallest integer that is at least x, as a float."""
    return ir.op("ceil", as_value(x))


@public
def round(x: ExprLike) -> Expr:
    """The integer nearest to x, as a float; ties go to the even one: 0.5 → 0, 1.5 → 2."""
    return ir.op("round", as_value(x))


@public
def trunc(x: ExprLike) -> Expr:
    """x without its fraction: -1.5 → -1."""
    return ir.op("trunc", as_value(x))


@public
def sign(x: ExprLike) -> Expr:
    """1, 0 or -1, in the dtype of x; NaN stays NaN."""
    return ir.sign(as_value(x))


@public
def isnan(x: ExprLike) -> Expr:
    """A predicate: x is NaN."""
    return ir.is_nan(checked_float(x, "isnan"))


@public
def isinf(x: ExprLike) -> Expr:
    """A predicate: x is inf or -inf."""
    return ir.is_inf(checked_float(x, "isinf"))


@public
def isfinite(x: ExprLike) -> Expr:
    """A predicate: x is neither infinite nor NaN."""
    return ir.is_finite(checked_float(x, "isfinite"))


@public
def abs(x: ExprLike) -> Expr:
    """|x|, also of integers."""
    return ir.op("abs", as_value(x))


@public
def pow(x: ExprLike, y: ExprLike) -> Expr:
    """x^y for floats."""
    return ir.binary("pow", x, y)


power = pow


@public
def fmod(x: ExprLike, y: ExprLike) -> Expr:
    """The rest of x after subtracting y a whole number of times, with the sign of x: fmod(-7.5, 2) → -1.5."""
    return ir.binary("fmod", x, y)


@public
def cast(x: ExprLike, dtype: str) -> Expr:
    """`x.astype(dtype)`, with the dtype checked."""
    return ir.cast(as_value(x), checked_dtype("cast", dtype))


@public
def if_then_else(pred: ExprLike, then: ExprLike, other: ExprLike) -> Expr:
    """`then` where `pred` holds, else `other`; the branch not taken contributes nothing."""
    return ir.select(checked_predicate(pred), then, other)


select = if_then_else


@public
def all_of(*preds: ExprLike) -> Expr:
    """The conjunction of predicates."""
    return ir.logical_and(*(checked_predicate(p) for p in preds))


@public
def any_of(*preds: ExprLike) -> Expr:
    """The disjunction of predicates."""
    return ir.logical_or(*(checked_predicate(p) for p in preds))


@public
def logical_not(pred: ExprLike) -> Expr:
    """The negation of a predicate."""
    return ir.op("not", checked_predicate(pred))


# --- checks ------------------------------------------------------------------------------------


def as_value(x: ExprLike | TupleReduction) -> Expr:
    """An operand of an expression; refuses a reduction of several results, which stands alone."""
    if isinstance(x, TupleReduction):
        x._refuse()
    return ir.as_expr(x)


def checked_float(x: ExprLike, name: str) -> Expr:
    """An operand that is a float, for the function `name`."""
    e = as_value(x)
    if not is_float(e.dtype):
        raise ExpressionError(f"{name} of `{print_expr(e)}`", f"it is {e.dtype}, not a float", hint=CAST_HINT)
    return e


def checked_predicate(p: ExprLike) -> Expr:
    """A condition: bool, and of something that varies."""
    if isinstance(p, builtins.bool):
        raise ExpressionError(
            f"a predicate that is the Python bool {p}", "it does not depend on anything", hint=EQ_HINT
        )
    e = as_value(p)
    if e.dtype != "bool":
        raise ExpressionError(f"the predicate `{print_expr(e)}`", f"it is {e.dtype}, not bool", hint="compare it")
    return e


def checked_dtype(request: str, dtype: str) -> str:
    """A dtype that Neptune has."""
    if dtype not in DTYPES:
        raise ExpressionError(request, f"unknown dtype {dtype!r}", legal=tuple(DTYPES), kind="dtypes")
    return dtype
