"""The axes of a function of indices: their names, and the ranges that are given or that its reads have.

    sum(lambda j: x[i, j] * w[j], n)      j over [0, n)
    sum(lambda j: x[i, j] * w[j])         j over the dimension that it indexes, where all are equally long

The names of the indices are those of the function's parameters.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Fold, Read, Tensor
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Const, Expr, Var, as_expr, walk
from neptune.ir.operators import Operators
from neptune.ir.program import ZERO
from neptune.ir.text.printer import print_expr

BOUND_HINT = "a reduction in a range is computed by a stage of its own, or before the kernel: an element, or a scalar"


def parameters(request: str, function: Callable[..., object], rank: int | None) -> list[str]:
    """Names of the `rank` indices that a function takes (None: of all): its parameters without a default."""
    known = inspect.signature(function).parameters.values()
    positional = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # `lambda i, scale=s: …` is how a loop hands its own value to a lambda.
    names = [p.name for p in positional if p.default is p.empty]
    if rank is not None and builtins.any(p.kind == p.VAR_POSITIONAL for p in known):
        names += [f"i{k}" for k in range(rank - len(names))]
    if rank is not None and len(names) != rank:
        raise ExpressionError(request, f"the lambda takes {len(names)} indices, but the shape has {rank} dimensions")
    return names


def over(reducer: str, value: Any, axis: Any, where: Any) -> tuple[Any, Any, Any]:
    """A value, its reduce axes and its predicate: of functions of indices, over the ranges in `axis` or of reads."""
    if not callable(value) or isinstance(value, Tensor):
        return value, axis, where
    names = parameters(reducer, value, None)
    if not names:
        raise ExpressionError(f"{reducer} of a function", "it takes no index", hint="lambda j: x[i, j]")

    def at(axes: Sequence[Axis]) -> tuple[Any, Any]:
        return value(*axes), where(*axes) if callable(where) else where

    if axis is None:
        unknown = tuple(Axis(name, "int32", ZERO, Var(f"length of {name}")) for name in names)
        values = at(unknown)
        ranges: list[tuple[Expr, Expr]] = [(ZERO, _length(reducer, a, values)) for a in unknown]
    else:
        several = len(names) > 1 and isinstance(axis, Sequence) and len(axis) == len(names)
        ranges = [_range(reducer, n, r) for n, r in zip(names, axis if several else [axis], strict=False)]
        if len(ranges) != len(names):
            wrong = f"it takes {len(names)} indices, and `axis` has one range"
            raise ExpressionError(f"{reducer} of a function", wrong, hint="axis=(m, n): a range each")
    axes = tuple(Axis(name, "int32", lo, hi) for name, (lo, hi) in zip(names, ranges, strict=True))
    element, predicate = at(axes)
    return element, axes, predicate


def _range(reducer: str, name: str, given: Any) -> tuple[Expr, Expr]:
    """[lo, hi) of what is given: a length, or both ends."""
    ends = tuple(given) if isinstance(given, Sequence) else (0, given)
    try:
        lo, hi = map(as_expr, ends)
    except (TypeError, ValueError):
        lo = hi = Const(0.0, "float32")
    if any(isinstance(x, Fold) for e in (lo, hi) for x in walk(e)):
        wrong = f"the range of `{name}`, [{print_expr(lo)}, {print_expr(hi)}), has a reduction in it"
        raise ExpressionError(f"{reducer} of a function", wrong, hint=BOUND_HINT)
    if not (is_int(lo.dtype) and is_int(hi.dtype)):
        wrong = f"the range of `{name}` is {given!r}, not a length or (lo, hi)"
        raise ExpressionError(f"{reducer} of a function", wrong, hint="an integer, a size or an expression of them")
    return lo, hi


def _length(reducer: str, axis: Axis, values: tuple[Any, Any]) -> Expr:
    """The length of the dimensions that an axis indexes by itself."""
    lengths = dict.fromkeys(
        read.source.shape[k]
        for e in values
        for read in _reads(e)
        for k, index in enumerate(read.index)
        if index is axis
    )
    if len(lengths) != 1:
        wrong = f"nothing says how long `{axis.name}` is"
        if lengths:
            wrong = f"`{axis.name}` indexes dimensions of {' and '.join(map(print_expr, lengths))} elements"
        raise ExpressionError(f"{reducer} of a function", wrong, hint=f"axis=n: `{axis.name}` over [0, n)")
    return next(iter(lengths))


def _reads(e: Any) -> Iterator[Read]:
    """The reads of an expression, those of reductions inside it among them."""
    if isinstance(e, Fold):
        for part in (*e.values, *e.inits):
            yield from _reads(part)
    elif isinstance(e, Operators):
        for x in walk(cast("Expr", e)):
            if isinstance(x, Read):
                yield x
            elif isinstance(x, Fold):
                yield from _reads(x)
