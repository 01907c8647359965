"""Attention in variants that no flag of an attention library selects, as chains of `chain_programs`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from bench.cases import Case
from bench.chain_programs import (
    COLS,
    EPS,
    ROWS,
    Chain,
    cells,
    distances64,
    matrix,
    per_row,
    product,
    rms64,
    softmax64,
    wide,
)
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    exp,
    max,
    maximum,
    placeholder,
    reduce_axis,
    rsqrt,
    sigmoid,
    sum,
)
from neptune.ir.evaluate.domains import Array
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.attention import OPERATORS

LAMBDA = 0.3


def _qkv(depth: int, pairs: int = 1) -> list[Tensor]:
    names = ["q", "k"] if pairs == 1 else [f"{x}{p}" for p in range(1, pairs + 1) for x in "qk"]
    return [matrix(n, ROWS if n[0] == "q" else COLS, depth, "float16") for n in [*names, "v"]]


def _scores(q: Tensor, k: Tensor, depth: int, suffix: str = "") -> Tensor:
    d = reduce_axis((0, depth), "d")
    s = cells(lambda i, j: sum(wide(q[i, d]) * wide(k[j, d]), axis=d), f"s{suffix}")
    return cells(lambda i, j: s[i, j] * (1 / math.sqrt(depth)), f"score{suffix}")


def _weights(score: Tensor, suffix: str = "") -> tuple[Tensor, Tensor, Tensor]:
    m = per_row(max, lambda i, j: score[i, j], f"m{suffix}")
    e = cells(lambda i, j: exp(score[i, j] - m[i]), f"e{suffix}")
    return m, e, per_row(sum, lambda i, j: e[i, j], f"l{suffix}")


def _values(e: Tensor, v: Tensor, depth: int, name: str = "acc") -> Tensor:
    return product(lambda i, j: wide(e[i, j].astype("float16")), lambda j, c: wide(v[j, c]), name, depth)


def _attention(name: str, depth: int, score: Tensor, inputs: list[Tensor], denominator: Callable[..., Expr]) -> Program:
    """Σ e v / denominator(i, m, l)."""
    m, e, l = _weights(score)  # noqa: E741
    acc = _values(e, inputs[2], depth)
    o = compute((ROWS, depth), lambda i, c: (acc[i, c] / denominator(i, m, l)).astype("float16"), "o")
    return build(o, inputs=inputs, name=name)


def off_by_one_attention(depth: int) -> Program:
    """Weights exp(s) / (1 + Σ exp(s)), so that a query may attend to nothing."""
    q, k, v = _qkv(depth)
    return _attention(
        "off_by_one_attention",
        depth,
        _scores(q, k, depth),
        [q, k, v],
        lambda i, m, l: l[i] + exp(-m[i]),  # noqa: E741
    )


def attention_sinks(depth: int) -> Program:
    """A learned logit per row that takes weight and gives no value."""
    q, k, v = _qkv(depth)
    sink = placeholder((ROWS,), "float32", "sink")
    return _attention(
        "attention_sinks",
        depth,
        _scores(q, k, depth),
        [q, k, v, sink],
        lambda i, m, l: l[i] + exp(sink[i] - m[i]),  # noqa: E741
    )


def sigmoid_attention(depth: int) -> Program:
    q, k, v = _qkv(depth)
    score = _scores(q, k, depth)
    g = cells(lambda i, j: sigmoid(score[i, j]), "g")
    acc = _values(g, v, depth)
    o = compute((ROWS, depth), lambda i, c: acc[i, c].astype("float16"), "o")
    return build(o, inputs=[q, k, v], name="sigmoid_attention")


def linear_attention(depth: int) -> Program:
    """Σ (φ(q)·φ(k)) v / Σ φ(q)·φ(k), with φ(x) = max(x, 0) + 0.01."""
    q, k, v = _qkv(depth)
    d = reduce_axis((0, depth), "d")

    def phi(x: Expr) -> Expr:
        return (maximum(wide(x), 0.0) + 0.01).astype("float16")

    s = cells(lambda i, j: sum(wide(phi(q[i, d])) * wide(phi(k[j, d])), axis=d), "s")
    l = per_row(sum, lambda i, j: s[i, j], "l")  # noqa: E741
    acc = product(lambda i, j: s[i, j], lambda j, c: wide(v[j, c]), "acc", depth)
    o = compute((ROWS, depth), lambda i, c: (acc[i, c] / l[i]).astype("float16"), "o")
    return build(o, inputs=[q, k, v], name="linear_attention")


def differential_attention(depth: int) -> Program:
    """(softmax(q₁ k₁ᵀ) - λ softmax(q₂ k₂ᵀ)) v."""
    q1, k1, q2, k2, v = inputs = _qkv(depth, 2)
    parts = []
    for n, (q, k) in enumerate(((q1, k1), (q2, k2)), 1):
        score = _scores(q, k, depth, str(n))
        _, e, l = _weights(score, str(n))  # noqa: E741
        parts.append((_values(e, v, depth, f"acc{n}"), l))
    (a1, l1), (a2, l2) = parts
    o = compute((ROWS, depth), lambda i, c: (a1[i, c] / l1[i] - LAMBDA * a2[i, c] / l2[i]).astype("float16"), "o")
    return build(o, inputs=inputs, name="differential_attention")


def _unit_rows(x: Tensor, length: Expr, depth: int, name: str) -> Tensor:
    """The rows of x, scaled to unit mean square."""
    d = reduce_axis((0, depth), "d")
    ss = compute((length,), lambda i: sum(wide(x[i, d]) * wide(x[i, d]), axis=d), f"{name}_ss")

    def scaled(i: Expr, c: Expr) -> Expr:
        return (wide(x[i, c]) * rsqrt(ss[i] / depth + EPS)).astype("float16")

    return compute((length, depth), scaled, f"{name}_unit")


def qk_norm_attention(depth: int) -> Program:
    """Queries and keys are scaled to unit mean square first."""
    q, k, _ = inputs = _qkv(depth)
    score = _scores(_unit_rows(q, ROWS, depth, "q"), _unit_rows(k, COLS, depth, "k"), depth)
    return _attention("qk_norm_attention", depth, score, inputs, lambda i, m, l: l[i])  # noqa: E741


def distance_attention(depth: int) -> Program:
    """softmax(-|q - k|²) v."""
    q, k, _ = inputs = _qkv(depth)
    d = reduce_axis((0, depth), "d")

    def squared(i: Expr, j: Expr) -> Expr:
        step = wide(q[i, d]) - wide(k[j, d])
        return step * step

    far = cells(lambda i, j: sum(squared(i, j), axis=d), "far")
    return _attention(
        "distance_attention",
        depth,
        cells(lambda i, j: -far[i, j], "score"),
        inputs,
        lambda i, m, l: l[i],  # noqa: E741
    )


def _half(x: Array) -> Array:
    """As the expression says: rounded to float16."""
    return x.astype(np.float16).astype(np.float64)


def _scaled64(q: Array, k: Array) -> Array:
    return np.asarray(q @ k.T / math.sqrt(q.shape[-1]))


def _sink64(q: Array, k: Array, v: Array, sink: Array | float) -> tuple[Array, ...]:
    s = _scaled64(q, k)
    column = np.broadcast_to(np.asarray(sink, np.float64), (len(q),))[:, None]
    return (softmax64(np.concatenate([s, column], 1))[:, :-1] @ v,)


def _linear64(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    s = _half(np.maximum(q, 0) + 0.01) @ _half(np.maximum(k, 0) + 0.01).T
    return (s @ v / s.sum(-1, keepdims=True),)


def _differential64(q1: Array, k1: Array, q2: Array, k2: Array, v: Array) -> tuple[Array, ...]:
    return ((softmax64(_scaled64(q1, k1)) - LAMBDA * softmax64(_scaled64(q2, k2))) @ v,)


def _qk_norm64(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    return (softmax64(_scaled64(_half(rms64(q)), _half(rms64(k)))) @ v,)


def _operator(name: str, template: str | None = None) -> Chain:
    """One of the paper's ten operators, with few heads."""

    def case(depth: int = 16) -> Case:
        return Case(name, "flash_attention", "float16", depth=depth)

    def exact(*given: Array) -> tuple[Array, ...]:
        return tuple(x.numpy() for x in case().reference.float64(*map(torch.from_numpy, given)))

    label = name if template is None else f"{name}_split"
    return Chain(label, "operators", lambda depth: case(depth).program, exact, template=template, depth=128)


SPLIT = tuple(n for n in OPERATORS if n.startswith("decode"))
"""Operators with one query, for which the keys are split as well."""
OPERATOR_CHAINS = (*map(_operator, OPERATORS), *(_operator(n, "flash_decoding") for n in SPLIT))
ATTENTION: tuple[Chain, ...] = (
    Chain("off_by_one_attention", "attention", off_by_one_attention, lambda q, k, v: _sink64(q, k, v, 0.0)),
    Chain("attention_sinks", "attention", attention_sinks, _sink64),
    Chain(
        "sigmoid_attention",
        "attention",
        sigmoid_attention,
        lambda q, k, v: (1 / (1 + np.exp(-_scaled64(q, k))) @ v,),
    ),
    Chain("linear_attention", "attention", linear_attention, _linear64),
    Chain("differential_attention", "attention", differential_attention, _differential64),
    Chain("qk_norm_attention", "attention", qk_norm_attention, _qk_norm64),
    Chain(
        "distance_attention",
        "attention",
        distance_attention,
        lambda q, k, v: (softmax64(-distances64(q, k)) @ v,),
    ),
)
