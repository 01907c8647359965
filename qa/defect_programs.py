"""Programs on which a version of Neptune gave wrong values, refused without need, or crashed: named D1 to D13.

`DEFECTS` has one row a program, `MISTAKES` one a mistake of a user; each builds its expression when it is called, and
nothing here compiles or runs. `qa.replay` records what the compiler makes of them.

* D1–D4, D10: floating-point range. A deferred factor, or what is folded before it is scaled, leaves the range of its
  dtype where the expression does not.
* D5, D6, D11, D13: right kernels that a check rejects. D7, D8: what generated text makes of integers and NaN.
* D9: mistakes that end in an exception of Python. D12: operators of TVM's library. "unfused": refused without need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch

from neptune.frontend.builder import (
    Reduction,
    Tensor,
    abs,
    argmax,
    compute,
    exp,
    log,
    max,
    maximum,
    min,
    placeholder,
    pow,
    prod,
    reduce_axis,
    rsqrt,
    select,
    sqrt,
    sum,
    tanh,
    top_k,
    var,
)
from neptune.ops.attention import attention, operator

ROWS, COLS, N = var("rows"), var("cols"), var("n")
LENGTH, DEPTH = 777, 16
FUZZED = (987686, 5551356)
"""D13: seeds of `qa.fuzz` whose programs a check rejected."""
Cell = Callable[[Any, Any], Any]
Make = Callable[[], Any]


def matrix(name: str, dtype: str = "float32") -> Tensor:
    return placeholder((ROWS, COLS), dtype, name)


def per_row(fold: Callable[..., Reduction], value: Cell, name: str, cols: Any = COLS, start: Any = 0) -> Tensor:
    """name[i] = fold over j of value(i, j)."""
    j = reduce_axis((start, cols), "j")
    return compute((ROWS,), lambda i: fold(value(i, j), axis=j), name)


X, Y, Z = (matrix(n) for n in "xyz")


# --- D1 to D4, D10: range --------------------------------------------------------------------------


def total(of: Cell = lambda i, j: abs(X[i, j])) -> Tensor:
    return per_row(sum, of, "s")


def power_of_share(exponent: float) -> Tensor:
    """Σ (x / Σ|x|)ⁿ."""
    s = total()
    return per_row(sum, lambda i, j: pow(X[i, j] / s[i], exponent), "t")


def square_of_share() -> Tensor:
    """Σ (x / Σ|x|)², as a product."""
    s = total()
    return per_row(sum, lambda i, j: (X[i, j] / s[i]) * (X[i, j] / s[i]), "t")


def cube_of_signed_share() -> Tensor:
    """Σ (x / Σx)³."""
    s = total(lambda i, j: X[i, j])
    return per_row(sum, lambda i, j: pow(X[i, j] / s[i], 3.0), "t")


def square_of_unit() -> Tensor:
    """Σ (x / max|x|)²: refused as long as maxima alone have a degree."""
    s = per_row(max, lambda i, j: abs(X[i, j]), "s")
    return per_row(sum, lambda i, j: (X[i, j] / s[i]) * (X[i, j] / s[i]), "t")


def kurtosis() -> Tensor:
    """Σ ((x - µ) / σ)⁴."""
    s = total(lambda i, j: X[i, j])
    count = COLS.astype("float32")
    v = per_row(sum, lambda i, j: (X[i, j] - s[i] / count) * (X[i, j] - s[i] / count), "v")
    return per_row(sum, lambda i, j: pow((X[i, j] - s[i] / count) / sqrt(v[i] / count), 4.0), "t")


def _product(value: Cell, wide: Cell, name: str = "t") -> Tensor:
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS, DEPTH), lambda i, c: sum(value(i, j) * wide(j, c), axis=j), name)


def _half(value: Cell) -> Tensor:
    """Σ f16(value) w, summed in float32."""
    w = placeholder((COLS, DEPTH), "float16", "w")
    return _product(
        lambda i, j: value(i, j).astype("float16").astype("float32"), lambda j, c: w[j, c].astype("float32")
    )


def cast_of_unit_tanh() -> Tensor:
    """tanh x / max|tanh x|, rounded to float16: tanh x alone may be below its smallest normal."""
    r = per_row(max, lambda i, j: abs(tanh(X[i, j])), "r")
    return _half(lambda i, j: tanh(X[i, j]) / r[i])


def cast_of_small_half(norm: str) -> Tensor:
    """0.01 x / max|x|, or 0.01 x / √Σx², of float16 inputs, rounded to float16."""
    h = matrix("h", "float16")

    def wide(i: Any, j: Any) -> Any:
        return h[i, j].astype("float32")

    if norm == "max":
        r = per_row(max, lambda i, j: abs(wide(i, j)), "r")
        return _half(lambda i, j: wide(i, j) * 0.01 / r[i])
    r = per_row(sum, lambda i, j: wide(i, j) * wide(i, j), "r")
    return _half(lambda i, j: wide(i, j) * 0.01 * rsqrt(r[i]))


def softmax_times_large() -> Tensor:
    """Σ exp(x - m) / l · y, in which y may be near the largest float."""
    m = per_row(max, lambda i, j: X[i, j], "m")
    l = per_row(sum, lambda i, j: exp(X[i, j] - m[i]), "l")  # noqa: E741
    return per_row(sum, lambda i, j: exp(X[i, j] - m[i]) / l[i] * Y[i, j], "o")


def hidden_maximum() -> Tensor:
    """Σ over y > 0 of exp(x - m + p): the element that attains m may be hidden."""
    p = placeholder((ROWS,), "float32", "p")
    m = per_row(max, lambda i, j: X[i, j], "m")
    return per_row(sum, lambda i, j: select(Y[i, j] > 0, exp(X[i, j] - m[i] + p[i]), 0.0), "o")


def share_times() -> Tensor:
    """Σ x / Σ|x| · y."""
    s = total()
    return per_row(sum, lambda i, j: X[i, j] / s[i] * Y[i, j], "t")


def softmax_without_maximum() -> Tensor:
    """Σ exp(x) / Σ exp(x) · x."""
    s = total(lambda i, j: exp(X[i, j]))
    return per_row(sum, lambda i, j: exp(X[i, j]) / s[i] * X[i, j], "t")


def unit_rows(of: Callable[[Any], Any] = lambda e: e) -> Tensor:
    """x / max|x|, whose divisor may be subnormal."""
    r = per_row(max, lambda i, j: abs(X[i, j]), "r")
    made: Tensor = compute((ROWS, COLS), lambda i, j: of(X[i, j] / r[i]), "o")
    return made


# --- D5, D6, D11: rejections by a check ------------------------------------------------------------


def product_of_softmax() -> Tensor:
    """Π exp(x) / Σ exp(x)."""
    s = total(lambda i, j: exp(X[i, j]))
    return per_row(prod, lambda i, j: exp(X[i, j]) / s[i], "g")


def maximum_of_logarithms() -> Tensor:
    """max log(exp(tanh z) + |r|), r = max log(exp(tanh x) + Σ|y|)."""
    s = total(lambda i, j: abs(Y[i, j]))
    r = per_row(max, lambda i, j: log(exp(tanh(X[i, j])) + s[i]), "r")
    return per_row(max, lambda i, j: log(exp(tanh(Z[i, j])) + abs(r[i])), "o")


def minimum_over_variance() -> Tensor:
    """A sum that reads max log(exp(tanh x) + v), v being a variance."""
    s = total(lambda i, j: X[i, j])
    count = COLS.astype("float32")
    v = per_row(sum, lambda i, j: (X[i, j] - s[i] / count) * (X[i, j] - s[i] / count), "v")
    r = per_row(max, lambda i, j: log(exp(tanh(Y[i, j])) + v[i]), "r")
    return per_row(sum, lambda i, j: Z[i, j] * r[i], "o")


def constant_variance() -> Tensor:
    """Σ (x - s / 777)² over 777 columns."""
    x = placeholder((ROWS, LENGTH), "float32", "x")
    s = per_row(sum, lambda i, j: x[i, j], "s", LENGTH)
    return per_row(sum, lambda i, j: (x[i, j] - s[i] / LENGTH) * (x[i, j] - s[i] / LENGTH), "v", LENGTH)


def chosen_weight() -> Tensor:
    """min z·w·exp(value of an argmax): of the kind of D13."""
    j = reduce_axis((0, COLS), "j")
    best, _ = compute((ROWS,), lambda i: argmax(tanh(X[i, j]), axis=j), "best")
    return per_row(min, lambda i, j: Y[i, j] * Z[i, j] * exp(best[i]), "o")


# --- D7, D8: integers and NaN ----------------------------------------------------------------------


def integers(value: Callable[[Any], Any], dtype: str = "int32") -> Tensor:
    a = placeholder((N,), dtype, "a")
    made: Tensor = compute((N,), lambda i: value(a[i]), "o")
    return made


# --- refused without need --------------------------------------------------------------------------


def from_third() -> Tensor:
    """Two reductions over [3, cols - 5)."""
    m = per_row(max, lambda i, j: X[i, j], "m", COLS - 5, 3)
    return per_row(sum, lambda i, j: exp(X[i, j] - m[i]), "l", COLS - 5, 3)


def sink_above() -> Tensor:
    """Σ exp(x - max(m, sink))."""
    sink = placeholder((ROWS,), "float32", "sink")
    m = per_row(max, lambda i, j: X[i, j], "m")
    return per_row(sum, lambda i, j: exp(X[i, j] - maximum(m[i], sink[i])), "l")


def permuted() -> Tensor:
    """A softmax of columns in another order."""
    m = per_row(max, lambda i, j: X[i, (j * 3) % COLS], "m")
    return per_row(sum, lambda i, j: exp(X[i, (j * 3) % COLS] - m[i]), "l")


def squeeze_excite() -> Tensor:
    """A mean over space, a softmax over channels, and the sum of channels under it."""
    batch, space, channels = var("batch"), var("space"), var("channels")
    x = placeholder((batch, channels, space), "float32", "x")
    p, c, d = reduce_axis((0, space), "p"), reduce_axis((0, channels), "c"), reduce_axis((0, channels), "d")
    s = compute((batch, channels), lambda b, k: sum(x[b, k, p], axis=p), "s")
    m = compute((batch,), lambda b: max(s[b, c], axis=c), "m")
    l = compute((batch,), lambda b: sum(exp(s[b, c] - m[b]), axis=c), "l")  # noqa: E741
    return compute((batch, space), lambda b, q: sum(exp(s[b, d] - m[b]) / l[b] * x[b, d, q], axis=d), "o")


def top_of_share() -> tuple[Tensor, ...]:
    """The three largest of x / Σ|x|."""
    s, j = total(), reduce_axis((0, COLS), "j")
    return compute((ROWS,), lambda i: top_k(X[i, j] / s[i], 3, axis=j), "best")


DEFECTS: Mapping[str, Make] = {
    "D1 (x/Σ|x|)⁴": lambda: power_of_share(4.0),
    "D1 (x/Σ|x|)²": square_of_share,
    "D1 (x/Σx)³": cube_of_signed_share,
    "D1 (x/max|x|)²": square_of_unit,
    "D1 kurtosis": kurtosis,
    "D2 f16(tanh x / max|tanh x|)": cast_of_unit_tanh,
    "D2 f16(0.01 x / max|x|)": lambda: cast_of_small_half("max"),
    "D2 f16(0.01 x / √Σx²)": lambda: cast_of_small_half("root"),
    "D3 softmax · y": softmax_times_large,
    "D3 hidden maximum": hidden_maximum,
    "D4 x/Σ|x| · y": share_times,
    "D4 softmax without maximum": softmax_without_maximum,
    "D5 product of softmax": product_of_softmax,
    "D6 max of logarithms": maximum_of_logarithms,
    "D6 over a variance": minimum_over_variance,
    "D7 a % (2³¹ - 1)": lambda: integers(lambda a: a % 2147483647),
    "D7 a % 7": lambda: integers(lambda a: a % 7),
    "D7 a // 10⁶": lambda: integers(lambda a: a // 1000000),
    "D7 a // -3": lambda: integers(lambda a: a // -3),
    "D8 maximum(x, 0)": lambda: integers(lambda a: maximum(a, 0.0), "float32"),
    "D10 x/max|x|": unit_rows,
    "D10 tanh(x/max|x|)": lambda: unit_rows(tanh),
    "D11 variance of 777": constant_variance,
    "D13 min under a chosen weight": chosen_weight,
    "unfused range from 3": from_third,
    "unfused sink above": sink_above,
    "unfused permuted": permuted,
    "unfused squeeze-excite": squeeze_excite,
    "top 3 of x/Σ|x|": top_of_share,
}

# Without types: to what has them, a checker would let nothing wrong be given.
untyped: Any = compute
untyped_attention: Any = attention
untyped_sum: Any = sum
untyped_torch: Any = torch
MISTAKES: Mapping[str, Make] = {
    "np.exp": lambda: untyped((ROWS, COLS), lambda i, j: np.exp(cast(Any, X[i, j])), "o"),
    "torch.exp": lambda: untyped((ROWS, COLS), lambda i, j: untyped_torch.exp(X[i, j]), "o"),
    "sum without axis": lambda: untyped((ROWS,), lambda i: untyped_sum(X[i, 0]), "o"),
    "depth=0": lambda: untyped_attention(depth=0),
    "softcap=0.0": lambda: untyped_attention(softcap=0.0),
    'depth="64"': lambda: untyped_attention(depth="64"),
    "mask=3": lambda: untyped_attention(mask=3),
    "mask of two indices": lambda: untyped_attention(mask=lambda i, j: i >= j),
    "head=3": lambda: operator("decode_gqa", head=3),
    "window=2.5": lambda: untyped_attention(window=2.5),
    "lambda i, k=3": lambda: untyped((ROWS,), lambda i, k=3: X[i, 0] * k, "o"),
}


# --- D12: TVM's library ----------------------------------------------------------------------------


def library() -> Mapping[str, Make]:
    """Operators of `tvm.topi` as tensor expressions; needs TVM."""
    from tvm import te as tvm_te
    from tvm import topi

    def t(*shape: int, dtype: str = "float32", name: str = "a") -> Any:
        return tvm_te.placeholder(shape, dtype, name)

    a, line, image = t(6, 10), t(10, name="b"), t(2, 8, 4, 6)
    whole, truth = t(6, 10, dtype="int32", name="n"), t(6, 10, dtype="bool", name="p")
    channels = (t(8, name="g"), t(8, name="h"))
    return {
        "layer_norm": lambda: topi.nn.layer_norm(a, line, t(10, name="c"), [1]),
        "rms_norm": lambda: topi.nn.rms_norm(a, line, [1]),
        "group_norm": lambda: topi.nn.group_norm(image, *channels, 2, 1, [2, 3]),
        "instance_norm": lambda: topi.nn.instance_norm(image, *channels, 1, [2, 3]),
        "softmax": lambda: topi.nn.softmax(a),
        "log_softmax": lambda: topi.nn.log_softmax(a),
        "fast_softmax": lambda: topi.nn.fast_softmax(a),
        "fast_exp": lambda: topi.fast_exp(a),
        "mod": lambda: topi.mod(whole, t(6, 10, dtype="int32", name="k")),
        "floor_mod": lambda: topi.floor_mod(whole, t(6, 10, dtype="int32", name="k")),
        "tile": lambda: topi.tile(a, (2, 3)),
        "all": lambda: topi.all(truth, 1),
        "any": lambda: topi.any(truth, 1),
        "argmax": lambda: topi.argmax(a, 1),
        "upsampling": lambda: topi.nn.upsampling(image, 2, 2),
        "space_to_depth": lambda: topi.nn.space_to_depth(image, 2),
        "tan": lambda: topi.tan(a),
        "matmul": lambda: topi.matmul(a, t(10, 4, name="b")),
        "sum": lambda: topi.sum(a, 1),
        "reshape": lambda: topi.reshape(a, (4, 15)),
    }


__all__ = ["DEFECTS", "FUZZED", "MISTAKES", "library"]
