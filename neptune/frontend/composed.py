"""What torch has as one function and a program has as several stages: means, norms, softmax, products by letters.

    p = softmax(x)        →        p_max[i]    max=  x[i, j]
                                   p_sum[i]    +=    exp(x[i, j] - p_max[i])
                                   p[i, j]     =     exp(x[i, j] - p_max[i]) / p_sum[i]

Functions of values (`mean`, `variance`, `norm`, `logsumexp`) take what `sum` takes and stand in larger expressions;
functions of tensors (`softmax`, `rms_norm`, …) go along the last dimension. All compute in float32 (float64 of
float64), and round to the dtype once, at the end. What they make is what a person would write: any schedule takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Tensor
from neptune.frontend.choices import checked_axes
from neptune.frontend.functions import as_value, checked_float, exp, log, rsqrt, sqrt
from neptune.frontend.named import assigned_name
from neptune.frontend.ranges import over
from neptune.frontend.reductions import Range, Value, max, sum
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Expr, ExprLike, binary, maximum, select
from neptune.ir.expr import eq as equal

# --- of values ---------------------------------------------------------------------------------


@public
def mean(expr: Value, axis: Range = None) -> Expr:
    """Σ expr / n over `axis`, n its number of elements: `mean(lambda j: x[i, j])`. NaN over nothing."""
    e, axes, dtype = _along("mean", expr, axis)
    return (sum(e, axes) / _count(axes, e.dtype)).astype(dtype)


@public
def variance(expr: Value, axis: Range = None, correction: int = 0) -> Expr:
    """Σ (expr - mean)² / (n - correction) over `axis`; `correction` 1 is torch.var's default. NaN over nothing."""
    e, axes, dtype = _along("variance", expr, axis)
    centred = e - mean(e, axes)
    many = _count(axes, e.dtype)
    # As torch has it: no number of elements below 0.
    many = maximum(many - float(correction), 0.0) if correction else many
    return (sum(centred * centred, axes) / many).astype(dtype)


@public
def norm(expr: Value, axis: Range = None) -> Expr:
    """√Σ expr² over `axis`."""
    e, axes, dtype = _along("norm", expr, axis)
    return sqrt(sum(e * e, axes)).astype(dtype)


@public
def logsumexp(expr: Value, axis: Range = None) -> Expr:
    """log Σ exp(expr) over `axis`, about the maximum; where that is infinite, it is the result."""
    e, axes, dtype = _along("logsumexp", expr, axis)
    top = max(e, axes, init=Const(float("-inf"), e.dtype))
    about = select(equal(top - top, 0.0), top, 0.0)
    return (about + log(sum(exp(e - about), axes))).astype(dtype)


def _along(name: str, value: Value, axis: Range) -> tuple[Expr, tuple[Axis, ...], str]:
    """What is folded, computed widely, over which axes, and the dtype of the result."""
    element, axes, _ = over(name, value, axis, None)
    e = checked_float(element, name)
    return e.astype(_wide(e.dtype)), checked_axes(name, axes), e.dtype


def _count(axes: Sequence[Axis], dtype: str) -> Expr:
    """How many elements axes have."""
    many: Expr = Const(1, "int32")
    for a in axes:
        many = binary("mul", many, binary("sub", a.hi, a.lo))
    return many.astype(dtype)


# --- of tensors --------------------------------------------------------------------------------


@public
def softmax(x: Tensor, name: str | None = None) -> Tensor:
    """exp(x) / Σ exp(x) along the last dimension, about the row's maximum; of x's shape and dtype."""

    def element(row: Callable[[ExprLike], Expr], j: Expr) -> Expr:
        top = max(row)
        return exp(row(j) - top) / sum(lambda k: exp(row(k) - top))

    return _rows("softmax", x, name or assigned_name(), element, soft=name is None)


@public
def log_softmax(x: Tensor, name: str | None = None) -> Tensor:
    """x - log Σ exp(x) along the last dimension; of x's shape and dtype."""

    def element(row: Callable[[ExprLike], Expr], j: Expr) -> Expr:
        top = max(row)
        return row(j) - top - log(sum(lambda k: exp(row(k) - top)))

    return _rows("log_softmax", x, name or assigned_name(), element, soft=name is None)


@public
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, name: str | None = None) -> Tensor:
    """x / √(mean(x²) + eps) · weight along the last dimension, weight: [its length]; of x's shape and dtype."""

    def element(row: Callable[[ExprLike], Expr], j: Expr) -> Expr:
        return _scaled(row(j) * rsqrt(mean(lambda k: row(k) * row(k)) + eps), j, weight, None)

    return _rows("rms_norm", x, name or assigned_name(), element, soft=name is None)


