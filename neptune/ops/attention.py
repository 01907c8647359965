"""Attention as expressions: the unfused textbook form, from which templates make fused kernels.

`attention` has every option; `OPERATORS` are the ten operators of the paper (Table 1) as rows of options, and
`operator(name, …)` builds one of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import reachable
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    exp,
    log,
    max,
    maximum,
    placeholder,
    reduce_axis,
    select,
    sum,
    tanh,
    var,
)
from neptune.frontend.functions import checked_predicate
from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Expr, Var, logical_and
from neptune.ir.program import Program
from neptune.ops.masks import LONGEST, Mask, with_queries
from neptune.ops.operands import SCALES, Reader, check_rotation, normed, rotated, rounded, scaled, scales, stored
from neptune.ops.options import DTYPES, check_choice, check_counts, check_dtype, check_eps, check_factors, check_flags

NEG_INF = float("-inf")
Score = Callable[[Expr, Expr, Expr, Expr, Expr], Expr]
"""(b, h, i, j, score) → the score of query i against key j of head h; the indices are raw."""
Options: TypeAlias = Mapping[str, Any]

OPERATORS: Mapping[str, Options] = {
    "prefill_global": {"heads": 32},
    "prefill_causal": {"heads": 32, "causal": True},
    "prefill_alibi": {"heads": 32, "causal": True, "alibi": True},
    "prefill_gqa": {"heads": 64, "kv_heads": 8, "causal": True},
    "prefill_softcap": {"heads": 32, "kv_heads": 16, "causal": True, "softcap": 50.0},
    "prefill_window": {"heads": 32, "kv_heads": 8, "window": 4096, "softcap": 50.0},
    "decode_causal": {"heads": 32, "queries": 1},
    "decode_alibi": {"heads": 32, "queries": 1, "alibi": True},
    "decode_gqa": {"heads": 64, "kv_heads": 8, "queries": 1},
    "decode_softcap": {"heads": 32, "kv_heads": 16, "queries": 1, "softcap": 50.0},
}
"""The paper's Table 1, as arguments of `attention`; depth 128, lengths and batch symbolic."""


@public
def operator(name: str, **options: Any) -> Program:
    """One of the ten operators of the paper by name; `options` are arguments of `attention` that replace the row's.

    >>> operator("decode_gqa", depth=64, heads=6, kv_heads=2).name
    'decode_gqa'
    """
    if name not in OPERATORS:
        raise ExpressionError("operator", f"there is no operator {name!r}", legal=tuple(OPERATORS))
    legal = tuple(inspect.signature(attention).parameters)
    if unknown := [o for o in options if o not in legal]:
        raise ExpressionError(f"operator {name!r}", f"attention has no option `{unknown[0]}`", legal=legal)
    return attention(**({"name": name} | dict(OPERATORS[name]) | options))


@public
def prefill_global(
    batch: int | None = None,
    heads: int | None = None,
    depth: int = 128,
    dtype: str = "float16",
    layout: str = "bhsd",
    scale: float | None = None,
    lse: bool = False,
) -> Program:
    """Attention of every query to every key: o = softmax(scale · q kᵀ) v. Arguments as in `attention`."""
    return attention(batch, heads, depth, dtype, layout, scale=scale, lse=lse, name="prefill_global")


@public
def prefill_causal(
    batch: int | None = None,
    heads: int | None = None,
    depth: int = 128,
    dtype: str = "float16",
    layout: str = "bhsd",
    scale: float | None = None,
    lse: bool = False,
) -> Program:
    """Attention in which query i sees the keys j ≤ i + s_kv - s_q (bottom-right). Arguments as in `attention`."""
    return attention(batch, heads, depth, dtype, layout, scale=scale, causal=True, lse=lse, name="prefill_causal")


