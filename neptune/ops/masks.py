"""Masks of attention as predicates: which keys a query sees.

    mask = and_(window(4096), lengths(kv_len))
    score = lambda b, h, i, j, s: select(mask(b, h, i, j), s * scale, -inf)

A mask is a function of the raw indices: batch row, head, query 0 ≤ i < s_q, key 0 ≤ j < s_kv. What is said relative
to the *position* of a query is aligned bottom-right: query i stands at i + s_kv - s_q, so that the last query sees
the last key. Every mask is a set of tiles to a schedule: `partition` visits those on which it is true somewhere and
checks it only on those where it is not true throughout.
"""

from __future__ import annotations

from collections.abc import Callable

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Read, Tensor
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Const, Expr, ExprLike, Var, as_expr, binary, eq, logical_and, logical_or, maximum, rewrite
from neptune.ops.options import check_tensors

Mask = Callable[[Expr, Expr, Expr, Expr], Expr]
"""(b, h, i, j) → does query i see key j? The indices are raw."""
S_Q, S_KV = Var("s_q"), Var("s_kv")
LONGEST = 2**31 - 1
"""No axis is longer: a window of as many keys cuts nothing off."""


def position(i: Expr) -> Expr:
    """Return the position of query i among the keys: i + s_kv - s_q. Negative for a query before the first key."""
    return i + S_KV - S_Q


def with_queries(pred: Expr, s_q: int | Var) -> Expr:
    """A mask in a program whose number of queries is `s_q`."""

    def known(e: Expr) -> Expr | None:
        if isinstance(e, Read):
            return Read(e.buffer, tuple(rewrite(i, known) for i in e.index), e.dtype, source=e.source)
        return as_expr(s_q) if e == S_Q else None

    return rewrite(pred, known)


@public
def causal(q_lengths: Tensor | None = None, kv_lengths: Tensor | None = None) -> Mask:
    """Keys up to the query's own position: j ≤ i + s_kv - s_q.

    With lengths per batch row (int32 or int64 [batch]) the last of *these* queries sees the last of these keys:
    j ≤ i + kv_lengths[b] - q_lengths[b]; what is beyond them is the business of `lengths`. Raises ExpressionError
    where only one of the two is given.
    """
    if (q_lengths is None) != (kv_lengths is None):
        raise ExpressionError("mask `causal`", "it has the lengths of one side only", hint="give both or neither")
    check_tensors("mask `causal`", {"q_lengths": q_lengths, "kv_lengths": kv_lengths})
    if q_lengths is None or kv_lengths is None:
        return lambda b, h, i, j: j <= position(i)
    return lambda b, h, i, j: j <= i + kv_lengths[b] - q_lengths[b]


@public
def window(w: ExprLike) -> Mask:
    """The last w keys up to the query's own: 0 ≤ i + s_kv - s_q - j < w. Implies causal. `w`: a number or a scalar.

    From `LONGEST` on it is `causal()`.
    """
    size = _integer("window", w)
    if isinstance(size, Const) and size.value >= LONGEST:
        return causal()
    return lambda b, h, i, j: logical_and(j <= position(i), position(i) - j < size)


@public
def prefix(p: ExprLike) -> Mask:
    """The first p keys: j < p, for a bidirectional prefix (`or_(prefix(p), causal())`) or attention sinks."""
    size = _integer("prefix", p)
    return lambda b, h, i, j: j < size


@public
def chunked(c: ExprLike) -> Mask:
    """Keys in the query's own chunk of c ≥ 1: j // c == (i + s_kv - s_q) // c. `c`: a number or a scalar.

    Both directions within a chunk: `and_(chunked(c), causal())` looks back only. A scalar below 1 counts as 1.
    Raises ExpressionError for a number below 1.
    """
    size = _integer("chunked", c)
    if isinstance(size, Const) and size.value < 1:
        raise ExpressionError(f"mask `chunked({size.value})`", "a chunk has at least one key")
    size = size if isinstance(size, Const) else maximum(size, 1)
    return lambda b, h, i, j: eq(binary("floordiv", j, size), binary("floordiv", position(i), size))


@public
def document(q_documents: Tensor, kv_documents: Tensor | None = None) -> Mask:
    """Keys of the query's own document: q_documents[b, i] == kv_documents[b, j].

    The tensors, int32 or int64 [batch, s_q] and [batch, s_kv] (by default the same one), number the documents in any
    order, so that every tile is visited and checked; where documents lie together, `segments` skips the others.
    """
    check_tensors("mask `document`", {"q_documents": q_documents, "kv_documents": kv_documents})
    keys = q_documents if kv_documents is None else kv_documents
    return lambda b, h, i, j: eq(q_documents[b, i], keys[b, j])


@public
def segments(start: Tensor, end: Tensor) -> Mask:
    """Keys from start[b, i] up to end[b, i] (exclusive): any interval per query, such as its document.

    The tensors are int32 or int64 [batch, s_q] and may hold any values: keys are those in [0, s_kv) besides.
    """
    check_tensors("mask `segments`", {"start": start, "end": end})
    return lambda b, h, i, j: logical_and(start[b, i] <= j, j < end[b, i])


@public
def lengths(kv_lengths: Tensor, q_lengths: Tensor | None = None) -> Mask:
    """The first kv_lengths[b] keys, and for the first q_lengths[b] queries only where these are given.

    The tensors are int32 or int64 [batch] and may hold any values: more than s_kv is all keys, less than 1 none.
    """
    check_tensors("mask `lengths`", {"kv_lengths": kv_lengths, "q_lengths": q_lengths})
    if q_lengths is None:
        return lambda b, h, i, j: j < kv_lengths[b]
    return lambda b, h, i, j: logical_and(j < kv_lengths[b], i < q_lengths[b])


@public
def and_(*masks: Mask) -> Mask:
    """Return the mask that is true where all of these are. Raises ExpressionError for what is no mask."""
    _check_masks("and_", masks)
    return lambda b, h, i, j: logical_and(*(m(b, h, i, j) for m in masks))


@public
def or_(*masks: Mask) -> Mask:
    """Return the mask that is true where any of these is. Raises ExpressionError for what is no mask."""
    _check_masks("or_", masks)
    return lambda b, h, i, j: logical_or(*(m(b, h, i, j) for m in masks))


def _check_masks(request: str, masks: tuple[Mask, ...]) -> None:
    wrong = next((m for m in masks if not callable(m)), None)
    if wrong is not None:
        raise ExpressionError(
            f"mask `{request}`",
            f"{wrong!r:.60} is not a mask",
            hint="a mask of this module, or a function (b, h, i, j)",
        )


def _integer(mask: str, value: ExprLike) -> Expr:
    """The size of a mask, a number or a scalar of an integer dtype."""
    try:
        size = as_expr(value)
    except TypeError:
        raise ExpressionError(f"mask `{mask}`", f"its size is {value!r:.60}, not an integer") from None
    if not is_int(size.dtype):
        raise ExpressionError(f"mask `{mask}`", f"its size is {value!r}, not an integer")
    return size
