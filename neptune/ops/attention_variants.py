"""Attention whose weights are no softmax, or one of something else than products.

q: [batch, heads, s_q, depth], k and v: [batch, kv_heads, s_kv, depth], o like q, all of `dtype`; batch, heads and
lengths are symbolic where they are not given, query head h reads key head h // (heads / kv_heads). `flat=True` is one
head: q: [rows, depth], k and v: [cols, depth]. Scores are scale · q·k in float32 with scale = 1/√depth; weights are
rounded to `dtype` in front of the product with v, as the matrix unit takes them, and sums are float32. `causal`: key j
is seen by query i where j ≤ i + s_kv - s_q (bottom-right). ExpressionError for what does not fit.

Softmax with all of its options is `neptune.ops.attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import (
    Tensor,
    build,
    exp,
    max,
    maximum,
    placeholder,
    reduce_axis,
    rsqrt,
    select,
    sigmoid,
    sum,
    var,
)
from neptune.ir.expr import Const, Expr
from neptune.ir.program import Program
from neptune.ops.options import check_counts, check_dtype, check_eps, check_factors, check_flags
from neptune.ops.parts import points, wide

Index: TypeAlias = tuple[Expr, ...]
NEG_INF = float("-inf")


@dataclass(frozen=True)
class Heads:
    """What the variants have in common; `lead` are the sizes in front of rows, `group` heads that share a key head."""

    name: str
    depth: int
    dtype: str = "float16"
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    causal: bool = False
    flat: bool = False
    rows: Any = field(init=False)
    cols: Any = field(init=False)

    def __post_init__(self) -> None:
        check_flags(self.name, {"causal": self.causal, "flat": self.flat})
        check_dtype(self.name, self.dtype, "attention")
        counts = {"depth": self.depth, "batch": self.batch, "heads": self.heads, "kv_heads": self.kv_heads}
        check_counts(self.name, {n: v for n, v in counts.items() if v is not None or n == "depth"})
        if self.kv_heads is not None and (self.heads is None or self.heads % self.kv_heads):
            wrong = f"{self.heads or 'symbolic'} heads do not share {self.kv_heads} key heads evenly"
            raise ExpressionError(self.name, wrong, hint="heads a multiple of kv_heads, both numbers")
        object.__setattr__(self, "rows", var("rows") if self.flat else var("s_q"))
        object.__setattr__(self, "cols", var("cols") if self.flat else var("s_kv"))

    @property
    def lead(self) -> tuple[Any, ...]:
        if self.flat:
            return ()
        return (var("batch") if self.batch is None else self.batch, var("heads") if self.heads is None else self.heads)

    def of_keys(self, z: Index) -> Index:
        group = 1 if self.heads is None or self.kv_heads is None else self.heads // self.kv_heads
        return z if self.flat or group == 1 else (z[0], z[1] // group)

    def queries(self, name: str = "q") -> Tensor:
        return placeholder((*self.lead, self.rows, self.depth), self.dtype, name)

    def keys(self, name: str = "k") -> Tensor:
        lead = self.lead if self.kv_heads is None or self.flat else (self.lead[0], self.kv_heads)
        return placeholder((*lead, self.cols, self.depth), self.dtype, name)

    def per_pair(self, value: Callable[[Index, Expr, Expr], Any], name: str) -> Tensor:
        return points(self.lead, (self.rows, self.cols), lambda z, i, j: value(z, i, j), name)

    def per_query(self, value: Callable[[Index, Expr], Any], name: str) -> Tensor:
        return points(self.lead, (self.rows,), lambda z, i: value(z, i), name)

    def outputs(self, value: Callable[[Index, Expr, Expr], Any], name: str) -> Tensor:
        return points(self.lead, (self.rows, self.depth), lambda z, i, c: value(z, i, c), name)

    def fold(self, reducer: Callable[..., Any], t: Tensor, name: str) -> Tensor:
        """name[i] = reducer over the keys of t[i, j]."""
        j = reduce_axis((0, self.cols), "j")
        return self.per_query(lambda z, i: reducer(t[(*z, i, j)], axis=j), name)

    def dots(self, q: Tensor, k: Tensor, name: str = "s", of: Callable[[Expr], Expr] = wide) -> Tensor:
        d = reduce_axis((0, self.depth), "d")
        return self.per_pair(lambda z, i, j: sum(of(q[(*z, i, d)]) * of(k[(*self.of_keys(z), j, d)]), axis=d), name)

    def seen(self, i: Expr, j: Expr, value: Expr, other: float) -> Expr:
        return select(j <= i + self.cols - self.rows, value, other) if self.causal else value

    def scores(self, q: Tensor, k: Tensor, scale: float | None, suffix: str = "") -> Tensor:
        check_factors(self.name, {"scale": scale})
        factor = 1 / math.sqrt(self.depth) if scale is None else scale
        s = self.dots(q, k, f"s{suffix}")
        return self.per_pair(lambda z, i, j: self.seen(i, j, s[(*z, i, j)] * factor, NEG_INF), f"score{suffix}")

    def weights(self, score: Tensor, suffix: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """The maximum m of each query's scores, e = exp(score - m), and the sum l of e."""
        m = self.fold(max, score, f"m{suffix}")
        e = self.per_pair(lambda z, i, j: exp(score[(*z, i, j)] - m[(*z, i)]), f"e{suffix}")
        return m, e, self.fold(sum, e, f"l{suffix}")

    def values(self, e: Tensor, v: Tensor, name: str = "acc", rounded: bool = True) -> Tensor:
        """Σ e v, with e rounded to the dtype of v."""
        j = reduce_axis((0, self.cols), "j")

        def weight(index: Index) -> Expr:
            return wide(e[index].astype(self.dtype)) if rounded else e[index]

        return self.outputs(lambda z, i, c: sum(weight((*z, i, j)) * wide(v[(*self.of_keys(z), j, c)]), axis=j), name)

    def over(self, score: Tensor, v: Tensor, inputs: list[Tensor], divisor: Callable[..., Expr]) -> Program:
        """Σ e v / divisor(z, i, m, l), where e are the exponentials of the scores."""
        m, e, l = self.weights(score)  # noqa: E741 (the field's name)
        acc = self.values(e, v)

        def normalised(z: Index, i: Expr, c: Expr) -> Expr:
            below = divisor(z, i, m[(*z, i)], l[(*z, i)])
            return (acc[(*z, i, c)] / below).astype(self.dtype)

        return build(self.outputs(normalised, "o"), inputs=inputs, name=self.name)


