"""Tensor expressions without TVM, in TE's spelling.

    m, n = var("m"), var("n")
    x = placeholder((m, n), "float32", "x")
    j = reduce_axis((0, n), "j")
    y = compute((m,), lambda i: sum(x[i, j], axis=j), "y")
    program = build(y)

gives

    for i in [0, m):
      for j in [0, n):
        y: y[i] += x[i, j]  init 0.0

One `compute` is one stage, named like its tensor. Loops take the names of the lambda's parameters (i0, i1, …
for `*axes`) and of the reduce axes; one that would hide another or a size gets a suffix (`i_1`). Equality of
expressions is `eq(a, b)`; `a == b` compares their structure and is refused as a predicate.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Sequence
from typing import overload

from neptune.base import boundary
from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Body, Fold, Reduction, Tensor, TupleReduction, build
from neptune.frontend.composed import (
    einsum,
    layer_norm,
    log_softmax,
    logsumexp,
    mean,
    norm,
    rms_norm,
    softmax,
    variance,
)
from neptune.frontend.functions import (
    CAST_HINT,
    EQ_HINT,
    abs,
    all_of,
    any_of,
    cast,
    ceil,
    checked_dtype,
    cos,
    erf,
    exp,
    exp2,
    floor,
    fmod,
    if_then_else,
    isfinite,
    isinf,
    isnan,
    log,
    log2,
    logical_not,
    pow,
    power,
    round,
    rsqrt,
    select,
    sigmoid,
    sign,
    sin,
    sqrt,
    tanh,
    trunc,
)
from neptune.frontend.named import assigned_name
from neptune.frontend.nested import Lifting
from neptune.frontend.ranges import BOUND_HINT, parameters
from neptune.frontend.reductions import all, any, argmax, argmin, bitor, bitxor, max, max_sumexp, min, prod, sum, top_k
from neptune.ir import expr as ir
from neptune.ir.dtypes import DTYPES, is_int
from neptune.ir.expr import Const, Expr, ExprLike, Var, ceildiv, eq, maximum, minimum, ne
from neptune.ir.program import ZERO
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

__all__ = [
    "Axis",
    "Reduction",
    "Tensor",
    "TupleReduction",
    "abs",
    "all",
    "all_of",
    "any",
    "any_of",
    "argmax",
    "argmin",
    "bitor",
    "bitxor",
    "build",
    "cast",
    "ceil",
    "ceildiv",
    "compute",
    "const",
    "cos",
    "einsum",
    "eq",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fmod",
    "if_then_else",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "log",
    "log2",
    "log_softmax",
    "logical_not",
    "logsumexp",
    "max",
    "max_sumexp",
    "max_value",
    "maximum",
    "mean",
    "min",
    "min_value",
    "minimum",
    "ne",
    "norm",
    "placeholder",
    "pow",
    "power",
    "prod",
    "reduce_axis",
    "rms_norm",
    "round",
    "rsqrt",
    "select",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sqrt",
    "stack",
    "sum",
    "tanh",
    "top_k",
    "trunc",
    "var",
    "variance",
]


# --- tensors, axes and scalars -----------------------------------------------------------------


@public
def var(name: str, dtype: str = "int32") -> Var:
    """A symbolic size, or a scalar argument where no input's shape is made of it. One name is one variable."""
    return Var(name, checked_dtype(f"variable `{name}`", dtype))


@public
def const(value: int | float | bool, dtype: str = "float32") -> Expr:
    """A literal of `dtype`."""
    return ir.as_expr(value, checked_dtype(f"constant {value!r}", dtype))


@public
def min_value(dtype: str) -> Const:
    """The lowest finite value of `dtype`: where max starts."""
    return REDUCERS["max"].identity(checked_dtype("min_value", dtype))[0]


@public
def max_value(dtype: str) -> Const:
    """The highest finite value of `dtype`: where min starts."""
    return REDUCERS["min"].identity(checked_dtype("max_value", dtype))[0]


