"""`torch.ops.neptune.attention`: the options that are no functions."""

from __future__ import annotations

from functools import cache

import torch

from neptune.functional.given_masks import given_mask
from neptune.functional.mods import Mod, traced
from neptune.functional.operators import operator
from neptune.functional.softmax_attention import Mods, Options, call
from neptune.functional.tensors import refuse

Tensor = torch.Tensor


@operator
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """o, like q; see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa)
    given = given_mask("attention", attn_mask, q, k)
    result: Tensor = call(q, k, v, options, alibi_slopes, sinks, *given)
    return result


@operator
def attention_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse); see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa, lse=True)
    given = given_mask("attention", attn_mask, q, k)
    result: tuple[Tensor, Tensor] = call(q, k, v, options, alibi_slopes, sinks, *given)
    return result


@operator
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's function of this name: softmax(query keyᵀ · scale + attn_mask) value, in one kernel.

    `is_causal` is aligned as torch does, top-left: query i sees the keys j ≤ i (`attention(causal=True)` is aligned
    bottom-right). `attn_mask`: bool (which keys are seen) or float (added to the scores), broadcast to [batch, heads,
    s_q, s_kv]. A row that sees no key is 0. `dropout_p` must be 0.
    """
    name = "scaled_dot_product_attention"
    if dropout_p:
        refuse(name, f"dropout_p={dropout_p}", legal=["0.0"], hint="attention without dropout, as in inference")
    if attn_mask is not None and is_causal:
        refuse(name, "both attn_mask and is_causal were given", hint="one of them")
    options = Options(scale=scale, enable_gqa=enable_gqa)
    mods, captured = (Mods(mask=_top_left()), []) if is_causal else given_mask(name, attn_mask, query, key)
    result: Tensor = call(query, key, value, options, mods=mods, captured=captured)
    return result


@cache
def _top_left() -> Mod:
    return traced(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, "mask_mod")