@public
def off_by_one_attention(depth: int = 128, *, scale: float | None = None, **options: Any) -> Program:
    """Weights exp(s) / (1 + Σ exp(s)), so that a query may attend to nothing. Stages: s, score, m, e, l, acc, o.

    `options`: dtype, batch, heads, kv_heads, causal and flat, as in this module's description.
    """
    a = Heads("off_by_one_attention", depth, **options)
    q, k, v = a.queries(), a.keys(), a.keys("v")
    return a.over(a.scores(q, k, scale), v, [q, k, v], lambda z, i, m, l: l + exp(-m))  # noqa: E741


@public
def attention_sinks(depth: int = 128, *, scale: float | None = None, **options: Any) -> Program:
    """A learned score that takes weight and gives no value: sink: f32[heads], or with `flat` f32[rows], one a query.

    Stages and `options` as in `off_by_one_attention`, which is this with sinks of 0.
    """
    a = Heads("attention_sinks", depth, **options)
    q, k, v = a.queries(), a.keys(), a.keys("v")
    sink = placeholder((a.rows,) if a.flat else (a.lead[1],), "float32", "sink")

    def divisor(z: Index, i: Expr, m: Expr, l: Expr) -> Expr:  # noqa: E741
        return l + exp(sink[i if a.flat else z[1]] - m)

    return a.over(a.scores(q, k, scale), v, [q, k, v, sink], divisor)


@public
def sigmoid_attention(depth: int = 128, *, scale: float | None = None, shift: float = 0.0, **options: Any) -> Program:
    """o = Σ sigmoid(s + shift) v: every key has a weight of its own. Stages: s, score, g, acc, o.

    `shift` is often -log(s_kv) of training. `options` as in `off_by_one_attention`.
    """
    a = Heads("sigmoid_attention", depth, **options)
    check_factors(a.name, {"shift": shift})
    q, k, v = a.queries(), a.keys(), a.keys("v")
    score = a.scores(q, k, scale)
    g = a.per_pair(lambda z, i, j: sigmoid(score[(*z, i, j)] + shift if shift else score[(*z, i, j)]), "g")
    acc = a.values(g, v)
    o = a.outputs(lambda z, i, c: acc[(*z, i, c)].astype(a.dtype), "o")
    return build(o, inputs=[q, k, v], name=a.name)


