"""`neptune.functional.attention` and `scaled_dot_product_attention` on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neptune.boundary import public
from neptune.functional import flex, plain
from neptune.functional.softmax_attention import Options
from neptune.functional.tensors import refuse

Tensor = torch.Tensor


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

    q: [batch, heads, s_q, depth]; k, v: [batch, kv_heads, s_kv, depth]; o like q, of their one dtype: float32, float16
    or bfloat16. Other leading dimensions than two are served, too. kv_heads may be fewer where `enable_gqa` is set:
    query head h then reads key head h // (heads // kv_heads). Sums are float32. `scale` is 1/√depth by default.
    With `return_lse` the result is (o, lse), lse being the natural log of the sum, float32 [batch, heads, s_q].
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
    a `BlockMask` of FlexAttention; its mask_mod is used, its blocks are not. `attn_mask`, in place of mods: a tensor
    that broadcasts to [batch, heads, s_q, s_kv], bool (which keys are seen) or float (added to the scores).

    Raises ShapeError for tensors that do not fit or require gradients, ExpressionError for a mod that branches on
    values or does what is no expression, with the line of it.

        o = neptune.functional.attention(q, k, v, causal=True, softcap=50.0)
        o = neptune.functional.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, j - i + 512])
    """
    if block_mask is not None:
        mask_mod = flex.with_block_mask(mask_mod, block_mask, q, k)
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