@public
def placeholder(shape: Sequence[ExprLike], dtype: str = "float32", name: str | None = None) -> Tensor:
    """An input tensor of `shape` (integers, `var`s and expressions of them) and `dtype`; without a `name` it has that
    of the variable it is assigned to."""
    known = name or assigned_name() or "placeholder"
    request = f"placeholder `{known}`"
    return Tensor(known, _shape(request, shape), checked_dtype(request, dtype), soft=name is None)


@public
def reduce_axis(bounds: tuple[ExprLike, ExprLike] | ExprLike, name: str | None = None) -> Axis:
    """A loop variable over [lo, hi), or [0, n), for `sum`, `max` and other reductions; without a `name` it has that of
    the variable it is assigned to."""
    known = name or assigned_name() or "k"
    lo, hi = _integers(f"reduce axis `{known}`", bounds if isinstance(bounds, Sequence) else (0, bounds))
    return Axis(known, "int32", lo, hi)


@overload
def compute(
    shape: Sequence[ExprLike], fcompute: Callable[..., TupleReduction], name: str | None = None
) -> tuple[Tensor, ...]: ...


@overload
def compute(
    shape: Sequence[ExprLike], fcompute: Callable[..., Expr | Reduction], name: str | None = None
) -> Tensor: ...


@public
def compute(
    shape: Sequence[ExprLike], fcompute: Callable[..., Expr | Fold], name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """The tensor `name` of `shape` with `fcompute(i, j, …)` at each point; its dtype is that of the value.

    Without a `name` it is called like the variable that it is assigned to, with a suffix where that is taken.
    `fcompute` takes one index per dimension and returns an expression. Each reduction in it is a stage, `<name>_sum`
    and so on, unless it is the whole of it (`neptune.frontend.nested`). One that has several results (`argmax`,
    `argmin`, `top_k`) stands alone and makes as many tensors: `<name>_value` and `<name>_index`, with numbers where
    there are k of each. Before: `y = compute((m, n), lambda i, j: exp(x[i, j]))`; after:
    `for i … for j …: y: y[i, j] = exp(x[i, j])`.

    Raises ExpressionError, naming the stage, for whatever the body says that Neptune does not take.
    """
    known = name or assigned_name() or "compute"
    request = f"stage `{known}`"
    dims = _shape(request, shape)
    axes = tuple(Axis(n, "int32", ZERO, d) for n, d in zip(parameters(request, fcompute, len(dims)), dims, strict=True))
    try:
        value = fcompute(*axes)
    except ExpressionError as error:
        where, wrong = error.where or _user_line(error), f"{error.asked}: {error.wrong}"
        raise ExpressionError(request, wrong, where=where, hint=error.hint, kind=error.kind) from None
    except KeyError as error:
        if not _raised_by_us(error):
            raise
        raise ExpressionError(
            request, f"unknown dtype {error}", where=_user_line(error), legal=tuple(DTYPES), kind="dtypes"
        ) from None
    except TypeError as error:
        if not _raised_by_us(error):
            raise
        hint = _REDUCTION_HINT if "(Reduction)" in str(error) else CAST_HINT if "dtype" in str(error) else None
        raise ExpressionError(request, str(error), where=_user_line(error), hint=hint) from None
    if isinstance(value, TupleReduction):
        return define_family(known, dims, axes, value, soft=name is None)
    return define(known, dims, axes, value, soft=name is None)


def define_family(
    name: str,
    shape: tuple[Expr, ...],
    axes: tuple[Axis, ...],
    value: TupleReduction,
    names: Sequence[str] | None = None,
    soft: builtins.bool = False,
) -> tuple[Tensor, ...]:
    """The results of the stage `name`, one for each part of `value`; `names` in place of `name_part`."""
    body = _body(name, axes, value)
    known = [f"{name}_{part}" for part in value.parts] if names is None else names
    family: list[Tensor] = []
    family += [
        Tensor(result, shape, e.dtype, body, name, family, soft) for result, e in zip(known, value.values, strict=True)
    ]
    return tuple(family)


def define(
    name: str, shape: tuple[Expr, ...], axes: tuple[Axis, ...], value: object, soft: builtins.bool = False
) -> Tensor:
    """The tensor whose element at `axes` is `value`: `compute` after its lambda has run."""
    request = f"stage `{name}`"
    if isinstance(value, builtins.bool):
        raise ExpressionError(request, f"the value is the Python bool {value}", hint=EQ_HINT)
    if not isinstance(value, Reduction):
        try:
            value = ir.as_expr(value)  # type: ignore[arg-type]
        except TypeError:
            raise ExpressionError(request, f"the value is {value!r}, not an expression or a reduction") from None
    return Tensor(name, shape, value.dtype, _body(name, axes, value), soft=soft)


def _body(name: str, axes: tuple[Axis, ...], value: Expr | Fold) -> Body:
    """Return the body of a stage, without the reductions inside it, and with its axes and dtypes checked."""
    request, body = f"stage `{name}`", Body(axes, Lifting(name).value(value, axes))
    value = body.value
    if isinstance(value, Fold) and not DTYPES[value.values[0].dtype].computes:
        wrong = f"{value.reducer} of {value.values[0].dtype}, which only tensors hold"
        raise ExpressionError(request, wrong, hint='cast it: .astype("float32")')
    for e in body.exprs:
        for node in ir.walk(e):
            checked_dtype(request, node.dtype)
            if isinstance(node, Var) and not DTYPES[node.dtype].computes:
                wrong = f"the scalar `{node.name}` is {node.dtype}, which only tensors hold"
                raise ExpressionError(request, wrong, hint=f'var("{node.name}", "float32")')
            if isinstance(node, Axis) and node not in body.loops:
                raise ExpressionError(
                    request,
                    f"`{print_expr(e)}` uses the axis `{node.name}`, which is not a loop of this stage",
                    legal=[f"`{a.name}`" for a in body.loops],
                    hint="a reduce axis must be in the `axis=` of the reduction that reads it",
                )
    return body


# --- several tensors -----------------------------------------------------------------------------


@public
def stack(tensors: Sequence[Tensor], name: str = "stack") -> Tensor:
    """The tensors side by side along a new last dimension: `stack(values, "v")[i, t]` is `values[t][i]`."""
    request = f"stage `{name}`"
    alike = builtins.all(isinstance(t, Tensor) for t in tensors) and len({(t.shape, t.dtype) for t in tensors}) == 1
    if not alike:
        raise ExpressionError(request, "stack takes one or several tensors of one shape and dtype")

    def pick(*index: Expr) -> Expr:
        *point, t = index
        value: Expr = tensors[-1](*point)
        for k, x in reversed(list(enumerate(tensors[:-1]))):
            value = ir.select(eq(t, k), x(*point), value)
        return value

    return compute((*tensors[0].shape, len(tensors)), pick, name)


# --- checks ------------------------------------------------------------------------------------

_REDUCTION_HINT = "a reduction must be the outermost expression of its stage: give it a stage of its own"


def _shape(request: str, shape: Sequence[ExprLike]) -> tuple[Expr, ...]:
    dims = _integers(request, shape)
    for e in dims:
        if isinstance(e, Const) and e.value < 0:
            raise ExpressionError(request, f"the extent {e.value} is negative")
    return dims


def _integers(request: str, shape: Sequence[ExprLike]) -> tuple[Expr, ...]:
    if not isinstance(shape, Sequence):
        raise ExpressionError(request, f"the shape is {shape!r}, not a sequence", hint="write (n,) for one dimension")
    dims: list[Expr] = []
    for dim in shape:
        try:
            e = ir.as_expr(dim)
        except TypeError:
            e = None
        if e is None or not is_int(e.dtype):
            raise ExpressionError(request, f"the extent {dim!r} is not an integer expression")
        if folds := [x for x in ir.walk(e) if isinstance(x, Reduction)]:
            raise ExpressionError(request, f"the extent `{print_expr(e)}` has {folds[0]!r} in it", hint=BOUND_HINT)
        dims.append(e)
    return tuple(dims)


def _raised_by_us(error: Exception) -> bool:
    """True where the IR's constructors refused, not the user's own code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(f"{boundary.PACKAGE}ir/")


def _user_line(error: Exception) -> str | None:
    """The line of the lambda that failed, where it is none of ours."""
    user = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(boundary.PACKAGE)]
    return f"{user[-1].line}" if user and user[-1].line else None
