"""`neptune.functional.attention` and `scaled_dot_product_attention` on tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from neptune import config
from neptune.base import logs
from neptune.base.boundary import public
from neptune.functional import flex, plain
from neptune.functional.blocks import with_block_mask
from neptune.functional.operators import refuse_nested
from neptune.functional.softmax_attention import Options
from neptune.functional.tensors import refuse

Tensor = torch.Tensor
LOG = logging.getLogger("neptune.functional")


@public
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_mod: Callable[..., Tensor] | None = None,
    mask_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    attn_mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scores) v in one kernel, with any score and any mask; no matrix of scores and no block mask is stored.

    q: [batch, heads, s_q, depth]; k, v: [batch, kv_heads, s_kv, depth]; o like q, with its order of strides, of their
    one dtype: float32, float16, bfloat16, or on a CPU float64. Other leading dimensions than two are served, too.
    kv_heads may be fewer where `enable_gqa` is set: query head h then reads key head h // (heads // kv_heads). Sums are
    float32 (float64 of float64). `scale` is 1/√depth by default.
    With `return_lse` the result is (o, lse): the natural log of the sum, in its dtype, [batch, heads, s_q].
    A row that sees no key is 0, and its lse -inf.

    Options that speak of a query's *position* align it bottom-right, as FlashAttention does: query i stands at
    i + s_kv - s_q, so that the last query sees the last key.

    - `causal`: j ≤ i + s_kv - s_q.             - `window` w: 0 ≤ i + s_kv - s_q - j < w, which implies causal.
    - `alibi_slopes`: float32 [heads]; the score plus slope[h]·(j - (i + s_kv - s_q)).
    - `softcap` c: the score becomes c·tanh(score / c), before ALiBi. `sinks`: float32 [heads], a score per head that
      takes part in the sum and has no value.

    Mods are FlexAttention's, unchanged, and receive *raw* indices: `score_mod(score, b, h, q_idx, kv_idx)` changes the
    score (after the options above), `mask_mod(b, h, q_idx, kv_idx)` says which keys a query sees. They may read
    captured tensors at any integer index, and Python numbers. For 2 queries of 4 keys

        causal=True                             keys 0 1 2 for query 0, keys 0 1 2 3 for query 1
        mask_mod=lambda b, h, i, j: j <= i      key  0     for query 0, keys 0 1     for query 1

    A mod is traced once for its code and the dtypes of what it holds; new lengths compile nothing, another Python
    number does. Conditions on indices are sets to the compiler, and tiles outside of them are skipped. `block_mask`:
    a `BlockMask` of FlexAttention; where its blocks say no more than its mask_mod, as those of `create_block_mask` do,
    that is the mask, which is evaluated once to see it, and else blocks are looked up for each score. `attn_mask`, in
    place of mods: a tensor that broadcasts to [batch, heads, s_q, s_kv], bool (which keys are seen) or float (added to
    the scores).

    Raises ShapeError for tensors that do not fit or require gradients, ExpressionError for a mod that branches on
    values or does what is no expression, with the line of it.

        o = neptune.functional.attention(q, k, v, causal=True, softcap=50.0)
        o = neptune.functional.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, j - i + 512])
    """
    refuse_nested("attention", {"q": q, "k": k, "v": v})
    if block_mask is not None:
        mask_mod = with_block_mask("attention", mask_mod, block_mask, q, k)
    result: Tensor | tuple[Tensor, Tensor]
    if score_mod is None and mask_mod is None:
        function = plain.attention_with_lse if return_lse else plain.attention
        result = function(q, k, v, causal, window, softcap, alibi_slopes, sinks, scale, enable_gqa, attn_mask)
    elif attn_mask is not None:
        refuse(
            "attention", "both attn_mask and a mod were given", hint="a mod that reads it: mask[b, h, q_idx, kv_idx]"
        )
    else:
        options = Options(causal, window, softcap, scale, enable_gqa, return_lse)
        result = flex.attention((q, k, v), options, score_mod, mask_mod, alibi_slopes, sinks)
    return result


@public
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention in one kernel, also where nothing is compiled by torch.

    query: [batch, heads, s_q, depth]; key: [batch, kv_heads, s_kv, depth]; value: [batch, kv_heads, s_kv, depth_v]; the
    result: [batch, heads, s_q, depth_v], of their dtype, in query's order of strides. `return_lse`: (o, lse);
    `return_aux=AuxRequest(lse=…, max_scores=…)` (o, AuxOutput): lse and the largest score of each row, float32
    [batch, heads, s_q]. A row that sees no key is 0, its lse and its largest score -inf. `kernel_options` are hints for
    torch's kernels: they are logged once, and change nothing. Errors as of `attention`.

        o = flex_attention(q, k, v, score_mod=alibi, block_mask=create_block_mask(causal, None, None, 1024, 1024))
    """
    refuse_nested("flex_attention", {"query": query, "key": key, "value": value})
    if return_aux is not None and return_lse:
        refuse("flex_attention", "both return_lse and return_aux were given", hint="return_aux=AuxRequest(lse=True)")
    if kernel_options and not torch.compiler.is_dynamo_compiling():
        _tell(tuple(map(str, kernel_options)))
    mask = None if block_mask is None else with_block_mask("flex_attention", None, block_mask, query, key)
    aux = return_aux is not None
    options = Options(
        scale=scale,
        enable_gqa=enable_gqa,
        lse=bool(return_aux.lse) if aux else return_lse,
        max_scores=aux and bool(return_aux.max_scores),
    )
    if score_mod is None and mask is None and not options.max_scores:
        function = plain.attention_with_lse if options.lse else plain.attention
        fused = function(query, key, value, scale=scale, enable_gqa=enable_gqa)
    else:
        fused = flex.attention((query, key, value), options, score_mod, mask, None, None)
    if not aux:
        return fused
    from torch.nn.attention.flex_attention import AuxOutput

    o, *more = fused if options.several else (fused,)
    return o, AuxOutput(lse=more[0] if options.lse else None, max_scores=more[-1] if options.max_scores else None)


@cache
def _tell(names: tuple[str, ...]) -> None:
    """Log what is not used, once."""
    logs.configure(config.read().logs)
    LOG.info("flex_attention: kernel_options %s are for torch's kernels, and are not used", ", ".join(names))
