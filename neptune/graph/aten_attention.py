"""Rows of torch's own attention kernels: what SDPA becomes on each device, as the chain that it computes."""

from __future__ import annotations

import math
from typing import Any

import torch

from neptune.errors import Unsupported
from neptune.graph.aten import ROWS as ROWS
from neptune.graph.aten import aten, row
from neptune.graph.imports import NARROW, Import, name_of
from neptune.graph.products import matrix_product
from neptune.graph.values import Index, Value, position
from neptune.ir.expr import Const, Expr, binary, cast, op, select
from neptune.torch_ops.scalars import computed

ATTENTION = frozenset(
    getattr(aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
"""Operators whose first result is softmax(scale · q kᵀ + bias) v."""


def options(node: Any) -> dict[str, Any]:
    """The arguments of an attention operator by name: a missing one has the default of its schema."""
    schema = node.target._schema.arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value if a.has_default_value() else None) for a in schema}


@row(*ATTENTION)
def _attention(s: Import, node: Any, *_: Any, **__: Any) -> tuple[Value, ...]:
    o = options(node)
    if o.get("dropout_p"):
        raise Unsupported("dropout")
    q, k, v = (s.value(o[n]) for n in ("query", "key", "value"))
    bias = o.get("attn_bias") if o.get("attn_bias") is not None else o.get("attn_mask")
    depth = o["query"].meta["val"].shape[-1]
    scale = o.get("scale")
    factor = 1 / math.sqrt(int(depth)) if scale is None else float(scale)
    wide = torch.float32 if q.dtype in NARROW else q.dtype
    scores = matrix_product(s, node, q, _transposed(k), name="scores", dtype=wide)
    scaled = s.map(wide, lambda e: binary("mul", e, factor), scores)
    if bias is not None:
        b = s.value(bias)
        if b.dtype == torch.bool:
            scaled = s.map(wide, lambda e, p: select(p, e, Const(-math.inf, e.dtype)), scaled, b)
        else:
            scaled = s.map(wide, lambda e, p: binary("add", e, cast(p, computed(wide))), scaled, b)
    if o.get("is_causal"):
        # torch's is top-left: query i sees the keys up to i.
        scaled = _causal(s, wide, scaled)
    score, _t = s.stage(scaled, "score")
    last = len(score.groups) - 1
    m = s.reduced("max", score, [last], True, "m")
    p, _t = s.stage(s.map(wide, lambda e, t: op("exp", binary("sub", e, t)), score, m), "p")
    total = s.reduced("sum", p, [last], True, "l")
    weights = p
    if q.dtype in NARROW:
        narrow = name_of(q.dtype)
        weights = Value(p.groups, q.dtype, lambda i: cast(cast(p.at(i), narrow), "float32"), True, False)
    acc = matrix_product(s, node, weights, v, name="acc", dtype=wide)
    # As torch: a row that sees nothing is 0.
    out = s.map(wide, lambda e, t: select(binary("le", t, 0), Const(0.0, e.dtype), binary("div", e, t)), acc, total)
    return (Value(out.groups, q.dtype, out.at, False, False),)


def _causal(s: Import, dtype: torch.dtype, scores: Value) -> Value:
    rows, cols = (scores.groups[d][0] for d in (-2, -1))
    rank = len(scores.groups)
    i, j = position(rank, rank - 2, rows), position(rank, rank - 1, cols)
    return s.map(dtype, lambda e, a, b: select(binary("le", b, a), e, Const(-math.inf, e.dtype)), scores, i, j)


def _transposed(v: Value) -> Value:
    k = len(v.groups[-2])
    n = len(v.groups[-1])
    first = len(v.axes) - k - n

    def at(i: Index) -> Expr:
        return v.at((*i[:first], *i[first + n :], *i[first : first + n]))

    return v.with_groups((*v.groups[:-2], v.groups[-1], v.groups[-2]), at)