@public
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, name: str | None = None
) -> Tensor:
    """(x - mean) / √(variance + eps) · weight + bias along the last dimension; weight and bias: [its length]."""

    def element(row: Callable[[ExprLike], Expr], j: Expr) -> Expr:
        return _scaled((row(j) - mean(row)) * rsqrt(variance(row) + eps), j, weight, bias)

    return _rows("layer_norm", x, name or assigned_name(), element, soft=name is None)


def _scaled(value: Expr, j: Expr, weight: Tensor | None, bias: Tensor | None) -> Expr:
    value = value if weight is None else value * weight[j].astype(value.dtype)
    return value if bias is None else value + bias[j].astype(value.dtype)


def _rows(
    what: str, x: Tensor, name: str | None, element: Callable[[Callable[[ExprLike], Expr], Expr], Expr], soft: bool
) -> Tensor:
    """The tensor whose element in column j of a row is `element(row, j)`, `row` giving those of x, computed widely."""
    from neptune.frontend.builder import define

    request = f"{what} of {x!r:.40}"
    if not isinstance(x, Tensor) or not x.shape or not is_float(x.dtype):
        raise ExpressionError(request, "it takes a tensor of floats with one dimension or more", hint="placeholder(…)")
    axes = tuple(Axis(f"i{k}" if k < len(x.shape) - 1 else "j", "int32", hi=n) for k, n in enumerate(x.shape))
    *row, j = axes
    value = element(lambda k: as_value(x[(*row, k)]).astype(_wide(x.dtype)), j)
    return define(name or what, x.shape, axes, value.astype(x.dtype), soft=soft)


def _wide(dtype: str) -> str:
    """What is computed in for elements of a dtype: float32 for shorter floats, else the dtype."""
    return "float32" if is_float(dtype) and DTYPES[dtype].bits < 32 else dtype


@public
def einsum(pattern: str, *tensors: Tensor, name: str | None = None) -> Tensor:
    """A sum of products by letters, as torch's: `einsum("bhqd,bhkd->bhqk", q, k)`; of the first tensor's dtype.

    Each letter is an axis, `->` is needed, and letters that the result has not are summed over, in float32 where the
    tensors have less. ExpressionError for a pattern that does not fit the tensors.
    """
    from neptune.frontend.builder import define

    terms, result = _letters(pattern, len(tensors))
    lengths = _lengths(pattern, terms, tensors)
    axes = {x: Axis(x, "int32", hi=n) for x, n in lengths.items()}
    factors = [t[tuple(axes[x] for x in term)].astype(_wide(t.dtype)) for term, t in zip(terms, tensors, strict=True)]
    product = reduce(lambda a, b: binary("mul", a, b), factors)
    folded = tuple(axes[x] for x in lengths if x not in result)
    value = (sum(product, folded) if folded else product).astype(tensors[0].dtype)
    kept = tuple(axes[x] for x in result)
    return define(name or assigned_name() or "einsum", tuple(a.hi for a in kept), kept, value, soft=name is None)


def _letters(pattern: str, count: int) -> tuple[list[str], str]:
    """The letters of each of so many tensors, and those of the result."""
    request, hint = f"einsum {pattern!r:.60}", 'einsum("ik,kj->ij", a, b)'
    if not isinstance(pattern, str):
        raise ExpressionError(request, "the pattern is no text", hint=hint)
    left, arrow, result = pattern.replace(" ", "").partition("->")
    terms = left.split(",")
    fits = arrow and len(terms) == count and all(map(str.isalpha, terms)) and set(result) <= set("".join(terms))
    if not fits or any(len(set(t)) < len(t) for t in (*terms, result)):
        wrong = "it needs letters for each dimension of each tensor, an arrow, and letters of these behind it"
        raise ExpressionError(request, wrong, hint=hint)
    return terms, result


def _lengths(pattern: str, terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Expr]:
    """The length of the axis that each letter is."""
    request, lengths = f"einsum {pattern!r:.60}", dict[str, Expr]()
    for term, t in zip(terms, tensors, strict=True):
        if not isinstance(t, Tensor) or len(t.shape) != len(term) or t.dtype != tensors[0].dtype:
            raise ExpressionError(request, f"`{term}` does not fit {t!r:.60}", hint="a letter a dimension, one dtype")
        for letter, n in zip(term, t.shape, strict=True):
            if lengths.setdefault(letter, n) != n:
                raise ExpressionError(request, f"axis `{letter}` has two lengths")
    return lengths