@public
def attention(
    batch: int | None = None,
    heads: int | None = None,
    depth: int = 128,
    dtype: str = "float16",
    layout: str = "bhsd",
    *,
    kv_heads: int | None = None,
    queries: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi: bool = False,
    score: Score | None = None,
    causal: bool = False,
    window: int | None = None,
    mask: Mask | None = None,
    sinks: bool = False,
    lse: bool = False,
    maxima: bool = False,
    depth_v: int | None = None,
    qk_norm: bool = False,
    eps: float = 1e-6,
    rope: str | None = None,
    kv_dtype: str | None = None,
    kv_scales: str | None = None,
    name: str = "attention",
) -> Program:
    """softmax(scores) v, where score(i, j) = scale · q[i]·k[j], then softcap, ALiBi, `score`, and the masks.

    q: [batch, heads, s_q, depth]; k and v: [batch, kv_heads, s_kv, depth]; o like q, all of `dtype`
    (`layout="bshd"` swaps heads and rows). Lengths are symbolic, batch and heads are where they are None; `queries`
    fixes s_q (1 for decode). Query head h reads key head h // (heads / kv_heads). Sums are float32.

    `scale`: 1/√depth by default. `softcap` c: s → c·tanh(s/c). `alibi`: s + slopes[h]·(j - q), with an input
    `slopes`: f32[heads]. `score(b, h, i, j, s)`: any further change of it, over raw indices. Masks, all of which must
    hold: `causal`: j ≤ q; `window` w: 0 ≤ q - j < w; `mask(b, h, i, j)`, of `neptune.ops.masks` or any predicate of raw
    indices; tensors that it reads are further inputs, in the order of reading. Here q = i + s_kv - s_q is the position
    of the query, aligned bottom-right. `sinks`: an input `sinks`: f32[heads], a score per head that takes part in the
    sum and has no value. `lse=True`: the result is (o, lse), lse being the natural log of the sum, f32
    [batch, heads, s_q]. A row without any key gives 0, and -inf (the sink, if there is one) as its lse. `maxima`: the
    last result is the largest score of each row, f32 [batch, heads, s_q], -inf where it sees no key. Of dtype float64
    all that is said to be float32 here is float64, but for slopes, sinks and scales.

    `depth_v`: v and o have this depth instead. `qk_norm`: rows of q and k are first divided by √(mean square + `eps`),
    times the inputs `q_gain` and `k_gain`: [depth] of `dtype`. `rope` "half" or "interleaved" (`neptune.ops.rope`):
    then rows are turned, by inputs `cos` and `sin`: f32[s_kv, depth/2], row j for key j and row q (at least 0) for a
    query. Either rounds to `dtype`, as layers of their own do.
    `kv_dtype` "float8_e4m3fn" or "float8_e5m2": k and v are of it, and are widened to `dtype` in front of products.
    `kv_scales`: what they are multiplied by, as inputs `k_scale` and `v_scale`: f32 [1] ("tensor"), [kv_heads]
    ("head"), [batch, kv_heads, s_kv] ("row"), or [batch, kv_heads, ⌈s_kv / 128⌉] ("block"). Scales of k, and
    those of heads and tensors, are applied behind sums; rows of v are scaled first and rounded to `dtype`.
    Inputs: q, k, v, gains, tables, scales, slopes, sinks.

    Stages: s, score, m, p, l, p_cast (16-bit dtypes only), acc, with sinks top and total, o, lse; loops b, h, i
    (query), j (key), d (depth of the dot), e (depth of the output). ExpressionError for what does not fit.
    """
    counts = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "window": window}
    if not isinstance(name, str):
        raise ExpressionError("attention", f"name = {name!r:.60} is not a string")
    flags = {"alibi": alibi, "causal": causal, "sinks": sinks, "lse": lse, "maxima": maxima, "qk_norm": qk_norm}
    check_flags(name, flags)
    counts["depth_v"] = depth_v
    check_counts(name, {"depth": depth} | {n: v for n, v in counts.items() if v is not None})
    check_eps(name, eps)
    if rope is not None:
        check_rotation(name, rope, depth)
    if kv_dtype is not None:
        check_choice(name, "kv_dtype", kv_dtype, FLOAT8)
    if kv_scales is not None:
        check_choice(name, "kv_scales", kv_scales, SCALES)
    wide_v = depth if depth_v is None else depth_v
    _check(name, dtype, layout, heads, kv_heads, {"scale": scale, "softcap": softcap})
    group = 1 if heads is None or kv_heads is None else heads // kv_heads
    n_b: int | Var = var("batch") if batch is None else batch
    n_h: int | Var = var("heads") if heads is None else heads
    n_kv = n_h if kv_heads is None else kv_heads
    s_q: int | Var = var("s_q") if queries is None else queries
    s_kv = var("s_kv")
    rows_first = layout == "bshd"
    factor = 1 / math.sqrt(depth) if scale is None else scale
    of_sums = "float64" if dtype == "float64" else "float32"

    def tensor(rows: int | Var, n: int | Var, what: str, cols: int, dtype_of_it: str) -> Tensor:
        return placeholder((n_b, rows, n, cols) if rows_first else (n_b, n, rows, cols), dtype_of_it, what)

    def at(t: Tensor) -> Reader:
        # What is stored in 8 bits is multiplied in those of `dtype`, as its other operand is.
        return lambda b, h, row, col: (
            (t[b, row, h, col] if rows_first else t[b, h, row, col]).astype(dtype).astype(of_sums)
        )

    def of_keys(h: Expr) -> Expr:
        return h if group == 1 else h // group

    of_kv = kv_dtype or dtype
    q, k = tensor(s_q, n_h, "q", depth, dtype), tensor(s_kv, n_kv, "k", depth, of_kv)
    v = tensor(s_kv, n_kv, "v", wide_v, of_kv)
    read_q, read_k, read_v = at(q), at(k), at(v)
    front: list[Tensor] = []
    of_q, of_k = (n_b, n_h, s_q, depth), (n_b, n_kv, s_kv, depth)
    if qk_norm:
        front += [placeholder((depth,), dtype, n) for n in ("q_gain", "k_gain")]
        read_q, read_k = normed(read_q, of_q, "q", front[0], eps), normed(read_k, of_k, "k", front[1], eps)
        if rope is None:
            read_q, read_k = stored(read_q, of_q, "q_norm", dtype), stored(read_k, of_k, "k_norm", dtype)
        else:  # what turns them is a stage anyway
            read_q, read_k = rounded(read_q, dtype), rounded(read_k, dtype)
    if rope is not None:
        cos, sin = (placeholder((s_kv, depth // 2), "float32", n) for n in ("cos", "sin"))
        front += [cos, sin]
        read_q = rotated(read_q, depth, rope, cos, sin, lambda b, i: maximum(i + s_kv - s_q, 0))
        read_k = rotated(read_k, depth, rope, cos, sin, lambda b, j: j)
        read_q, read_k = stored(read_q, of_q, "q_rope", dtype), stored(read_k, of_k, "k_rope", dtype)
    scale_k = scale_v = None
    if kv_scales is not None:
        of_rows = [scales(kv_scales, n, n_b, n_kv, s_kv) for n in ("k_scale", "v_scale")]
        front += [t for t, _ in of_rows]
        scale_k, scale_v = (read for _, read in of_rows)
        if kv_scales in ("row", "block"):
            read_v, scale_v = rounded(scaled(read_v, scale_v), dtype), None
    slopes, sink = placeholder((n_h,), "float32", "slopes"), placeholder((n_h,), "float32", "sinks")
    inputs = [q, k, v, *front, *([slopes] if alibi else []), *([sink] if sinks else [])]
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, s_kv), "j")
    rows, scores = (n_b, n_h, s_q), (n_b, n_h, s_q, s_kv)

    def score_of(b: Expr, h: Expr, i: Expr, j: Expr, x: Expr) -> Expr:
        x = x if scale_k is None else x * scale_k(b, of_keys(h), j)
        x = x * factor if softcap is None else tanh(x * (factor / softcap)) * softcap
        if alibi:
            x = x + slopes[h].astype(of_sums) * (j - (i + s_kv - s_q)).astype(of_sums)
        if score is not None:
            x = _called(name, "score(b, h, i, j, s)", score, (b, h, i, j, x))
        sees = [j <= i + s_kv - s_q] if causal or window is not None else []
        sees += [] if window is None or window >= LONGEST else [i + s_kv - s_q - j < window]
        if mask is not None:
            shown = checked_predicate(_called(name, "mask(b, h, i, j)", mask, (b, h, i, j)))
            sees.append(with_queries(shown, s_q))
        return select(logical_and(*sees), x, NEG_INF) if sees else x

    s = compute(scores, lambda b, h, i, j: sum(read_q(b, h, i, d) * read_k(b, of_keys(h), j, d), axis=d), "s")
    masked = compute(scores, lambda b, h, i, j: score_of(b, h, i, j, s[b, h, i, j]), "score")
    m = compute(rows, lambda b, h, i: max(masked[b, h, i, j], axis=j), "m")
    p = compute(scores, lambda b, h, i, j: exp(masked[b, h, i, j] - m[b, h, i]), "p")
    l = compute(rows, lambda b, h, i: sum(p[b, h, i, j], axis=j), "l")  # noqa: E741 (the field's name)
    # The matrix unit takes operands of one dtype, so p is rounded to that of v; sums stay in float32.
    weight = p if dtype == of_sums else compute(scores, lambda b, h, i, j: p[b, h, i, j].astype(dtype), "p_cast")
    acc = compute(
        (*rows, wide_v),
        lambda b, h, i, e: sum(weight[b, h, i, j].astype(of_sums) * read_v(b, of_keys(h), j, e), axis=j),
        "acc",
    )
    top, total = m, l
    if sinks:
        # The sink may be far above every score, or the only one: all that follows is relative to the larger.

        def at_sink(h: Expr) -> Expr:
            return sink[h].astype(of_sums)

        top = compute(rows, lambda b, h, i: maximum(m[b, h, i], at_sink(h)), "top")
        total = compute(
            rows,
            lambda b, h, i: l[b, h, i] * exp(m[b, h, i] - top[b, h, i]) + exp(at_sink(h) - top[b, h, i]),
            "total",
        )

    def normalised(b: Expr, h: Expr, i: Expr, e: Expr) -> Expr:
        if sinks:
            value = acc[b, h, i, e] * exp(m[b, h, i] - top[b, h, i]) / total[b, h, i]
        else:
            # A row that sees no key has l = 0, and is 0 rather than 0/0. (Asked this way round, a NaN stays one.)
            value = select(l[b, h, i] <= 0, 0, acc[b, h, i, e] / l[b, h, i])
        return (value if scale_v is None else value * scale_v(b, of_keys(h), i)).astype(dtype)

    if rows_first:
        o = compute((n_b, s_q, n_h, wide_v), lambda b, i, h, e: normalised(b, h, i, e), "o")
    else:
        o = compute((n_b, n_h, s_q, wide_v), lambda b, h, i, e: normalised(b, h, i, e), "o")

    def built(*outputs: Tensor) -> Program:
        # What a mask or a score reads comes behind the operands.
        read = [t for t in reachable(outputs) if t.body is None and t not in inputs]
        return build(outputs, inputs=[*inputs, *read], name=name)

    def log_sum(b: Expr, h: Expr, i: Expr) -> Expr:
        value = top[b, h, i] + log(total[b, h, i])
        return value if sinks else select(l[b, h, i] <= 0, NEG_INF, value)

    sums = [compute(rows, log_sum, "lse")] if lse else []
    if maxima:
        sums.append(compute(rows, lambda b, h, i: select(l[b, h, i] <= 0, NEG_INF, m[b, h, i]), "largest"))
    return built(o, *sums)


def _check(
    request: str, dtype: str, layout: str, heads: int | None, kv_heads: int | None, factors: Mapping[str, float | None]
) -> None:
    if layout not in ("bhsd", "bshd"):
        raise ExpressionError(request, f"unknown layout {layout!r}", legal=("bhsd", "bshd"))
    check_dtype(request, dtype, "attention", (*DTYPES, "float64"))
    if kv_heads is not None and (heads is None or heads % kv_heads != 0):
        wrong = f"{heads if heads is not None else 'symbolic'} heads do not share {kv_heads} key heads evenly"
        raise ExpressionError(request, wrong, hint="heads a multiple of kv_heads, both numbers")
    check_factors(request, factors)
    softcap = factors["softcap"]
    if softcap is not None and not softcap > 0:
        raise ExpressionError(
            request, f"softcap is {softcap}: scores lie between -softcap and softcap", hint="None: no cap"
        )


def _called(request: str, signature: str, function: object, args: tuple[Expr, ...]) -> Any:
    """Return the result of the user's mask or score; ExpressionError if it does not take these arguments."""
    option = signature.partition("(")[0]
    if not callable(function):
        raise ExpressionError(request, f"{option} = {function!r} is not a function", hint=f"a function {signature}")
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise ExpressionError(
            request, f"the {option} cannot be called: {error}", hint=f"a function {signature}"
        ) from None
    return function(*args)