@public
def linear_attention(depth: int = 128, **options: Any) -> Program:
    """Σ (φ(q)·φ(k)) v / Σ φ(q)·φ(k), with φ(x) = max(x, 0) + 0.01, rounded to the dtype. Stages: s, l, acc, o.

    Its work grows with s_q · s_kv, as attention's does: no state is carried along. `options` as in
    `off_by_one_attention`.
    """
    a = Heads("linear_attention", depth, **options)
    q, k, v = a.queries(), a.keys(), a.keys("v")

    def phi(x: Expr) -> Expr:
        return wide((maximum(wide(x), 0.0) + 0.01).astype(a.dtype))

    s = a.dots(q, k, of=phi)
    if a.causal:
        dots = s
        s = a.per_pair(lambda z, i, j: a.seen(i, j, dots[(*z, i, j)], 0.0), "score")
    l = a.fold(sum, s, "l")  # noqa: E741
    acc = a.values(s, v, rounded=False)
    o = a.outputs(lambda z, i, c: (acc[(*z, i, c)] / l[(*z, i)]).astype(a.dtype), "o")
    return build(o, inputs=[q, k, v], name=a.name)


@public
def differential_attention(
    depth: int = 128, *, scale: float | None = None, share: float = 0.3, **options: Any
) -> Program:
    """(softmax(q1 k1ᵀ) - share · softmax(q2 k2ᵀ)) v. Inputs q1, k1, q2, k2, v; a stage of each name for either pair.

    `options` as in `off_by_one_attention`.
    """
    a = Heads("differential_attention", depth, **options)
    check_factors(a.name, {"share": share})
    q1, k1, q2, k2, v = inputs = [a.queries("q1"), a.keys("k1"), a.queries("q2"), a.keys("k2"), a.keys("v")]
    parts = []
    for n, (q, k) in enumerate(((q1, k1), (q2, k2)), 1):
        _, e, l = a.weights(a.scores(q, k, scale, str(n)), str(n))  # noqa: E741
        parts.append((a.values(e, v, f"acc{n}"), l))
    (a1, l1), (a2, l2) = parts

    def value(z: Index, i: Expr, c: Expr) -> Expr:
        return (a1[(*z, i, c)] / l1[(*z, i)] - share * a2[(*z, i, c)] / l2[(*z, i)]).astype(a.dtype)

    return build(a.outputs(value, "o"), inputs=inputs, name=a.name)


@public
def qk_norm_attention(depth: int = 128, *, scale: float | None = None, eps: float = 1e-6, **options: Any) -> Program:
    """Queries and keys are scaled to unit mean square first, and rounded to the dtype.

    Stages: q_ss, q_unit, k_ss, k_unit, s, score, m, e, l, acc, o. `options` as in `off_by_one_attention`. With gains,
    RoPE, masks and the rest it is an option of `neptune.ops.attention.attention`.
    """
    a = Heads("qk_norm_attention", depth, **options)
    check_eps(a.name, eps)
    q, k, v = a.queries(), a.keys(), a.keys("v")
    score = a.scores(_unit_rows(q, eps), _unit_rows(k, eps), scale)
    return a.over(score, v, [q, k, v], lambda z, i, m, l: l)  # noqa: E741


def _unit_rows(x: Tensor, eps: float) -> Tensor:
    """The rows of x, scaled to unit mean square and rounded to its dtype."""
    *lead, length, depth = x.shape
    d = reduce_axis((0, depth), "d")
    ss = points(
        tuple(lead), (length,), lambda z, i: sum(wide(x[(*z, i, d)]) * wide(x[(*z, i, d)]), axis=d), f"{x.name}_ss"
    )
    count = depth.value if isinstance(depth, Const) else depth

    def scaled(z: Index, i: Expr, c: Expr) -> Expr:
        return (wide(x[(*z, i, c)]) * rsqrt(ss[(*z, i)] / count + eps)).astype(x.dtype)

    return points(tuple(lead), (length, depth), scaled, f"{x.name}_unit")


@public
def distance_attention(depth: int = 128, **options: Any) -> Program:
    """softmax(-|q - k|²) v: near keys count. Stages: far, score, m, e, l, acc, o.

    Distances are no product for the matrix unit, which a warning says: multiplied out they would be, with fewer digits.
    `options` as in `off_by_one_attention`.
    """
    a = Heads("distance_attention", depth, **options)
    q, k, v = a.queries(), a.keys(), a.keys("v")
    d = reduce_axis((0, depth), "d")

    def squared(z: Index, i: Expr, j: Expr) -> Expr:
        step = wide(q[(*z, i, d)]) - wide(k[(*a.of_keys(z), j, d)])
        return step * step

    far = a.per_pair(lambda z, i, j: sum(squared(z, i, j), axis=d), "far")
    score = a.per_pair(lambda z, i, j: a.seen(i, j, -far[(*z, i, j)], NEG_INF), "score")
    return a.over(score, v, [q, k, v], lambda z, i, m, l: l)  # noqa: E741
